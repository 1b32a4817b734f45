package plan

import (
	"fmt"
	"math/bits"

	"railhead/engine/tuner"
	"railhead/internal/wire"
)

// Plans of a group on CUDA devices, and the sizes of its kernels' memory.
//
// The thresholds come from measurements on two H200s joined by NVLink (NV18, CUDA 13.0; bf16, in graphs, 2026-11-30). Each algorithm there
// takes a fixed time and a time for each byte that the busiest link carries, so a threshold is a number of such bytes, and wireSize turns it
// into a size for other operations and world sizes, which are not measured. A table measured on the device itself would take their place, as on a CPU; there is none
// yet.
//
//	us for bytes of an all-reduce, 2 ranks      1K    64K   256K  512K  1M    4M    16M
//	one-shot, cells (data that is its own flag)  2.27  2.92  3.49  4.24  5.70  14.9  62.1
//	one-shot, packets (payload twice)            2.27  3.08  4.22  5.66  8.50  26.2  107
//	pull (direct reads)                          3.79  4.15  4.55  5.30  6.80  16.3  53.8
const (
	// pullFromCells and pullFromPackets are the bytes of a link from which pull is faster than cells and packets: where the lines between the
	// measured points cross.
	pullFromCells   = 5<<20 + 768<<10
	pullFromPackets = 384 << 10
	// pipeFrom is the same for pipes, which send data once but copy it out of the inbox and have a flag for each chunk. Of the measured kernels
	// written by hand, "push, then one release flag a block" is faster than packets from 512 KiB on. Lanes themselves were not measured over a link:
	// `railhead tune --device cuda` compares them with packets, and their grids.
	pipeFrom = 768 << 10
	// stageFromPackets is the bytes of a link from which it is faster to copy the buffers to windows, pull there and copy the results than to send
	// packets: a MiB takes 6.4 us by packets, 3.4 by pull, and two copies of it 1.1 (at 3.9 TB/s for reads and writes together; calculated); pull's start and
	// the launches of the copies add 5 us. Cells, 3.9 us a MiB, stay faster at any size.
	stageFromPackets = 3 << 20
	// copyFrom is the bytes of a link from which copy engines are no slower than pull: a link carried 383 GB/s by them and 360 GB/s by kernels,
	// both ways at once (copies of 64 MiB), which is 0.17 us a MiB. The second kernel and the events take 2 to 4 us more than pull, in graphs of ranks that share an H200
	// (benchmarks/results/2026-12-01-h200-shared/copies.txt), which is won back at 12 to 23 MiB. Copies over a link may start later than those, so it is more.
	copyFrom = 32 << 20
	// secondExchange is the bytes that a link carries in the time of two-shot's second exchange: one flag's way there and back, 1.3 us, at
	// 350 GB/s.
	secondExchange = 455_000

	// gpuPollsPerTurn: a poll of a rank's own memory takes 31 ns, a look at the abort word in the host's memory 1 us. Every 100th poll, a line a
	// block, an abort took 25 us to end 132 blocks, and the looks held data up by at most 3 us.
	gpuPollsPerTurn = 100
)

// Bounds of a kernel's grid.
const (
	maxGPUBlocks    = tuner.MaxGridBlocks
	leastGPUThreads = tuner.LeastGridThreads
	maxGPUThreads   = tuner.MaxGridThreads
	controlThreads  = 32 // of a grid; the others have a tile each
	tileBytes       = 16
	maxLanes        = 64       // of a transfer
	laneBytes       = 16 << 10 // of a transfer for each lane, until there are as many lanes as can be
)

// GPUs are the devices of a group's ranks.
type GPUs struct {
	Blocks int          // thread blocks of a kernel that every GPU can run at once for each of its ranks
	Shared bool         // some ranks have the same GPU
	Table  *tuner.Table // measured on such GPUs with as many ranks; nil: the default thresholds apply
}

// MakeGPU makes the plans of a group on CUDA devices: those of the CPU, on which its set-up calls run and where nothing is forced, and those
// of the devices. r.Forcing was parsed with AlgorithmsOn(wire.DeviceCUDA).
func MakeGPU(r Request, on GPUs) (cpu, cuda wire.Plans, err error) {
	if on.Blocks < 1 {
		return cpu, cuda, fmt.Errorf("plan: %d thread blocks of a GPU for each rank, expected at least 1", on.Blocks)
	}
	on.Blocks = min(on.Blocks, maxGPUBlocks)
	forcing := r.Forcing
	if r.Forcing, err = tuner.ParseForcing("", Algorithms()); err != nil {
		return cpu, cuda, err
	}
	if cpu, err = Make(r); err != nil {
		return cpu, cuda, err
	}
	r.Forcing, r.Table = forcing, nil
	cuda = cpu // the order of rings, and what a client checks in all plans
	cuda.Device, cuda.Collectives, cuda.PollsPerTurn = wire.DeviceCUDA, wire.PlanCountCUDA, gpuPollsPerTurn
	for i := range onGPU {
		x := newGPUChooser(&onGPU[i], r, on)
		err := x.fill(&cuda)
		if err != nil && x.table != nil { // what is forced leaves too many ranges beside those of the table
			x.table = nil
			err = x.fill(&cuda)
		}
		if err != nil {
			return cpu, cuda, fmt.Errorf("plan: on GPUs: %w", err)
		}
	}
	return cpu, cuda, nil
}

