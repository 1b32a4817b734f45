package group

import (
	"cmp"
	"slices"
	"sync/atomic"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/lease"
	"railhead/server/membership"
)

// writeControlHeader fills in the header and the rank of each line, before any rank has the segment.
func (m *memory) writeControlHeader(a membership.CreateGroup) {
	m.store.value(0, wire.ControlHeader{
		Magic: wire.ControlMagic, Version: wire.ControlVersion, World: uint32(a.World), Group: uint64(a.Group), Incarnation: a.Incarnation,
		LocalSize: uint32(a.World), Nodes: 1, Bytes: wire.ControlBytes(a.World), Parts: m.parts,
	})
	for r := range rank.First(a.World).All() {
		m.store.word32(m.line(r)+wire.RankOffset, uint32(m.rankOf(r)))
	}
}

// line is the offset of a rank's line.
func (m *memory) line(r rank.Local) uint64 { return m.parts.Lines.At(int(r)) }

// rankOf is the world rank of a local rank. localOf is the local rank of a world rank, rank.None if that is not on this node. All
// ranks of a group are on this node: see membership.
func (m *memory) rankOf(r rank.Local) rank.World { return rank.World(r) }

func (m *memory) localOf(r rank.World) rank.Local {
	if r < 0 || int(r) >= m.world {
		return rank.None
	}
	return rank.Local(r)
}

// poison sets the abort word unless it is already set, and wakes all ranks that wait in the group. Any goroutine, as long as the memory
// is held.
func (m *memory) poison(a wire.Abort) {
	if culprit := m.localOf(a.Culprit); a.Op == wire.OpNone && culprit >= 0 {
		a.Op = m.operation(culprit)
	}
	// Ranks poll the low half alone: a word whose low half is 0 counts as unset, whatever the high half is.
	for old := uint64(0); !wire.IsBroken(old) && !m.store.swap64(wire.AbortOffset, old, a.Word()); {
		old = atomic.LoadUint64(m.abort)
	}
	lease.WakeAll(m.mapping.Word32(wire.AbortOffset))
}

// rootOfWaitChain is the root of the wait-for chain that begins at a late rank. Ranks may write anything there.
func (m *memory) rootOfWaitChain(late rank.Local) rank.Local {
	var chain []rank.Local
	r := late
	for !slices.Contains(chain, r) {
		chain = append(chain, r)
		waitsFor := m.waitingFor(r)
		if m.operation(r) == wire.OpNone || waitsFor == 0 {
			return r
		}
		if r = waitsFor.Lowest(); int(r) >= m.world {
			return late
		}
	}
	return m.staleOf(chain[slices.Index(chain, r):])
}

// staleOf is, of a cycle of wait-for chains, the rank whose line is stale: it was stopped in its sleep, and what it waited for has come
// since. It has begun the fewest operations. Of equals it went to sleep first: the rank that it waited for published, and only then went
// to sleep.
func (m *memory) staleOf(cycle []rank.Local) rank.Local {
	word := func(r rank.Local, offset uint64) uint64 {
		return atomic.LoadUint64(m.mapping.Word64(m.line(r) + offset))
	}
	return slices.MinFunc(cycle, func(a, b rank.Local) int {
		return cmp.Or(cmp.Compare(word(a, wire.SeqOffset), word(b, wire.SeqOffset)),
			cmp.Compare(word(a, wire.AsleepSinceOffset), word(b, wire.AsleepSinceOffset)))
	})
}

// operation is the current operation in the rank's line. The rank may write anything there.
func (m *memory) operation(r rank.Local) wire.Op {
	return wire.Op(atomic.LoadUint32(m.mapping.Word32(m.line(r) + wire.OpOffset)))
}

// waitingFor is the set of ranks that the rank's line says it waits for. The rank may write anything there.
func (m *memory) waitingFor(r rank.Local) rank.LocalSet {
	return rank.LocalSet(atomic.LoadUint64(m.mapping.Word64(m.line(r) + wire.WaitingForOffset)))
}
