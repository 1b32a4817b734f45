package membership

import (
	"fmt"
	"math/bits"
	"time"

	"railhead/internal/wire"
)

// SessionEnded: the session's socket closed or its process ended; how says which was seen first.
func (m *Machine) SessionEnded(s SessionID, how string) []Action {
	for _, g := range m.sortedGroups() {
		if rank, ok := m.bySession[s][g.id]; ok {
			m.memberDied(g, rank, how)
		}
	}
	return m.take()
}

// LeaseLost: the kernel has marked the rank's lease: its process is ending. finalizing is what it said of itself last.
func (m *Machine) LeaseLost(id GroupID, rank int, finalizing bool) []Action {
	g := m.groups[id]
	switch {
	case g == nil || rank >= len(g.members):
	case g.members[rank].away && finalizing:
		m.finalizedAway(g, rank)
	case g.members[rank].session != 0 || g.members[rank].away:
		m.memberDied(g, rank, "lease")
	}
	return m.take()
}

// memberDied takes a dead rank out of its group. What that means depends on what the group was doing.
func (m *Machine) memberDied(g *group, rank int, how string) {
	pid := g.members[rank].pid
	finalized := g.pending != nil && g.pending.op == wire.OpFinalize && g.pending.arrived>>rank&1 != 0
	m.leave(g, rank)
	g.members[rank].away = false
	switch {
	case g.state == Forming || g.state == Attaching:
		abort := wire.Abort{Code: wire.ResultRankDead, Op: wire.OpCommInit, Culprit: rank, Reporter: -1}
		if g.hasMemory {
			m.do(Poison{Group: g.id, Abort: abort})
		}
		m.failForming(g, refuse(wire.ResultRankDead, rank,
			"comm_init of group %q: rank %d (pid %d) died or closed its session (%s) while the group formed; start all ranks again",
			g.name, rank, pid, how))
	case g.state == Ready && finalized:
		// It had said that it was done, counts as arrived, and needs no answer.
	case g.state == Ready:
		m.breakGroup(g, wire.Abort{Code: wire.ResultRankDead, Culprit: rank, Reporter: -1},
			fmt.Sprintf("rank %d (pid %d) died or closed its session (%s)", rank, pid, how))
	default:
		m.freeIfEmpty(g)
	}
}

// Poisoned: the group's abort word was set by one of its ranks. Any of them can write anything there.
func (m *Machine) Poisoned(id GroupID, a wire.Abort) []Action {
	g := m.groups[id]
	if g == nil || !g.hasMemory || g.state == Broken {
		return nil
	}
	if a.Code == wire.ResultRankDead && a.Reporter < 0 {
		return nil // the daemon's own word; LeaseLost tells of the death, which may mean nothing (a rank that has finalized)
	}
	a, text := g.reported(a)
	if g.state == Attaching {
		m.failForming(g, refuse(a.Code, a.Culprit, "comm_init of group %q: %s while the group formed; start all ranks again",
			g.name, text))
		return m.take()
	}
	m.breakGroup(g, a, text)
	return m.take()
}

// reported makes of an abort word what an Error message can carry, and a sentence.
func (g *group) reported(a wire.Abort) (wire.Abort, string) {
	if a.Culprit >= len(g.members) {
		a.Culprit = -1
	}
	if a.Reporter >= len(g.members) {
		a.Reporter = -1
	}
	culprit, reporter := g.who(a.Culprit), nameOf(a.Reporter)
	switch a.Code {
	case wire.ResultTimeout:
		return a, fmt.Sprintf("%s did not arrive in %s before the deadline, as %s found", culprit, a.Op, reporter)
	case wire.ResultAborted:
		return a, nameOf(a.Culprit) + " called rh_comm_abort"
	case wire.ResultRankDead:
		return a, culprit + " died or closed its session"
	case wire.ResultMismatch:
		return a, culprit + " made another call than the other ranks"
	}
	text := fmt.Sprintf("%s wrote %q into the abort word, which is no cause that a rank can give", reporter, a.Code)
	a.Code = wire.ResultProtocol
	return a, text
}

func (g *group) who(rank int) string {
	if rank < 0 {
		return nameOf(rank)
	}
	return fmt.Sprintf("rank %d (pid %d)", rank, g.members[rank].pid)
}

func nameOf(rank int) string {
	if rank < 0 {
		return "an unknown rank"
	}
	return fmt.Sprintf("rank %d", rank)
}

