package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair is a connected socket pair, as raw net connections.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	wrap := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "pair")
		defer func() { _ = f.Close() }()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		return c.(*net.UnixConn)
	}
	return wrap(fds[0]), wrap(fds[1])
}

func openFDs(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func TestAMessageArrivesWithItsDescriptor(t *testing.T) {
	a, b := pair(t)
	f, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteString("seen"); err != nil {
		t.Fatal(err)
	}
	if err := NewConn(a).Send(&Heap{Group: 1, Local: 2}, VersionMax, 9, int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	m, fd, err := NewConn(b).Recv()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if h, ok := m.(*Heap); !ok || h.Local != 2 || RequestOf(m) != 9 {
		t.Fatalf("got %+v", m)
	}
	got := make([]byte, 4)
	if _, err := unix.Pread(fd, got, 0); err != nil || string(got) != "seen" {
		t.Fatalf("the descriptor reads %q, %v", got, err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the descriptor would survive an exec (flags %#x, %v)", flags, err)
	}
}

func TestSendRefusesAMissingOrNeedlessDescriptor(t *testing.T) {
	a, _ := pair(t)
	if err := NewConn(a).Send(&Heap{}, VersionMax, 1, -1); err == nil {
		t.Error("a Heap without its descriptor was sent")
	}
	if err := NewConn(a).Send(&Left{}, VersionMax, 1, 0); err == nil {
		t.Error("a Left with a descriptor was sent")
	}
}

func TestUnexpectedDescriptorsAreClosed(t *testing.T) {
	valid, err := Encode(&Left{Group: 1}, VersionMax, 1)
	if err != nil {
		t.Fatal(err)
	}
	heap, err := Encode(&Heap{Group: 1}, VersionMax, 1)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		bytes []byte
		fds   int
	}{
		"descriptor with a message that has none": {valid, 1},
		"two descriptors, one expected":           {heap, 2},
		"more descriptors than can be read":       {heap, 9},
		"descriptor with nonsense":                {[]byte("nonsense"), 1},
		"no descriptor, one expected":             {heap, 0},
		"a message that is too large":             {make([]byte, MaxMessage+1), 1},
	}
	for what, c := range cases {
		a, b := pair(t)
		var fds []int
		for range c.fds {
			fds = append(fds, 0)
		}
		before := openFDs(t)
		if _, _, err := a.WriteMsgUnix(c.bytes, unix.UnixRights(fds...), nil); err != nil {
			t.Fatal(err)
		}
		var pe *ProtocolError
		if _, _, err := NewConn(b).Recv(); !errors.As(err, &pe) {
			t.Errorf("%s: %v, expected a ProtocolError", what, err)
		}
		if after := openFDs(t); after != before {
			t.Errorf("%s: %d descriptors open, %d before", what, after, before)
		}
	}
}

func TestAClosedPeerReadsAsEOF(t *testing.T) {
	a, b := pair(t)
	_ = a.Close()
	if _, _, err := NewConn(b).Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

func TestPeerCredentialsComeFromTheKernel(t *testing.T) {
	a, _ := pair(t)
	p, err := NewConn(a).Peer()
	if err != nil || p.PID != os.Getpid() || p.UID != os.Getuid() {
		t.Fatalf("got %+v, %v", p, err)
	}
	if err := p.Allowed(); err != nil {
		t.Error(err)
	}
	if err := (Peer{PID: 1, UID: os.Geteuid() + 1}).Allowed(); err == nil {
		t.Error("another user was let in")
	}
}

// A user namespace that maps nobody shows this process and every stranger as one uid.
func TestAUserWhomNoNamespaceMapsIsNotAdmitted(t *testing.T) {
	const inside = "RAILHEAD_TEST_UNMAPPED"
	if os.Getenv(inside) == "1" {
		if err := (Peer{PID: 1, UID: os.Geteuid()}).Allowed(); err == nil || !strings.Contains(err.Error(), "may be any user") {
			t.Errorf("uid %d: %v", os.Geteuid(), err)
		}
		return
	}
	run := func(test string) ([]byte, error) {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		return cmd.CombinedOutput()
	}
	if out, err := run("none"); err != nil {
		if os.Getenv("RAILHEAD_REQUIRE_NAMESPACES") == "1" {
			t.Fatalf("no process can be started in a new user namespace: %v: %s", err, out)
		}
		t.Skipf("no process can be started in a new user namespace: %v", err)
	}
	if out, err := run(t.Name()); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// withFreeDescriptors runs f while this process can open at most n files, 0 or 1.
func withFreeDescriptors(t *testing.T, n uint64, f func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	lowest, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(lowest)
	full := limit
	full.Cur = uint64(lowest) + n
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &full); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	f()
}

func TestADescriptorThatThereIsNoRoomForIsNotTheSendersFault(t *testing.T) {
	a, b := pair(t)
	hello := &Hello{VersionMin: VersionMin, VersionMax: VersionMax}
	if err := NewConn(a).Send(hello, VersionMax, 0, 0); err != nil {
		t.Fatal(err)
	}
	withFreeDescriptors(t, 0, func() {
		_, _, err := NewConn(b).Recv()
		if broken := (*ProtocolError)(nil); !errors.Is(err, ErrNoDescriptors) || errors.As(err, &broken) {
			t.Errorf("got %v", err)
		}
		if text := WithCure(err).Error(); !strings.Contains(text, "too many open files; raise the daemon's `ulimit -n`") {
			t.Errorf("it says %q", text)
		}
	})
}

func TestDescriptorsThatDidFitAreClosedWhenOthersDoNot(t *testing.T) {
	a, b := pair(t)
	hello, err := Encode(&Hello{VersionMin: VersionMin, VersionMax: VersionMax}, VersionMax, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.WriteMsgUnix(hello, unix.UnixRights(0, 0), nil); err != nil {
		t.Fatal(err)
	}
	before := openFDs(t)
	withFreeDescriptors(t, 1, func() {
		if _, _, err := NewConn(b).Recv(); !errors.Is(err, ErrNoDescriptors) {
			t.Errorf("got %v", err)
		}
	})
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}
