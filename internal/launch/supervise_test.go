package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// fakeRank is a process in a bubble of fake time. It records the signals that it is sent, and dies of those in diesOf.
type fakeRank struct {
	rank   int
	start  time.Time
	got    *[]string
	diesOf map[os.Signal]bool
	exits  chan Exit
}

func (f fakeRank) Signal(sig os.Signal) error {
	*f.got = append(*f.got, fmt.Sprintf("%v %v", time.Since(f.start), sig))
	if f.diesOf[sig] {
		f.exits <- Exit{Rank: f.rank, PID: 100 + f.rank, Code: -1, Signal: sig.(syscall.Signal)}
	}
	return nil
}

// play runs a supervisor over ranks that die of the given signals. It returns what each rank was sent and when.
func play(diesOf []map[os.Signal]bool, ctx context.Context, events func(exits chan<- Exit)) (Result, [][]string, error) {
	exits := make(chan Exit, len(diesOf))
	got := make([][]string, len(diesOf))
	s := supervisor{exits: exits, grace: 5 * time.Second, reap: 10 * time.Second}
	for rank, d := range diesOf {
		s.ranks = append(s.ranks, started{pid: 100 + rank, process: fakeRank{rank, time.Now(), &got[rank], d, exits}})
	}
	go events(exits)
	r, err := s.run(ctx)
	return r, got, err
}

var (
	polite   = map[os.Signal]bool{syscall.SIGTERM: true, syscall.SIGKILL: true}
	stubborn = map[os.Signal]bool{syscall.SIGKILL: true}
	stuck    = map[os.Signal]bool{}
)

func TestTheRestGetSIGTERMAtOnceAndSIGKILLAfterGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, got, err := play([]map[os.Signal]bool{polite, polite, stubborn, polite}, t.Context(), func(exits chan<- Exit) {
			time.Sleep(2 * time.Second)
			exits <- Exit{Rank: 3, PID: 103, Code: 0} // exit status 0 does not end the others
			time.Sleep(1 * time.Second)
			exits <- Exit{Rank: 1, PID: 101, Code: 9}
		})
		want := "[[3s terminated] [] [3s terminated 8s killed] []]"
		if s := fmt.Sprint(got); s != want || err != nil {
			t.Errorf("sent %v, want %v; %v", s, want, err)
		}
		if r.FirstFailed != 1 || r.ExitStatus() != 9 || r.lost() != nil {
			t.Errorf("%+v", r)
		}
		if r.Exits[1].Stopped || r.Exits[3].Stopped || !r.Exits[0].Stopped || !r.Exits[2].Stopped {
			t.Errorf("wrong ranks are marked as stopped: %+v", r.Exits)
		}
	})
}

func TestARankKilledFromOutsideIsTheCauseAlthoughAPeerThatNoticedExitsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, err := play([]map[os.Signal]bool{stubborn, stubborn, polite}, t.Context(), func(exits chan<- Exit) {
			exits <- Exit{Rank: 0, PID: 100, Code: 1}
			exits <- Exit{Rank: 1, PID: 101, Code: -1, Signal: syscall.SIGKILL}
		})
		if err != nil || r.FirstFailed != 1 || r.ExitStatus() != 128+9 || !r.Exits[1].Foreign || r.Exits[2].Foreign {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestARankThatRunItselfKilledIsNotTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, err := play([]map[os.Signal]bool{polite, stubborn}, t.Context(), func(exits chan<- Exit) {
			exits <- Exit{Rank: 0, PID: 100, Code: 7}
		})
		if err != nil || r.FirstFailed != 0 || r.ExitStatus() != 7 || r.Exits[1].Foreign {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestEndOfContextEndsAllRanksInTheSameWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("interrupt")
		ctx, cancel := context.WithCancelCause(t.Context())
		r, got, err := play([]map[os.Signal]bool{stubborn, polite}, ctx, func(chan<- Exit) {
			time.Sleep(time.Second)
			cancel(cause)
		})
		want := "[[1s terminated 6s killed] [1s terminated]]"
		if s := fmt.Sprint(got); s != want || !errors.Is(err, cause) {
			t.Errorf("sent %v, want %v; %v", s, want, err)
		}
		if r.FirstFailed != 1 || r.ExitStatus() != 128+15 || r.lost() != nil {
			t.Errorf("%+v", r)
		}
	})
}

func TestRankThatEvenSIGKILLCannotEndIsGivenUpAndNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		r, _, err := play([]map[os.Signal]bool{polite, polite, stuck}, t.Context(), func(exits chan<- Exit) {
			exits <- Exit{Rank: 0, PID: 100, Code: 3}
		})
		if d := time.Since(begin); d != 15*time.Second {
			t.Errorf("given up after %v, want 15s", d)
		}
		if err != nil || r.ExitStatus() != 3 || r.Exits[2].Status() != 1 || !r.Exits[2].Failed() {
			t.Errorf("%+v, %v", r, err)
		}
		if lost := r.lost(); lost == nil || !strings.Contains(lost.Error(), "rank 2 (pid 102) did not end after SIGKILL") ||
			strings.Contains(lost.Error(), "rank 1") {
			t.Errorf("lost: %v", lost)
		}
	})
}

func TestRunWithALostRankNeverSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, _, _ := play([]map[os.Signal]bool{stuck, stuck, stuck}, ctx, func(exits chan<- Exit) {
			exits <- Exit{Rank: 0, PID: 100, Code: 0}
			time.Sleep(time.Second)
			cancel()
		})
		if r.FirstFailed != 1 || r.ExitStatus() != 1 {
			t.Errorf("%+v", r)
		}
	})
}

func TestExitStatusesAreThoseOfAShell(t *testing.T) {
	for _, c := range []struct {
		exit   Exit
		status int
		failed bool
		text   string
	}{
		{Exit{Code: 0}, 0, false, "exit status 0"},
		{Exit{Code: 3}, 3, true, "exit status 3"},
		{Exit{Code: -1, Signal: syscall.SIGKILL}, 137, true, "signal 9 (killed)"},
		{Exit{Code: -1, Signal: syscall.SIGTERM}, 143, true, "signal 15 (terminated)"},
		{Exit{Code: -1, Err: errNotEnded}, 1, true, "did not end after SIGKILL"},
		{exitOf(0, 7, nil, syscall.ECHILD), 1, true, "its exit status could not be read: no child processes"},
	} {
		if c.exit.Status() != c.status || c.exit.Failed() != c.failed || c.exit.String() != c.text {
			t.Errorf("%#v: status %d, failed %v, %q", c.exit, c.exit.Status(), c.exit.Failed(), c.exit)
		}
	}
	if (Result{FirstFailed: -1}).ExitStatus() != 0 || (Result{}).ExitStatus() != 0 {
		t.Error("a run without failure has a status")
	}
}
