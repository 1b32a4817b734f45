package wire

import (
	"errors"
	"fmt"

	"railhead/internal/rank"
)

// The messages of window_register.

// Register shares a rank's memory with the other ranks; it carries the fd of the file that is mapped there.
type Register struct {
	H         Header
	Group     uint64
	Bytes     uint64
	FdOffset  uint64 // where the memory begins in the file
	Memory    MemoryKind
	Reserved0 uint32
}

// RegisterPrivate is sent in place of Register by a rank whose memory cannot be shared.
type RegisterPrivate struct {
	H      Header
	Group  uint64
	Bytes  uint64
	Reason Reason
}

// PeerMemory carries the fd of another rank's registered memory.
type PeerMemory struct {
	H         Header
	Group     uint64
	Bytes     uint64
	FdOffset  uint64
	Region    uint32 // the window's number, the same on every rank
	Local     rank.Local
	Memory    MemoryKind
	Reserved0 uint32
}

// RegisterMapped says that the client has mapped all peers' memory, or why not.
type RegisterMapped struct {
	H      Header
	Group  uint64
	Region uint32
	Error  int32 // errno
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

func (m *Register) check() error {
	return firstError(checkRange(m.Bytes, m.FdOffset), checkZero("reserved0", uint64(m.Reserved0)))
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
	return firstError(checkRange(m.Bytes, m.FdOffset), checkRegion(m.Region), checkLocal(m.Local), checkZero("reserved0", uint64(m.Reserved0)))
}

func (m *RegisterMapped) check() error { return checkRegion(m.Region) }

func (m *Registered) check() error {
	if err := firstError(checkRegion(m.Region), checkCString("reason", m.Reason[:])); err != nil {
		return err
	}
	return checkStaged(m.StagedLocal, m.Reason)
}
