package wire

import (
	"errors"
	"fmt"
)

// The messages of a window that is memory of its callers.

// Register gives a rank's memory to the other ranks; it carries the descriptor of the file that it is mapped from.
type Register struct {
	H        Header
	Group    uint64
	Bytes    uint64
	FdOffset uint64 // where the memory begins in the file
}

// RegisterPrivate is the same call of a rank whose memory cannot be shared.
type RegisterPrivate struct {
	H      Header
	Group  uint64
	Bytes  uint64
	Reason Reason
}

// PeerMemory carries the descriptor of another rank's registered memory.
type PeerMemory struct {
	H        Header
	Group    uint64
	Bytes    uint64
	FdOffset uint64
	Region   uint32 // the window's number, the same on every rank
	Rank     uint32
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
	H          Header
	Group      uint64
	Region     uint32
	StagedRank int32 // the rank because of which nothing is shared, -1 = everything is
	Reason     Reason
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

func (m *Register) check() error { return checkRange(m.Bytes, m.FdOffset) }

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
	return firstError(checkRange(m.Bytes, m.FdOffset), checkRegion(m.Region), checkRank(m.Rank))
}

func (m *RegisterMapped) check() error { return checkRegion(m.Region) }

func (m *Registered) check() error {
	if err := firstError(checkRegion(m.Region), checkCString("reason", m.Reason[:])); err != nil {
		return err
	}
	if m.StagedRank < -1 || m.StagedRank >= MaxWorld {
		return fmt.Errorf("staged rank %d is outside -1..%d", m.StagedRank, MaxWorld-1)
	}
	if (m.StagedRank < 0) != (m.Reason[0] == 0) {
		return fmt.Errorf("staged rank %d with the reason %q", m.StagedRank, m.Reason)
	}
	return nil
}
