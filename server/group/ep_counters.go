package group

import (
	"maps"
	"slices"
	"sync/atomic"

	"railhead/internal/wire"
	"railhead/server/membership"
)

// EPCounters are a rank's counters of MoE dispatch and combine, cut to the ranks and experts in use.
type EPCounters struct {
	Rank                                            int
	Dispatches, Combines, Tokens, Copies, FlagBytes uint64
	Dropped                                         []uint64 // by EPReasons
	Payload, Header, WaitNS                         []uint64 // by rank
	Routed, Received                                []uint64 // by physical expert
}

// EPReasons name the reasons for which input was dropped, in the order of the counters. A call's report has the same names.
var EPReasons = [wire.EPDropped]string{"invalid_ids", "duplicate_ids", "excess_tokens", "non_finite", "over_capacity", "lost_copies"}

// epUsed returns the number of experts in use in a rank's counters, and whether the rank uses MoE. It does not touch the counters of a
// rank that uses no MoE: reading a page would allocate it.
func (m *memory) epUsed(rank int) (experts int, ok bool) {
	begin := m.parts.Counters.At(rank)
	if written, err := m.control.HasData(begin, wire.EPRoutedOffset); err != nil || !written {
		return 0, false
	}
	n := atomic.LoadUint64(m.mapping.Word64(begin + wire.EPExpertsOffset))
	dispatches := atomic.LoadUint64(m.mapping.Word64(begin + wire.EPDispatchesOffset))
	return int(min(n, wire.MaxExperts)), n != 0 || dispatches != 0
}

// usesEP reports whether a rank of the group uses MoE.
func (m *memory) usesEP() bool {
	counters := m.parts.Counters
	written, err := m.control.HasData(counters.Offset, counters.Bytes())
	for r := 0; err == nil && written && r < m.world; r++ {
		if _, ok := m.epUsed(r); ok {
			return true
		}
	}
	return false
}

// epRank reads a rank's counters; ok is false if there are none. The rank may write anything there, at any time.
func (m *memory) epRank(rank int) (c EPCounters, ok bool) {
	experts, ok := m.epUsed(rank)
	if !ok {
		return c, false
	}
	begin := m.parts.Counters.At(rank)
	words := func(offset uint64, n int) []uint64 {
		out := make([]uint64, n)
		for i := range out {
			out[i] = atomic.LoadUint64(m.mapping.Word64(begin + offset + 8*uint64(i)))
		}
		return out
	}
	word := func(offset uint64) uint64 { return words(offset, 1)[0] }
	return EPCounters{
		Rank: rank, Dispatches: word(wire.EPDispatchesOffset), Combines: word(wire.EPCombinesOffset), Tokens: word(wire.EPTokensOffset),
		Copies: word(wire.EPCopiesOffset), FlagBytes: word(wire.EPFlagBytesOffset), Dropped: words(wire.EPDroppedOffset, wire.EPDropped),
		Payload: words(wire.EPPayloadOffset, m.world), Header: words(wire.EPHeaderOffset, m.world),
		WaitNS: words(wire.EPWaitOffset, m.world), Routed: words(wire.EPRoutedOffset, experts), Received: words(wire.EPReceivedOffset, experts),
	}, true
}

// EPGroup is a group that uses MoE, with the counters of the ranks that have some.
type EPGroup struct {
	Name  string
	Ranks []EPCounters
}

// Load is the number of token copies that all ranks' routers have sent to each physical expert. The sums are floating point, so that
// counters with arbitrary values do not wrap.
func (g *EPGroup) Load() []float64 {
	var total []float64
	for i := range g.Ranks {
		for e, n := range g.Ranks[i].Routed {
			if e == len(total) {
				total = append(total, 0)
			}
			total[e] += float64(n)
		}
	}
	return total
}

// Summary is nil for a group that uses no MoE.
func (g *EPGroup) Summary() *membership.MoEInfo {
	if g == nil {
		return nil
	}
	out := &membership.MoEInfo{}
	for i := range g.Ranks {
		c := &g.Ranks[i]
		out.Tokens += float64(c.Tokens)
		out.Copies += float64(c.Copies)
		for _, n := range c.Dropped {
			out.Dropped += float64(n)
		}
	}
	load := g.Load()
	out.Experts = len(load)
	for expert, n := range load {
		out.AvgLoad += n / float64(len(load))
		if n > out.MaxLoad {
			out.Busiest, out.MaxLoad = expert, n
		}
	}
	return out
}

// EP is nil if the group has ended or uses no MoE.
func (g *Groups) EP(id membership.GroupID) *EPGroup {
	m := g.memory[id]
	if m == nil {
		return nil
	}
	out := &EPGroup{Name: m.group.Name}
	for r := range m.world {
		if counters, ok := m.epRank(r); ok {
			out.Ranks = append(out.Ranks, counters)
		}
	}
	if len(out.Ranks) == 0 {
		return nil
	}
	return out
}

// UsingEP are the groups that use MoE, the oldest first. Of several groups to which name gives the same it has only the newest: a broken
// group exists until its last rank has left it, beside the next group of its name.
func (g *Groups) UsingEP(name func(group string) string) []membership.GroupID {
	newest := map[string]membership.GroupID{}
	for id, m := range g.memory {
		if n := name(m.group.Name); id >= newest[n] && m.usesEP() {
			newest[n] = id
		}
	}
	return slices.Sorted(maps.Values(newest))
}
