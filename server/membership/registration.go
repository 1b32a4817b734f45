package membership

import (
	"fmt"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

// FileID names a descriptor that a client has sent. Package group holds the file. The machine outputs CloseFile exactly once for
// each one that it is given.
type FileID uint64

// CloseFile drops the daemon's reference to a client's descriptor. Queued messages that carry it keep their own references.
type CloseFile struct{ File FileID }

func (CloseFile) action() {}

// offer is memory of a rank that the others are to map, or the reason why they cannot.
type offer struct {
	kind       wire.MemoryKind // 0 = it cannot be shared, for this reason:
	reason     string
	file       FileID // 0 = none
	handle     wire.Handle
	offset     uint64
	allocation uint64 // of CUDA memory, as in PeerMemory
}

// region is a registered window: memory that the ranks own.
type region struct {
	bytes  uint64
	staged rank.Local // the rank because of which the window is staged, rank.None = the window is shared
	reason string
}

// Register: a rank registers memory that the others can map from file.
func (m *Machine) Register(now time.Time, s SessionID, request uint64, w *wire.Register, file FileID) []Action {
	if g, _ := m.member(s, w.Group); g != nil && !g.canRegister(w.Memory) {
		m.closeFile(file)
		m.sendError(s, request, g.otherMemory(wire.OpWindowRegister, w.Memory))
		return m.take()
	}
	return m.register(now, s, request, w.Group, w.Bytes, offer{
		kind: w.Memory, file: file, handle: w.Handle, offset: w.FdOffset, allocation: w.AllocationBytes,
	})
}

// RegisterPrivate: a rank registers memory that the others cannot map.
func (m *Machine) RegisterPrivate(now time.Time, s SessionID, request uint64, w *wire.RegisterPrivate) []Action {
	return m.register(now, s, request, w.Group, w.Bytes, offer{reason: w.Reason.String()})
}

func (m *Machine) register(now time.Time, s SessionID, request, id, bytes uint64, o offer) []Action {
	if g, ok := m.arrive(now, s, request, id, call{op: wire.OpWindowRegister, value: bytes}, o); ok {
		m.broker(g)
	}
	return m.take()
}

// broker passes the ranks' memory once all have called.
func (m *Machine) broker(g *group) {
	c := g.pending
	if c.region = g.freeNumber(); c.region == 0 {
		m.failPending(g, refuse(wire.ResultLimit, rank.None,
			"window_register in group %q: it has %d registered windows, which is the limit; free some", g.name, wire.MaxRegion))
		return
	}
	for r := range g.ranks() {
		if o := c.offers[r]; o.kind == 0 {
			m.closeOffers(c)
			m.answerRegistered(g, r, o.reason)
			return
		}
	}
	if len(g.members) == 1 { // there is nothing to map
		m.closeOffers(c)
		m.answerRegistered(g, rank.None, "")
		return
	}
	m.pass(g, c.value)
}

// pass sends every rank the others' memory and closes the descriptors here. Each rank answers with RegisterMapped. bytes are those that are
// registered, 0 = of a window in the heaps.
func (m *Machine) pass(g *group, bytes uint64) {
	c := g.pending
	if bytes == 0 {
		bytes = c.window.Bytes
	}
	for to := range g.ranks() {
		for peer := range g.ranks() {
			if peer == to {
				continue
			}
			o := &c.offers[peer]
			send := Send{To: g.members[to].session, Request: c.requests[to], Msg: &wire.PeerMemory{
				Group: uint64(g.id), Bytes: bytes, FdOffset: o.offset, Region: c.region, Local: peer, Memory: o.kind, AllocationBytes: o.allocation,
				Handle: o.handle,
			}}
			if o.kind.HasFD() {
				send.FD, send.File = ClientFD, o.file
			}
			m.do(send)
		}
	}
	m.closeOffers(c)
	c.passed, c.done = true, 0
}

// freeNumber is the lowest unused number of a registered window of the group, 0 = all are in use.
func (g *group) freeNumber() uint32 {
	for n := uint32(1); n <= wire.MaxRegion; n++ {
		if _, taken := g.regions[n]; !taken {
			return n
		}
	}
	return 0
}

// RegisterMapped: a rank has mapped the others' memory, or failed to. If any rank failed, a registered window is staged for all, and a
// window in the heaps is undone.
func (m *Machine) RegisterMapped(s SessionID, request uint64, w *wire.RegisterMapped) []Action {
	g, r := m.member(s, w.Group)
	if m.crossed(g, w.Group) {
		return nil
	}
	if g == nil || g.pending == nil || !g.pending.passed || g.pending.region != w.Region || g.pending.done.Has(r) {
		m.sendError(s, request, refuse(wire.ResultProtocol, rank.None, "unexpected RegisterMapped: no registration of window %d waits for this rank", w.Region))
		return m.take()
	}
	c := g.pending
	c.done = c.done.With(r)
	if w.Error != 0 && (c.failed < 0 || r < c.failed) {
		c.failed, c.errno = r, w.Error
	}
	switch {
	case c.done != g.all():
	case c.op == wire.OpWindowAlloc && c.failed >= 0:
		m.undoWindow(g)
	case c.op == wire.OpWindowAlloc:
		m.windowExists(g)
	case c.failed < 0:
		m.answerRegistered(g, rank.None, "")
	default:
		m.answerRegistered(g, c.failed, g.notMapped(c))
	}
	return m.take()
}

// notMapped is the reason why a registered window is staged because a rank could not map the others' memory.
func (g *group) notMapped(c *collective) string {
	if g.device == wire.DeviceCUDA {
		return g.notPlaced(c)
	}
	return fmt.Sprintf(
		"rank %d (%s) could not map the other ranks' memory (errno %d); raise its `ulimit -v` or vm.max_map_count", g.world(c.failed),
		wire.Process(g.members[c.failed].pid), c.errno)
}

// notPlaced is the same for memory of CUDA devices.
func (g *group) notPlaced(c *collective) string {
	who := fmt.Sprintf("rank %d (%s)", g.world(c.failed), wire.Process(g.members[c.failed].pid))
	switch c.errno {
	case wire.NotPlacedOffsets:
		return who + " found that the ranks' memory begins at different places of the GPU's granules; allocate in the same order on all ranks, or allocate a window"
	case wire.NotPlacedRoom:
		return who + " has no addresses left for the other ranks' memory; free registered windows, or register less"
	case wire.NotPlacedMixed:
		return who + " found that some ranks' memory is of cudaMalloc and others' of cuMemCreate; allocate alike on all ranks: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True on all or none, or allocate a window"
	case wire.NotPlacedProcess:
		return who + " is one of several ranks of a process, which cannot share memory of cudaMalloc; allocate with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a window"
	case wire.NotPlacedAlignment:
		return who + " found that the ranks' memory begins at addresses with different remainders by 16; align it alike on all ranks, or allocate a window"
	}
	return fmt.Sprintf("%s could not map the other ranks' memory (CUDA error %d); its GPU must have peer access to the others", who, c.errno)
}

// answerRegistered ends the call with success: the window exists.
func (m *Machine) answerRegistered(g *group, staged rank.Local, reason string) {
	c := g.pending
	m.conclude(g, wire.Outcome{
		Op: c.op, StagedLocal: staged, Region: c.region, Memory: uint32(g.own()), Bytes: c.value, Text: wire.MakeText(reason),
	})
	g.regions[c.region] = region{bytes: c.value, staged: staged, reason: reason}
	m.endPending(g, func() wire.Message {
		return &wire.Registered{
			Group: uint64(g.id), Region: c.region, StagedLocal: staged, Reason: wire.MakeReason(reason),
		}
	})
}

// freeRegion ends a registered window that every rank has freed.
func (m *Machine) freeRegion(g *group) {
	c := g.pending
	number := c.value >> wire.RegionShift
	if _, ok := g.regions[uint32(number)]; !ok || c.value != number<<wire.RegionShift {
		m.failPending(g, refuse(wire.ResultInvalidArgument, rank.None,
			"window_free in group %q: there is no registered window %d; it was freed already or never registered", g.name, number))
		return
	}
	delete(g.regions, uint32(number))
	m.conclude(g, wire.Outcome{Op: c.op, Region: uint32(number), Offset: c.value})
	m.endPending(g, func() wire.Message { return &wire.WindowFreed{Group: uint64(g.id), Offset: c.value} })
}

// closeOffers closes the descriptors that came with a call.
func (m *Machine) closeOffers(c *collective) {
	for r := range c.offers {
		m.closeFile(c.offers[r].file)
		c.offers[r].file = 0
	}
}

func (m *Machine) closeFile(f FileID) {
	if f != 0 {
		m.do(CloseFile{File: f})
	}
}
