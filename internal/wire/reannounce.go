package wire

import (
	"errors"
	"fmt"
)

// The messages by which the ranks of a group make a new daemon take it over.

// Reannounce says which rank of which group a client is; it carries the group's control segment, whose ledger says the rest.
type Reannounce struct {
	H            Header
	Group        uint64 // the number by which the last daemon knew it
	ControlBytes uint64
	Place        Place
	World        uint32
	Nodes        uint32
	TimeoutMS    uint32
	Reserved0    uint32
}

// Reannounced says that the daemon has taken the rank back.
type Reannounced struct {
	H     Header
	Group uint64 // the number by which this daemon knows the group: another one where the old is taken
}

// ReannounceHeap follows Reannounced; it carries the rank's own heap. It has no answer.
type ReannounceHeap struct {
	H     Header
	Group uint64
}

func (m *Reannounce) header() *Header     { return &m.H }
func (m *Reannounced) header() *Header    { return &m.H }
func (m *ReannounceHeap) header() *Header { return &m.H }

func (*Reannounce) kind() Type     { return TypeReannounce }
func (*Reannounced) kind() Type    { return TypeReannounced }
func (*ReannounceHeap) kind() Type { return TypeReannounceHeap }

func (m *Reannounce) check() error {
	if m.TimeoutMS == 0 {
		return errors.New("timeout is 0 ms")
	}
	if m.ControlBytes == 0 || m.ControlBytes > MaxControl || m.ControlBytes%segmentUnit != 0 {
		return fmt.Errorf("control segment of %d bytes, expected a multiple of %d, at most %d", m.ControlBytes, segmentUnit, uint64(MaxControl))
	}
	return firstError(m.Place.check(m.World, m.Nodes), checkZero("reserved0", uint64(m.Reserved0)))
}

func (*Reannounced) check() error    { return nil }
func (*ReannounceHeap) check() error { return nil }

// SessionLease brings the segment with the lease of its session. It has no answer.
type SessionLease struct {
	H      Header
	Client uint64 // as in the segment
}

func (m *SessionLease) header() *Header { return &m.H }
func (*SessionLease) kind() Type        { return TypeSessionLease }
func (*SessionLease) check() error      { return nil }
