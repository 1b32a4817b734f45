package plan

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"railhead/engine/tuner"
	"railhead/internal/wire"
)

func cudaTable(entries ...tuner.Entry) *tuner.Table {
	t := &tuner.Table{Version: tuner.TableVersion, Fingerprint: tuner.CUDAPrefix + "test"}
	t.Replace(entries)
	return t
}

// drawTable draws a table with an entry of each kind, as full as an entry can be.
func drawTable(t *rapid.T, world int) *tuner.Table {
	table := cudaTable()
	known := TableAlgorithms(wire.DeviceCUDA)
	for name, algorithms := range known {
		for _, memory := range []tuner.Memory{tuner.AnyMemory, tuner.InWindows} {
			may := slices.DeleteFunc(slices.Clone(algorithms), func(a string) bool { return a == tuner.WindowAlgorithm && memory == tuner.AnyMemory })
			n := rapid.IntRange(1, tuner.MaxRanges).Draw(t, "ranges")
			e := tuner.Entry{Collective: name, WorldSize: world, Memory: memory, Ranges: make([]tuner.Range, n)}
			for i := range e.Ranges {
				e.Ranges[i] = tuner.Range{FromBytes: uint64(i) * 3000, ToBytes: uint64(i+1) * 3000, Algorithm: rapid.SampledFrom(may).Draw(t, "algorithm"),
					Blocks: rapid.IntRange(1, tuner.MaxGridBlocks).Draw(t, "blocks"), Threads: 32 * rapid.IntRange(2, 16).Draw(t, "warps")}
			}
			e.Ranges[n-1].ToBytes = 0
			table.Replace([]tuner.Entry{e})
		}
	}
	if err := table.Check(known); err != nil {
		t.Fatal(err)
	}
	return table
}

func TestATableOfGPUsDecidesAlgorithmsAndGrids(t *testing.T) {
	on := GPUs{Blocks: 16, Shared: true, Table: cudaTable(
		tuner.Entry{Collective: "allreduce", WorldSize: 8, Memory: tuner.AnyMemory, Ranges: []tuner.Range{
			{ToBytes: 5000, Algorithm: "twoshot", Blocks: 3, Threads: 96}, {FromBytes: 5000, Algorithm: "oneshot", Blocks: 100, Threads: 512}}},
		tuner.Entry{Collective: "allreduce", WorldSize: 8, Memory: tuner.InWindows, Ranges: []tuner.Range{
			{ToBytes: 7000, Algorithm: "oneshot", Blocks: 2, Threads: 64}, {FromBytes: 7000, Algorithm: "pull", Blocks: 5, Threads: 128}}},
		tuner.Entry{Collective: "reducescatter", WorldSize: 8, Memory: tuner.AnyMemory, Ranges: []tuner.Range{{Algorithm: "oneshot", Blocks: 7, Threads: 160}}},
		tuner.Entry{Collective: "send", WorldSize: 8, Memory: tuner.AnyMemory, Ranges: []tuner.Range{{Algorithm: "pipe", Blocks: 9, Threads: 256}}},
	)}
	p := plansOn(t, 8, on, "")
	for _, c := range []struct {
		what string
		got  wire.Choice
		want wire.Choice
	}{
		{"below a range's end", at(&p.Copied[wire.PlanAllReduce], 4999), wire.Choice{Algo: uint16(wire.AlgoTwoshot), Why: wire.WhyTuned, Blocks: 3, Threads: 96}},
		{"no more blocks than can run", at(&p.Copied[wire.PlanAllReduce], 5000), wire.Choice{Algo: uint16(wire.AlgoOneshot), Why: wire.WhyTuned, Blocks: 16, Threads: 512}},
		{"no pull below its range", at(&p.ZeroCopy[wire.PlanAllReduce], 6999), wire.Choice{Why: wire.WhyNone}},
		{"pull", at(&p.ZeroCopy[wire.PlanAllReduce], 7000), wire.Choice{Algo: uint16(wire.AlgoPull), Why: wire.WhyTuned, Blocks: 5, Threads: 128}},
		{"the grid of an only algorithm", at(&p.Copied[wire.PlanReduceScatter], 1<<20), wire.Choice{Algo: uint16(wire.AlgoOneshot), Why: wire.WhyOnly, Blocks: 7, Threads: 160}},
		{"sends", at(&p.Copied[wire.PlanTransfers], 1<<20), wire.Choice{Algo: uint16(wire.AlgoPipe), Why: wire.WhyOnly, Blocks: 9, Threads: 256}},
	} {
		c.got.BelowBytes = 0
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, c.got, c.want)
		}
	}
	without := plansOn(t, 8, GPUs{Blocks: 16, Shared: true}, "")
	if p.Copied[wire.PlanAllReducePackets] != without.Copied[wire.PlanAllReducePackets] {
		t.Error("integers, which were not measured, have another plan with a table")
	}
	if other := plansOn(t, 4, on, ""); other.Copied != plansOn(t, 4, GPUs{Blocks: 16, Shared: true}, "").Copied {
		t.Error("a table of 8 ranks changes the plan of 4")
	}
	forced := plansOn(t, 8, on, "allreduce:twoshot")
	if c := at(&forced.Copied[wire.PlanAllReduce], 1<<20); wire.Algo(c.Algo) != wire.AlgoTwoshot || c.Why != wire.WhyForced {
		t.Errorf("forced: %+v", c)
	}
}

