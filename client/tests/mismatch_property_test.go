package tests

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// mismatchPatience is the deadline of these groups. It is shorter than patience, because a failing case waits for it, and rapid then
// repeats the case many times.
const mismatchPatience = 10 * time.Second

// collectives are the kinds in which all ranks take part.
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

// rooted reports whether the operation has a root.
func (o operation) rooted() bool {
	return o.kind == reduce || o.kind == broadcast || o.kind == gather || o.kind == scatter
}

// differs reports whether two operations are a mismatch.
func (o operation) differs(other operation) bool {
	return o.kind != other.kind || o.dtype != other.dtype || o.count != other.count || o.kind.reduces() && o.op != other.op ||
		o.rooted() && o.root != other.root
}

// One rank calls another operation somewhere in a sequence. All ranks must fail by the barrier at the end, and no rank may write outside
// its buffers.
func TestAMismatchAnywhereInAnySequenceIsFoundByAllRanks(t *testing.T) {
	s := startDaemon(t)
	deep.Checks(t, 30)
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
