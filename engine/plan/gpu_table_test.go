package plan

import (
	"io/fs"
	"slices"
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

// The measured figures, above the thresholds in shared_gpu.go: of virtual ranks on one GPU the plan chooses what was fastest.
func TestTheMeasuredFastestAlgorithmIsChosenForRanksOnOneGPU(t *testing.T) {
	type times struct{ oneshot, twoshot, pull float64 } // us; 0: not measured
	for world, sizes := range map[int]map[uint64]times{
		2: {64 << 10: {3.60, 4.17, 5.80}, 256 << 10: {3.78, 4.38, 5.98}, 1 << 20: {5.38, 6.24, 6.14}, 2 << 20: {9.78, 10.63, 6.65}, 4 << 20: {18.18, 19.27, 8.20}},
		8: {64 << 10: {5.57, 6.69, 8.68}, 128 << 10: {7.92, 6.97, 8.85}, 256 << 10: {13.28, 7.94, 8.99}, 512 << 10: {24.19, 12.87, 9.22},
			1 << 20: {48.10, 27.28, 10.17}, 2 << 20: {0, 42.40, 13.27}},
	} {
		p := plansOn(t, world, GPUs{Blocks: 132 / world, Shared: true}, "")
		for size, us := range sizes {
			copied := wire.AlgoTwoshot
			if us.oneshot != 0 && us.oneshot < us.twoshot {
				copied = wire.AlgoOneshot
			}
			if a := wire.Algo(at(&p.Copied[wire.PlanAllReduce], size).Algo); a != copied {
				t.Errorf("%d ranks, %d bytes: %s, %+v", world, size, a, us)
			}
			pulls := wire.Algo(at(&p.ZeroCopy[wire.PlanAllReduce], size).Algo) == wire.AlgoPull
			best := us.twoshot
			if copied == wire.AlgoOneshot {
				best = us.oneshot
			}
			if pulls != (us.pull < best) {
				t.Errorf("%d ranks, %d bytes: pull is chosen: %v, %+v", world, size, pulls, us)
			}
		}
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