// Twelve changes of the default grid do not fit beside a full table of which half is forbidden: the collective then has no table.
func TestATableThatDoesNotFitBesideWhatIsForcedIsNotUsed(t *testing.T) {
	e := tuner.Entry{Collective: "allreduce", WorldSize: 4, Memory: tuner.AnyMemory}
	for i := range uint64(tuner.MaxRanges) {
		e.Ranges = append(e.Ranges, tuner.Range{FromBytes: i * 3000, ToBytes: (i + 1) * 3000, Algorithm: []string{"oneshot", "twoshot"}[i%2], Blocks: 1, Threads: 64})
	}
	e.Ranges[len(e.Ranges)-1].ToBytes = 0
	on := GPUs{Blocks: 132, Table: cudaTable(e)}
	p, without := plansOn(t, 4, on, "^oneshot"), plansOn(t, 4, GPUs{Blocks: 132}, "^oneshot")
	if p.Copied[wire.PlanAllReduce] != without.Copied[wire.PlanAllReduce] {
		t.Errorf("%s", text(&p.Copied[wire.PlanAllReduce]))
	}
}

func TestTheTunersGridsCanRun(t *testing.T) {
	for name, algorithms := range TableAlgorithms(wire.DeviceCUDA) {
		for _, algorithm := range algorithms {
			a, err := wire.ParseAlgo(algorithm)
			if err != nil {
				t.Fatal(err)
			}
			kinds := len(Grids(name, a, 1024, 2, 132))
			for _, world := range []int{2, 3, 8, 64} {
				for _, blocks := range []int{1, 2, 16, 132, 1000} {
					for size := uint64(0); size < 1<<40; size = 3*size + 1 {
						grids := Grids(name, a, size, world, blocks)
						if len(grids) != kinds || kinds < 4 {
							t.Fatalf("%s %s of %d bytes: %d grids, elsewhere %d", name, a, size, len(grids), kinds)
						}
						for _, g := range grids {
							if g.Blocks < 1 || g.Blocks > min(blocks, tuner.MaxGridBlocks) || g.Threads < tuner.LeastGridThreads || g.Threads > tuner.MaxGridThreads || g.Threads%32 != 0 {
								t.Fatalf("%s %s of %d bytes, %d ranks, %d blocks: %+v", name, a, size, world, blocks, g)
							}
						}
					}
				}
			}
		}
	}
	if Grids("ring", wire.AlgoRing, 1, 2, 3) != nil {
		t.Error("grids of a collective that does not exist")
	}
}

func TestTheTablesThatComeWithRailheadAreValidAndNotNoisy(t *testing.T) {
	files, err := fs.ReadDir(shipped, "tables")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name, isTable := strings.CutSuffix(f.Name(), ".json")
		if !isTable {
			continue
		}
		table, err := Shipped(name)
		if err != nil || table == nil || len(table.Entries) == 0 || table.Noisy() != 0 || !table.OnCUDA() {
			t.Errorf("%s: %+v, %v", f.Name(), table, err)
		}
	}
	if table, err := Shipped("cuda-none"); table != nil || err != nil {
		t.Errorf("no table: %+v, %v", table, err)
	}
}

