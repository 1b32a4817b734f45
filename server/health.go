package server

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

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
	begin := wire.FlightRingOffset(rank)
	return func(word int) *uint64 { return m.mapping.Word64(begin + uint64(word)*8) }
}

// describe adds to a group what its ranks say of themselves in shared memory, where they may write anything, and how it does.
// The memory is nil where the group has none.
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
		v := flight.Judge(ranks, now, stallAfter)
		if markStopped(g, ranks, v.Behind) {
			v = flight.Judge(ranks, now, stallAfter)
		}
		g.Health = &v
	case membership.Broken:
		g.Health = &flight.Verdict{State: flight.Broken, Culprit: g.Culprit, Text: g.Cause}
	default:
		g.Health = &flight.Verdict{State: flight.Forming}
	}
}

func (m *memory) rank(g *membership.GroupInfo, r *membership.RankInfo, now int64) flight.Rank {
	line := wire.RankLineOffset(r.Rank)
	out := flight.Rank{
		Rank: r.Rank, Here: r.State != "gone", Op: m.operation(r.Rank),
		Sequence:   atomic.LoadUint64(m.mapping.Word64(line + wire.SeqOffset)),
		WaitingFor: atomic.LoadUint64(m.mapping.Word64(line + wire.WaitingForOffset)),
	}
	r.Sequence, r.Operation = out.Sequence, out.Op.String()
	r.Bytes = atomic.LoadUint64(m.mapping.Word64(line + wire.BytesOffset))
	chosen := atomic.LoadUint32(m.mapping.Word32(line + wire.ChosenOffset))
	if algo := wire.Algo(chosen & 0xffff); algo != wire.AlgoAuto {
		r.Algorithm, r.Why = algo.String(), wire.Why(chosen>>16).String()
	}
	r.WaitingFor = flight.List(out.WaitingFor)
	if record, ok := flight.Numbered(m.flightRing(r.Rank), out.Sequence); ok {
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
	// In a set-up call it is the daemon that knows who has not come.
	if g.WaitingIn != "" && r.Operation == g.WaitingIn && !slices.Contains(g.WaitingFor, r.Rank) {
		for _, late := range g.WaitingFor {
			out.WaitingFor |= 1 << late
		}
	}
	return out
}

// markStopped notes which of the ranks behind do not run, and says whether there is one.
func markStopped(g *membership.GroupInfo, ranks []flight.Rank, behind []flight.Behind) bool {
	found := false
	for _, b := range behind {
		i := slices.IndexFunc(ranks, func(r flight.Rank) bool { return r.Rank == b.Rank })
		if ranks[i].Here && processIsStopped(g.Ranks[i].PID) {
			ranks[i].Stopped, found = true, true
		}
	}
	return found
}

// processIsStopped looks at the state in /proc/PID/stat, which follows the name in brackets: T and t are stopped, by a signal
// and by a debugger, Z and X are dead. Where there is nothing to be read nothing is claimed.
func processIsStopped(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte(") "))
	return ok && len(rest) > 0 && strings.IndexByte("TtZX", rest[0]) >= 0
}

// worst is the health that somebody should look at first.
func worst(groups []membership.GroupInfo) flight.Health {
	order := []flight.Health{flight.Idle, flight.Forming, flight.OK, flight.Stalled, flight.Broken}
	at := 0
	for i := range groups {
		at = max(at, slices.Index(order, groups[i].Health.State))
	}
	return order[at]
}

// groupsCheck tells of the groups' health. A group that is stalled or broken keeps nobody from forming another one, so it is
// no reason not to be ready.
func (a *admin) groupsCheck() check {
	s, err := askFor(a.s, (*core).status)
	if err != nil {
		return check{"groups", true, "not known: the core does not answer"}
	}
	counts := map[flight.Health]int{}
	var stalled []string
	for _, g := range s.Groups {
		counts[g.Health.State]++
		if g.Health.State == flight.Stalled {
			stalled = append(stalled, fmt.Sprintf("%q %s", g.Name, g.Health.Text))
		}
	}
	text := fmt.Sprintf("%d ok, %d idle, %d forming, %d stalled, %d broken", counts[flight.OK], counts[flight.Idle], counts[flight.Forming],
		counts[flight.Stalled], counts[flight.Broken])
	if len(stalled) > 0 {
		text += ": " + strings.Join(stalled[:min(len(stalled), maxNamedGroups)], "; ")
	}
	return check{"groups", true, text}
}

// maxNamedGroups is how many stalled groups a health check describes.
const maxNamedGroups = 4
