package group

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/membership"
)

// monotonic is the clock of the flight records, ns.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return t.Nano()
}

// flightRing is a rank's flight record.
func (m *memory) flightRing(rank int) flight.Ring {
	begin := m.parts.Flights.At(rank)
	return func(word int) *uint64 { return m.mapping.Word64(begin + uint64(word)*8) }
}

// describe adds to a group the state that its ranks have written into shared memory, where they may write anything, and the verdict.
// The memory is nil if the group has none.
func (m *memory) describe(g *membership.GroupInfo, now int64) {
	ranks := make([]flight.Rank, 0, len(g.Ranks))
	if m != nil {
		g.Ring = m.ring
	}
	for i := range g.Ranks {
		if m == nil {
			break
		}
		ranks = append(ranks, m.rank(g, &g.Ranks[i], now))
	}
	switch g.State {
	case membership.Ready:
		v := judge(g, ranks, now, StallAfter)
		g.Health = &v
		markLate(g, judge(g, ranks, now, LateAfter))
	case membership.Broken:
		g.Health = &flight.Verdict{State: flight.Broken, Culprit: g.Culprit, Text: g.Cause}
	default:
		g.Health = &flight.Verdict{State: flight.Forming}
	}
}

func (m *memory) rank(g *membership.GroupInfo, r *membership.RankInfo, now int64) flight.Rank {
	local := m.localOf(rank.World(r.Rank))
	line := m.line(local)
	out := flight.Rank{
		Rank: local, Here: r.State != "gone", Op: m.operation(local),
		Sequence:   atomic.LoadUint64(m.mapping.Word64(line + wire.SeqOffset)),
		WaitingFor: m.waitingFor(local),
	}
	r.Sequence, r.Operation = out.Sequence, out.Op.String()
	r.Bytes = atomic.LoadUint64(m.mapping.Word64(line + wire.BytesOffset))
	chosen := atomic.LoadUint32(m.mapping.Word32(line + wire.ChosenOffset))
	if algo := wire.Algo(chosen & 0xffff); algo != wire.AlgoAuto {
		r.Algorithm, r.Why = algo.String(), wire.Why(chosen>>16).String()
	}
	r.WaitingFor = flight.List(out.WaitingFor)
	if record, ok := flight.Numbered(m.flightRing(int(local)), out.Sequence); ok {
		out.Collective = record.Collective
		if out.Since = record.EnqueuedNS; out.Op == wire.OpNone {
			out.Since = record.DoneNS
		}
		r.Collective = out.Collective
		if out.Since > 0 {
			age := max(0, now-out.Since) / 1e6
			r.AgeMS = &age
		}
	}
	// The daemon's own time for releasing pages does not make a group stalled.
	switch {
	case out.Since == 0 || out.Op != wire.OpWindowAlloc && out.Op != wire.OpWindowFree:
	case g.ReleasingIn == r.Operation:
		out.Since = now
	default:
		out.Since = max(out.Since, m.punchEnded)
	}
	// In a set-up call the daemon knows which ranks have not called.
	if g.WaitingIn != "" && r.Operation == g.WaitingIn && !slices.Contains(g.WaitingFor, r.Rank) {
		for _, late := range g.WaitingFor {
			out.WaitingFor = out.WaitingFor.With(m.localOf(rank.World(late)))
		}
	}
	return out
}

// judge is flight.Judge, also where a process is stopped.
func judge(g *membership.GroupInfo, ranks []flight.Rank, now int64, after time.Duration) flight.Verdict {
	v := flight.Judge(ranks, now, after)
	if markStopped(g, ranks, v.Behind) {
		v = flight.Judge(ranks, now, after)
	}
	return v
}

// markLate stores for the ranks behind how long another rank has been waiting for them.
func markLate(g *membership.GroupInfo, v flight.Verdict) {
	for _, b := range v.Behind {
		i := slices.IndexFunc(g.Ranks, func(r membership.RankInfo) bool { return r.Rank == b.Rank })
		for _, w := range v.Waiting {
			if late := &g.Ranks[i].LateMS; w.AgeMS != nil && slices.Contains(w.WaitingFor, b.Rank) && (*late == nil || **late < *w.AgeMS) {
				*late = w.AgeMS
			}
		}
	}
}

// markStopped marks the ranks behind whose process is stopped, and reports whether there is one.
func markStopped(g *membership.GroupInfo, ranks []flight.Rank, behind []flight.Behind) bool {
	found := false
	for _, b := range behind {
		i := slices.IndexFunc(ranks, func(r flight.Rank) bool { return int(r.Rank) == b.Rank })
		if ranks[i].Here && wire.ProcessIsStopped(g.Ranks[i].PID) {
			ranks[i].Stopped, found = true, true
		}
	}
	return found
}

// Snapshot describes the groups that a rank holds, with the state that their ranks have written, and those that have ended, the latest
// last.
func (g *Groups) Snapshot() (groups, ended []membership.GroupInfo) {
	groups, ended = g.machine.Snapshot()
	now := monotonic()
	for i := range groups {
		g.memory[groups[i].ID].describe(&groups[i], now)
	}
	return groups, ended
}

// Ready are the groups that are ready, the oldest first.
func (g *Groups) Ready() (ready []membership.GroupID) {
	groups, _ := g.machine.Snapshot()
	for i := range groups {
		if groups[i].State == membership.Ready && g.memory[groups[i].ID] != nil {
			ready = append(ready, groups[i].ID)
		}
	}
	return ready
}

// LastRecords are the n last flight records of each rank, none if the group has ended.
func (g *Groups) LastRecords(id membership.GroupID, n int) []flight.RankTrace {
	m := g.memory[id]
	if m == nil {
		return nil
	}
	out := make([]flight.RankTrace, m.world)
	for r := range out {
		out[r] = flight.RankTrace{Rank: r, Records: flight.Before(m.flightRing(r), m.begun(rank.Local(r)), n)}
	}
	return out
}

// DeviceBytes is the memory of devices in windows, of all ranks.
func (g *Groups) DeviceBytes() uint64 { return g.machine.DeviceBytes() }

// Committed is the number of bytes with pages in all heaps of a CPU's memory.
func (g *Groups) Committed() (total uint64) {
	for _, m := range g.memory {
		total += m.committed()
	}
	return total
}
