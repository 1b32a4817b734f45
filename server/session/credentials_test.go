package session

import (
	"fmt"
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
		if err == nil || code != wire.ResultPermission || !strings.Contains(err.Error(), fmt.Sprintf("process 4711 runs as uid %d", uid)) {
			t.Errorf("uid %d: %s, %v", uid, code, err)
		}
	}
}

func TestWhetherADescriptorIsAPidfdHasThreeAnswers(t *testing.T) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(self) }()
	other, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	for what, c := range map[string]struct {
		signalled error
		is, known bool
	}{
		"a pidfd":                        {unix.PidfdSendSignal(self, 0, nil, 0), true, true},
		"another file":                   {unix.PidfdSendSignal(int(other.Fd()), 0, nil, 0), false, true},
		"a process of another user":      {unix.EPERM, true, true},
		"a process that has ended":       {unix.ESRCH, true, true},
		"a kernel that has no such call": {unix.ENOSYS, false, false},
	} {
		if is, err := isPidfd(c.signalled); is != c.is || (err == nil) != c.known {
			t.Errorf("%s (%v): %v, %v", what, c.signalled, is, err)
		}
	}
}
