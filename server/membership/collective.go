package membership

import (
	"fmt"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/symm"
)

// collective is a set-up call that every rank of a group must make: window_alloc, window_register, window_free or finalize.
type collective struct {
	op       wire.Op
	value    uint64     // bytes of window_alloc and window_register, offset of window_free
	first    rank.Local // the rank that called first; op and value are its
	mismatch *refusal
	requests []uint64
	arrived  rank.LocalSet // have called
	done     rank.LocalSet // ranks that have committed their pages (window_alloc) or mapped the others' memory (window_register)
	failed   rank.Local    // a rank whose part failed, rank.None = no failure
	errno    int32
	window   symm.Window // of window_alloc
	offers   []offer     // of window_register, by rank
	region   uint32      // of window_register, once all ranks have called
	deadline time.Time
	// next continues the call once pages have been released; nil = the call waits for ranks. late: the deadline came first.
	next func(late bool)
}

func (g *group) all() rank.LocalSet { return rank.First(len(g.members)) }

// missing are the ranks that the call waits for: those that have not called or, once all have, those whose part is not done.
func (c *collective) missing(g *group) rank.LocalSet {
	if late := g.all() &^ c.arrived; late != 0 {
		return late
	}
	return g.all() &^ c.done
}

// WindowAlloc: a rank requests a window.
func (m *Machine) WindowAlloc(now time.Time, s SessionID, request uint64, w *wire.WindowAlloc) []Action {
	if w.Memory != m.config.Memory.Kind {
		m.sendError(s, request, otherMemory(wire.OpWindowAlloc, w.Memory))
		return m.take()
	}
	if g, ok := m.arrive(now, s, request, w.Group, wire.OpWindowAlloc, w.Bytes, offer{}); ok {
		m.whenPunched(g, func(late bool) {
			if late {
				m.failPending(g, refuse(wire.ResultTimeout, -1,
					"window_alloc of %d bytes in group %q: the daemon had not released the pages of freed windows by the deadline; call again",
					w.Bytes, g.name))
				return
			}
			m.reserve(g)
		})
	}
	return m.take()
}

// otherMemory refuses a window of a memory kind that this daemon does not support. The rank's library should have refused it before.
func otherMemory(op wire.Op, kind wire.MemoryKind) refusal {
	return refuse(wire.ResultUnsupported, rank.None, "%s: this daemon does not know memory kind %d; use the CPU's", op, kind)
}

// WindowFree: a rank frees a window.
func (m *Machine) WindowFree(now time.Time, s SessionID, request uint64, w *wire.WindowFree) []Action {
	if g, ok := m.arrive(now, s, request, w.Group, wire.OpWindowFree, w.Offset, offer{}); ok {
		m.freeWindow(g)
	}
	return m.take()
}

// Leave: a rank finalizes.
func (m *Machine) Leave(now time.Time, s SessionID, request uint64, l *wire.Leave) []Action {
	if g, rank := m.member(s, l.Group); g != nil && g.state == Broken {
		m.send(s, request, &wire.Left{Group: l.Group})
		m.leave(g, rank)
		m.freeIfEmpty(g)
		return m.take()
	}
	if g, ok := m.arrive(now, s, request, l.Group, wire.OpFinalize, 0, offer{}); ok {
		m.finish(g)
	}
	return m.take()
}

