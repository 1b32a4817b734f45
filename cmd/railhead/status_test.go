package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server"
)

func TestAnAnswerThatIsTooLongIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := net.Listen("unix", server.AdminSocketBeside(filepath.Join(dir, "rh.sock")))
	if err != nil {
		t.Fatal(err)
	}
	daemon := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 64<<20+1))
	})}
	go func() { _ = daemon.Serve(l) }()
	t.Cleanup(func() { _ = daemon.Close() })
	for _, command := range [][]string{{"status"}, {"trace", "dump"}} {
		status, stdout, stderr := railhead(t, []string{"RAILHEAD_SOCKET=" + filepath.Join(dir, "rh.sock")}, command...)
		if status != cli.Failed || stdout != "" || !strings.Contains(stderr, "larger than 64 MiB; ask for less") {
			t.Errorf("%v: status %d, %d bytes on stdout, stderr %q", command, status, len(stdout), stderr)
		}
	}
}

func TestStatusOfAStoppedDaemonSaysThatItIsStopped(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "rh.sock")
	daemon := start(t, nil, "serve", "--socket", socket, "--admin", "127.0.0.1:0")
	await.Until(t, func() string {
		if status, _, stderr := railhead(t, nil, "status", "--socket", socket); status != 0 {
			return stderr
		}
		return ""
	})
	pid := daemon.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await.Until(t, func() string {
		if !wire.ProcessIsStopped(pid) {
			return "the daemon is not stopped yet"
		}
		return ""
	})
	status, _, stderr := railhead(t, nil, "status", "--socket", socket)
	if want := fmt.Sprintf("pid %d is stopped by a signal or a debugger: `kill -CONT %d`", pid, pid); status != cli.Failed || !strings.Contains(stderr, want) {
		t.Errorf("status %d, stderr %q, want %q", status, stderr, want)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := railhead(t, nil, "status", "--socket", socket); status != 0 {
		t.Errorf("after SIGCONT: status %d, stderr %q", status, stderr)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
