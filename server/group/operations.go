package group

import (
	"maps"
	"slices"
	"sync/atomic"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/membership"
)

// begun is the number of operations that a rank has begun. The rank may write anything there.
func (m *memory) begun(r rank.Local) uint64 {
	return atomic.LoadUint64(m.mapping.Word64(m.line(r) + wire.SeqOffset))
}

// countFromNow makes the counting begin with the ranks' next operations: an earlier daemon has counted those before.
func (m *memory) countFromNow() {
	for r := range rank.First(m.world).All() {
		m.counted[r] = m.begun(r)
	}
}

// count adds the operations that have ended since the last count.
func (m *memory) count(t *flight.Tally) {
	for r := range rank.First(m.world).All() {
		m.counted[r] = t.Add(m.flightRing(int(r)), m.counted[r], m.begun(r))
	}
}

// Held are the groups that have memory, the oldest first.
func (g *Groups) Held() []membership.GroupID { return slices.Sorted(maps.Keys(g.memory)) }

// CountOperations counts the operations of a group that have ended since they were counted last.
func (g *Groups) CountOperations(id membership.GroupID) {
	if m := g.memory[id]; m != nil {
		m.count(&g.operations)
	}
}

// Operations are those counted so far, of all groups.
func (g *Groups) Operations() flight.Tally { return g.operations }
