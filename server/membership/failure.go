package membership

import (
	"fmt"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

// SessionEnded: the session's socket closed or its process ended; how names the one that was seen first.
func (m *Machine) SessionEnded(s SessionID, how string) []Action {
	for _, g := range m.sortedGroups() {
		if r, ok := m.bySession[s][g.id]; ok {
			m.memberDied(g, r, how)
		}
	}
	return m.take()
}

// LeaseLost: the kernel has marked the rank's lease: its process is ending. finalizing: its rank line says that it is in finalize.
func (m *Machine) LeaseLost(id GroupID, r rank.Local, finalizing bool) []Action {
	g := m.groups[id]
	switch {
	case g == nil || r < 0 || int(r) >= len(g.members):
	case g.members[r].away && finalizing:
		m.finalizedAway(g, r)
	case g.members[r].session != 0 || g.members[r].away:
		m.memberDied(g, r, "lease")
	}
	return m.take()
}

// memberDied removes a dead rank from its group. The effect depends on the group's state.
func (m *Machine) memberDied(g *group, r rank.Local, how string) {
	dead, process := g.world(r), wire.Process(g.members[r].pid)
	finalized := g.pending != nil && g.pending.op == wire.OpFinalize && g.pending.arrived.Has(r)
	m.leave(g, r)
	switch {
	case g.state == Forming || g.state == Attaching:
		abort := wire.Abort{Code: wire.ResultRankDead, Op: wire.OpCommInit, Culprit: dead, Reporter: rank.None}
		if g.hasMemory {
			m.do(Poison{Group: g.id, Abort: abort})
		}
		m.failForming(g, refuse(wire.ResultRankDead, dead,
			"comm_init of group %q: rank %d (%s) died or closed its session (%s) while the group formed; start all ranks again",
			g.name, dead, process, how))
	case g.state == Ready && finalized:
		// It had already called finalize: it counts as arrived and needs no answer.
	case g.state == Ready:
		m.breakGroup(g, wire.Abort{Code: wire.ResultRankDead, Culprit: dead, Reporter: rank.None},
			fmt.Sprintf("rank %d (%s) died or closed its session (%s)", dead, process, how))
	default:
		m.freeIfEmpty(g)
	}
}

// Poisoned: a rank has set the group's abort word. A rank can write anything there.
func (m *Machine) Poisoned(id GroupID, a wire.Abort) []Action {
	g := m.groups[id]
	if g == nil || !g.hasMemory || g.state == Broken {
		return nil
	}
	if a.Code == wire.ResultRankDead && a.Reporter < 0 {
		return nil // the daemon wrote it; LeaseLost reports the death, which is harmless if the rank has finalized
	}
	a, text := g.reported(a)
	if a.Code == wire.ResultTimeout {
		text += m.otherCall(g, g.local(a.Culprit), a.Op)
	}
	if g.state == Attaching {
		m.failForming(g, refuse(a.Code, a.Culprit, "comm_init of group %q: %s while the group formed; start all ranks again",
			g.name, text))
		return m.take()
	}
	m.breakGroup(g, a, text)
	return m.take()
}

// reported turns an abort word into one that an Error message can carry, and a sentence.
func (g *group) reported(a wire.Abort) (wire.Abort, string) {
	a.Culprit, a.Reporter = g.known(a.Culprit), g.known(a.Reporter)
	culprit, reporter := g.who(a.Culprit), nameOf(a.Reporter)
	switch a.Code {
	case wire.ResultTimeout:
		return a, fmt.Sprintf("%s did not arrive in %s before the deadline, reported by %s", culprit, a.Op, reporter)
	case wire.ResultAborted:
		return a, nameOf(a.Culprit) + " called rh_comm_abort"
	case wire.ResultRankDead:
		return a, culprit + " died or closed its session"
	case wire.ResultMismatch:
		return a, culprit + " made a different call than the other ranks"
	case wire.ResultBusy:
		return a, culprit + " ran operations of this comm on two streams at the same time"
	case wire.ResultProtocol:
		return a, fmt.Sprintf("%s offered memory in %s that it does not have, as %s found", culprit, a.Op, reporter)
	}
	text := fmt.Sprintf("%s wrote %q into the abort word, which is not a cause that a rank may report", reporter, a.Code)
	a.Code = wire.ResultProtocol
	return a, text
}

// known returns the rank if the group has it, else None.
func (g *group) known(r rank.World) rank.World { return g.world(g.local(r)) }

func (g *group) who(r rank.World) string {
	at := g.local(r)
	if at < 0 {
		return nameOf(r)
	}
	return fmt.Sprintf("rank %d (%s)", r, wire.Process(g.members[at].pid))
}

func nameOf(r rank.World) string {
	if r < 0 {
		return "an unknown rank"
	}
	return fmt.Sprintf("rank %d", r)
}

// breakGroup ends a group that is ready. Its name is free at once. Its memory stays in quarantine until the last rank has left it:
// stores carry no incarnation, and a late store must not reach the memory of a successor.
func (m *Machine) breakGroup(g *group, a wire.Abort, text string) {
	m.poison(g, a, text)
	m.endBroken(g)
}

// poison is the first half of breakGroup. A rank may be answered after it: it finds the abort word set.
func (m *Machine) poison(g *group, a wire.Abort, text string) {
	g.state = Broken
	g.cause, g.causeText = a, text
	m.freeName(g)
	g.forgetAway() // they read in the abort word that it is broken
	m.do(Poison{Group: g.id, Abort: a})
}

// endBroken is the second half of breakGroup: it answers the call in progress.
func (m *Machine) endBroken(g *group) {
	op := wire.OpNone
	if g.pending != nil {
		op = g.pending.op
	}
	m.failPending(g, g.broken(op, rank.None))
	m.remember(g, g.cause.Code, g.cause.Culprit, g.causeText)
	m.freeIfEmpty(g)
}

// broken answers a call on a broken group.
func (g *group) broken(op wire.Op, r rank.Local) refusal {
	who := "this rank"
	if r >= 0 {
		who = nameOf(g.world(r))
	}
	return refuse(g.cause.Code, g.cause.Culprit, "%s: %s in group %q stopped: %s. The group is broken: finalize this comm and form a new group",
		who, op, g.name, g.causeText)
}

func (m *Machine) freeIfEmpty(g *group) {
	if g.absent() == g.all() && g.away() == 0 {
		m.free(g)
	}
}

// Tick fails every group and call whose deadline has passed.
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
	what := "did not join before the deadline; check that they started, with this RAILHEAD_SOCKET and RAILHEAD_GROUP"
	if g.state == Attaching {
		what = "joined but did not map the group's memory before the deadline; check whether they hang, or set a longer timeout"
		missing = 0
		for r := range g.ranks() {
			if !g.members[r].attach {
				missing = missing.With(r)
			}
		}
		if g.hasMemory {
			m.do(Poison{Group: g.id, Abort: wire.Abort{
				Code: wire.ResultTimeout, Op: wire.OpCommInit, Culprit: g.world(missing.Lowest()), Reporter: rank.None,
			}})
		}
	}
	r := refuse(wire.ResultRankMissing, g.world(missing.Lowest()),
		"comm_init of group %q: %s %s of %d %s", g.name, plural(missing, "rank"), g.list(missing), len(g.members), what)
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
	case c.arrived != g.all():
	case c.passed:
		what = "map the others' memory"
	case g.spaces[c.space].onDevice():
		what = "create memory"
	default:
		what = "commit pages"
	}
	text := fmt.Sprintf("%s %s did not %s in %s before the deadline", plural(missing, "rank"), g.list(missing), what, c.op)
	culprit := missing.Lowest()
	if m.config.RootOfWaitChain != nil {
		if root := m.config.RootOfWaitChain(g.id, culprit); root != culprit && missing.Has(root) {
			text += fmt.Sprintf("; rank %d waits for rank %d", g.world(culprit), g.world(root))
			culprit = root
		}
	}
	text += m.otherCall(g, culprit, c.op)
	m.breakGroup(g, wire.Abort{Code: wire.ResultTimeout, Op: c.op, Culprit: g.world(culprit), Reporter: rank.None}, text)
}

// otherCall says that a rank which is late for an operation is in another call, where that is why. Set-up calls go through the daemon,
// collectives do not, so one against the other is found by the deadline only.
func (m *Machine) otherCall(g *group, late rank.Local, op wire.Op) string {
	if m.config.Operation == nil || late < 0 {
		return ""
	}
	is := m.config.Operation(g.id, late)
	if !(is.IsSetUp() && op.IsCollective()) && !(is.IsCollective() && op.IsSetUp()) {
		return ""
	}
	return fmt.Sprintf("; rank %d is in %s: all ranks must make the same calls in the same order", g.world(late), is)
}

func plural(s rank.LocalSet, word string) string {
	if s.Len() == 1 {
		return word
	}
	return word + "s"
}

// NextDeadline is the time of the next Tick that is needed; ok is false if there is none.
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