// breakGroup ends a working group. Its name is free at once; its memory stays in quarantine until the last rank lets go,
// since stores carry no incarnation and a late one must not hit a successor.
func (m *Machine) breakGroup(g *group, a wire.Abort, text string) {
	g.state = Broken
	g.cause, g.causeText = a, text
	m.freeName(g)
	g.forgetAway() // they know by themselves that it is broken
	m.do(Poison{Group: g.id, Abort: a})
	op := wire.OpNone
	if g.pending != nil {
		op = g.pending.op
	}
	m.failPending(g, g.broken(op, -1))
	m.remember(g, a.Code, a.Culprit, text)
	m.freeIfEmpty(g)
}

// broken is the answer to a call on a broken group.
func (g *group) broken(op wire.Op, rank int) refusal {
	who := "this rank"
	if rank >= 0 {
		who = fmt.Sprintf("rank %d", rank)
	}
	return refuse(g.cause.Code, g.cause.Culprit, "%s: %s in group %q stopped: %s. The group is broken: finalize this comm and form a new group",
		who, op, g.name, g.causeText)
}

func (m *Machine) freeIfEmpty(g *group) {
	if g.absent() == all(g) && g.away() == 0 {
		m.free(g)
	}
}

// Tick fails what has passed its deadline.
func (m *Machine) Tick(now time.Time) []Action {
	for _, g := range m.sortedGroups() {
		switch {
		case !g.deadline.IsZero() && !now.Before(g.deadline):
			m.formingLate(g)
		case g.pending != nil && !now.Before(g.pending.deadline):
			m.collectiveLate(g)
		}
		if !g.recoverBy.IsZero() && !now.Before(g.recoverBy) {
			g.recoverBy = time.Time{}
			if away := g.away(); away != 0 {
				m.do(CheckLeases{Group: g.id, Ranks: away})
			}
		}
	}
	return m.take()
}

func (m *Machine) formingLate(g *group) {
	missing := g.absent()
	what := "did not come before the deadline; check that they started, with this RAILHEAD_SOCKET and RAILHEAD_GROUP"
	if g.state == Attaching {
		what = "came but did not map the group's memory before the deadline; check whether they hang, or set a longer timeout"
		missing = 0
		for r := range g.members {
			if !g.members[r].attach {
				missing |= 1 << r
			}
		}
		if g.hasMemory {
			m.do(Poison{Group: g.id, Abort: wire.Abort{Code: wire.ResultTimeout, Op: wire.OpCommInit, Culprit: first(missing), Reporter: -1}})
		}
	}
	r := refuse(wire.ResultRankMissing, first(missing),
		"comm_init of group %q: %s %s of %d %s", g.name, plural(missing, "rank"), listRanks(missing), len(g.members), what)
	r.missing = missing
	m.failForming(g, r)
}

func (m *Machine) collectiveLate(g *group) {
	if g.goOn(true) {
		return // no rank is late
	}
	c := g.pending
	missing, what := c.missing(g), "arrive"
	switch {
	case c.arrived != all(g):
	case c.op == wire.OpWindowRegister:
		what = "map the others' memory"
	default:
		what = "commit pages"
	}
	text := fmt.Sprintf("%s %s did not %s in %s before the deadline", plural(missing, "rank"), listRanks(missing), what, c.op)
	culprit := first(missing)
	if m.config.FirstInLine != nil {
		if keeper := m.config.FirstInLine(g.id, culprit); keeper != culprit && keeper >= 0 && missing>>keeper&1 != 0 {
			text += fmt.Sprintf("; rank %d waits for rank %d", culprit, keeper)
			culprit = keeper
		}
	}
	m.breakGroup(g, wire.Abort{Code: wire.ResultTimeout, Op: c.op, Culprit: culprit, Reporter: -1}, text)
}

func first(mask uint64) int {
	if mask == 0 {
		return -1
	}
	return bits.TrailingZeros64(mask)
}

func plural(mask uint64, word string) string {
	if bits.OnesCount64(mask) == 1 {
		return word
	}
	return word + "s"
}

// NextDeadline is when Tick has something to do; ok is false when nothing waits.
func (m *Machine) NextDeadline() (at time.Time, ok bool) {
	for _, g := range m.groups {
		for _, d := range []time.Time{g.deadline, g.pendingDeadline(), g.recoverBy} {
			if !d.IsZero() && (!ok || d.Before(at)) {
				at, ok = d, true
			}
		}
	}
	return at, ok
}

func (g *group) pendingDeadline() time.Time {
	if g.pending == nil {
		return time.Time{}
	}
	return g.pending.deadline
}
