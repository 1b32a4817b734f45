package wire

import (
	"errors"
	"fmt"

	"railhead/internal/rank"
)

// 64 heaps of 1 TiB fit in the 47 bits of a process's addresses. The scratch is added to the heap size that Join asks for.
const (
	maxHeapBytes    = 1 << 40
	maxSegmentBytes = maxHeapBytes + 1<<30

	maxMultiprocessors = 1 << 16 // of a device
)

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkZero(field string, v uint64) error {
	if v != 0 {
		return fmt.Errorf("%s is %#x, must be 0", field, v)
	}
	return nil
}

func checkLocal(local rank.Local) error {
	if local < 0 || local >= rank.MaxPerNode {
		return fmt.Errorf("local rank %d is outside 0..%d", local, rank.MaxPerNode-1)
	}
	return nil
}

// check validates a place in a world of this many ranks and nodes. The daemon checks the limit of ranks on a node.
func (p Place) check(world, nodes uint32) error {
	switch {
	case world < 1 || world > rank.MaxWorld:
		return fmt.Errorf("world size %d is outside 1..%d", world, rank.MaxWorld)
	case nodes < 1 || nodes > world:
		return fmt.Errorf("%d nodes, expected 1..%d", nodes, world)
	case p.Rank < 0 || uint32(p.Rank) >= world:
		return fmt.Errorf("rank %d is outside 0..%d", p.Rank, world-1)
	case p.Node < 0 || uint32(p.Node) >= nodes:
		return fmt.Errorf("node %d is outside 0..%d", p.Node, nodes-1)
	case p.LocalSize < 1 || p.LocalSize > world || (nodes == 1) != (p.LocalSize == world):
		return fmt.Errorf("%d ranks on this node, of a world of %d on %d nodes", p.LocalSize, world, nodes)
	case p.Local < 0 || uint32(p.Local) >= p.LocalSize || int64(p.Local) > int64(p.Rank):
		return fmt.Errorf("local rank %d of rank %d is outside 0..%d", p.Local, p.Rank, p.LocalSize-1)
	case nodes == 1 && int64(p.Local) != int64(p.Rank):
		return fmt.Errorf("local rank %d of rank %d, must be equal where the whole world is on one node", p.Local, p.Rank)
	}
	return nil
}

func checkNotEmpty(field string, n Name) error {
	if n[0] == 0 {
		return fmt.Errorf("%s is empty", field)
	}
	return nil
}

func (m *Hello) check() error {
	if m.VersionMin > m.VersionMax {
		return fmt.Errorf("versions %d..%d: the lowest is above the highest", m.VersionMin, m.VersionMax)
	}
	return checkCString("software", m.Software[:])
}

func (m *Welcome) check() error {
	return firstError(
		checkZero("reserved0", uint64(m.Reserved0)),
		checkZero("reserved1", uint64(m.Reserved1)),
		checkCString("software", m.Software[:]),
	)
}

func (m *Error) check() error {
	if m.Code == ResultOK {
		return errors.New("code 0 is no error")
	}
	if m.Culprit < rank.None || m.Culprit >= rank.MaxWorld {
		return fmt.Errorf("culprit %d is outside -1..%d", m.Culprit, rank.MaxWorld-1)
	}
	return checkCString("text", m.Text[:])
}

func (m *Join) check() error {
	c, own := &m.Common, &m.Own
	if err := firstError(
		checkCString("group", m.Group[:]),
		checkCString("token", c.Token[:]),
		checkNotEmpty("group", m.Group),
		own.Place.check(c.World, c.Nodes),
		checkCString("forcing", c.Forcing[:]),
	); err != nil {
		return err
	}
	if c.ReduceGroup > c.World {
		return fmt.Errorf("reduce group %d is larger than the world size %d", c.ReduceGroup, c.World)
	}
	if own.TimeoutMS == 0 {
		return errors.New("timeout is 0 ms")
	}
	if c.HeapBytes > maxHeapBytes {
		return fmt.Errorf("heap of %d bytes, at most %d", c.HeapBytes, uint64(maxHeapBytes))
	}
	if c.Reproducible > 1 {
		return fmt.Errorf("reproducible is %d, must be 0 or 1", c.Reproducible)
	}
	return own.checkDevice()
}

// The daemon refuses an unknown device.
func (o *Own) checkDevice() error {
	switch o.Device {
	case DeviceCPU:
		return firstError(checkZero("device_multiprocessors", uint64(o.DeviceMultiprocessors)),
			checkZero("device_architecture", uint64(o.DeviceArchitecture)), checkNoUUID(o.DeviceUUID))
	case DeviceCUDA:
		if o.DeviceMultiprocessors < 1 || o.DeviceMultiprocessors > maxMultiprocessors || o.DeviceUUID == (UUID{}) {
			return fmt.Errorf("CUDA device %q with %d multiprocessors, expected a UUID and 1..%d", o.DeviceUUID, o.DeviceMultiprocessors,
				maxMultiprocessors)
		}
	}
	return nil
}

