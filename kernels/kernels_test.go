package kernels_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"railhead/internal/deep"
)

// leftFold writes the left fold of terms as an expression.
func leftFold(terms []string) string {
	sum := terms[0]
	for _, term := range terms[1:] {
		sum = "(" + sum + "+" + term + ")"
	}
	return sum
}

func TestRanksAreFoldedInTheOrderThatTheHeaderPromises(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, plain, "testdata/fold.cc")
	for _, world := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 63, 64} {
		lines := strings.Split(strings.TrimSpace(runProgram(t, binary, world)), "\n")
		if len(lines) != world {
			t.Fatalf("world %d: %d lines", world, len(lines))
		}
		for i, got := range lines {
			reduceGroup := i + 1
			var groups []string
			for first := 0; first < world; first += reduceGroup {
				var ranks []string
				for r := first; r < min(first+reduceGroup, world); r++ {
					ranks = append(ranks, fmt.Sprint(r))
				}
				groups = append(groups, leftFold(ranks))
			}
			if want := leftFold(groups); got != want {
				t.Errorf("world %d, reduce_group %d: %s, want %s", world, reduceGroup, got, want)
			}
		}
	}
}

func TestTreesReachEveryRankOnce(t *testing.T) {
	t.Parallel()
	runProgram(t, compileProgram(t, plain, "testdata/tree.cc"))
}

func TestTilesRoundByTheDefinitionAndTouchOnlyTheirElements(t *testing.T) {
	t.Parallel()
	onEachVector(t, soonCompiled(t, address), "testdata/tile.cc")
}

func TestSumsOfRunsFollowTheDefinitionInTheOrderOfGroups(t *testing.T) {
	t.Parallel()
	onEachVector(t, soonCompiled(t, address), "testdata/run_sums.cc")
}

// Without sanitizers, which would take a minute to compile: the program guards its memory itself.
func TestRowsOfExpertsFollowTheDefinitionAndTouchOnlyTheirBytes(t *testing.T) {
	t.Parallel()
	onEachVector(t, soonCompiled(t, plain), "testdata/ep_rows.cc")
}

// onEachVector compiles and runs a program for the vectors of each instruction set that this processor has. The ordinary run takes the smallest
// and the largest.
func onEachVector(t *testing.T, flags []string, source string) {
	t.Helper()
	// Without -fexpensive-optimizations -O0 and -O1 leave out vzeroupper, and each call of a function of libm or libc, which has SSE instructions,
	// waits for the upper halves of the registers: the programs run up to ten times as long.
	wide := map[string][]string{
		"32": {"-fexpensive-optimizations", "-mf16c", "-mavx2"},
		"64": {"-fexpensive-optimizations", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"},
	}
	var has []string
	for _, bytes := range []string{"64", "32"} {
		if machine := wide[bytes]; strings.Contains(cpuFlags(t), " "+strings.TrimPrefix(machine[len(machine)-1], "-m")) {
			has = append(has, bytes)
		} else {
			t.Logf("this processor has no vectors of %s bytes: not tested", bytes)
		}
	}
	runProgram(t, compileProgram(t, append([]string{"-DVECTOR_BYTES=16"}, flags...), source))
	for _, bytes := range deep.First(t, 1, has) {
		all := append(append([]string{"-DVECTOR_BYTES=" + bytes, "-Wno-psabi"}, wide[bytes]...), flags...)
		runProgram(t, compileProgram(t, all, source))
	}
}

func cpuFlags(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "avx512vl", "avx512vl ")
}

// Programs that test protocols.
var (
	team        = []string{"testdata/team.cc", "testdata/portable_only.cc", "host/kernels.cc", "host/dispatch.cc", "host/isa_portable.cc"}
	collectives = append([]string{"testdata/collectives.cc"}, team[1:]...)
	rings       = append([]string{"testdata/rings.cc"}, team[1:]...)
	mixed       = []string{"testdata/nan.cc", "host/kernels.cc", "host/dispatch.cc", "host/isa_portable.cc", "host/isa_avx2.cc", "host/isa_avx512.cc"}
	badOffers   = append([]string{"testdata/bad_offers.cc"}, team[1:]...)
)

