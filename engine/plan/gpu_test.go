package plan

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"railhead/engine/tuner"
	"railhead/internal/rank"
	"railhead/internal/wire"
)

func gpuForcing(t interface{ Fatal(...any) }, text string) tuner.Forcing {
	f, err := tuner.ParseForcing(text, AlgorithmsOn(wire.DeviceCUDA))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func gpuPlans(t *testing.T, world, blocks int, forced string) wire.Plans {
	t.Helper()
	return plansOn(t, world, GPUs{Blocks: blocks}, forced)
}

func plansOn(t *testing.T, world int, on GPUs, forced string) wire.Plans {
	t.Helper()
	r := request(t, world, "")
	r.Forcing = gpuForcing(t, forced)
	cpu, cuda, err := MakeGPU(r, on)
	if err != nil {
		t.Fatal(err)
	}
	unforced, err := Make(request(t, world, ""))
	if err != nil {
		t.Fatal(err)
	}
	if cpu != unforced {
		t.Errorf("%d ranks, forced %q: the CPU's plans differ from those where nothing is forced", world, forced)
	}
	return cuda
}

// at is the choice for a size.
func at(p *wire.Plan, size uint64) wire.Choice {
	for _, c := range p.Choice[:p.Count] {
		if size < c.BelowBytes {
			return c
		}
	}
	return p.Choice[p.Count-1]
}

// The measured figures, above the thresholds in gpu.go: the plan chooses what was faster, of 2 ranks.
func TestTheMeasuredFasterAlgorithmIsChosenForTwoRanks(t *testing.T) {
	p := gpuPlans(t, 2, 132, "")
	for size, us := range map[uint64]struct{ cells, packets, pull float64 }{
		1 << 10: {2.27, 2.27, 3.79}, 64 << 10: {2.92, 3.08, 4.15}, 256 << 10: {3.49, 4.22, 4.55}, 512 << 10: {4.24, 5.66, 5.30},
		1 << 20: {5.70, 8.50, 6.80}, 4 << 20: {14.9, 26.2, 16.3}, 16 << 20: {62.1, 107, 53.8},
	} {
		for index, oneshot := range map[int]float64{wire.PlanAllReduce: us.cells, wire.PlanAllReducePackets: us.packets} {
			pulls := wire.Algo(at(&p.ZeroCopy[index], size).Algo) == wire.AlgoPull
			if pulls != (us.pull < oneshot) {
				t.Errorf("plan %d, %d bytes: pull is chosen: %v; it took %.2f us, one-shot %.2f", index, size, pulls, us.pull, oneshot)
			}
			if a := wire.Algo(at(&p.Copied[index], size).Algo); a != wire.AlgoOneshot {
				t.Errorf("plan %d, %d bytes: %s of 2 ranks", index, size, a)
			}
		}
	}
}

// Sizes from which buffers in no window are copied to one.
func TestLargeSumsAreCopiedToWindows(t *testing.T) {
	for _, c := range []struct {
		index, world int
		shared       bool
		wantKib      uint32
	}{
		{wire.PlanAllReduce, 2, false, 0}, {wire.PlanAllReducePackets, 2, false, 3 << 10}, {wire.PlanAllReducePackets, 8, false, 12<<10/7 + 1},
		{wire.PlanReduceScatterPackets, 2, false, 6 << 10}, {wire.PlanAllGather, 2, false, 0}, {wire.PlanTransfers, 2, false, 0},
		{wire.PlanAllReduce, 2, true, 6 << 10}, {wire.PlanAllReduce, 4, true, 2 << 10}, {wire.PlanAllReducePackets, 2, true, 3 << 10},
		{wire.PlanReduceScatter, 4, true, 4 << 10}, {wire.PlanBroadcast, 4, true, 0}, {wire.PlanAllReduce, 1, true, 0}, {wire.PlanAllReducePackets, 1, false, 0},
	} {
		p := plansOn(t, c.world, GPUs{Blocks: 132, Shared: c.shared}, "")
		if got := p.ZeroCopy[c.index].StageFromKib; got != c.wantKib {
			t.Errorf("plan %d of %d ranks, one GPU %v: from %d KiB, want %d", c.index, c.world, c.shared, got, c.wantKib)
		}
		if size := uint64(c.wantKib) << 10; size > 0 && wire.Algo(at(&p.ZeroCopy[c.index], size).Algo) != wire.AlgoPull {
			t.Errorf("plan %d of %d ranks, one GPU %v: no pull at that size", c.index, c.world, c.shared)
		}
		if p.Copied[c.index].StageFromKib != 0 {
			t.Errorf("plan %d: copies have a size", c.index)
		}
	}
}

func TestTheMeasuredGridsAreChosen(t *testing.T) {
	for size, want := range map[uint64][2]int{
		1 << 10: {2, 64}, 16 << 10: {17, 64}, 32 << 10: {33, 64}, 64 << 10: {65, 64}, 128 << 10: {129, 64}, 256 << 10: {129, 128}, 1 << 20: {132, 256}, 1 << 30: {132, 256},
	} {
		if blocks, threads := gpuGrid(size, 132); [2]int{blocks, threads} != want {
			t.Errorf("%d bytes: %d blocks of %d, want %v", size, blocks, threads, want)
		}
	}
	if blocks, threads := gpuGrid(1<<20, 16); blocks != 16 || threads != 512 {
		t.Errorf("of 16 blocks: %d of %d threads", blocks, threads)
	}
}

// Thresholds of other operations and worlds follow from the bytes of the busiest link.
func TestThresholdsOnGPUs(t *testing.T) {
	for _, c := range []struct {
		op    wire.Op
		world int
		want  uint64
	}{
		{wire.OpAllReduce, 1, unreachable}, {wire.OpAllReduce, 2, 1200}, {wire.OpAllReduce, 4, 800}, {wire.OpAllGather, 2, 2400}, {wire.OpAllToAll, 4, 1600},
		{wire.OpReduceScatter, 3, 1800}, {wire.OpBroadcast, 2, 1200}, {wire.OpBroadcast, 5, 300},
	} {
		if got := wireSize(c.op, c.world, 1200); got != c.want {
			t.Errorf("%s of %d ranks: %d, want %d", c.op, c.world, got, c.want)
		}
	}
	for world, want := range map[int]uint64{1: unreachable, 2: unreachable, 3: 1500, 4: 666, 8: 190} {
		if got := gpuTwoshotFrom(world, 1000); got != want {
			t.Errorf("two-shot of %d ranks from %d, want %d", world, got, want)
		}
	}
	p := gpuPlans(t, 8, 132, "")
	if a := wire.Algo(at(&p.Copied[wire.PlanAllReduce], 64<<10).Algo); a != wire.AlgoOneshot {
		t.Errorf("64 KiB of 8 ranks: %s", a)
	}
	if a := wire.Algo(at(&p.Copied[wire.PlanAllReduce], 128<<10).Algo); a != wire.AlgoTwoshot {
		t.Errorf("128 KiB of 8 ranks: %s", a)
	}
}

// Copies that lie in no windows go through packets, large ones through lanes; the operations over lanes only have a grid.
func TestLargeCopiesOnGPUsGoOverLanes(t *testing.T) {
	for _, world := range []int{2, 8} {
		p := gpuPlans(t, world, 132, "")
		for _, c := range onGPU {
			if !slices.Contains(c.algorithms(), wire.AlgoPipe) || c.op == wire.OpSend {
				continue
			}
			from := wireSize(c.op, world, pipeFrom)
			if a := wire.Algo(at(&p.Copied[c.index], from-1).Algo); a != wire.AlgoOneshot {
				t.Errorf("%s of %d ranks, %d bytes: %s", c.name(), world, from-1, a)
			}
			if a := wire.Algo(at(&p.Copied[c.index], from).Algo); a != wire.AlgoPipe {
				t.Errorf("%s of %d ranks, %d bytes: %s", c.name(), world, from, a)
			}
		}
		for size := uint64(0); size < 1<<30; size = 2*size + 1 {
			if c := at(&p.Copied[wire.PlanTransfers], size); wire.Algo(c.Algo) != wire.AlgoPipe || c.Why != wire.WhyOnly {
				t.Errorf("a transfer of %d bytes: %s, %s", size, wire.Algo(c.Algo), c.Why)
			}
		}
	}
}

// Large copies between windows go by copy engines, with pull's grid for calls that those cannot run.
func TestLargeCopiesBetweenWindowsGoByCopyEngines(t *testing.T) {
	for _, world := range []int{2, 8} {
		for _, c := range onGPU {
			if !slices.Contains(c.algorithms(), wire.AlgoCopy) {
				continue
			}
			from := wireSize(c.op, world, copyFrom)
			for _, want := range []struct {
				forced     string
				size       uint64
				algo, grid wire.Algo
				why        wire.Why
			}{
				{"", from - 1, wire.AlgoPull, wire.AlgoPull, wire.WhyDefault},
				{"", from, wire.AlgoCopy, wire.AlgoPull, wire.WhyDefault},
				{"^pull", from - 1, wire.AlgoAuto, wire.AlgoAuto, wire.WhyNone},
				{"^pull", from, wire.AlgoCopy, wire.AlgoAuto, wire.WhyDefault},
				{"^copy", 1 << 40, wire.AlgoPull, wire.AlgoPull, wire.WhyDefault},
				{"copy", 0, wire.AlgoCopy, wire.AlgoAuto, wire.WhyForced},
				{c.name() + ":pull,copy", 0, wire.AlgoPull, wire.AlgoPull, wire.WhyDefault},
				{c.name() + ":pull,copy", from, wire.AlgoCopy, wire.AlgoPull, wire.WhyDefault},
				{c.name() + ":oneshot", 1 << 40, wire.AlgoAuto, wire.AlgoAuto, wire.WhyNone},
			} {
				p := gpuPlans(t, world, 132, want.forced)
				got := at(&p.ZeroCopy[c.index], want.size)
				if wire.Algo(got.Algo) != want.algo || got.Why != want.why || (got.Blocks != 0) != (want.grid != wire.AlgoAuto) {
					t.Errorf("%s of %d ranks, %q, %d bytes: %+v, want %+v", c.name(), world, want.forced, want.size, got, want)
				}
			}
		}
	}
	p := gpuPlans(t, 2, 132, "copy")
	if c := at(&p.Copied[wire.PlanAllGather], 1); wire.Algo(c.Algo) != wire.AlgoOneshot || c.Why != wire.WhyNotZeroCopy {
		t.Errorf("copy is forced and the buffers lie in no window: %s, %s", wire.Algo(c.Algo), c.Why)
	}
	if c := at(&p.ZeroCopy[wire.PlanAllReduce], 1<<30); wire.Algo(c.Algo) != wire.AlgoPull {
		t.Errorf("all-reduces have no copies, and nothing is forced for them: %s", wire.Algo(c.Algo))
	}
}

func TestGridsOfLanes(t *testing.T) {
	for _, c := range []struct {
		part          uint64
		world, blocks int
		want          [2]int
	}{
		{0, 2, 132, [2]int{2, 128}}, {4 << 10, 2, 132, [2]int{2, 256}}, {64 << 10, 2, 132, [2]int{8, 512}}, {1 << 30, 2, 132, [2]int{128, 512}},
		{1 << 30, 8, 132, [2]int{126, 512}}, {1 << 30, 64, 132, [2]int{126, 512}}, {1 << 30, 64, 16, [2]int{16, 512}}, {1 << 30, 1, 132, [2]int{128, 512}},
	} {
		if blocks, threads := laneGrid(c.part, c.world, c.blocks); [2]int{blocks, threads} != c.want {
			t.Errorf("%d bytes, %d ranks, %d blocks: %d of %d threads, want %v", c.part, c.world, c.blocks, blocks, threads, c.want)
		}
	}
}

// What a client and a kernel need of every plan.
func TestPlansOnGPUsAreValidForAnyWorldAndGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, rank.MaxPerNode).Draw(t, "world")
		blocks := rapid.OneOf(rapid.IntRange(1, 200), rapid.Just(math.MaxInt)).Draw(t, "blocks")
		shared := rapid.Bool().Draw(t, "shared")
		forced := rapid.SampledFrom([]string{"", "oneshot", "twoshot", "pull", "^oneshot", "allreduce:twoshot,pull", "allreduce:^pull",
			"copy", "^pull", "allgather:pull,copy"}).Draw(t, "forced")
		r := Request{World: world, CPUs: 8, Reproducible: true, Channels: 1, Forcing: gpuForcing(t, forced), Order: identity(world)}
		_, p, err := MakeGPU(r, GPUs{Blocks: blocks, Shared: shared, Table: drawTable(t, world)})
		if err != nil {
			t.Fatal(err)
		}
		if p.Device != wire.DeviceCUDA || p.Collectives != wire.PlanCountCUDA || p.PollsPerTurn < 1 || p.PollsPerTurn > 4096 || p.Order[world-1] != uint8(world-1) {
			t.Fatalf("plans of device %d, %d collectives, %d polls", p.Device, p.Collectives, p.PollsPerTurn)
		}
		for i := range onGPU {
			c := &onGPU[i]
			allowed := r.Forcing.Allowed(c.name())
			if c.index == wire.PlanTransfers {
				allowed = []string{"pipe"}
			}
			for name, plan := range map[string]*wire.Plan{"copied": &p.Copied[c.index], "zero copy": &p.ZeroCopy[c.index]} {
				from := uint64(0)
				for _, choice := range plan.Choice[:plan.Count] {
					a := wire.Algo(choice.Algo)
					switch {
					case choice.BelowBytes <= from:
						t.Fatalf("%s %s: ranges do not ascend: %+v", c.name(), name, plan.Choice[:plan.Count])
					case a == wire.AlgoAuto && name == "copied" && len(c.algorithms()) > 0, a == wire.AlgoAuto && choice.Why != wire.WhyNone:
						t.Fatalf("%s %s: no algorithm up to %d: %+v", c.name(), name, choice.BelowBytes, choice)
					case a == wire.AlgoAuto:
					case !slices.Contains(c.algorithms(), a) || a.Windows() != (name == "zero copy"):
						t.Fatalf("%s %s: %s", c.name(), name, a)
					case choice.Why != wire.WhyNotZeroCopy && !slices.Contains(allowed, a.String()):
						t.Fatalf("%s %s: %s is not among those allowed, %v", c.name(), name, a, allowed)
					case a == wire.AlgoCopy && choice.Blocks == 0 && choice.Threads == 0 && !slices.Contains(allowed, "pull"):
					case choice.Blocks < 1 || int(choice.Blocks) > min(blocks, maxGPUBlocks) || choice.Threads%32 != 0 || choice.Threads < 64 || choice.Threads > 512:
						t.Fatalf("%s %s: %d blocks of %d threads, of %d blocks", c.name(), name, choice.Blocks, choice.Threads, blocks)
					}
					from = choice.BelowBytes
				}
				if from != math.MaxUint64 {
					t.Fatalf("%s %s: ends at %d", c.name(), name, from)
				}
			}
		}
	})
}

