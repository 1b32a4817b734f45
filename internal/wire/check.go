package wire

import (
	"errors"
	"fmt"
)

// Bounds of a rank's address space: 64 ranks of 1 TiB fit in 47 bits. The scratch comes on top of what Join asks for.
const (
	maxHeapBytes    = 1 << 40
	maxSegmentBytes = maxHeapBytes + 1<<30
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

func checkWorld(world uint32) error {
	if world < 1 || world > MaxWorld {
		return fmt.Errorf("world size %d is outside 1..%d", world, MaxWorld)
	}
	return nil
}

func checkRank(rank uint32) error {
	if rank >= MaxWorld {
		return fmt.Errorf("rank %d is outside 0..%d", rank, MaxWorld-1)
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
		return fmt.Errorf("versions %d..%d are no range", m.VersionMin, m.VersionMax)
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
		return errors.New("an error with code 0")
	}
	if m.Culprit < -1 || m.Culprit >= MaxWorld {
		return fmt.Errorf("culprit %d is outside -1..%d", m.Culprit, MaxWorld-1)
	}
	return checkCString("text", m.Text[:])
}

func (m *Join) check() error {
	if err := firstError(
		checkCString("group", m.Group[:]),
		checkCString("token", m.Token[:]),
		checkNotEmpty("group", m.Group),
		checkWorld(m.World),
	); err != nil {
		return err
	}
	if m.Rank >= m.World {
		return fmt.Errorf("rank %d is outside 0..%d", m.Rank, m.World-1)
	}
	if m.ReduceGroup > m.World {
		return fmt.Errorf("reduce group %d is larger than the world size %d", m.ReduceGroup, m.World)
	}
	if m.TimeoutMS == 0 {
		return errors.New("timeout is 0 ms")
	}
	if m.HeapBytes > maxHeapBytes {
		return fmt.Errorf("heap of %d bytes, at most %d", m.HeapBytes, uint64(maxHeapBytes))
	}
	if m.Reproducible > 1 {
		return fmt.Errorf("reproducible is %d, must be 0 or 1", m.Reproducible)
	}
	if err := checkCString("forcing", m.Forcing[:]); err != nil {
		return err
	}
	return checkZero("reserved0", uint64(m.Reserved0))
}

func (m *Joined) check() error {
	if err := checkWorld(m.World); err != nil {
		return err
	}
	if m.ReduceGroup < 1 || m.ReduceGroup > m.World {
		return fmt.Errorf("reduce group %d is outside 1..%d", m.ReduceGroup, m.World)
	}
	if m.HeapBytes == 0 || m.HeapBytes > maxSegmentBytes {
		return fmt.Errorf("heap of %d bytes, expected 1..%d", m.HeapBytes, uint64(maxSegmentBytes))
	}
	if m.ControlBytes != ControlBytes(int(m.World)) {
		return fmt.Errorf("control segment of %d bytes, expected %d", m.ControlBytes, ControlBytes(int(m.World)))
	}
	// A slice of a block for each rank has at least a tile, of 128 bytes.
	if m.BlockBytes < 128*MaxWorld || m.BlockBytes%128 != 0 {
		return fmt.Errorf("block of %d bytes, expected a multiple of 128, at least %d", m.BlockBytes, 128*MaxWorld)
	}
	// Two buffers of a block each follow the scratch header.
	for _, slot := range []uint32{m.PipeSlotBytes, m.BroadcastSlotBytes} {
		if slot < 256 || slot%128 != 0 {
			return fmt.Errorf("slot of %d bytes, expected a multiple of 128, at least 256", slot)
		}
	}
	if need := ScratchNeed(int(m.World), m.BlockBytes, m.BroadcastSlotBytes, m.PipeSlotBytes); m.ScratchBytes < need || m.ScratchBytes > m.HeapBytes {
		return fmt.Errorf("scratch of %d bytes, expected %d..%d", m.ScratchBytes, need, m.HeapBytes)
	}
	return checkZero("reserved0", uint64(m.Reserved0))
}

func (m *Heap) check() error { return checkRank(m.Rank) }

func (m *Attached) check() error { return checkZero("reserved0", uint64(m.Reserved0)) }

func (*GroupReady) check() error { return nil }

func (m *WindowAlloc) check() error {
	if m.Bytes == 0 || m.Bytes > maxHeapBytes {
		return fmt.Errorf("window of %d bytes, expected 1..%d", m.Bytes, uint64(maxHeapBytes))
	}
	return nil
}

func (m *WindowCommit) check() error {
	if m.Bytes == 0 || m.Bytes > maxSegmentBytes || m.Offset > maxSegmentBytes {
		return fmt.Errorf("range of %d bytes at %d is outside any heap", m.Bytes, m.Offset)
	}
	return nil
}

func (m *WindowCommitted) check() error { return checkZero("reserved0", uint64(m.Reserved0)) }

func (*WindowReady) check() error { return nil }
func (*WindowFree) check() error  { return nil }
func (*WindowFreed) check() error { return nil }
func (*Leave) check() error       { return nil }
func (*Left) check() error        { return nil }
func (*Draining) check() error    { return nil }
