package tests

import (
	"testing"

	"pgregory.net/rapid"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
)

// wraps are the types whose sums and products do not depend on the order.
var wraps = []oracle.Dtype{oracle.I8, oracle.U8, oracle.I32, oracle.I64, oracle.U64}

// inAnyOrder changes an operation so that its result does not depend on the order of the reduction.
func inAnyOrder(t *rapid.T, o operation) operation {
	if !o.kind.reduces() {
		return o
	}
	o.special = false // min and max of 0 and -0 depend on the order
	if o.op != oracle.Min && o.op != oracle.Max {
		o.dtype = rapid.SampledFrom(wraps).Draw(t, "type that wraps")
	}
	return o
}

// Rings, trees, and sends and receives share pipes. In no sequence may an operation take another one's chunks.
func TestAnySequenceWithRingsAndTrees(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	sets := instructionSets(t, s)
	deep.Checks(t, 30)
	rapid.Check(t, func(rt *rapid.T) {
		t.Setenv("RAILHEAD_ALGO", rapid.SampledFrom([]string{
			"ring", "tree", "ring;broadcast:tree", "allreduce:tree;ring", "allreduce:ring;broadcast:tree",
		}).Draw(rt, "algorithms"))
		t.Setenv("RAILHEAD_ISA", rapid.SampledFrom(sets).Draw(rt, "instructions"))
		world := rapid.IntRange(2, 7).Draw(rt, "world")
		operations := make([]operation, rapid.IntRange(1, 25).Draw(rt, "operations"))
		for i := range operations {
			operations[i] = inAnyOrder(rt, drawOperation(rt, world))
		}
		ranks := drawGroup(t, rt, s, client.CommConfig{World: world, Reproducible: client.ReproducibleOff, HeapBytes: 4 << 20})
		runAll(rt, ranks, windowsOf(rt, ranks, windowBytes), operations, 0)
		all(t, ranks, finalize)
		all(t, ranks, closeSession)
	})
}
