package group

import (
	"sync/atomic"
	"testing"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/membership"
)

// describedAt is the verdict on a group of two ranks that have been in an operation since the time 1 s.
func describedAt(t *testing.T, op wire.Op, seconds, punchEnded int64, change func(*membership.GroupInfo)) *flight.Verdict {
	t.Helper()
	w := newWatchedMemory(t, 2)
	w.punchEnded = punchEnded * int64(time.Second)
	info := membership.GroupInfo{State: membership.Ready, WorldSize: 2, Ranks: []membership.RankInfo{{Rank: 0, State: "attached"}, {Rank: 1, State: "attached"}}}
	change(&info)
	for r := range rank.Local(2) {
		atomic.StoreUint64(w.mapping.Word64(w.line(r)+wire.SeqOffset), 1)
		atomic.StoreUint32(w.mapping.Word32(w.line(r)+wire.OpOffset), uint32(op))
		record := wire.FlightRecord{Number: 1, Enqueued: uint64(time.Second)}
		at := w.flightRing(int(r))
		atomic.StoreUint64(at(wire.FlightWords), record.Number)
		atomic.StoreUint64(at(wire.FlightWords+5), record.Enqueued)
	}
	w.describe(&info, seconds*int64(time.Second))
	for _, r := range info.Ranks {
		if want := (seconds - 1) * 1000; r.AgeMS == nil || *r.AgeMS != want {
			t.Errorf("a rank has been in its operation for %v ms, want %d", r.AgeMS, want)
		}
	}
	return info.Health
}

func TestTheDaemonsTimeForReleasingPagesDoesNotMakeAGroupStalled(t *testing.T) {
	releasing := func(op wire.Op) func(*membership.GroupInfo) {
		return func(g *membership.GroupInfo) { g.ReleasingIn = op.String() }
	}
	nothing := func(*membership.GroupInfo) {}
	for what, c := range map[string]struct {
		op             wire.Op
		now, punchEnds int64
		change         func(*membership.GroupInfo)
		want           flight.Health
	}{
		"window_free, pages are being released":          {wire.OpWindowFree, 60, 0, releasing(wire.OpWindowFree), flight.OK},
		"window_alloc, pages are being released":         {wire.OpWindowAlloc, 60, 0, releasing(wire.OpWindowAlloc), flight.OK},
		"window_free, just released":                     {wire.OpWindowFree, 60, 58, nothing, flight.OK},
		"window_alloc, just released":                    {wire.OpWindowAlloc, 60, 58, nothing, flight.OK},
		"window_alloc, released long ago":                {wire.OpWindowAlloc, 60, 50, nothing, flight.Stalled},
		"window_alloc, released before":                  {wire.OpWindowAlloc, 4, 0, nothing, flight.OK},
		"window_free, nothing was released":              {wire.OpWindowFree, 60, 0, nothing, flight.Stalled},
		"all_reduce while pages are released":            {wire.OpAllReduce, 60, 58, releasing(wire.OpWindowFree), flight.Stalled},
		"window_register while another call is released": {wire.OpWindowRegister, 60, 58, nothing, flight.Stalled},
	} {
		if v := describedAt(t, c.op, c.now, c.punchEnds, c.change); v.State != c.want {
			t.Errorf("%s: %s, want %s", what, v.State, c.want)
		}
	}
}
