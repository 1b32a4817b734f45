package wire

import (
	"errors"
	"fmt"
)

// Messages by which the ranks of a group hand it over to a new daemon.

// Reannounce says which rank of which group a client is. It carries the control segment's fd; the ledger there has the rest.
type Reannounce struct {
	H            Header
	Group        uint64 // the last daemon's number of it
	ControlBytes uint64
	Place        Place
	World        uint32
	Nodes        uint32
	TimeoutMS    uint32
	Reserved0    uint32
}

// Reannounced says that the daemon has taken over the rank.
type Reannounced struct {
	H     Header
	Group uint64 // this daemon's number of it; the old one, unless that is in use
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

// SessionLease carries the fd of the session segment. It has no answer.
type SessionLease struct {
	H      Header
	Client uint64 // Session.Client
}

func (m *SessionLease) header() *Header { return &m.H }
func (*SessionLease) kind() Type        { return TypeSessionLease }
func (*SessionLease) check() error      { return nil }
