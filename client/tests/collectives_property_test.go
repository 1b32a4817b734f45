package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
	"railhead/internal/wire"
	"railhead/server"
)

// windowBytes is enough for most operations below. Larger ones use ordinary memory.
const windowBytes = 1 << 20

// everyOperation returns every kind with every type and, if it reduces, every reduction. The other parameters are random.
func everyOperation(random *rand.Rand, world int, count func() int) (operations []operation) {
	add := func(k kind, d oracle.Dtype, op oracle.Op) {
		operations = append(operations, operation{
			kind: k, dtype: d, op: op, count: count(), root: random.IntN(world), seed: random.Uint64(),
			special: random.IntN(3) == 0, windows: random.IntN(3) == 0,
		})
	}
	for _, d := range oracle.Dtypes() {
		for _, k := range reducing {
			for _, op := range oracle.Ops() {
				add(k, d, op)
			}
		}
		for _, k := range moving {
			add(k, d, "")
		}
	}
	random.Shuffle(len(operations), func(i, j int) { operations[i], operations[j] = operations[j], operations[i] })
	return operations
}

func TestEveryOperationOfEveryTypeInWorldsOf1To64(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	for _, world := range deep.First(t, 7, []int{1, 2, 3, 5, 8, 9, 64, 4, 6, 7, 16, 33}) {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(world), 4))
			reduceGroup := random.IntN(world + 1)
			ranks := formGroup(t, s, client.CommConfig{World: world, ReduceGroup: reduceGroup, HeapBytes: 4 << 20})
			windows := windowsOf(t, ranks, windowBytes)
			small := everyOperation(random, world, func() int { return random.IntN(4) * random.IntN(13) })
			runAll(t, ranks, windows, small, reduceGroup)
			if world <= 9 { // slow with many more ranks than processors
				runAll(t, ranks, windows, everyOperation(random, world, func() int { return random.IntN(1500) }), reduceGroup)
			}
			all(t, ranks, finalize)
		})
	}
}

func TestCountsAroundTheSizesOfBlocksAndSlots(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	const world, reduceGroup = 3, 2
	ranks := formGroup(t, s, client.CommConfig{World: world, ReduceGroup: reduceGroup, HeapBytes: 16 << 20})
	windows := windowsOf(t, ranks, 4*windowBytes)
	random := rand.New(rand.NewPCG(1, 2))
	var operations []operation
	for _, unit := range []int{2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, blockBytes, 2 * blockBytes, 3 * blockBytes} {
		for _, k := range append(append([]kind{}, reducing...), moving...) {
			for _, beside := range []int{-1, 0, 1} {
				d := oracle.Dtypes()[random.IntN(len(oracle.Dtypes()))]
				operations = append(operations, operation{
					kind: k, dtype: d, op: oracle.Ops()[random.IntN(6)], count: unit/d.Size() + beside, root: random.IntN(world),
					windows: random.IntN(2) == 0, seed: random.Uint64(),
				})
			}
		}
	}
	runAll(t, ranks, windows, operations, reduceGroup)
}

// sizesOf are the sizes in bytes near which the library changes its path.
var sizesOf = []int{0, 8, 64, 2 << 10, 8 << 10, 32 << 10, blockBytes, 2 * blockBytes, 5 * blockBytes}

func drawOperation(t *rapid.T, world int) operation {
	o := operation{
		kind:    rapid.SampledFrom(append(append([]kind{}, reducing...), moving...)).Draw(t, "kind"),
		dtype:   rapid.SampledFrom(oracle.Dtypes()).Draw(t, "dtype"),
		root:    rapid.IntRange(0, world-1).Draw(t, "root"),
		special: rapid.Bool().Draw(t, "special"),
		windows: rapid.Bool().Draw(t, "windows"),
		delays:  rapid.Bool().Draw(t, "delays"),
		seed:    rapid.Uint64().Draw(t, "seed"),
	}
	if o.kind.reduces() {
		o.op = rapid.SampledFrom(oracle.Ops()).Draw(t, "op")
	}
	unit := rapid.SampledFrom(sizesOf).Draw(t, "unit") / o.dtype.Size()
	o.count = rapid.OneOf(rapid.IntRange(max(unit-2, 0), unit+2), rapid.IntRange(0, 500)).Draw(t, "count")
	// Bounds the size of all ranks' buffers, and the time of the checks.
	send, recv := o.times(world)
	o.count = min(o.count, 1<<21/(world*max(send, recv)*o.dtype.Size()))
	return o
}

