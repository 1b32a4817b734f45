package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// The ledger of a group (internal/wire) is what a successor daemon knows of the group. This process may be killed between any two
// stores, so a call ends with a single store: that of the number of ended calls.

// writeLedger fills in the constant fields, before any rank has the segment.
func (m *memory) writeLedger(a membership.CreateGroup) {
	l := &m.ledger
	l.HeapBytes, l.ScratchBytes, l.ReduceGroup = a.HeapBytes, a.ScratchBytes, a.ReduceGroup
	l.Memory[wire.MemoryOfCPU] = a.Memory
	l.Device, l.DeviceHeapBytes, l.Memory[wire.MemoryOfDevice] = a.Device, a.DeviceHeapBytes, a.DeviceMemory
	if a.Reproducible {
		l.Reproducible = 1
	}
	copy(l.Forcing[:wire.ForcingBytes-1], a.Forcing)
	copy(l.Name[:wire.NameBytes-1], a.Name)
	copy(l.Token[:wire.NameBytes-1], a.Token)
	for r, pid := range a.PIDs {
		l.Pids[r] = uint32(pid)
	}
	m.store.value(m.parts.Ledger.Offset, l)
}

// conclude writes the outcome of a set-up call. The core sends the answers after that.
func (m *memory) conclude(o *wire.Outcome) {
	m.ended++
	m.store.value(m.parts.OutcomeOffset(m.ended), o)
	// Release: a reader that loads the number (acquire) sees the whole outcome. The call has ended from this store on.
	m.store.word64(m.endedAt(), m.ended)
	m.apply(o)
}

func (m *memory) endedAt() uint64 { return m.parts.Ledger.Offset + wire.EndedOffset }

// apply updates the tables to an outcome. It is idempotent.
func (m *memory) apply(o *wire.Outcome) {
	switch {
	case o.Code != wire.ResultOK:
	case o.Op == wire.OpWindowAlloc:
		// The outcome that is applied again after a restart may have been overwritten by a rank: an invalid window is skipped.
		if entry, err := m.ledger.WindowEntry(o.Offset, o.Bytes, o.Memory); err == nil {
			m.enterWindow(entry)
		}
	case o.Op == wire.OpWindowFree && o.Region != 0:
		if o.Region <= wire.MaxRegion {
			m.store.word32(m.liveAt(o.Region), 0)
		}
	case o.Op == wire.OpWindowFree:
		m.clearWindow(o.Offset, o.Memory)
	case o.Op == wire.OpWindowRegister:
		m.enterRegion(o)
	}
}

// enterWindow stores a window in the first empty slot, unless the table already has it.
func (m *memory) enterWindow(entry uint64) {
	empty := -1
	for slot := range wire.MaxWindows {
		switch m.windowAt(slot) {
		case entry:
			return
		case 0:
			if empty < 0 {
				empty = slot
			}
		}
	}
	if empty >= 0 { // the machine has as many windows as there are slots, unless a rank has filled them in
		m.store.word64(m.parts.Windows.At(empty), entry)
	}
}

func (m *memory) clearWindow(offset uint64, memory uint32) {
	for slot := range wire.MaxWindows {
		if at, _, of, ok := m.ledger.ParseWindowEntry(m.windowAt(slot)); ok && at == offset && of == memory {
			m.store.word64(m.parts.Windows.At(slot), 0)
			return
		}
	}
}

func (m *memory) windowAt(slot int) uint64 {
	return atomic.LoadUint64(m.mapping.Word64(m.parts.Windows.At(slot))) // acquire, though a window is this word alone
}

func (m *memory) enterRegion(o *wire.Outcome) {
	m.store.value(m.parts.Regions.At(int(o.Region)), &wire.RegionEntry{
		Bytes: o.Bytes, StagedLocal: o.StagedLocal, Memory: m.ledger.Memory[o.Memory].Kind, Reason: wire.MakeReason(o.Text.String()),
	})
	m.store.word32(m.liveAt(o.Region), 1) // release: the rest of the entry
}

func (m *memory) liveAt(number uint32) uint64 {
	return m.parts.Regions.At(int(number)) + wire.LiveOffset
}

// adoptMemory maps the control segment of an earlier daemon's group and reads its ledger. It owns the segment from then on, also after
// an error. A rank may write anything there, at any time: everything is read once, then checked here or by the machine.
func adoptMemory(control *symm.Segment, world int, made storeMade) (m *memory, r *membership.Recovered, err error) {
	m = &memory{world: world, control: control, heaps: make([]*symm.Segment, world)}
	defer func() {
		if err != nil {
			m.release()
		}
	}()
	if m.file, err = control.File(); err != nil {
		return m, nil, err
	}
	if m.mapping, err = control.Map(); err != nil {
		return m, nil, err
	}
	m.store = stores{m.mapping, made}
	m.abort = m.mapping.Word64(wire.AbortOffset)
	if r, err = m.readLedger(); err != nil {
		return m, nil, err
	}
	m.ring = readRing(m.mapping.Bytes(m.parts.Plans.Offset, uint64(m.parts.Plans.Stride)), world)
	m.group = membership.CreateGroup{
		Group: r.Group, Name: r.Name, World: r.World, Incarnation: r.Incarnation, HeapBytes: r.HeapBytes,
	}
	return m, r, nil
}