// arrive records a rank's arrival in the group's collective call, with its offer. It returns true for the last rank.
func (m *Machine) arrive(now time.Time, s SessionID, request, id uint64, op wire.Op, value uint64, o offer) (*group, bool) {
	g, r := m.member(s, id)
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
			op: op, value: value, first: r, requests: make([]uint64, len(g.members)), offers: make([]offer, len(g.members)),
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
	if c.op != op || c.value != value {
		why := refuse(wire.ResultMismatch, g.world(r), "group %q: rank %d calls %s, rank %d calls %s; all ranks must make the same call",
			g.name, g.world(r), callText(op, value), g.world(c.first), callText(c.op, c.value))
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

// callText is a call with its argument, e.g. "window_alloc(4096)".
func callText(op wire.Op, value uint64) string {
	if region := value >> wire.RegionShift; op == wire.OpWindowFree && region != 0 {
		return fmt.Sprintf("window_free(registered window %d)", region)
	}
	return fmt.Sprintf("%s(%d)", op, value)
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

// reserve picks the offset and asks every rank to commit pages there.
func (m *Machine) reserve(g *group) {
	c := g.pending
	if g.heap.Live() >= wire.MaxWindows {
		m.failPending(g, refuse(wire.ResultLimit, rank.None, "window_alloc in group %q: it has %d windows, which is the limit; free some",
			g.name, wire.MaxWindows))
		return
	}
	w, err := g.heap.AllocWindow(c.value)
	if err != nil {
		m.failPending(g, refuse(wire.ResultOutOfMemory, rank.None,
			"window_alloc of %d bytes in group %q: %v; free windows, or set a larger heap_bytes", c.value, g.name, err))
		return
	}
	c.window = w
	m.askPending(g, func() wire.Message {
		return &wire.WindowCommit{
			Group: uint64(g.id), Offset: w.Offset, Bytes: w.Bytes, Memory: g.memory.Kind, Granularity: g.memory.Granularity,
		}
	})
}

// WindowCommitted: a rank has committed the window's pages, or failed to. Either all ranks keep the window or none does.
func (m *Machine) WindowCommitted(s SessionID, request uint64, w *wire.WindowCommitted) []Action {
	g, r := m.member(s, w.Group)
	if m.crossed(g, w.Group) {
		return nil
	}
	if g == nil || g.pending == nil || g.pending.window.Bytes == 0 || g.pending.window.Offset != w.Offset ||
		g.pending.done.Has(r) {
		m.sendError(s, request, refuse(wire.ResultProtocol, rank.None, "unexpected WindowCommitted: no allocation at %d waits for this rank", w.Offset))
		return m.take()
	}
	c := g.pending
	c.done = c.done.With(r)
	if w.Error != 0 && c.failed < 0 {
		c.failed, c.errno = r, w.Error
	}
	if c.done != g.all() {
		return nil
	}
	if c.failed >= 0 {
		m.undoWindow(g)
		return m.take()
	}
	m.conclude(g, wire.Outcome{Op: c.op, Offset: c.window.Offset, Bytes: c.window.Bytes})
	m.endPending(g, func() wire.Message { return &wire.WindowReady{Group: uint64(g.id), Offset: c.window.Offset} })
	return m.take()
}

func (m *Machine) undoWindow(g *group) {
	c := g.pending
	if _, err := g.heap.FreeWindow(c.window.Offset); err == nil {
		m.decommit(g, c.window)
	}
	r := refuse(wire.ResultOutOfMemory, g.world(c.failed),
		"window_alloc of %d bytes in group %q: rank %d (%s) could not get the pages (errno %d); no rank keeps the window",
		c.value, g.name, g.world(c.failed), wire.Process(g.members[c.failed].pid), c.errno)
	m.whenPunched(g, func(bool) { m.failPending(g, r) })
}

// decommit starts the release of pages. No range of the group's heaps is allocated until Punched comes: windows begin as zeros, and a
// range must not be punched after it has been allocated again.
func (m *Machine) decommit(g *group, w symm.Window) {
	g.punching++
	m.do(Decommit{Group: g.id, Window: w})
}

// whenPunched continues the call in progress once all pages have been released, or at the deadline with late set.
func (m *Machine) whenPunched(g *group, next func(late bool)) {
	if g.punching == 0 {
		next(false)
		return
	}
	g.pending.next = next
}

// Punched: a Decommit, or the sweep of a heap, is done. failed are ranges that may still have pages. They are withheld until the group
// ends, because windows begin as zeros.
func (m *Machine) Punched(id GroupID, failed ...symm.Window) []Action {
	g := m.groups[id]
	if g == nil || g.punching == 0 {
		return nil
	}
	for _, w := range failed {
		g.heap.Withhold(w)
	}
	if g.punching--; g.punching == 0 {
		g.goOn(false)
	}
	return m.take()
}

// goOn continues the call in progress if it waited for the release of pages, and reports whether it did.
func (g *group) goOn(late bool) bool {
	if g.pending == nil || g.pending.next == nil {
		return false
	}
	next := g.pending.next
	g.pending.next = nil
	next(late)
	return true
}

func (m *Machine) freeWindow(g *group) {
	c := g.pending
	if c.value>>wire.RegionShift != 0 {
		m.freeRegion(g)
		return
	}
	w, err := g.heap.FreeWindow(c.value)
	if err != nil {
		m.failPending(g, refuse(wire.ResultInvalidArgument, rank.None, "window_free in group %q: %v", g.name, err))
		return
	}
	m.conclude(g, wire.Outcome{Op: c.op, Offset: w.Offset})
	m.decommit(g, w)
	// The call has ended. Its ranks get the answer once the pages are released, or at the deadline.
	m.whenPunched(g, func(bool) {
		m.endPending(g, func() wire.Message { return &wire.WindowFreed{Group: uint64(g.id), Offset: w.Offset} })
	})
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
