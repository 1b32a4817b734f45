package server

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// writeControlHeader fills page 0 in before anybody else can see it.
func writeControlHeader(m *symm.Mapping, a membership.CreateGroup) {
	h := wire.ControlHeader{
		Magic: wire.ControlMagic, Version: wire.ControlVersion, World: uint32(a.World),
		Group: uint64(a.Group), Incarnation: a.Incarnation,
	}
	b, err := binary.Append(nil, binary.LittleEndian, h)
	if err == nil {
		copy(m.Bytes(0, uint64(len(b))), b)
	}
}

// poison breaks the group unless it is broken already, and wakes everybody who waits in it. Any goroutine, as long as
// the memory is held.
func (m *memory) poison(a wire.Abort) {
	if a.Op == wire.OpNone && a.Culprit >= 0 && a.Culprit < m.world {
		a.Op = m.operation(a.Culprit)
	}
	// Ranks poll the low half alone: a word in which that is 0 has broken nothing yet, whoever wrote the rest.
	for old := uint64(0); uint32(old) == 0 && !atomic.CompareAndSwapUint64(m.abort, old, a.Word()); {
		old = atomic.LoadUint64(m.abort)
	}
	futexWakeAll(m.mapping.Word32(wire.AbortOffset))
}

// operation is what the rank says it is doing. It may write anything there.
func (m *memory) operation(rank int) wire.Op {
	return wire.Op(atomic.LoadUint32(m.mapping.Word32(wire.RankLineOffset(rank) + wire.OpOffset)))
}

// describe adds to the ranks what they say of themselves in shared memory. They may write anything there.
func (m *memory) describe(g *membership.GroupInfo) {
	g.Ring = m.ring
	for i := range g.Ranks {
		r := &g.Ranks[i]
		line := wire.RankLineOffset(r.Rank)
		r.Sequence = atomic.LoadUint64(m.mapping.Word64(line + wire.SeqOffset))
		r.Operation = m.operation(r.Rank).String()
		chosen := atomic.LoadUint32(m.mapping.Word32(line + wire.ChosenOffset))
		if algo := wire.Algo(chosen & 0xffff); algo != wire.AlgoAuto {
			r.Algorithm, r.Why = algo.String(), wire.Why(chosen>>16).String()
		}
		r.Bytes = atomic.LoadUint64(m.mapping.Word64(line + wire.BytesOffset))
		waiting := atomic.LoadUint64(m.mapping.Word64(line + wire.WaitingForOffset))
		for ; waiting != 0; waiting &= waiting - 1 {
			r.WaitingFor = append(r.WaitingFor, bits.TrailingZeros64(waiting))
		}
	}
}