// onGPU are the plans of operations on a CUDA device. Floating-point data travels in cells. Integers, and data that is only copied, travel in
// packets.
var onGPU = []collective{
	{op: wire.OpAllReduce, device: wire.DeviceCUDA, index: wire.PlanAllReduce, adds: true, first: wire.AlgoTwoshot},
	{op: wire.OpReduceScatter, device: wire.DeviceCUDA, index: wire.PlanReduceScatter, adds: true, first: wire.AlgoOneshot},
	{op: wire.OpAllGather, device: wire.DeviceCUDA, index: wire.PlanAllGather, first: wire.AlgoOneshot, packets: true},
	{op: wire.OpAllToAll, device: wire.DeviceCUDA, index: wire.PlanAllToAll, first: wire.AlgoOneshot, packets: true},
	{op: wire.OpBroadcast, device: wire.DeviceCUDA, index: wire.PlanBroadcast, first: wire.AlgoOneshot, packets: true},
	{op: wire.OpAllReduce, device: wire.DeviceCUDA, index: wire.PlanAllReducePackets, adds: true, first: wire.AlgoTwoshot, packets: true},
	{op: wire.OpReduceScatter, device: wire.DeviceCUDA, index: wire.PlanReduceScatterPackets, adds: true, first: wire.AlgoOneshot, packets: true},
	{op: wire.OpSend, device: wire.DeviceCUDA, index: wire.PlanTransfers, first: wire.AlgoPipe},
}

// parts is how many parts the larger buffer of an operation has.
func (c *collective) parts(world int) uint64 {
	switch c.op {
	case wire.OpReduceScatter, wire.OpAllGather, wire.OpAllToAll:
		return uint64(max(world, 1))
	}
	return 1
}

func newGPUChooser(c *collective, r Request, on GPUs) *chooser {
	x := &chooser{c: c, world: r.World, copyFrom: unreachable, twoshotFrom: unreachable, pipeFrom: unreachable}
	if c.isMeasured() {
		x.table = on.Table
	}
	if c.op == wire.OpSend { // no choice
		x.allowed = c.algorithms()
	} else {
		x.allowed, x.forced = c.allowed(r.Forcing, r.Reproducible)
	}
	if on.Shared {
		x.sharedThresholds()
	} else {
		x.linkThresholds()
	}
	x.gridOf = func(a wire.Algo, size uint64) (int, int) { return defaultGrid(c, a, size, r.World, on.Blocks) }
	x.maxBlocks = on.Blocks
	parts := c.parts(r.World)
	for size := uint64(leastGPUThreads * tileBytes); size < uint64(on.Blocks*maxGPUThreads*tileBytes); size *= 2 {
		x.gridEdges = append(x.gridEdges, size*parts+1) // a power of two is the last size of its range
	}
	return x
}

// isMeasured says whether a table's entry for the collective is for this plan. `railhead tune` measures all-reduce and reduce-scatter in bf16,
// which travels in cells; the plans of integers, which are rare and travel in packets, have the default thresholds.
func (c *collective) isMeasured() bool { return !c.adds || !c.packets }

// linkThresholds are those of ranks with a GPU each.
func (x *chooser) linkThresholds() {
	pull, second := uint64(pullFromCells), uint64(secondExchange)
	if x.c.packets {
		pull, second = pullFromPackets, second/2
	}
	x.pullFrom = wireSize(x.c.op, x.world, pull)
	x.twoshotFrom = gpuTwoshotFrom(x.world, second)
	if x.c.adds && x.c.packets && x.world > 1 {
		x.stageFrom = wireSize(x.c.op, x.world, stageFromPackets)
	}
	if x.c.op != wire.OpSend {
		x.pipeFrom = wireSize(x.c.op, x.world, pipeFrom)
	}
	if x.may(wire.AlgoCopy) {
		x.copyFrom = wireSize(x.c.op, x.world, copyFrom)
	}
}

