package group

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
)

// fakeCore has no sessions. It is asked for one when a message is about to be sent, and notes what a daemon that took over in that
// moment would read in the ledger.
type fakeCore struct {
	t      *testing.T
	groups *Groups
	sends  []string
	posted chan func()
}

func (c *fakeCore) Post(f func())              { c.posted <- f }
func (c *fakeCore) Overrun(s *session.Session) {}

func (c *fakeCore) Session(id session.ID) *session.Session {
	m := c.groups.memory[1]
	if m == nil || m.ended == 0 {
		c.sends = append(c.sends, fmt.Sprintf("s%d: nothing has ended", id))
		return nil
	}
	r := readBack(c.t, bytes.Clone(m.mapping.Bytes(0, wire.ControlBytes(m.world))))
	c.sends = append(c.sends, fmt.Sprintf("s%d: %d ended, windows %v, finalized %v", id, m.ended, r.Windows, r.Finalized))
	return nil
}

// newFakeCore returns a core with Groups whose first group is 1.
func newFakeCore(t *testing.T) *fakeCore {
	t.Helper()
	core := &fakeCore{t: t, posted: make(chan func(), 8)}
	g, err := New(Config{Core: core, Observer: unobserved{}, Log: noLog, TuneDir: t.TempDir(), Started: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	config := machineConfig(time.Now())
	config.FirstGroup = 1
	if g.machine, err = membership.New(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(); g.Wait() })
	core.groups = g
	return core
}

// join makes session s rank s-1 of a group of two ranks.
func join(t *testing.T, g *Groups, s membership.SessionID) []membership.Action {
	t.Helper()
	name, err := wire.MakeName("g")
	if err != nil {
		t.Fatal(err)
	}
	return g.machine.Join(time.Now(), s, 1, 1, &wire.Join{
		Group: name, Common: wire.Common{World: 2, Nodes: 1, HeapBytes: 1 << 20},
		Own: wire.Own{Place: wire.OneNode(int(s)-1, 2), TimeoutMS: 60_000},
	})
}

// unobserved counts nothing.
type unobserved struct{}

func (unobserved) GroupFormed(time.Duration) {}
func (unobserved) GroupEnded(wire.Result)    {}
func (unobserved) GroupAdopted()             {}
func (unobserved) RankReannounced()          {}
func (unobserved) LeaseDied()                {}
func (unobserved) ErrorSent(wire.Result)     {}

// When a rank is sent the outcome of a set-up call, a daemon that takes over at that moment finds the outcome in the ledger.
func TestNoAnswerIsSentBeforeTheLedgerHasTheOutcome(t *testing.T) {
	core := newFakeCore(t)
	g := core.groups
	now := time.Now()
	at := ScratchBytes()
	step := func(what string, want string, actions func(membership.SessionID) []membership.Action) {
		t.Helper()
		core.sends = nil
		for s := membership.SessionID(1); s <= 2; s++ {
			g.do(actions(s))
		}
		if sends := slices.Compact(core.sends); !slices.Equal(sends, []string{"s1: " + want, "s2: " + want}) {
			t.Errorf("%s: answers were sent at %q, want %q", what, sends, want)
		}
	}
	step("join", "nothing has ended", func(s membership.SessionID) []membership.Action { return join(t, g, s) })
	step("attached", "1 ended, windows [], finalized false", func(s membership.SessionID) []membership.Action {
		return g.machine.Attached(now, s, 1, &wire.Attached{Group: 1})
	})
	windows := fmt.Sprintf("[{%d 65536}]", at)
	g.do(g.machine.WindowAlloc(now, 1, 2, &wire.WindowAlloc{Group: 1, Bytes: 1, Memory: wire.MemoryCPU}))
	g.do(g.machine.WindowAlloc(now, 2, 2, &wire.WindowAlloc{Group: 1, Bytes: 1, Memory: wire.MemoryCPU}))
	step("window_alloc", "2 ended, windows "+windows+", finalized false", func(s membership.SessionID) []membership.Action {
		return g.machine.WindowCommitted(s, 2, &wire.WindowCommitted{Group: 1, Offset: at, Memory: wire.MemoryCPU}, 0)
	})
	core.sends = nil
	for s := membership.SessionID(1); s <= 2; s++ {
		g.do(g.machine.WindowFree(now, s, 3, &wire.WindowFree{Group: 1, Offset: at, Memory: wire.MemoryCPU}))
	}
	if len(core.sends) != 0 {
		t.Errorf("window_free: the pages are still there, and answers were sent at %q", core.sends)
	}
	await.Next(t, "the punch", core.posted)()
	want := "3 ended, windows [], finalized false"
	if !slices.Equal(core.sends, []string{"s1: " + want, "s2: " + want}) {
		t.Errorf("window_free: the answers were sent at %q, want %q", core.sends, want)
	}
	step("finalize", "4 ended, windows [], finalized true", func(s membership.SessionID) []membership.Action {
		return g.machine.Leave(now, s, 4, &wire.Leave{Group: 1})
	})
}
