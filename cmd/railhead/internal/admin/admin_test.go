package admin

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"railhead/cmd/railhead/internal/cli"
)

func TestNoAnswerSaysWhyAndWhatToDo(t *testing.T) {
	dial := func(errno syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", errno)}
	}
	for _, c := range []struct {
		err    error
		status int
		words  string
	}{
		{dial(syscall.EACCES), cli.Failed, "run this as the daemon's user or as root"},
		{dial(syscall.ENOENT), cli.NoDaemon, "start `railhead serve`, or set RAILHEAD_SOCKET"},
		{dial(syscall.ECONNREFUSED), cli.NoDaemon, "start `railhead serve`, or set RAILHEAD_SOCKET"},
		{stoppedError(7), cli.Failed, "pid 7 is stopped by a signal or a debugger: `kill -CONT 7`"},
		{context.DeadlineExceeded, cli.Failed, "has not answered within 5s: it hangs"},
	} {
		err := noAnswer("status", "/s/admin.sock", c.err)
		e := (*cli.Error)(nil)
		if !errors.As(err, &e) || e.Status != c.status || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), "/s/admin.sock") {
			t.Errorf("%v: got %v, want status %d and %q", c.err, err, c.status, c.words)
		}
	}
}

func TestAPathThatIsTooLongIsSaid(t *testing.T) {
	_, err := Get(t.Context(), "status", "/"+strings.Repeat("d", 110)+"/rh.sock", "/v1/groups")
	e := (*cli.Error)(nil)
	if !errors.As(err, &e) || e.Status != cli.Failed || !strings.Contains(err.Error(), "socket path of 122 bytes, at most 107 fit") {
		t.Errorf("got %v", err)
	}
}

func TestTheReasonOfARefusalIsASentence(t *testing.T) {
	for answer, want := range map[string]string{
		`{"error": {"code": "forbidden", "message": "no", "hint": "ask root"}}`: "no; ask root",
		"accept: draining\n": "accept: draining",
		"{}":                 "{}",
	} {
		if got := reasonOf([]byte(answer)); got != want {
			t.Errorf("%s: %q, want %q", answer, got, want)
		}
	}
}
