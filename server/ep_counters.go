package server

import (
	"slices"
	"sync/atomic"

	"railhead/internal/wire"
	"railhead/server/membership"
)

// epCounters are a rank's counters of MoE dispatch and combine, as far as they are in use.
type epCounters struct {
	rank                                            int
	dispatches, combines, tokens, copies, flagBytes uint64
	dropped                                         []uint64 // by epReasons
	payload, header, waitNS                         []uint64 // by rank
	routed, received                                []uint64 // by physical expert
}

// epReasons name what took no part, in the order of the counters; a call's report has the same names.
var epReasons = [wire.EPDropped]string{"invalid_ids", "duplicate_ids", "excess_tokens", "non_finite", "over_capacity", "lost_copies"}

// epUsed says how many experts a rank's counters are in use for, and whether they are at all. Memory of a rank that uses no MoE
// is not touched: reading a page would allocate it.
func (m *memory) epUsed(rank int) (experts int, ok bool) {
	begin := wire.EPCountersOffset(m.world, rank)
	if written, err := m.control.HasData(begin, wire.EPRoutedOffset); err != nil || !written {
		return 0, false
	}
	n := atomic.LoadUint64(m.mapping.Word64(begin + wire.EPExpertsOffset))
	dispatches := atomic.LoadUint64(m.mapping.Word64(begin + wire.EPDispatchesOffset))
	return int(min(n, wire.MaxExperts)), n != 0 || dispatches != 0
}

// usesEP says whether a rank of the group has counted anything.
func (m *memory) usesEP() bool {
	begin := wire.EPCountersOffset(m.world, 0)
	written, err := m.control.HasData(begin, wire.EPCountersOffset(m.world, m.world)-begin)
	for r := 0; err == nil && written && r < m.world; r++ {
		if _, ok := m.epUsed(r); ok {
			return true
		}
	}
	return false
}

// epRank reads a rank's counters; ok is false where there are none. The rank may write anything there, at any time.
func (m *memory) epRank(rank int) (c epCounters, ok bool) {
	experts, ok := m.epUsed(rank)
	if !ok {
		return c, false
	}
	begin := wire.EPCountersOffset(m.world, rank)
	words := func(offset uint64, n int) []uint64 {
		out := make([]uint64, n)
		for i := range out {
			out[i] = atomic.LoadUint64(m.mapping.Word64(begin + offset + 8*uint64(i)))
		}
		return out
	}
	word := func(offset uint64) uint64 { return words(offset, 1)[0] }
	return epCounters{
		rank: rank, dispatches: word(wire.EPDispatchesOffset), combines: word(wire.EPCombinesOffset), tokens: word(wire.EPTokensOffset),
		copies: word(wire.EPCopiesOffset), flagBytes: word(wire.EPFlagBytesOffset), dropped: words(wire.EPDroppedOffset, wire.EPDropped),
		payload: words(wire.EPPayloadOffset, m.world), header: words(wire.EPHeaderOffset, m.world),
		waitNS: words(wire.EPWaitOffset, m.world), routed: words(wire.EPRoutedOffset, experts), received: words(wire.EPReceivedOffset, experts),
	}, true
}

// epGroup is a group that uses MoE, with the counters of those of its ranks that have some.
type epGroup struct {
	name  string
	ranks []epCounters
}

// load is how many token copies all ranks' routers have sent to each physical expert. Sums of counters that are none of the
// library's must not wrap: they are floating point.
func (g *epGroup) load() []float64 {
	var total []float64
	for i := range g.ranks {
		for e, n := range g.ranks[i].routed {
			if e == len(total) {
				total = append(total, 0)
			}
			total[e] += float64(n)
		}
	}
	return total
}

// summary is nil of a group that uses no MoE.
func (g *epGroup) summary() *membership.MoEInfo {
	if g == nil {
		return nil
	}
	out := &membership.MoEInfo{}
	for i := range g.ranks {
		c := &g.ranks[i]
		out.Tokens += float64(c.tokens)
		out.Copies += float64(c.copies)
		for _, n := range c.dropped {
			out.Dropped += float64(n)
		}
	}
	load := g.load()
	out.Experts = len(load)
	for expert, n := range load {
		out.AvgLoad += n / float64(len(load))
		if n > out.MaxLoad {
			out.Busiest, out.MaxLoad = expert, n
		}
	}
	return out
}

// epGroup is nil where the group has ended, or uses no MoE.
func (c *core) epGroup(id membership.GroupID) *epGroup {
	m := c.memory[id]
	if m == nil {
		return nil
	}
	g := &epGroup{name: m.group.Name}
	for r := range m.world {
		if counters, ok := m.epRank(r); ok {
			g.ranks = append(g.ranks, counters)
		}
	}
	if len(g.ranks) == 0 {
		return nil
	}
	return g
}

// epGroups are those that use MoE, the oldest first, and of several with one name the newest: a broken group lives on until its
// last rank has let go, while the next one of its name works.
func (c *core) epGroups() []membership.GroupID {
	newest := map[string]membership.GroupID{}
	for id, m := range c.memory {
		if id >= newest[m.group.Name] && m.usesEP() {
			newest[m.group.Name] = id
		}
	}
	var ids []membership.GroupID
	for _, id := range newest {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