// algorithmsOnOneGPU has the output of `railhead bench --algo` with ranks that share an H200.
const algorithmsOnOneGPU = "../../benchmarks/results/2026-12-01-h200-shared/algorithms.txt"

// timesUs are the times of one operation, dtype and number of ranks, by size and algorithm.
type timesUs map[uint64]map[string]float64

// readTimes reads the output of several runs of bench, by "operation dtype ranks".
func readTimes(t *testing.T, path string) map[string]timesUs {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string]timesUs{}
	var run timesUs
	algorithm := ""
	for _, line := range strings.Split(string(raw), "\n") {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "### railhead bench "):
			after := func(flag string) string { return words[slices.Index(words, flag)+1] }
			run = timesUs{}
			runs[words[3]+" "+after("-d")+" "+after("--ranks")] = run
		case strings.HasPrefix(line, "# algo: "):
			algorithm = words[2]
		case len(words) > 6 && words[0] != "#":
			size, err1 := strconv.ParseUint(words[0], 10, 64)
			us, err2 := strconv.ParseFloat(words[5], 64)
			if err1 != nil || err2 != nil {
				continue // the heading
			}
			if run[size] == nil {
				run[size] = map[string]float64{}
			}
			run[size][algorithm] = us
		}
	}
	return runs
}

// Of the algorithms that were measured with ranks on one GPU, the plan chooses the fastest, or one that is nearly as fast: in any memory, and between
// windows.
func TestThePlanOfRanksOnOneGPUChoosesWhatWasMeasuredToBeFastest(t *testing.T) {
	const worse = 1.09 // broadcasts of 64 KiB with 8 ranks
	points := 0
	for name, sizes := range readTimes(t, algorithmsOnOneGPU) {
		var op, dtype string
		var world int
		if _, err := fmt.Sscan(name, &op, &dtype, &world); err != nil {
			t.Fatal(name, err)
		}
		p := plansOn(t, world, GPUs{Blocks: 132 / world, Shared: true}, "")
		index := slices.IndexFunc(onGPU, func(c collective) bool { return c.name() == op && (!c.adds || c.packets == (dtype == "int32")) })
		index = onGPU[index].index
		for size, us := range sizes {
			points++
			copied := wire.Algo(at(&p.Copied[index], size).Algo).String()
			between := copied
			if a := wire.Algo(at(&p.ZeroCopy[index], size).Algo); a != wire.AlgoAuto {
				between = a.String()
			}
			best, bestCopy := math.Inf(1), math.Inf(1)
			for a, t := range us {
				best = min(best, t)
				if a != tuner.WindowAlgorithm {
					bestCopy = min(bestCopy, t)
				}
			}
			if us[copied] > worse*bestCopy || us[copied] == 0 {
				t.Errorf("%s, %d bytes: %s is chosen of %v", name, size, copied, us)
			}
			if us[between] > worse*best || us[between] == 0 {
				t.Errorf("%s, %d bytes: between windows %s is chosen of %v", name, size, between, us)
			}
		}
	}
	if points < 60 {
		t.Errorf("%d points in %s", points, algorithmsOnOneGPU)
	}
}

func TestRanksThatShareAGPUCopyWithoutLanes(t *testing.T) {
	for _, world := range []int{2, 4, 8} {
		p := plansOn(t, world, GPUs{Blocks: 132 / world, Shared: true}, "")
		for i := range onGPU {
			c := &onGPU[i]
			if a := wire.Algo(at(&p.Copied[c.index], 1<<40).Algo); (a == wire.AlgoPipe) != (c.op == wire.OpSend) {
				t.Errorf("%s of %d ranks: %s", c.name(), world, a)
			}
			if from := at(&p.ZeroCopy[c.index], 1<<40); c.op != wire.OpSend && wire.Algo(from.Algo) != wire.AlgoPull {
				t.Errorf("%s of %d ranks between windows: %+v", c.name(), world, from)
			}
		}
	}
}
