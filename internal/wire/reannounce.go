package wire

import (
	"errors"
	"fmt"
)

// The messages by which the ranks of a group make a new daemon take it over.

// Reannounce says which rank of which group a client is; it carries the group's control segment, whose ledger says the rest.
type Reannounce struct {
	H         Header
	Group     uint64 // the number by which the last daemon knew it
	Rank      uint32
	World     uint32
	TimeoutMS uint32
	Reserved0 uint32
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
	if err := firstError(checkWorld(m.World), checkZero("reserved0", uint64(m.Reserved0))); err != nil {
		return err
	}
	if m.Rank >= m.World {
		return fmt.Errorf("rank %d is outside 0..%d", m.Rank, m.World-1)
	}
	return nil
}

func (*Reannounced) check() error    { return nil }
func (*ReannounceHeap) check() error { return nil }
