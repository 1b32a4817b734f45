package group

import (
	"fmt"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/lease"
	"railhead/server/membership"
	"railhead/symm"
)

// memory is a group's shared memory: the control segment, mapped here, and the heaps, which the daemon never maps.
type memory struct {
	group   membership.CreateGroup
	world   int // ranks of this node, which is all of them
	parts   wire.Parts
	ledger  wire.Ledger // its constant fields
	ring    []int       // the rank at each place
	control *symm.Segment
	mapping *symm.Mapping
	store   stores                  // into mapping
	file    symm.FileID             // of the control segment
	heaps   []*symm.Segment         // by local rank; nil = in a group that was taken over, the rank has not come back
	ended   uint64                  // number of ended set-up calls in the ledger
	counted [rank.MaxPerNode]uint64 // the last operation of each rank that Groups.operations has
	abort   *uint64
	watcher *lease.Watcher
	punches []punch // the first is under way
	// When the last punch ended: monotonic, ns; 0 = there was none.
	punchEnded int64
}

// newMemory makes the memory of a new group: all but the plans, which are the planner's.
func newMemory(a membership.CreateGroup, made storeMade) (m *memory, err error) {
	m = &memory{group: a, world: a.World}
	defer func() {
		if err != nil {
			m.release()
		}
	}()
	m.control, err = symm.NewSegment(fmt.Sprintf("railhead-control:%d", a.Group), wire.ControlBytes(a.World))
	if err != nil {
		return m, err
	}
	if m.mapping, err = m.control.Map(); err != nil {
		return m, err
	}
	if m.file, err = m.control.File(); err != nil {
		return m, err
	}
	m.store = stores{m.mapping, made}
	m.parts = wire.PartsOf(a.World)
	m.writeControlHeader(a)
	m.writeLedger(a)
	m.abort = m.mapping.Word64(wire.AbortOffset)
	for r := range a.World {
		heap, err := symm.NewSegment(fmt.Sprintf("railhead-heap:%d:%d", a.Group, r), a.HeapBytes)
		if err != nil {
			return m, fmt.Errorf("heap of rank %d: %w", r, err)
		}
		m.heaps = append(m.heaps, heap)
	}
	return m, nil
}

// release drops the daemon's references. The memory exists as long as a rank maps it.
func (m *memory) release() {
	if m.watcher != nil {
		m.watcher.Stop()
	}
	if m.mapping != nil {
		_ = m.mapping.Unmap()
	}
	if m.control != nil {
		_ = m.control.Release()
	}
	for _, h := range m.heaps {
		if h != nil {
			_ = h.Release()
		}
	}
}

// committed is the number of bytes with pages in the ranks' heaps.
func (m *memory) committed() uint64 {
	var total uint64
	for _, h := range m.heaps {
		if h == nil {
			continue
		}
		if n, err := h.Committed(); err == nil {
			total += n
		}
	}
	return total
}