// readRing reads the ring order that the last daemon chose, for reports.
func readRing(b []byte, world int) (ring []int) {
	var plans wire.Plans
	if _, err := binary.Decode(b, binary.LittleEndian, &plans); err != nil {
		return nil
	}
	for _, rank := range plans.Order[:world] {
		if int(rank) >= world {
			return nil // a rank has written there
		}
		ring = append(ring, int(rank))
	}
	return ring
}

func (m *memory) readLedger() (*membership.Recovered, error) {
	var h wire.ControlHeader
	if _, err := binary.Decode(m.mapping.Bytes(0, uint64(binary.Size(&h))), binary.LittleEndian, &h); err != nil {
		return nil, fmt.Errorf("control header: %w", err)
	}
	if h.Magic != wire.ControlMagic || h.Version != wire.ControlVersion || int(h.World) != m.world {
		return nil, fmt.Errorf("control segment with magic %#x, version %d, for %d ranks; expected %#x, %d, %d", h.Magic, h.Version, h.World,
			uint64(wire.ControlMagic), wire.ControlVersion, m.world)
	}
	if h.Nodes != 1 || int(h.LocalSize) != m.world || h.FirstRank != 0 {
		return nil, fmt.Errorf("control segment of %d ranks from rank %d on, of a group on %d nodes; this daemon serves groups of one node",
			h.LocalSize, h.FirstRank, h.Nodes)
	}
	if err := h.Parts.Check(m.world, m.control.Size()); err != nil {
		return nil, err
	}
	m.parts = h.Parts
	m.ended = atomic.LoadUint64(m.mapping.Word64(m.endedAt())) // acquire: the outcome of that number
	b := m.mapping.Bytes(m.parts.Ledger.Offset, uint64(binary.Size(&wire.Ledger{})))
	l, err := wire.DecodeLedger(b)
	if err != nil {
		return nil, err
	}
	m.ledger = l
	if l.Ended != m.ended {
		return nil, errors.New("the ledger changes although no daemon writes it")
	}
	last := l.Last()
	m.apply(last)
	r := &membership.Recovered{
		Group: membership.GroupID(h.Group), Name: l.Name.String(), Token: l.Token.String(), Incarnation: h.Incarnation,
		World: m.world, ReduceGroup: l.ReduceGroup, Forcing: l.Forcing.String(),
		Reproducible: l.Reproducible != 0, HeapBytes: l.HeapBytes, Scratch: l.ScratchBytes, Memory: l.Memory[wire.MemoryOfCPU],
		Device: l.Device, DeviceHeapBytes: l.DeviceHeapBytes, DeviceMemory: l.Memory[wire.MemoryOfDevice],
		Finalized: last.Op == wire.OpFinalize && last.Code == wire.ResultOK,
	}
	for _, pid := range l.Pids[:m.world] {
		r.PIDs = append(r.PIDs, int(pid))
	}
	for slot := range wire.MaxWindows {
		switch at, bytes, of, ok := l.ParseWindowEntry(m.windowAt(slot)); {
		case !ok:
		case of == wire.MemoryOfCPU:
			r.Windows = append(r.Windows, symm.Window{Offset: at, Bytes: bytes})
		case of == wire.MemoryOfDevice:
			r.DeviceWindows = append(r.DeviceWindows, symm.Window{Offset: at, Bytes: bytes})
		default:
			return nil, fmt.Errorf("a window of memory %d, which this daemon does not know", of)
		}
	}
	r.Regions, err = m.readRegions()
	return r, err
}

func (m *memory) readRegions() (map[uint32]membership.RecoveredRegion, error) {
	regions := map[uint32]membership.RecoveredRegion{}
	for number := uint32(1); number <= wire.MaxRegion; number++ {
		live := atomic.LoadUint32(m.mapping.Word32(m.liveAt(number))) // acquire: the rest of the entry
		if live == 0 {
			continue
		}
		b := m.mapping.Bytes(m.parts.Regions.At(int(number)), uint64(binary.Size(&wire.RegionEntry{})))
		e, err := wire.DecodeRegionEntry(b, live)
		if err != nil {
			return nil, fmt.Errorf("number %d: %w", number, err)
		}
		regions[number] = membership.RecoveredRegion{Bytes: e.Bytes, Staged: e.StagedLocal, Reason: e.Reason.String()}
	}
	return regions, nil
}
