package hostile

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/wire"
)

// crowded returns a listener whose backlog is full.
func crowded(t *testing.T) (path string, listener *net.UnixListener) {
	t.Helper()
	path = t.TempDir() + "/crowded.sock"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), path)
	l, err := net.FileListener(file)
	_ = file.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(c) })
		if err := unix.Connect(c, &unix.SockaddrUnix{Name: path}); errors.Is(err, unix.EAGAIN) {
			return path, l.(*net.UnixListener)
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestConnectRetriesWhileTheBacklogIsFull(t *testing.T) {
	path, listener := crowded(t)
	_, err := client.Connect(path, 100*time.Millisecond)
	wantError(t, err, wire.ResultLimit, "connect", "too many connections waiting")

	done := make(chan error, 1)
	go func() {
		session, err := client.Connect(path, patience)
		if err == nil {
			err = session.Close()
		}
		done <- err
	}()
	time.Sleep(50 * time.Millisecond) // for the first attempt to fail, most likely
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			f := &fake{t: t, conn: conn}
			go func() { f.serve(); _ = conn.Close() }()
		}
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
