package group

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

// firstInLine is the rank that a late one waits for itself, and so on: the one that nobody keeps. The line of a rank that was
// stopped in its sleep may be old: where it leads in a circle, the rank that has begun the fewest operations is the one that
// does not go on. Ranks may write anything there.
func (m *memory) firstInLine(late int) int {
	seen := make([]bool, m.world)
	begun := func(rank int) uint64 {
		return atomic.LoadUint64(m.mapping.Word64(wire.RankLineOffset(rank) + wire.SeqOffset))
	}
	behind := late
	for r := late; !seen[r]; {
		seen[r] = true
		if begun(r) < begun(behind) {
			behind = r
		}
		waitsFor := atomic.LoadUint64(m.mapping.Word64(wire.RankLineOffset(r) + wire.WaitingForOffset))
		if m.operation(r) == wire.OpNone || waitsFor == 0 {
			return r
		}
		if r = bits.TrailingZeros64(waitsFor); r >= m.world {
			return late
		}
	}
	return behind
}

// operation is what the rank says it is doing. It may write anything there.
func (m *memory) operation(rank int) wire.Op {
	return wire.Op(atomic.LoadUint32(m.mapping.Word32(wire.RankLineOffset(rank) + wire.OpOffset)))
}
