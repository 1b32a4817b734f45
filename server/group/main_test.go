package group

import (
	"testing"
	"time"
)

const (
	// patience is how long a test waits for what takes milliseconds on an idle machine.
	patience = 30 * time.Second
	// never is a deadline that no test waits for: what happens before it was not the deadline's doing.
	never = 10 * time.Minute
)

func next[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no news of %s", what)
	}
	panic("not reached")
}

// eventually waits until wrong returns "".
func eventually(t testing.TB, wrong func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		w := wrong()
		if w == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", patience, w)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
