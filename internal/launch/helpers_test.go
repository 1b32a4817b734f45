package launch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is far beyond what anything here takes on a busy machine: reaching it means a hang.
const patience = 60 * time.Second

const modeVar = "LAUNCH_TEST_MODE"

// TestMain lets this binary also be the process between a test and its ranks.
func TestMain(m *testing.M) {
	if os.Getenv(modeVar) == "parent" {
		_, err := Run(context.Background(), Spec{N: 3, Argv: sh(`echo $$; exec sleep 600`), Stdout: os.Stdout, Stderr: os.Stderr})
		fmt.Fprintln(os.Stderr, "run returned:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// sink keeps what is written, checks that every Write is one whole line, and can wait for a line.
type sink struct {
	t       *testing.T
	mu      sync.Mutex
	writing bool // a Write is under way
	buf     bytes.Buffer
	lines   chan string // each line as it comes, without its newline
}

func newSink(t *testing.T) *sink { return &sink{t: t, lines: make(chan string, 1<<16)} }

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	overlap := s.writing
	s.writing = true
	s.mu.Unlock()
	time.Sleep(time.Microsecond) // lets another Write in, if there is one
	if overlap {
		s.t.Error("two Writes at once")
	}
	if bytes.IndexByte(p, '\n') != len(p)-1 {
		s.t.Errorf("a Write that is not one line: %.80q", p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	s.buf.Write(p)
	s.lines <- strings.TrimSuffix(string(p), "\n")
	return len(p), nil
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// waitFor waits until n lines equal to want have come.
func (s *sink) waitFor(want string, n int) {
	timeout := time.After(patience)
	for n > 0 {
		select {
		case line := <-s.lines:
			if line == want {
				n--
			}
		case <-timeout:
			s.t.Errorf("%d lines %q missing", n, want)
			return
		}
	}
}

// run is Run with an end: a hang fails the test instead of the whole package.
func run(t *testing.T, ctx context.Context, spec Spec) (Result, error) {
	t.Helper()
	type answer struct {
		result Result
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		result, err := Run(ctx, spec)
		done <- answer{result, err}
	}()
	select {
	case a := <-done:
		return a.result, a.err
	case <-time.After(patience):
		t.Fatalf("Run hangs")
		return Result{}, nil
	}
}

// mustRun is run for a case that is a result and not an error.
func mustRun(t *testing.T, spec Spec) Result {
	t.Helper()
	result, err := run(t, context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Exits) != spec.N {
		t.Fatalf("%d exits of %d ranks", len(result.Exits), spec.N)
	}
	return result
}
