// Package await is for tests only: waiting for what takes milliseconds on an idle machine.
package await

import (
	"context"
	"testing"
	"time"
)

const (
	// Patience is far more than anything takes on a busy machine: reaching it means a hang.
	Patience = 2 * time.Minute
	// Never is a deadline later than the end of any test. What happens before it has another cause.
	Never = 10 * time.Minute
)

// Child is a context for a child process of a test. It ends shortly before the tests' own time limit, so a child that hangs is killed
// while its test can still say so, and a slow machine does not matter before.
func Child(t testing.TB) (context.Context, context.CancelFunc) {
	t.Helper()
	const notice = 20 * time.Second
	if limited, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, ok := limited.Deadline(); ok {
			return context.WithDeadline(context.Background(), end.Add(-notice))
		}
	}
	return context.WithCancel(context.Background())
}

// Until waits until wrong returns "".
func Until(t testing.TB, wrong func() string) {
	t.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(2 * time.Millisecond) {
		w := wrong()
		if w == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", Patience, w)
		}
	}
}

// True waits until f is true.
func True(t testing.TB, what string, f func() bool) {
	t.Helper()
	Until(t, func() string {
		if f() {
			return ""
		}
		return "not yet: " + what
	})
}

// Next receives from a channel.
func Next[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Patience):
		t.Fatalf("after %v: %s did not come", Patience, what)
	}
	panic("not reached")
}
