package killrounds

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The deadlines of rounds are short, so that rounds are. On a busy machine a rank that only waits for a processor may reach such a deadline,
// or report a death late. So a round that fails by time is played again with longer deadlines, if its processes have waited long for a
// processor. A round with other errors, or on an idle machine, fails at once.

// timeError is an error of a round that may come of a deadline which was too short for a busy machine.
type timeError struct{ error }

func (e timeError) Unwrap() error { return e.error }

// mostSlow bounds how many times as long deadlines become.
const mostSlow = 32

// playPatiently calls play, which plays a round whose deadlines are slow times as long, and returns how long its processes waited for a
// processor.
func playPatiently(t *testing.T, play func(slow int) (waited time.Duration, err error)) error {
	for slow := 1; ; slow *= 2 {
		waited, err := play(slow)
		var late timeError
		if !errors.As(err, &late) || slow == mostSlow || waited < time.Duration(slow)*stopDeadline/2 {
			return err
		}
		t.Logf("played again with deadlines %d times as long, because its processes waited %v for a processor: %v", 2*slow, waited, err)
	}
}

// waitedForProcessor is how long the threads of a process have been ready to run, but did not. The kernel writes for each thread in its
// schedstat: ns on a processor, ns of waiting for one, number of time slices. The sum is 0 after the process's end.
func waitedForProcessor(pid int) (total time.Duration) {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		panic(err) // the pattern is valid
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		var ran, waited int64
		if _, err := fmt.Sscan(string(text), &ran, &waited); err == nil {
			total += time.Duration(waited)
		}
	}
	return total
}

func TestARoundIsPlayedAgainOnlyForTimeErrorsOfStarvedProcesses(t *testing.T) {
	late, wrong := timeError{errors.New("late")}, errors.New("wrong sum")
	for _, c := range []struct {
		err    error
		waited time.Duration
		plays  int
	}{
		{nil, time.Minute, 1},
		{wrong, time.Minute, 1},
		{late, stopDeadline / 4, 1},
		{fmt.Errorf("rank 1: %w", late), stopDeadline, 3}, // the third time, that is little beside the deadlines
		{late, time.Hour, 6},
	} {
		plays := 0
		err := playPatiently(t, func(int) (time.Duration, error) {
			plays++
			return c.waited, c.err
		})
		if !errors.Is(err, c.err) || plays != c.plays {
			t.Errorf("%v after %v: played %d times, want %d; %v", c.err, c.waited, plays, c.plays, err)
		}
	}
}

func TestATimeOfWaitingForAProcessorIsMeasured(t *testing.T) {
	if waitedForProcessor(os.Getpid()) <= 0 {
		t.Error("this process has never waited for a processor")
	}
}
