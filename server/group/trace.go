package group

import (
	"slices"
	"time"

	"railhead/server/flight"
	"railhead/server/membership"
)

// trace is the flight record of the group's ranks, the last n operations of each.
func (m *memory) trace(n int) flight.Trace {
	return flight.Trace{
		Group: uint64(m.group.Group), Name: m.group.Name, Incarnation: m.group.Incarnation, WorldSize: m.world,
		Ranks: flight.Gather(m.world, n, m.flightRing),
	}
}

// keepTrace keeps the last records of a group whose last rank has left.
func (g *Groups) keepTrace(m *memory) {
	t := m.trace(EndedRecords)
	t.Ended = true
	g.traces = append(g.traces, t)
	if len(g.traces) > MaxTraces {
		g.traces = slices.Delete(g.traces, 0, len(g.traces)-MaxTraces)
	}
}

// Traces are the traces of the groups with this name, "" = all groups; ended groups come first.
func (g *Groups) Traces(name string, n int) flight.Traces {
	out := flight.Traces{WallOffsetNS: time.Now().UnixNano() - monotonic(), Traces: []flight.Trace{}}
	for _, t := range g.traces {
		if name == "" || t.Name == name {
			t.Ranks = slices.Clone(t.Ranks)
			for i, r := range t.Ranks {
				t.Ranks[i].Records = r.Records[max(0, len(r.Records)-n):]
			}
			out.Traces = append(out.Traces, t)
		}
	}
	var live []membership.GroupID
	for id, m := range g.memory {
		if name == "" || m.group.Name == name {
			live = append(live, id)
		}
	}
	slices.Sort(live)
	for _, id := range live {
		out.Traces = append(out.Traces, g.memory[id].trace(n))
	}
	return out
}
