package kernels_test

import (
	"math/rand/v2"
	"testing"

	"railhead/internal/deep"
)

func TestDispatchAndCombineAccessOnlyTheirMemoryAmongHostileRanks(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, sanitized(t, address), "testdata/ep_hostile.cc")
	first := rand.Uint64()
	t.Logf("seeds from %d", first)
	runProgram(t, binary, first, deep.Rounds(t, 500, 500))
}

// The GPU kernels as threads of this process, several blocks and threads a rank: random buffers, types, routings, layouts and calls, two dispatches in
// flight, valid calls and refused ones, over the wrap of their number.
func TestTheGPUsDispatchAndCombineGiveTheBytesAndReportsOfTheCPUs(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, soonCompiled(t, address), "testdata/gpu_ep.cc", "host/ep.cc")
	for _, world := range []int{1, 2, 3, 5} {
		for _, first := range deep.First(t, 1, []uint32{0xfffffffd, 0}) { // the first is at the wrap of the number
			seed := rand.Uint64()
			t.Logf("world %d, seeds from %d", world, seed)
			runProgram(t, binary, "run", world, first, deep.Rounds(t, 2, 6), seed)
		}
	}
}

func TestTheGPUsDispatchAndCombineReportMissingRanks(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, soonCompiled(t, address), "testdata/gpu_ep_faults.cc")
	for _, world := range deep.First(t, 1, []int{3, 2, 4}) {
		runProgram(t, binary, "stop", world)
	}
}

// With RH_EP_DEAD_DROP: a rank that dies before its counts, between its rows or before its combine, in all layouts, and one that does not come in time.
// The others have the rows and sums of all the rest, report what they lack, and go on; an abort stops them.
func TestTheGPUsDispatchAndCombineGoOnWithoutADeadRank(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, soonCompiled(t, address), "testdata/gpu_ep_faults.cc")
	first := rand.Uint64()
	t.Logf("seeds from %d", first)
	runProgram(t, binary, "drops", first, deep.Rounds(t, 8, 100))
	runProgram(t, binary, "late", 3, rand.IntN(2), rand.IntN(2))
	runProgram(t, binary, "alone", 34, rand.IntN(2))
	runProgram(t, binary, "twice", 4)
	runProgram(t, binary, "full", 3)
	runProgram(t, binary, "waiter", rand.IntN(2))
	runProgram(t, binary, "limit", rand.IntN(2))
	for ht := range 2 {
		runProgram(t, binary, "sums", ht)
	}
}

func TestTheGPUsDispatchAndCombineAccessOnlyTheirMemoryAmongHostileRanks(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, soonCompiled(t, address), "testdata/gpu_ep_faults.cc")
	first := rand.Uint64()
	t.Logf("seeds from %d", first)
	runProgram(t, binary, "hostile", first, deep.Rounds(t, 100, 120))
}