// The GPU kernels as functions of the host.
var (
	gpuKernels     = []string{"testdata/gpu_kernels.cc", "testdata/cpu_bits.cc", "gpuhost/all_reduce.cc", "gpuhost/collectives.cc", "gpuhost/pipes.cc", "gpuhost/kernels.cc"}
	gpuCollectives = append([]string{"testdata/gpu_collectives.cc"}, gpuKernels[1:]...)
)

// All types, reductions, groups and algorithms, any address and count, in place and not, in any mix, over the wrap of packets and flags.
func TestTheGPUKernelsGiveTheBitsOfTheCPU(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, sanitized(t, address), gpuKernels...)
	for _, world := range []int{2, 3, 4, 5, 8, 16} {
		for _, first := range []uint32{0, 0xfffffff0} {
			runProgram(t, binary, "run", world, first, deep.Rounds(t, 25, 60), rand.Uint64())
		}
	}
}

func TestTheGPUKernelsReportWhatStopsThem(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, sanitized(t, address), gpuKernels...)
	for _, world := range deep.First(t, 1, []int{3, 2, 5}) {
		runProgram(t, binary, "stop", world, rand.Uint64())
	}
}

// The other operations, in any mix, with all-reduces between them.
func TestTheGPUKernelsOfOtherOperationsGiveTheBitsOfTheCPU(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, sanitized(t, address), gpuCollectives...)
	for _, world := range []int{2, 3, 4, 5, 7, 8, 16} {
		for _, first := range []uint32{0, 0xfffffff0} {
			runProgram(t, binary, "run", world, first, deep.Rounds(t, 25, 60), rand.Uint64())
		}
	}
}

func TestTheGPUKernelsOfOtherOperationsReportWhatStopsThem(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, sanitized(t, address), gpuCollectives...)
	for _, world := range deep.First(t, 1, []int{3, 2, 5}) {
		runProgram(t, binary, "stop", world)
	}
}

// A kernel whose control threads disagree has not ended.
func TestAMismatchThatOneControlThreadFindsKeepsTheKernelFromItsEnd(t *testing.T) {
	t.Parallel()
	runProgram(t, compileProgram(t, soonCompiled(t, address), "testdata/gpu_control.cc"))
}

// spins are spin times in ns: sleep at once, sleep soon, spin all along.
var spins = []int{0, 2_000, 1_000_000_000}

func TestSumsAreRightAcrossTheWrapOfEpochs(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, plain, team...)
	for _, first := range []uint32{0, 0x7fffffff - 40, 0xffffffff - 40, 0xffffffff} {
		for _, spin := range spins[:2] {
			out := runProgram(t, binary, "sums", 4, 2, first, spin, 300, rand.Uint64())
			var from, to uint32
			if _, err := fmt.Sscanf(out, "generations %d to %d", &from, &to); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			if to-first < 300 || from != first {
				t.Errorf("epochs %d to %d: fewer than operations", from, to)
			}
			if first > 0xffffff00 && to >= first {
				t.Errorf("epochs %d to %d: no wrap", from, to)
			}
		}
	}
}

// On the processor. The memory model knows only that the protocol asks for a full fence.
func TestTheFullFenceOrdersAStoreBeforeALoad(t *testing.T) {
	t.Parallel()
	runProgram(t, compileProgram(t, plain, "testdata/store_buffering.cc"), deep.Rounds(t, 5000, 20_000))
}

func TestWaitsSleepInsteadOfYieldingOnABusyProcessor(t *testing.T) {
	runProgram(t, compileProgram(t, plain, "testdata/busy_processor.cc"))
}

// The memory model does not play whom the kernel wakes.
func TestAWakeUpReachesAllThatSleepOnTheWord(t *testing.T) {
	t.Parallel()
	runProgram(t, compileProgram(t, plain, "testdata/wake.cc"))
}

