package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/internal/wire"
)

// stranger is a user that is neither root nor, most likely, the one who runs the tests.
const stranger = 65534

// This needs root. Without it, TestOnlyTheDaemonsUserAndRootAreAdmitted of package session tests the rule alone.
func TestAProcessOfAnotherUserIsRefusedByTheSocketAndByTheDaemon(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("not root: no process of another user can be started")
		return
	}
	dir := shortDir(t)
	s := startConfig(t, Config{SocketPath: dir + "/d/rh.sock"})
	allow(t, dir, 0o755)
	p := startChildAs(t, copyOfThisBinary(t, dir), asStranger)

	connect := order{Do: "connect", Socket: s.SocketPath()}
	refused := func(what string, words ...string) {
		t.Helper()
		p.tell(connect)
		wantError(t, what, p.answer().error(), wire.ResultPermission, words...)
	}
	refused("a directory of mode 0700", "no access", "run as the daemon's user")
	allow(t, dir+"/d", 0o755)
	refused("a socket of mode 0600", "no access", "run as the daemon's user")
	before := metric(t, s, "railhead_handshake_errors_total")
	allow(t, s.SocketPath(), 0o666)
	refused("a socket for everybody", fmt.Sprintf("runs as uid %d", stranger), "serves uid 0 and root only")
	await.Until(t, func() string {
		if n := metric(t, s, "railhead_handshake_errors_total"); n != before+1 {
			return fmt.Sprintf("%v handshake errors are counted, want 1 more than %v", n, before)
		}
		return ""
	})
	allow(t, s.AdminSocket(), 0o666)
	for _, path := range []string{"/livez", "/v1/groups"} {
		a := p.must(order{Do: "admin", Socket: s.AdminSocket(), Path: path})
		if a.Value != http.StatusForbidden || !strings.Contains(a.Message, fmt.Sprintf("runs as uid %d", stranger)) {
			t.Errorf("%s of the admin socket: status %d: %s", path, a.Value, a.Message)
		}
	}
	stillServes(t, s)
}

// A socket that is bound with the umask's mode, and gets another one later, is open to strangers in between.
func TestSocketsAreForTheirUserFromTheStart(t *testing.T) {
	dir := shortDir(t)
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(watch) }()
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	startChild(t).must(order{Do: "serve", Socket: dir + "/rh.sock", OpenUmask: true})
	for _, name := range []string{"rh.sock", "admin.sock"} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the attributes of a file have been changed after its creation: %d bytes of events, %v", n, err)
	}
}

func allow(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func asStranger(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger, NoSetGroups: true}}
}

// The kernel bounds a user's descriptors in flight by RLIMIT_NOFILE, except root's. So a daemon of another user, with a low limit, forms a
// group whose messages carry more descriptors than that.
func TestADaemonWithFewDescriptorsFormsAGroupOfSlowReaders(t *testing.T) {
	dir := shortDir(t)
	program := "/proc/self/exe"
	change := func(*exec.Cmd) {}
	if os.Geteuid() == 0 {
		allow(t, dir, 0o777)
		program, change = copyOfThisBinary(t, dir), asStranger
	}
	const world, limit = 16, 128
	daemon := startChildAs(t, program, change)
	socket := dir + "/rh.sock"
	daemon.must(order{Do: "serve", Socket: socket, MaxFiles: limit})

	ranks := make([]*rawClient, world)
	for i := range ranks {
		ranks[i] = dialRaw(t, socket)
		ranks[i].hello()
		ranks[i].join("large", i, world)
	}
	// Nobody reads until the limit of descriptors in flight is reached.
	await.Until(t, func() string {
		waiting := 0
		for _, r := range ranks {
			waiting += unread(t, r)
		}
		if most := limit * binary.Size(wire.Heap{}); waiting < most {
			return fmt.Sprintf("%d bytes wait for the readers, want %d", waiting, most)
		}
		return ""
	})
	var wg sync.WaitGroup
	for _, r := range ranks {
		wg.Go(func() {
			m, fd, err := r.receive()
			for n := 0; err == nil && n < world; n++ {
				_ = unix.Close(fd)
				m, fd, err = r.receive()
			}
			if _, ok := m.(*wire.Heap); !ok || err != nil {
				t.Errorf("got %T, %v; want the last Heap", m, err)
			}
			_ = unix.Close(fd)
		})
	}
	wg.Wait()
	for _, r := range ranks {
		r.close()
	}
	again := dialRaw(t, socket)
	again.hello()
	again.sync()
}

// unread is the number of bytes that wait in a client's socket.
func unread(t *testing.T, r *rawClient) (n int) {
	t.Helper()
	raw, err := r.unix.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { n, failed = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return n
}