func checkNoUUID(u UUID) error {
	if u != (UUID{}) {
		return fmt.Errorf("device_uuid is %s, must be 0 on a CPU", u)
	}
	return nil
}

func (m *Joined) check() error {
	if m.World < 1 || m.World > rank.MaxWorld || m.LocalSize < 1 || m.LocalSize > min(m.World, rank.MaxPerNode) {
		return fmt.Errorf("%d ranks on this node, of a world of %d", m.LocalSize, m.World)
	}
	if m.ReduceGroup < 1 || m.ReduceGroup > m.World {
		return fmt.Errorf("reduce group %d is outside 1..%d", m.ReduceGroup, m.World)
	}
	if m.HeapBytes == 0 || m.HeapBytes > maxSegmentBytes {
		return fmt.Errorf("heap of %d bytes, expected 1..%d", m.HeapBytes, uint64(maxSegmentBytes))
	}
	if m.ControlBytes == 0 || m.ControlBytes > MaxControl || m.ControlBytes%segmentUnit != 0 {
		return fmt.Errorf("control segment of %d bytes, expected a multiple of %d, at most %d", m.ControlBytes, segmentUnit, uint64(MaxControl))
	}
	// Each rank's slice of a block holds at least one tile of 128 bytes.
	if m.BlockBytes < 128*rank.MaxPerNode || m.BlockBytes%128 != 0 {
		return fmt.Errorf("block of %d bytes, expected a multiple of 128, at least %d", m.BlockBytes, 128*rank.MaxPerNode)
	}
	for _, slot := range []uint32{m.PipeSlotBytes, m.BroadcastSlotBytes} {
		if slot < 256 || slot%128 != 0 {
			return fmt.Errorf("slot of %d bytes, expected a multiple of 128, at least 256", slot)
		}
	}
	if need := ScratchNeed(int(m.LocalSize), m.BlockBytes, m.BroadcastSlotBytes, m.PipeSlotBytes); m.ScratchBytes < need || m.ScratchBytes > m.HeapBytes {
		return fmt.Errorf("scratch of %d bytes, expected %d..%d", m.ScratchBytes, need, m.HeapBytes)
	}
	return firstError(m.checkDevice(), checkZero("reserved0", uint64(m.Reserved0)))
}

// checkDevice: all fields of the device are 0, or none is.
func (m *Joined) checkDevice() error {
	g, heap, scratch, slot := uint64(m.DeviceGranularity), m.DeviceHeapBytes, m.DeviceScratchBytes, m.DeviceSlotBytes
	if g == 0 {
		return firstError(checkZero("device_heap_bytes", heap), checkZero("device_scratch_bytes", scratch), checkZero("device_slot_bytes", slot))
	}
	if g < 4096 || g&(g-1) != 0 || heap == 0 || heap > maxSegmentBytes || heap%g != 0 {
		return fmt.Errorf("device heap of %d bytes, expected a multiple of the granularity %d, at most %d", heap, g, uint64(maxSegmentBytes))
	}
	// Each rank of the node has an inbox.
	if slot == 0 || slot%128 != 0 || scratch == 0 || scratch%g != 0 || scratch > heap || slot > scratch/uint64(m.LocalSize) {
		return fmt.Errorf("device scratch of %d bytes with slots of %d for %d ranks, in a heap of %d", scratch, slot, m.LocalSize, heap)
	}
	return nil
}

func (m *Heap) check() error { return checkLocal(m.Local) }

func (m *Attached) check() error { return checkZero("reserved0", uint64(m.Reserved0)) }

func (*GroupReady) check() error { return nil }

func (m *WindowAlloc) check() error {
	if m.Bytes == 0 || m.Bytes > maxHeapBytes {
		return fmt.Errorf("window of %d bytes, expected 1..%d", m.Bytes, uint64(maxHeapBytes))
	}
	return checkZero("reserved0", uint64(m.Reserved0))
}

func (m *WindowCommit) check() error {
	if m.Bytes == 0 || m.Bytes > maxSegmentBytes || m.Offset > maxSegmentBytes {
		return fmt.Errorf("range of %d bytes at %d is outside any heap", m.Bytes, m.Offset)
	}
	g := uint64(m.Granularity)
	if g == 0 || g&(g-1) != 0 || m.Bytes%g != 0 || m.Offset%g != 0 {
		return fmt.Errorf("range of %d bytes at %d, expected multiples of the granularity %d, a power of two", m.Bytes, m.Offset, g)
	}
	return nil
}

func (*WindowCommitted) check() error { return nil }

func (*WindowReady) check() error { return nil }

func (m *WindowFree) check() error {
	if m.Offset>>RegionShift != 0 {
		return firstError(checkZero("memory of a registered window", uint64(m.Memory)), checkZero("reserved0", uint64(m.Reserved0)))
	}
	return checkZero("reserved0", uint64(m.Reserved0))
}

func (*WindowFreed) check() error { return nil }
func (*Leave) check() error       { return nil }
func (*Left) check() error        { return nil }
func (*Draining) check() error    { return nil }