func drawWorldOfNine(t *rapid.T) int { return rapid.IntRange(1, 9).Draw(t, "world") }

// checkSequence runs the operations with each of the instruction sets, in a new group.
func checkSequence(t *testing.T, rt *rapid.T, s *server.Server, sets []string, world, reduceGroup int, operations []operation) {
	for _, set := range sets {
		t.Setenv("RAILHEAD_ISA", set)
		ranks := drawGroup(t, rt, s, client.CommConfig{World: world, ReduceGroup: reduceGroup, HeapBytes: 4 << 20})
		windows := windowsOf(rt, ranks, windowBytes)
		runAll(rt, ranks, windows, operations, reduceGroup)
		all(t, ranks, finalize)
		all(t, ranks, closeSession)
	}
}

// instructionSets returns the instruction sets of this machine.
func instructionSets(t *testing.T, s *server.Server) (sets []string) {
	for _, set := range []string{"portable", "avx2", "avx512"} {
		t.Setenv("RAILHEAD_ISA", set)
		ranks, errs := tryGroup(t, s, client.CommConfig{World: 1}, func(*client.CommConfig) {})
		if errs[0] == nil {
			sets = append(sets, set)
			all(t, ranks, finalize)
		}
	}
	t.Logf("instruction sets: %v", sets)
	if len(sets) == 0 {
		t.Fatal("not even the portable instruction set works")
	}
	return sets
}

func TestAnySequenceOfOperationsWithEveryInstructionSet(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	sets := instructionSets(t, s)
	deep.Checks(t, 15)
	rapid.Check(t, func(rt *rapid.T) {
		world := drawWorldOfNine(rt)
		reduceGroup := rapid.IntRange(0, world).Draw(rt, "reduceGroup")
		operations := make([]operation, rapid.IntRange(1, 10).Draw(rt, "operations"))
		for i := range operations {
			operations[i] = drawOperation(rt, world)
		}
		checkSequence(t, rt, s, sets, world, reduceGroup, operations)
	})
}

// A forced algorithm must run exactly for the operations that have it. The status says which algorithm ran.
func TestEveryAlgorithmWithEveryOperation(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	where := map[string][]kind{}
	for op := wire.OpNone; int(op) < wire.Ops; op++ {
		for _, a := range op.Algorithms() {
			if a.Adds() != wire.OwnOrder { // the results would have other bits
				where[a.String()] = append(where[a.String()], kind(op.String()))
			}
		}
	}
	for algo, where := range where {
		t.Setenv("RAILHEAD_ALGO", algo)
		random := rand.New(rand.NewPCG(9, 9))
		const world, reduceGroup = 4, 3
		ranks := formGroup(t, s, client.CommConfig{Group: algo, World: world, ReduceGroup: reduceGroup, HeapBytes: 4 << 20})
		windows := windowsOf(t, ranks, windowBytes)
		ran := map[kind]int{}
		for _, o := range everyOperation(random, world, func() int { return 1 + random.IntN(60) + random.IntN(2)*random.IntN(9000) }) {
			o.windows = random.IntN(3) != 0
			o.all = random.IntN(2) == 0
			runAll(t, ranks, windows, []operation{o}, reduceGroup)
			status, err := ranks[0].Status()
			if err != nil {
				t.Fatal(err)
			}
			if status.Algorithm == algo {
				ran[o.kind]++
			}
		}
		for _, k := range collectives {
			if (ran[k] > 0) != slices.Contains(where, k) {
				t.Errorf("RAILHEAD_ALGO=%s: it ran in %d calls of %s", algo, ran[k], k)
			}
		}
	}
}