func TestForcedAlgorithmsOnGPUs(t *testing.T) {
	for forced, want := range map[string]string{"oneshot": "oneshot:forced", "twoshot": "twoshot:forced", "pull": "oneshot:not_zero_copy", "allreduce:^pull": "oneshot:default"} {
		p := gpuPlans(t, 2, 132, forced)
		c := at(&p.Copied[wire.PlanAllReduce], 1<<10)
		if got := wire.Algo(c.Algo).String() + ":" + c.Why.String(); got != want {
			t.Errorf("%q: %s, want %s", forced, got, want)
		}
	}
	for text, want := range map[string]string{"ring": "copy, oneshot, pipe, pull, twoshot", "allreduce:tree": "oneshot, twoshot, pull", "broadcast:ring": "oneshot, pull, pipe, copy"} {
		_, err := tuner.ParseForcing(text, AlgorithmsOn(wire.DeviceCUDA))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q on CUDA: %v, want what it has: %s", text, err, want)
		}
	}
}

func TestRequestsThatNoGPUCanRunAreRefused(t *testing.T) {
	r := request(t, 2, "")
	r.Forcing = gpuForcing(t, "")
	if _, _, err := MakeGPU(r, GPUs{}); err == nil || !strings.Contains(err.Error(), "0 thread blocks") {
		t.Errorf("0 blocks: %v", err)
	}
	r.Order = nil
	if _, _, err := MakeGPU(r, GPUs{Blocks: 1}); err == nil || !strings.Contains(err.Error(), "ring order") {
		t.Errorf("no order: %v", err)
	}
}

