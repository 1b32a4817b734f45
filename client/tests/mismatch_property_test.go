package tests

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"railhead/client"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// mismatchPatience is the deadline of groups whose ranks are to find a difference: shorter than patience, since a case that
// fails waits for it and rapid then tries many.
const mismatchPatience = 10 * time.Second

// collectives are the kinds that all ranks take part in.
var collectives = []kind{allReduce, reduceScatter, reduce, allGather, allToAll, broadcast, gather, scatter}

func drawSmallCollective(t *rapid.T, world int) operation {
	return operation{
		kind:  rapid.SampledFrom(collectives).Draw(t, "kind"),
		dtype: rapid.SampledFrom(oracle.Dtypes()).Draw(t, "dtype"),
		op:    rapid.SampledFrom([]oracle.Op{oracle.Sum, oracle.Max, oracle.PreMulSum}).Draw(t, "op"),
		root:  rapid.IntRange(0, world-1).Draw(t, "root"),
		count: rapid.SampledFrom([]int{0, 1, 100, 5000, 40_000}).Draw(t, "count"),
		seed:  rapid.Uint64().Draw(t, "seed"),
	}
}

// rooted says whether root means anything to the operation.
func (o operation) rooted() bool {
	return o.kind == reduce || o.kind == broadcast || o.kind == gather || o.kind == scatter
}

// differs says whether two operations do not match.
func (o operation) differs(other operation) bool {
	return o.kind != other.kind || o.dtype != other.dtype || o.count != other.count || o.kind.reduces() && o.op != other.op ||
		o.rooted() && o.root != other.root
}

// A rank calls something else in the midst of a sequence. Whatever it is, and whoever needs whom for what follows, all ranks
// learn of it by the barrier at the end, and nothing is written outside any buffer.
func TestADifferenceAnywhereInAnySequenceIsFoundByAllRanks(t *testing.T) {
	s := startDaemon(t)
	rapid.Check(t, func(rt *rapid.T) {
		t.Setenv("RAILHEAD_ALGO", rapid.SampledFrom([]string{"auto", "ring", "ring;broadcast:tree", "allreduce:tree;ring"}).Draw(rt, "algorithms"))
		world := rapid.IntRange(2, 5).Draw(rt, "world")
		usual := make([]operation, rapid.IntRange(1, 6).Draw(rt, "operations"))
		for i := range usual {
			usual[i] = drawSmallCollective(rt, world)
		}
		odd := rapid.IntRange(0, world-1).Draw(rt, "odd")
		at := rapid.IntRange(0, len(usual)-1).Draw(rt, "at")
		other := usual[at]
		switch rapid.IntRange(0, 2).Draw(rt, "what") {
		case 0:
			other = drawSmallCollective(rt, world)
		case 1:
			other.kind = rapid.SampledFrom(collectives).Draw(rt, "other kind")
		case 2:
			other.root = rapid.IntRange(0, world-1).Draw(rt, "other root")
		}
		if !other.differs(usual[at]) {
			return
		}
		ranks := drawGroup(t, rt, s, client.CommConfig{World: world, Timeout: mismatchPatience, Reproducible: client.ReproducibleOff})
		errs := together(ranks, func(m member) error {
			for i, o := range usual {
				if i == at && m.Rank() == odd {
					o = other
				}
				if _, err := o.run(m, nil, o.inputs(world)[m.Rank()]); err != nil {
					return err
				}
			}
			return m.Barrier()
		})
		for r, err := range errs {
			var e *client.Error
			if !errors.As(err, &e) || e.Result != wire.ResultMismatch {
				rt.Fatalf("rank %d got %v, want a mismatch: operation %d of %v; rank %d called %v", r, err, at, usual, odd, other)
			}
		}
	})
}