func TestTheProtocolHasNoDataRace(t *testing.T) {
	t.Parallel()
	flags := sanitized(t, thread)
	binary := compileProgram(t, flags, team...)
	others := compileProgram(t, flags, collectives...)
	around := compileProgram(t, flags, rings...)
	rounds := deep.Rounds(t, 50, 100) // without the sanitizer only the results are checked, as in other tests
	for _, world := range []int{2, 3, 5} {
		for _, spin := range spins {
			if world > 3 && spin > spins[1] {
				continue // spinning ranks on fewer cores are slow
			}
			runProgram(t, binary, "sums", world, 2, uint32(0xffffffe0), spin, rounds, rand.Uint64())
			runProgram(t, binary, "abort", world, 1, 0, spin, 20, rand.Uint64())
			runProgram(t, others, world, 2, uint32(0xffffffe0), spin, rounds, rand.Uint64())
			runProgram(t, around, "run", world, uint32(0xffffffe0), spin, rounds/2, rand.Uint64())
		}
	}
}

func TestTheProtocolStaysWithinItsMemory(t *testing.T) {
	t.Parallel()
	flags := sanitized(t, address)
	binary := compileProgram(t, flags, team...)
	others := compileProgram(t, flags, collectives...)
	around := compileProgram(t, flags, rings...)
	for _, world := range deep.First(t, 3, []int{1, 2, 7, 64}) {
		runProgram(t, binary, "sums", world, min(world, 4), uint32(0xffffffe0), 2_000, 60, rand.Uint64())
	}
	for _, world := range deep.First(t, 2, []int{2, 7, 64}) {
		runProgram(t, binary, "abort", world, 1, 0, 2_000, 5, rand.Uint64())
		runProgram(t, others, world, world, uint32(0xffffffe0), 2_000, 60, rand.Uint64())
		runProgram(t, around, "run", min(world, 16), uint32(0xffffffe0), 2_000, 60, rand.Uint64())
	}
}

// Any order, channels and protocol, all types and reductions, counts that are odd or 0, in place and not. Counters of chunks
// start before the wrap of LL's marks (half the range) and before their own.
func TestRingsGiveTheRightSumsAndTheSameBitsOnAllRanks(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, plain, rings...)
	for world := 2; world <= 9; world++ {
		for _, first := range []uint32{0, 0x7fffff00, 0xffffff00} {
			for _, spin := range spins[:2] {
				runProgram(t, binary, "run", world, first, spin, deep.Rounds(t, 25, 80), rand.Uint64())
			}
		}
	}
}

// Pairs and triples of instruction sets in a group, all floating-point types, reductions and algorithms, NaNs of many payloads and both
// signs, and NaNs that come from infinities. The program's output is the sets that this processor has.
func TestNaNResultsHaveTheSameBitsWhateverInstructionsTheRanksUse(t *testing.T) {
	t.Parallel()
	sets := strings.Fields(runProgram(t, compileProgram(t, plain, mixed...)))
	t.Logf("instruction sets: %v", sets)
	if strings.Contains(cpuFlags(t), " avx512vl ") && len(sets) != 3 {
		t.Errorf("the processor has AVX-512, but only %v were tested", sets)
	}
}

func TestRingsEndAtAnAbortAndAtTheDeadline(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, plain, rings...)
	for _, world := range []int{2, 3, 5} {
		for _, spin := range spins[:2] {
			runProgram(t, binary, "late", world, 0, spin, 10, rand.Uint64())
			runProgram(t, binary, "abort", world, 0, spin, 50, rand.Uint64())
		}
	}
}

func TestABadOfferIsNotAccessedAndItsRankIsNamed(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, sanitized(t, address), badOffers...)
	for _, world := range []int{2, 3, 8} {
		for _, spin := range spins[:2] {
			runProgram(t, binary, world, spin, deep.Rounds(t, 25, 80), rand.Uint64())
		}
	}
}

func TestARankThatProgressesBeforeEachDeadlineDoesNotKeepAnOperationGoing(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, plain, append([]string{"testdata/drip.cc"}, team[1:]...)...)
	for _, spin := range spins[:2] {
		runProgram(t, binary, spin)
	}
}

func TestATimeoutNamesALateRank(t *testing.T) {
	t.Parallel()
	binary := compileProgram(t, plain, team...)
	for _, first := range []uint32{0, 0xffffffff} {
		out := runProgram(t, binary, "late", 3, 3, first, 1_000, 1000, rand.Uint64())
		var gaveUp, rounds int
		if _, err := fmt.Sscanf(out, "%d of %d rounds", &gaveUp, &rounds); err != nil || gaveUp == 0 {
			t.Errorf("no rank gave up: %s", out)
		}
	}
}
