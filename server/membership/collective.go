package membership

import (
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/symm"
)

// call is what all ranks must call alike.
type call struct {
	op     wire.Op
	value  uint64          // bytes of window_alloc and window_register, offset of window_free
	memory wire.MemoryKind // of window_alloc and window_free
}

// collective is a set-up call that every rank of a group must make: window_alloc, window_register, window_free or finalize.
type collective struct {
	call
	first    rank.Local // the rank that called first; call is its
	mismatch *refusal
	requests []uint64
	arrived  rank.LocalSet // have called
	done     rank.LocalSet // ranks whose part is done: they have committed or created memory or, once passed, mapped the others'
	failed   rank.Local    // a rank whose part failed, rank.None = no failure
	errno    int32
	window   symm.Window // of window_alloc
	space    int         // of window_alloc: where window lies
	offers   []offer     // memory that the others are to map, by rank
	region   uint32      // of window_register, once all ranks have called
	passed   bool        // every rank has been sent the others' memory
	deadline time.Time
	// next continues the call once pages have been released; nil = the call waits for ranks. late: the deadline came first.
	next func(late bool)
}

func (g *group) all() rank.LocalSet { return rank.First(len(g.members)) }

// note records that a rank's part has failed, unless error is 0.
func (c *collective) note(r rank.Local, error int32) {
	if error != 0 && c.failed < 0 {
		c.failed, c.errno = r, error
	}
}

// missing are the ranks that the call waits for: those that have not called or, once all have, those whose part is not done.
func (c *collective) missing(g *group) rank.LocalSet {
	if late := g.all() &^ c.arrived; late != 0 {
		return late
	}
	return g.all() &^ c.done
}

// Leave: a rank finalizes.
func (m *Machine) Leave(now time.Time, s SessionID, request uint64, l *wire.Leave) []Action {
	if g, rank := m.member(s, l.Group); g != nil && g.state == Broken {
		m.send(s, request, &wire.Left{Group: l.Group})
		m.leave(g, rank)
		m.freeIfEmpty(g)
		return m.take()
	}
	if g, ok := m.arrive(now, s, request, l.Group, call{op: wire.OpFinalize}, offer{}); ok {
		m.finish(g)
	}
	return m.take()
}

// arrive records a rank's arrival in the group's collective call, with its offer. It returns true for the last rank.
func (m *Machine) arrive(now time.Time, s SessionID, request, id uint64, made call, o offer) (*group, bool) {
	g, r := m.member(s, id)
	op := made.op
	entered := false
	defer func() {
		if !entered {
			m.closeFile(o.file)
		}
	}()
	if g == nil {
		m.sendError(s, request, refuse(wire.ResultProtocol, rank.None, "%s for group %d, which this session is not in", op, id))
		return nil, false
	}
	switch {
	case g.state == Broken:
		m.sendError(s, request, g.broken(op, r))
		return nil, false
	case g.state != Ready:
		m.sendError(s, request, refuse(wire.ResultProtocol, g.world(r), "rank %d: %s before group %q is ready", g.world(r), op, g.name))
		return nil, false
	}
	if g.pending == nil {
		g.pending = &collective{
			call: made, first: r, requests: make([]uint64, len(g.members)), offers: make([]offer, len(g.members)),
			failed: rank.None, deadline: now.Add(g.members[r].timeout),
		}
		if op == wire.OpFinalize {
			g.pending.arrived = g.finalized()
		}
	}
	c := g.pending
	if c.arrived.Has(r) {
		m.sendError(s, request, refuse(wire.ResultProtocol, g.world(r), "rank %d: %s while its %s is in progress", g.world(r), op, c.op))
		return nil, false
	}
	if c.call != made {
		why := refuse(wire.ResultMismatch, g.world(r), "group %q: rank %d calls %s, rank %d calls %s; all ranks must make the same call",
			g.name, g.world(r), made.text(), g.world(c.first), c.text())
		if op == wire.OpFinalize || c.op == wire.OpFinalize {
			m.finalizeMismatch(g, s, request, r, op, why)
			return nil, false
		}
		if c.mismatch == nil {
			c.mismatch = &why
		}
	}
	c.requests[r], c.offers[r] = request, o
	c.arrived = c.arrived.With(r)
	entered = true
	// The earliest deadline of all ranks applies: each rank must get its answer before it gives up on the daemon.
	if d := now.Add(g.members[r].timeout); d.Before(c.deadline) {
		c.deadline = d
	}
	if c.arrived != g.all() {
		return nil, false
	}
	if c.mismatch != nil {
		// Nothing was changed, so the group goes on. The ranks get the error only now that all have called. If each got it at once,
		// some would be in their next call while others are still to make this one, and all later calls would mismatch.
		m.failPending(g, *c.mismatch)
		return nil, false
	}
	return g, true
}

// finalizeMismatch: a rank finalizes while another calls something else. The rank that finalizes leaves whatever the answer is, so
// the group breaks.
func (m *Machine) finalizeMismatch(g *group, s SessionID, request uint64, r rank.Local, op wire.Op, why refusal) {
	if op == wire.OpFinalize {
		m.leave(g, r)
	} else {
		why.culprit = g.world(g.pending.first)
	}
	m.poison(g, wire.Abort{Code: wire.ResultMismatch, Op: wire.OpFinalize, Culprit: why.culprit, Reporter: rank.None}, why.text)
	m.end(g, s, request, why.message())
	m.endBroken(g)
}

// failPending ends the collective call in progress with an error for all ranks that have made it. Ranks that called finalize
// have left the group all the same.
func (m *Machine) failPending(g *group, why refusal) {
	c := g.pending
	g.pending = nil
	if c == nil {
		return
	}
	m.closeOffers(c)
	if g.state == Ready {
		m.conclude(g, wire.Outcome{
			Op: c.op, Code: why.code, Culprit: why.culprit, StagedLocal: rank.None, Text: wire.MakeText(why.text),
		})
	}
	for r := range c.arrived.All() {
		if g.members[r].session == 0 {
			continue
		}
		m.end(g, g.members[r].session, c.requests[r], why.message())
		if c.op == wire.OpFinalize {
			m.leave(g, r)
		}
	}
}

// conclude records the outcome of a set-up call that leaves the group ready, or finalizes it. The call's answers come after it.
func (m *Machine) conclude(g *group, o wire.Outcome) {
	m.do(Conclude{Group: g.id, Outcome: o})
}

// askPending sends every rank a request for its part in the call in progress.
func (m *Machine) askPending(g *group, msg func() wire.Message) {
	for r := range g.members {
		m.send(g.members[r].session, g.pending.requests[r], msg())
	}
}

// endPending answers every rank that the call in progress has succeeded.
func (m *Machine) endPending(g *group, msg func() wire.Message) {
	for rank := range g.members {
		m.end(g, g.members[rank].session, g.pending.requests[rank], msg())
	}
	g.pending = nil
}

// finish ends a group that every rank has finalized. Ranks that died after they had called finalize count.
func (m *Machine) finish(g *group) {
	c := g.pending
	g.pending = nil
	m.conclude(g, wire.Outcome{Op: wire.OpFinalize})
	for r := range g.members {
		if g.members[r].session != 0 {
			m.end(g, g.members[r].session, c.requests[r], &wire.Left{Group: uint64(g.id)})
		}
	}
	m.remember(g, wire.ResultOK, rank.None, "finalized")
	m.free(g)
}
