package launch

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"
)

// reapTimeout bounds the wait after SIGKILL (see errNotEnded).
const reapTimeout = 10 * time.Second

// started is a running rank: its process id, and what the supervisor needs of its *os.Process.
type started struct {
	pid     int
	process interface{ Signal(os.Signal) error }
}

// supervisor decides when to end which ranks. It has no other I/O, so that tests can simulate every case.
type supervisor struct {
	ranks []started
	exits <-chan Exit
	grace time.Duration // from SIGTERM to SIGKILL
	reap  time.Duration // from SIGKILL to giving up
}

// run waits until all ranks have ended, or have not ended after SIGKILL (Result.lost). Its error is that of ctx.
func (s supervisor) run(ctx context.Context) (Result, error) {
	r := Result{Exits: make([]Exit, len(s.ranks)), FirstFailed: -1}
	live := map[int]started{}
	for rank, p := range s.ranks {
		live[rank] = p
		r.Exits[rank] = Exit{Rank: rank, PID: p.pid, Code: -1, Err: errNotEnded} // until its exit arrives
	}
	var (
		stopping  bool // SIGTERM was sent
		killed    bool // SIGKILL was sent
		cancelled error
		killAt    <-chan time.Time // both nil, and so never ready, until SIGTERM is sent
		giveUpAt  <-chan time.Time
		done      = ctx.Done()
	)
	for len(live) > 0 {
		stop := false
		select {
		case e := <-s.exits:
			delete(live, e.Rank)
			e.Stopped = stopping
			e.Foreign = e.Signal != 0 && !(stopping && e.Signal == syscall.SIGTERM) && !(killed && e.Signal == syscall.SIGKILL)
			r.Exits[e.Rank] = e
			if e.Failed() && (r.FirstFailed < 0 || e.Foreign && !r.Exits[r.FirstFailed].Foreign) {
				r.FirstFailed = e.Rank
				stop = true
			}
		case <-done:
			cancelled = fmt.Errorf("ranks ended early: %w", context.Cause(ctx))
			done = nil
			stop = true
		case <-killAt:
			killed = true
			signalAll(live, syscall.SIGKILL)
			giveUpAt = time.After(s.reap)
		case <-giveUpAt:
			if r.FirstFailed < 0 {
				r.FirstFailed = slices.Min(slices.Collect(maps.Keys(live)))
			}
			return r, cancelled
		}
		if stop && !stopping {
			stopping = true
			signalAll(live, syscall.SIGTERM)
			killAt = time.After(s.grace)
		}
	}
	return r, cancelled
}

// signalAll ignores errors: the only possible one is that a process has ended, and its exit arrives anyway.
func signalAll(live map[int]started, sig os.Signal) {
	for _, p := range live {
		_ = p.process.Signal(sig)
	}
}