// defaultGrid is the grid of a kernel for a size without a table.
func defaultGrid(c *collective, a wire.Algo, size uint64, world, blocks int) (count, threads int) {
	part := size / c.parts(world)
	if a == wire.AlgoPipe {
		return laneGrid(part, world, blocks)
	}
	return gpuGrid(part, blocks)
}

// laneGrid is the grid of a kernel over lanes, of parts of this many bytes. Both ranks of a transfer must use the same number of lanes whatever
// else they do, so a lane has room beside those to and from every other rank: blocks / (2 (world - 1)) lanes, where there are as many blocks. A
// block of 512 threads moved 21 GB/s, and a chunk needs about 2 us besides.
func laneGrid(part uint64, world, blocks int) (count, threads int) {
	pipes := 2 * max(world-1, 1)
	most := min(max(blocks/pipes, 1), maxLanes)
	lanes := min(max(int(min(part/laneBytes, maxLanes)), 1), most)
	threads = leastGPUThreads * 2
	for threads < maxGPUThreads && part/uint64(lanes) > uint64(threads*tileBytes) {
		threads *= 2
	}
	return min(blocks, lanes*pipes), threads
}

// wireSize is the size of an operation of which the busiest link carries bytes, if each rank sends every byte once to each rank that needs it.
func wireSize(op wire.Op, world int, bytes uint64) uint64 {
	n := uint64(world)
	switch {
	case world < 2:
		return unreachable
	case op == wire.OpAllReduce: // a reduce-scatter and an all-gather
		return bytes * n / (2 * (n - 1))
	case op == wire.OpBroadcast: // the root's link
		return bytes / (n - 1)
	}
	return bytes * n / (n - 1) // the size is that of all parts, and a rank's own does not move
}

// gpuTwoshotFrom is the smallest size in bytes at which two-shot is the default of an all-reduce. Over a link one-shot carries N-1 times the
// size, two-shot 2 (N-1) / N times. From there the difference takes longer than the second exchange.
func gpuTwoshotFrom(world int, secondExchange uint64) uint64 {
	if world <= 2 {
		return unreachable
	}
	n := uint64(world)
	return secondExchange * n / ((n - 1) * (n - 2))
}

// gpuGrid is the grid of a kernel for this many bytes: a thread for each tile of 16 bytes, in as many blocks as can run. Of 2 ranks the best
// grids were 16 blocks of 64 threads at 16 KiB, 128 of 64 at 128 KiB, 128 of 128 at 256 KiB and 132 of 256 from 1 MiB on; a link is full with
// 132 blocks of 256 threads, or with 16 of 512.
func gpuGrid(bytes uint64, blocks int) (count, threads int) {
	tiles := bytes/tileBytes + controlThreads
	most := maxGPUThreads
	if blocks >= 64 {
		most = maxGPUThreads / 2
	}
	threads = leastGPUThreads
	for threads < most && tiles > uint64(blocks*threads) {
		threads *= 2
	}
	return int(min(uint64(blocks), (tiles+uint64(threads)-1)/uint64(threads))), threads
}

// The kernels' scratch has two inboxes, of cells and of packets, each with two halves of two phases, which have a slot for each rank, and lanes,
// which together take two slots for each rank.
const (
	gpuSlotsOfRank  = 2 * 2 * 2
	laneSlotsOfRank = 2
	// gpuInboxBytes bounds the inboxes of a rank together. With 2 ranks a slot has 4 MiB: what is larger and lies in no window goes in pieces.
	gpuInboxBytes = 64 << 20
	// gpuScratchHeader and gpuScratchOfRank are at least what lies before the inboxes, in all and for each rank: counters and flags.
	gpuScratchHeader = 4096
	gpuScratchOfRank = 12288
	// gpuStageBytes is the window of the library at the end of the scratch, to which buffers are copied (Plan.StageFromKib), in pieces if they are larger.
	gpuStageBytes = 16 << 20
)

// GPUSlotBytes is the size of a peer's slot in the kernels' inboxes: a power of two.
func GPUSlotBytes(world int) uint64 {
	most := uint64(gpuInboxBytes / gpuSlotsOfRank / max(world, 2))
	return 1 << (bits.Len64(most) - 1)
}

// GPUScratchBytes is the size of the kernels' scratch on a rank's device, in whole granules.
func GPUScratchBytes(world int) uint64 {
	const granule = 2 << 20
	need := gpuScratchHeader + uint64(world)*(gpuScratchOfRank+(gpuSlotsOfRank+laneSlotsOfRank)*GPUSlotBytes(world))
	if world > 1 {
		need += gpuStageBytes
	}
	return (need + granule - 1) / granule * granule
}
