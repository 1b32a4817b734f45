package membership

import (
	"fmt"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/symm"
)

// Windows in the ranks' heaps. All ranks ask for a window, and the machine picks the range.
//
// A window of a CPU's memory: each rank commits pages of its heap, which the others have mapped already.
//
// A window of a device's memory: each rank creates memory and sends its descriptor, the machine passes it to the others, and each rank maps
// theirs. The window exists once all have mapped all: a rank that reads in the ledger that it exists has mapped it.
//
// Either all ranks keep the window or none does.

// WindowAlloc: a rank requests a window.
func (m *Machine) WindowAlloc(now time.Time, s SessionID, request uint64, w *wire.WindowAlloc) []Action {
	if g, _ := m.member(s, w.Group); g != nil {
		if _, ok := g.spaceOf(w.Memory); !ok {
			m.sendError(s, request, g.otherMemory(wire.OpWindowAlloc, w.Memory))
			return m.take()
		}
	}
	g, all := m.arrive(now, s, request, w.Group, call{op: wire.OpWindowAlloc, value: w.Bytes, memory: w.Memory}, offer{})
	switch {
	case !all:
	case w.Memory != m.config.Memory.Kind: // no pages of such memory are released
		m.reserve(g)
	default:
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

// reserve picks the offset and asks every rank to commit pages there, or to create memory for it.
func (m *Machine) reserve(g *group) {
	c := g.pending
	if g.live() >= wire.MaxWindows {
		m.failPending(g, refuse(wire.ResultLimit, rank.None, "window_alloc in group %q: it has %d windows, which is the limit; free some",
			g.name, wire.MaxWindows))
		return
	}
	c.space, _ = g.spaceOf(c.memory)
	s := &g.spaces[c.space]
	w, err := s.heap.AllocWindow(c.value)
	if err != nil {
		m.failPending(g, refuse(wire.ResultOutOfMemory, rank.None,
			"window_alloc of %d bytes in group %q: %v; free windows, or set a larger heap_bytes", c.value, g.name, err))
		return
	}
	c.window = w
	m.askPending(g, func() wire.Message {
		return &wire.WindowCommit{
			Group: uint64(g.id), Offset: w.Offset, Bytes: w.Bytes, Memory: s.memory.Kind, Granularity: s.memory.Granularity,
		}
	})
}

// WindowCommitted: a rank has committed the window's pages or created its memory, file, or failed to.
func (m *Machine) WindowCommitted(s SessionID, request uint64, w *wire.WindowCommitted, file FileID) []Action {
	g, r := m.member(s, w.Group)
	if m.crossed(g, w.Group) {
		m.closeFile(file)
		return m.take()
	}
	if g == nil || !g.pending.awaitsCommit(r, w) {
		m.closeFile(file)
		m.sendError(s, request, refuse(wire.ResultProtocol, rank.None, "unexpected WindowCommitted: no allocation at %d of %s memory waits for this rank",
			w.Offset, w.Memory))
		return m.take()
	}
	c := g.pending
	c.offers[r] = offer{kind: w.Memory, file: file, offset: c.window.Offset, allocation: c.window.Bytes}
	c.done = c.done.With(r)
	c.note(r, w.Error)
	switch {
	case c.done != g.all():
	case c.failed >= 0:
		m.undoWindow(g)
	case g.spaces[c.space].onDevice() && len(g.members) > 1:
		m.pass(g, 0)
	default:
		m.closeOffers(c)
		m.windowExists(g)
	}
	return m.take()
}

// awaitsCommit says whether the call waits for this WindowCommitted. c may be nil.
func (c *collective) awaitsCommit(r rank.Local, w *wire.WindowCommitted) bool {
	return c != nil && c.window.Bytes != 0 && !c.passed && c.window.Offset == w.Offset && c.memory == w.Memory && !c.done.Has(r)
}

// windowExists ends the call with success.
func (m *Machine) windowExists(g *group) {
	c := g.pending
	m.conclude(g, wire.Outcome{Op: c.op, Memory: uint32(c.space), Offset: c.window.Offset, Bytes: c.window.Bytes})
	m.endPending(g, func() wire.Message { return &wire.WindowReady{Group: uint64(g.id), Offset: c.window.Offset} })
}

// undoWindow ends the call because a rank's part has failed. Ranks release a device's memory when they get the answer, which is before they
// can call again; the daemon releases the pages of a CPU's.
func (m *Machine) undoWindow(g *group) {
	c := g.pending
	s := &g.spaces[c.space]
	_, err := s.heap.FreeWindow(c.window.Offset)
	if s.onDevice() {
		m.failPending(g, g.noDeviceMemory(c))
		return
	}
	if err == nil {
		m.decommit(g, c.window)
	}
	r := refuse(wire.ResultOutOfMemory, g.world(c.failed),
		"window_alloc of %d bytes in group %q: rank %d (%s) could not get the pages (errno %d); no rank keeps the window",
		c.value, g.name, g.world(c.failed), wire.Process(g.members[c.failed].pid), c.errno)
	m.whenPunched(g, func(bool) { m.failPending(g, r) })
}

// noDeviceMemory says which rank could not create or map memory of its device.
func (g *group) noDeviceMemory(c *collective) refusal {
	code, what := wire.ResultOutOfMemory, "create its memory"
	cure := "free memory of its GPU"
	if c.passed {
		code, what = wire.ResultSystem, "map the other ranks' memory"
		cure = "its GPU must have peer access to the others'"
	}
	return refuse(code, g.world(c.failed), "window_alloc of %d bytes in group %q: rank %d (%s) could not %s (CUDA error %d); %s; no rank keeps the window",
		c.value, g.name, g.world(c.failed), wire.Process(g.members[c.failed].pid), what, c.errno, cure)
}

// WindowFree: a rank frees a window.
func (m *Machine) WindowFree(now time.Time, s SessionID, request uint64, w *wire.WindowFree) []Action {
	if g, ok := m.arrive(now, s, request, w.Group, call{op: wire.OpWindowFree, value: w.Offset, memory: w.Memory}, offer{}); ok {
		m.freeWindow(g)
	}
	return m.take()
}

func (m *Machine) freeWindow(g *group) {
	c := g.pending
	if c.value>>wire.RegionShift != 0 {
		m.freeRegion(g)
		return
	}
	index, ok := g.spaceOf(c.memory)
	if !ok {
		m.failPending(g, g.otherMemory(c.op, c.memory))
		return
	}
	space := &g.spaces[index]
	w, err := space.heap.FreeWindow(c.value)
	if err != nil {
		m.failPending(g, refuse(wire.ResultInvalidArgument, rank.None, "window_free in group %q: %v", g.name, err))
		return
	}
	m.conclude(g, wire.Outcome{Op: c.op, Memory: uint32(index), Offset: w.Offset})
	freed := func(bool) {
		m.endPending(g, func() wire.Message { return &wire.WindowFreed{Group: uint64(g.id), Offset: w.Offset} })
	}
	if space.onDevice() {
		freed(false) // each rank releases its memory when it gets the answer, before it can ask for another window
		return
	}
	m.decommit(g, w)
	// The call has ended. Its ranks get the answer once the pages are released, or at the deadline.
	m.whenPunched(g, freed)
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
		g.host().heap.Withhold(w)
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

// callText is a call with its argument, e.g. "window_alloc(4096)".
func (c call) text() string {
	if region := c.value >> wire.RegionShift; c.op == wire.OpWindowFree && region != 0 {
		return fmt.Sprintf("window_free(registered window %d)", region)
	}
	if c.memory != 0 && c.memory != wire.MemoryCPU {
		return fmt.Sprintf("%s(%d, %s memory)", c.op, c.value, c.memory)
	}
	return fmt.Sprintf("%s(%d)", c.op, c.value)
}
