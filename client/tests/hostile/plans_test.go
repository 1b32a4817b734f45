package hostile

import (
	"math"
	"testing"

	"railhead/internal/wire"
)

// With invalid plans a rank would read beyond their end, or run another algorithm than its peers.
func TestInvalidPlansAreRefused(t *testing.T) {
	for _, c := range []struct {
		what  string
		spoil func(p *wire.Plans)
		word  string
	}{
		{"none at all", func(p *wire.Plans) { *p = wire.Plans{} }, "no plans for a CPU"},
		{"a rank twice in the ring", func(p *wire.Plans) { p.Order[0] = 1 }, "order"},
		{"too many channels", func(p *wire.Plans) { p.Channels = wire.MaxChannels + 1 }, "channels"},
		{"no choice", func(p *wire.Plans) { p.Copied[wire.PlanAllReduce].Count = 0 }, "ranges"},
		{"more choices than fit", func(p *wire.Plans) { p.ZeroCopy[wire.PlanAllToAll].Count = wire.MaxChoices + 1 }, "ranges"},
		{"a range that ends", func(p *wire.Plans) { p.Copied[wire.PlanAllGather].Choice[0].BelowBytes-- }, "ranges"},
		{"ranges that do not ascend", func(p *wire.Plans) {
			plan := &p.Copied[wire.PlanReduceScatter]
			plan.Count = 3
			for i, below := range []uint64{10, 10, math.MaxUint64} {
				plan.Choice[i] = wire.Choice{BelowBytes: below, Algo: uint16(wire.AlgoOneshot)}
			}
		}, "ranges"},
		{"an algorithm of another operation", func(p *wire.Plans) { p.Copied[wire.PlanBroadcast].Choice[0].Algo = uint16(wire.AlgoTwoshot) },
			"algorithm that the operation"},
		{"no algorithm for ordinary memory", func(p *wire.Plans) { p.Copied[wire.PlanAllReduce].Choice[0].Algo = 0 }, "algorithm that the operation"},
		{"an algorithm that does not exist", func(p *wire.Plans) { p.Copied[wire.PlanAllReduce].Choice[0].Algo = 200 }, "algorithm that the operation"},
		{"a copying algorithm as zero-copy", func(p *wire.Plans) { p.ZeroCopy[wire.PlanAllReduce].Choice[0].Algo = uint16(wire.AlgoRing) }, "zero-copy"},
		{"no polls", func(p *wire.Plans) { p.PollsPerTurn = 0 }, "polls_per_turn"},
		{"too many polls", func(p *wire.Plans) { p.PollsPerTurn = math.MaxUint32 }, "polls_per_turn"},
		{"every turn is long", func(p *wire.Plans) { p.LongTurnNS = 0 }, "long_turn_ns"},
		{"no turn is long", func(p *wire.Plans) { p.LongTurnNS = math.MaxUint32 }, "long_turn_ns"},
		{"a processor that stays busy without end", func(p *wire.Plans) { p.BusyMostNS = math.MaxUint32 }, "busy_most_ns"},
		{"a processor that is busy for longer than the most", func(p *wire.Plans) { p.BusyNS = p.BusyMostNS + 1 }, "busy_ns"},
		{"spinning without end", func(p *wire.Plans) { p.BusySpinNS = math.MaxUint32 }, "busy_spin_ns"},
		{"no time between rechecks", func(p *wire.Plans) { p.RecheckNS = 0 }, "recheck_ns"},
		{"too much time between rechecks", func(p *wire.Plans) { p.RecheckNS = math.MaxUint64 }, "recheck_ns"},
		{"no time between checks for deaths", func(p *wire.Plans) { p.EPDeathCheckNS = 0 }, "ep_death_check_ns"},
		{"too much time between checks for deaths", func(p *wire.Plans) { p.EPDeathCheckNS = math.MaxUint64 }, "ep_death_check_ns"},
		{"no deadline for a waiter", func(p *wire.Plans) { p.EPWaiterDeadlines = 0 }, "ep_waiter_deadlines"},
		{"a deadline that overflows", func(p *wire.Plans) { p.EPWaiterDeadlines = math.MaxUint32 }, "ep_waiter_deadlines"},
		{"a streaming limit of 0", func(p *wire.Plans) { p.EPStreamAboveBytes = 0 }, "ep_stream_above_bytes"},
		{"a streaming limit beyond any heap", func(p *wire.Plans) { p.EPStreamAboveBytes = math.MaxUint64 }, "ep_stream_above_bytes"},
	} {
		t.Run(c.what, func(t *testing.T) {
			err := liveWith(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
				p := simplePlans(1)
				c.spoil(p)
				f.writePlans(answers[0].fds[0], p)
				return answers
			}))
			wantError(t, err, wire.ResultProtocol, "comm_init", "rank 0", c.word)
		})
	}
}
