package plan

import "railhead/internal/wire"

// Thresholds of ranks that share GPUs. What ranks of one GPU exchange stays in its memory, so no link is the limit, but how fast the kernels of all
// ranks together move bytes. N ranks together move 2 (N-1) times the size in an all-reduce by two-shot or pull, N (N-1) times by one-shot. Packets
// count twice.
//
// The figures are from docs/kernels.md, "Measured with virtual ranks": ranks that are streams of one process on one H200 (bf16, in graphs,
// 2026-12-01). Processes under MPS take longer at small sizes. With eight ranks on two GPUs, four on each, earlier kernels crossed at 45 KiB
// (one-shot, two-shot) and 406 KiB (two-shot, pull), so groups with several ranks on several GPUs have these thresholds too.
//
//	us for bytes of an all-reduce  64K   128K  256K   512K   1M    2M
//	2 ranks, one-shot, cells       3.60  3.73  3.78   3.97   5.38  9.78
//	2 ranks, pull                  5.80  5.92  5.98   6.06   6.14  6.65
//	8 ranks, one-shot, cells       5.57  7.92  13.28  24.19  48.1
//	8 ranks, two-shot, cells       6.69  6.97  7.94   12.87  27.3  42.4
//	8 ranks, pull                  8.68  8.85  8.99   9.22   10.2  13.3
const (
	// sharedPull is the bytes that ranks together move by an algorithm that copies from which pull is faster. Of 8 ranks the lines of two-shot and
	// pull cross at 313 KiB.
	sharedPull = 14 * 313 << 10
	// sharedPullOfTwo is the same of 2 ranks, where the lines of one-shot and pull cross at 1.2 MiB.
	sharedPullOfTwo = 2 * 1229 << 10
	// sharedSecondExchange is secondExchange for gpuTwoshotFrom. Of 8 ranks the lines of one-shot and two-shot cross at 99 KiB, which is 8 / 42 of it.
	sharedSecondExchange = 99 << 10 * 42 / 8
)

// sharedThresholds are those of ranks that share GPUs. Lanes are never the default there: what each has of a GPU's blocks is too little. With 4 ranks
// under MPS an all-gather of 4 MiB took 137 us by lanes (benchmarks/results/2026-12-01-h200-shared/bench.txt), while an all-reduce by two-shot, which
// moves as many bytes as packets would, took 33 us (peers.txt).
func (x *chooser) sharedThresholds() {
	second := uint64(sharedSecondExchange)
	if x.c.packets {
		second /= 2
	}
	x.twoshotFrom = gpuTwoshotFrom(x.world, second)
	x.pullFrom = unreachable
	if each := x.movedByCopies(); each > 0 {
		moved := uint64(sharedPull)
		if x.world == 2 {
			moved = sharedPullOfTwo
		}
		x.pullFrom = moved / each
	}
}

// movedByCopies is how many times the size all ranks together move by the algorithm of a large message that copies. 0: there is no choice.
func (x *chooser) movedByCopies() uint64 {
	if x.world < 2 || x.c.op == wire.OpSend {
		return 0
	}
	times := uint64(x.world - 1)
	if x.c.op == wire.OpAllReduce { // a reduce-scatter and an all-gather
		times *= 2
	}
	if x.c.packets {
		times *= 2
	}
	return times
}