// kernels/include/railhead/gpu/launch.h lays the scratch out: layoutOf.
func TestTheScratchHasRoomForItsInboxes(t *testing.T) {
	const gpuState, lines, flags, mostBlocks, laneFlags, lanes, laneSlots = 256, 2 * 64, 32, 160, 64 + 8, 64, 4
	for world := 1; world <= rank.MaxPerNode; world++ {
		n, slot := uint64(world), GPUSlotBytes(world)
		var stage uint64 // a world of one copies
		if world > 1 {
			stage = gpuStageBytes
		}
		need := stage + (gpuState+n*(lines+mostBlocks*flags)+127)/128*128 + 2*2*2*n*slot + n*lanes*(laneFlags+laneSlots*(2*slot/(lanes*laneSlots)))
		scratch := GPUScratchBytes(world)
		if scratch < need || scratch > need+4<<20 || scratch > gpuInboxBytes*5/4+stage+4<<20 {
			t.Errorf("%d ranks: %d bytes, need %d", world, scratch, need)
		}
		if slot%128 != 0 || slot > scratch/n || slot < 64<<10 {
			t.Errorf("%d ranks: slots of %d bytes", world, slot)
		}
	}
	if s := GPUSlotBytes(2); s != 4<<20 {
		t.Errorf("2 ranks: slots of %d bytes", s)
	}
}
