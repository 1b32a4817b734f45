package session

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
)

func TestOnlyTheDaemonsUserAndRootAreAdmitted(t *testing.T) {
	l := New(Config{Max: Max})
	for uid, ok := range map[int]bool{os.Geteuid(): true, 0: true, os.Geteuid() + 1: false, 1 << 30: false} {
		self, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			t.Fatal(err)
		}
		sess, code, err := l.admit(nil, wire.Peer{PID: 4711, UID: uid}, &wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, PID: uint32(os.Getpid())}, self)
		if ok {
			if err != nil {
				t.Errorf("uid %d is refused: %v", uid, err)
			} else {
				_ = sess.process.Close()
			}
			continue
		}
		_ = unix.Close(self)
		if err == nil || code != wire.ResultPermission || !strings.Contains(err.Error(), fmt.Sprintf("pid 4711 runs as uid %d", uid)) {
			t.Errorf("uid %d: %s, %v", uid, code, err)
		}
	}
}

func TestTheKindOfADescriptorIsToldBySignalAndByProc(t *testing.T) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(self) }()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if kindOf(self) != pidfdKind || kindOf(int(null.Fd())) != otherKind {
		t.Errorf("a pidfd is %d, another file %d", kindOf(self), kindOf(int(null.Fd())))
	}
	text := func(s string) func() ([]byte, error) { return func() ([]byte, error) { return []byte(s), nil } }
	fdinfo := func(fd int) func() ([]byte, error) {
		return func() ([]byte, error) { return os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd)) }
	}
	missing := func() ([]byte, error) { return nil, os.ErrNotExist }
	for what, c := range map[string]struct {
		signalled error
		fdinfo    func() ([]byte, error)
		kind      descriptorKind
	}{
		"a process of another user":                {unix.EPERM, missing, pidfdKind},
		"a process that has ended":                 {unix.ESRCH, missing, pidfdKind},
		"another file":                             {unix.EBADF, missing, otherKind},
		"a process in another namespace":           {unix.EINVAL, text("pos:\t0\nPid:\t0\n"), pidfdKind},
		"a pidfd, without a signal":                {unix.EINVAL, fdinfo(self), pidfdKind},
		"another file, without a signal":           {unix.EINVAL, fdinfo(int(null.Fd())), otherKind},
		"a kernel that has no such call":           {unix.ENOSYS, fdinfo(self), pidfdKind},
		"another namespace, and there is no /proc": {unix.EINVAL, missing, unknownKind},
	} {
		if kind := judge(c.signalled, c.fdinfo); kind != c.kind {
			t.Errorf("%s: kind %d, want %d", what, kind, c.kind)
		}
	}
}

func TestWhatIsLostWithoutAPidfdIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	l := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for id := range 3 {
		l.unwatched(&Session{id: ID(id)})
	}
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "seen by their lease and their socket alone") {
		t.Errorf("the log: %s", &log)
	}
}
