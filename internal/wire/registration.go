package wire

import (
	"errors"
	"fmt"

	"railhead/internal/rank"
)

// The messages of window_register.

// Handle stands for memory of a CUDA device that was not made for a descriptor; 0 of other memory.
type Handle [HandleBytes]byte

// Register shares a rank's memory with the other ranks; it carries the fd of the file or allocation, or has the handle.
type Register struct {
	H               Header
	Group           uint64
	Bytes           uint64
	FdOffset        uint64 // where the memory begins in the file or allocation
	Memory          MemoryKind
	Reserved0       uint32
	AllocationBytes uint64 // CUDA memory: of the whole allocations, which other ranks map; else 0
	Handle          Handle // MemoryCUDAIPC
}

// RegisterPrivate is sent in place of Register by a rank whose memory cannot be shared.
type RegisterPrivate struct {
	H      Header
	Group  uint64
	Bytes  uint64
	Reason Reason
}

// PeerMemory is another rank's registered memory, or its part of a CUDA window. It carries the fd, or has the handle.
type PeerMemory struct {
	H               Header
	Group           uint64
	Bytes           uint64
	FdOffset        uint64
	Region          uint32 // the window's number, the same on every rank; 0 = part of a CUDA window at FdOffset of every device heap
	Local           rank.Local
	Memory          MemoryKind
	Reserved0       uint32
	AllocationBytes uint64 // as in Register; of a part of a CUDA window its bytes
	Handle          Handle // as in Register
}

// Why registered memory of CUDA devices could not be placed (rhw_not_placed).
const (
	NotPlacedOffsets   = -1 // the ranks' memory begins at different places of its granules
	NotPlacedRoom      = -2 // the rank has no addresses left behind its device heaps
	NotPlacedMixed     = -3 // only some ranks' memory has descriptors
	NotPlacedProcess   = -4 // CUDA IPC does not open memory of the same process, in which another rank is
	NotPlacedAlignment = -5 // the ranks' addresses have different remainders by 16
)

// RegisterMapped says that the client has mapped all peers' memory, or why not.
type RegisterMapped struct {
	H      Header
	Group  uint64
	Region uint32 // as in PeerMemory
	Error  int32  // errno, a CUresult, or one of NotPlaced...
}

// Registered says that the window exists on every rank.
type Registered struct {
	H           Header
	Group       uint64
	Region      uint32
	StagedLocal rank.Local // a rank whose memory cannot be shared, so the window is staged; rank.None = shared
	Reason      Reason
}

func (m *Register) header() *Header        { return &m.H }
func (m *RegisterPrivate) header() *Header { return &m.H }
func (m *PeerMemory) header() *Header      { return &m.H }
func (m *RegisterMapped) header() *Header  { return &m.H }
func (m *Registered) header() *Header      { return &m.H }

func (*Register) kind() Type        { return TypeRegister }
func (*RegisterPrivate) kind() Type { return TypeRegisterPrivate }
func (*PeerMemory) kind() Type      { return TypePeerMemory }
func (*RegisterMapped) kind() Type  { return TypeRegisterMapped }
func (*Registered) kind() Type      { return TypeRegistered }

func checkRange(bytes, offset uint64) error {
	if bytes == 0 || bytes > MaxRegistered {
		return fmt.Errorf("registered memory of %d bytes, expected 1..%d", bytes, uint64(MaxRegistered))
	}
	if offset > MaxFileOffset {
		return fmt.Errorf("registered memory at %d of its file, at most %d", offset, uint64(MaxFileOffset))
	}
	return nil
}

func checkRegion(region uint32) error {
	if region < 1 || region > MaxRegion {
		return fmt.Errorf("region %d is outside 1..%d", region, MaxRegion)
	}
	return nil
}

// checkStaged: a staged window has a rank and a reason, a shared one has neither.
func checkStaged(local rank.Local, reason Reason) error {
	if local < rank.None || local >= rank.MaxPerNode {
		return fmt.Errorf("staged rank %d is outside -1..%d", local, rank.MaxPerNode-1)
	}
	if (local < 0) != (reason[0] == 0) {
		return fmt.Errorf("staged rank %d with reason %q", local, reason)
	}
	return nil
}

// checkAllocation checks the fields that only CUDA memory has. The daemon refuses an unknown kind by its number, as not supported.
func checkAllocation(kind MemoryKind, bytes, offset, allocation uint64, handle Handle) error {
	cuda := kind == MemoryCUDA || kind == MemoryCUDAIPC
	switch {
	case !cuda && allocation != 0:
		return fmt.Errorf("allocation of %d bytes, must be 0 for memory of kind %d", allocation, kind)
	case cuda && (allocation > MaxRegistered || offset > allocation || bytes > allocation-offset):
		return fmt.Errorf("%d bytes at %d of an allocation of %d bytes, of at most %d", bytes, offset, allocation, uint64(MaxRegistered))
	case (kind == MemoryCUDAIPC) == (handle == Handle{}):
		return fmt.Errorf("handle %.8x... with memory of kind %d: that of CUDA_IPC has one, no other has", handle, kind)
	}
	return nil
}

func (m *Register) check() error {
	return firstError(checkRange(m.Bytes, m.FdOffset), checkAllocation(m.Memory, m.Bytes, m.FdOffset, m.AllocationBytes, m.Handle),
		checkZero("reserved0", uint64(m.Reserved0)))
}

func (m *RegisterPrivate) check() error {
	if err := firstError(checkRange(m.Bytes, 0), checkCString("reason", m.Reason[:])); err != nil {
		return err
	}
	if m.Reason[0] == 0 {
		return errors.New("reason is empty")
	}
	return nil
}

func (m *PeerMemory) check() error {
	err := firstError(checkLocal(m.Local), checkZero("reserved0", uint64(m.Reserved0)))
	if err != nil {
		return err
	}
	if m.Region == 0 {
		return m.checkPart()
	}
	return firstError(checkRange(m.Bytes, m.FdOffset), checkRegion(m.Region),
		checkAllocation(m.Memory, m.Bytes, m.FdOffset, m.AllocationBytes, m.Handle))
}

// checkPart checks a rank's part of a CUDA window.
func (m *PeerMemory) checkPart() error {
	switch {
	case m.Memory != MemoryCUDA || m.Handle != (Handle{}):
		return fmt.Errorf("region 0 with memory of kind %d; only CUDA windows are passed so", m.Memory)
	case m.Bytes == 0 || m.Bytes > maxSegmentBytes || m.FdOffset > maxSegmentBytes || m.AllocationBytes != m.Bytes:
		return fmt.Errorf("part of a window: %d bytes at %d, of an allocation of %d", m.Bytes, m.FdOffset, m.AllocationBytes)
	}
	return nil
}

func (m *RegisterMapped) check() error {
	if m.Region == 0 {
		return nil // a CUDA window
	}
	return checkRegion(m.Region)
}

func (m *Registered) check() error {
	if err := firstError(checkRegion(m.Region), checkCString("reason", m.Reason[:])); err != nil {
		return err
	}
	return checkStaged(m.StagedLocal, m.Reason)
}
