package plan

import "railhead/internal/wire"

// Thresholds of ranks that share GPUs. What ranks of one GPU exchange stays in its memory, so no link is the limit, but how fast a rank's few blocks
// move bytes. They come from process ranks on one H200 under MPS (driver 580.159.04, CUDA 13.0, 2026-12-01;
// benchmarks/results/2026-12-01-h200-shared/algorithms.txt). In bf16, us, in graphs:
//
//	all-reduce              64K   128K  256K  512K  1M    2M    4M
//	8 ranks, one-shot       8.76  11.1  16.9  28.9  59.3  113   233
//	8 ranks, two-shot       15.8  16.4  16.6  21.9  31.9  50.2  88.9
//	8 ranks, pull           11.0  11.5  11.3  11.6  13.1  17.5  29.4
//	4 ranks, one-shot       5.66  5.79  6.58  8.53  14.4  28.5  55.2
//	4 ranks, two-shot       6.14  6.68  8.08  8.68  11.6  20.2  33.8
//	4 ranks, pull           7.70  8.02  8.13  8.36  8.68  9.91  13.1
//	2 ranks, one-shot       4.24  4.27  4.30  4.32  5.62  8.89  16.6
//	2 ranks, pull           5.28  5.30  5.36  5.49  5.60  6.07  7.22
//
// With eight ranks on two GPUs, four on each, one-shot and two-shot of earlier kernels crossed at 45 KiB, two-shot and pull at 406 KiB. So groups with
// several ranks on several GPUs have these thresholds too.
const (
	// sharedPull is the bytes that a rank sends by one-shot from which pull is faster, packets counted twice. The lines of one-shot and pull cross at
	// 959 KiB (8 ranks), 1461 (4) and 1015 (2) of all-reduces, 667 and 1040 of all-gathers, 640 and 1050 of all-to-alls, 728 and 2100 of broadcasts, 1180
	// of reduce-scatters (8 ranks).
	sharedPull = 1100 << 10
	// sharedSecondExchange is secondExchange for gpuTwoshotFrom. The lines of one-shot and two-shot cross at 249 KiB (8 ranks) and 538 KiB (4), which
	// are 8 / 42 of 1307 KiB and 4 / 6 of 807 KiB.
	sharedSecondExchange = 1200 << 10
	// sharedStage is the bytes that all ranks together send by two-shot (2 ranks: one-shot) from which it is faster to copy the buffers to windows, pull
	// there and copy the results; packets are counted twice. A MiB of a bf16 all-reduce so takes 3.2 us with 2 ranks, 6.3 with 4 and 12.6 with 8, plus at most
	// 4, 4 and 13 us; otherwise 5.0, 8.8 and 18 (large_sums.txt, in the same folder). The lines cross at 5, 1 and 0.8 MiB, which are 10, 6 and 11 MiB sent.
	sharedStage = 12 << 20
)

// sharedThresholds are those of ranks that share GPUs. Lanes are never the default there: of few blocks each pair of ranks has one or two. All-gathers of
// 4 MiB take 639 us by lanes and 50.7 by packets with 8 ranks, 22.9 and 15.7 with 2.
func (x *chooser) sharedThresholds() {
	pull, second := uint64(sharedPull), uint64(sharedSecondExchange)
	if x.c.packets {
		pull, second = pull/2, second/2
	}
	x.twoshotFrom = gpuTwoshotFrom(x.world, second)
	switch {
	case x.world < 2 || x.c.op == wire.OpSend:
		x.pullFrom = unreachable
	case x.c.op == wire.OpAllReduce: // one-shot sends the whole buffer to each other rank
		x.pullFrom = pull / uint64(x.world-1)
	case x.c.op == wire.OpReduceScatter && x.world == 2: // at 4 MiB pull still takes 11.1 us, one-shot 8.93
		x.pullFrom = 2 * wireSize(x.c.op, x.world, pull)
	default:
		x.pullFrom = wireSize(x.c.op, x.world, pull)
	}
	if x.c.adds && x.world > 1 {
		x.stageFrom = sharedStage / x.timesSent()
	}
}

// timesSent is how many times the size all ranks together send by the algorithm of a large sum that copies.
func (x *chooser) timesSent() uint64 {
	times := uint64(x.world - 1)
	if x.c.op == wire.OpAllReduce { // a reduce-scatter and an all-gather
		times *= 2
	}
	if x.c.packets {
		times *= 2
	}
	return times
}
