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

// offer is a rank's part in window_register: a file, or the reason why it has none.
type offer struct {
	file   FileID // 0 = none
	offset uint64
	reason string
}

// region is a registered window: memory that the ranks own.
type region struct {
	bytes  uint64
	staged rank.Local // the rank because of which the window is staged, rank.None = the window is shared
	reason string
}

// Register: a rank registers memory that the others can map from file.
func (m *Machine) Register(now time.Time, s SessionID, request uint64, w *wire.Register, file FileID) []Action {
	if w.Memory != m.config.Memory.Kind {
		m.closeFile(file)
		m.sendError(s, request, otherMemory(wire.OpWindowRegister, w.Memory))
		return m.take()
	}
	return m.register(now, s, request, w.Group, w.Bytes, offer{file: file, offset: w.FdOffset})
}

// RegisterPrivate: a rank registers memory that the others cannot map.
func (m *Machine) RegisterPrivate(now time.Time, s SessionID, request uint64, w *wire.RegisterPrivate) []Action {
	return m.register(now, s, request, w.Group, w.Bytes, offer{reason: w.Reason.String()})
}

func (m *Machine) register(now time.Time, s SessionID, request, id, bytes uint64, o offer) []Action {
	if g, ok := m.arrive(now, s, request, id, wire.OpWindowRegister, bytes, o); ok {
		m.broker(g)
	}
	return m.take()
}

// broker sends every rank the others' descriptors once all ranks have called.
func (m *Machine) broker(g *group) {
	c := g.pending
	if c.region = g.freeNumber(); c.region == 0 {
		m.failPending(g, refuse(wire.ResultLimit, rank.None,
			"window_register in group %q: it has %d registered windows, which is the limit; free some", g.name, wire.MaxRegion))
		return
	}
	for r := range g.ranks() {
		if o := c.offers[r]; o.file == 0 {
			m.closeOffers(c)
			m.answerRegistered(g, r, o.reason)
			return
		}
	}
	for to := range g.ranks() {
		for peer := range g.ranks() {
			o := c.offers[peer]
			if peer == to {
				continue
			}
			m.do(Send{To: g.members[to].session, Request: c.requests[to], FD: ClientFD, File: o.file, Msg: &wire.PeerMemory{
				Group: uint64(g.id), Bytes: c.value, FdOffset: o.offset, Region: c.region, Local: peer, Memory: g.memory.Kind,
			}})
		}
	}
	m.closeOffers(c)
	if len(g.members) == 1 { // there is nothing to map
		m.answerRegistered(g, rank.None, "")
	}
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

// RegisterMapped: a rank has mapped the others' memory, or failed to. If any rank failed, the window is staged for all.
func (m *Machine) RegisterMapped(s SessionID, request uint64, w *wire.RegisterMapped) []Action {
	g, r := m.member(s, w.Group)
	if m.crossed(g, w.Group) {
		return nil
	}
	if g == nil || g.pending == nil || g.pending.region == 0 || g.pending.region != w.Region || g.pending.done.Has(r) {
		m.sendError(s, request, refuse(wire.ResultProtocol, rank.None, "unexpected RegisterMapped: no registration of window %d waits for this rank", w.Region))
		return m.take()
	}
	c := g.pending
	c.done = c.done.With(r)
	if w.Error != 0 && (c.failed < 0 || r < c.failed) {
		c.failed, c.errno = r, w.Error
	}
	if c.done != g.all() {
		return nil
	}
	if c.failed < 0 {
		m.answerRegistered(g, rank.None, "")
		return m.take()
	}
	reason := fmt.Sprintf(
		"rank %d (%s) could not map the other ranks' memory (errno %d); raise its `ulimit -v` or vm.max_map_count", g.world(c.failed),
		wire.Process(g.members[c.failed].pid), c.errno)
	m.answerRegistered(g, c.failed, reason)
	return m.take()
}

// answerRegistered ends the call with success: the window exists.
func (m *Machine) answerRegistered(g *group, staged rank.Local, reason string) {
	c := g.pending
	m.conclude(g, wire.Outcome{
		Op: c.op, StagedLocal: staged, Region: c.region, Bytes: c.value, Text: wire.MakeText(reason),
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
