// What is checked before anything is timed.
#ifndef RAILHEAD_BENCHMARKS_GPU_CHECKS_H_
#define RAILHEAD_BENCHMARKS_GPU_CHECKS_H_

#include "ranks.h"

namespace virtual_ranks {

extern int failures;

// Random all-reduces of one group: every type, reduction and algorithm, any group, grid, count and address, in place and not, against the CPU's
// bits; guards around outputs; inboxes of cells that are all ones afterwards.
void checkRandom(Image& image, int world, int rounds, uint64_t seed, size_t most);
// Graphs of several kernels replayed in a mix with eager calls, over the wrap of packets and flags.
void checkReplays(Image& image, int world, int replays, uint64_t seed);
// Sums and products of ordinary numbers against fp64 and 64-bit integers.
void checkValues(Image& image, int world, uint64_t seed);
// A rank that does not come, an abort, calls that differ, a stream that holds the comm, a rank that has left.
void checkStops(Image& image, int world);

}  // namespace virtual_ranks

#endif  // RAILHEAD_BENCHMARKS_GPU_CHECKS_H_
