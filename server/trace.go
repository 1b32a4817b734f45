package server

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"railhead/internal/wire"
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

// keepTrace remembers the end of a group whose last rank has let go.
func (c *core) keepTrace(m *memory) {
	t := m.trace(endedRecords)
	t.Ended = true
	c.traces = append(c.traces, t)
	if len(c.traces) > maxTraces {
		c.traces = slices.Delete(c.traces, 0, len(c.traces)-maxTraces)
	}
}

// tracesOf are those of the groups of a name, "" = of all; first of the ended ones.
func (c *core) tracesOf(name string, n int) flight.Traces {
	out := flight.Traces{WallOffsetNS: time.Now().UnixNano() - monotonic(), Traces: []flight.Trace{}}
	for _, t := range c.traces {
		if name == "" || t.Name == name {
			t.Ranks = slices.Clone(t.Ranks)
			for i, r := range t.Ranks {
				t.Ranks[i].Records = r.Records[max(0, len(r.Records)-n):]
			}
			out.Traces = append(out.Traces, t)
		}
	}
	var live []membership.GroupID
	for id, m := range c.memory {
		if name == "" || m.group.Name == name {
			live = append(live, id)
		}
	}
	slices.Sort(live)
	for _, id := range live {
		out.Traces = append(out.Traces, c.memory[id].trace(n))
	}
	return out
}

// trace answers /v1/trace?group=NAME&last=N.
func (a *admin) trace(ctx *fasthttp.RequestCtx) {
	args := ctx.QueryArgs()
	n := wire.FlightRecords
	if args.Has("last") {
		var err error
		if n, err = strconv.Atoi(string(args.Peek("last"))); err != nil || n < 1 || n > wire.FlightRecords {
			adminError(ctx, fasthttp.StatusBadRequest, "invalid_argument", fmt.Sprintf("last=%q is no number of records", args.Peek("last")),
				fmt.Sprintf("use 1 to %d", wire.FlightRecords))
			return
		}
	}
	name := string(args.Peek("group"))
	answer, err := askFor(a.s, func(c *core) flight.Traces { return c.tracesOf(name, n) })
	if err != nil {
		coreStuck(ctx)
		return
	}
	writeCompactJSON(ctx, answer) // 65536 records of one group of 64 ranks
}
