// Checks and times the GPU kernels of an image with virtual ranks: streams of one process on one GPU, which have the latency of its memory and not
// of a link between GPUs. docs/kernels.md says how to build it.
//
//   virtual_ranks IMAGE check [ROUNDS]   fewer than 20 rounds: only random calls, for compute-sanitizer
//   virtual_ranks IMAGE time [MOST]      of messages of 1 KiB to MOST bytes (16 MiB)
//
// A time is that of one operation on all ranks: kRounds operations in a row on each stream, all in one graph, over kRounds; the median of
// kRepeats replays; the best of several grids.
#include <random>

#include "checks.h"
#include "ranks.h"

using namespace virtual_ranks;

namespace {

constexpr int kRounds = 40;

double timeUs(Image& image, const Group& g, const Shape& s) {
  const double us = medianUs(g, kRounds, [&](int r) { launch(image, g, r, s); });
  if (hasStopped(g)) exit(1);
  return us;
}

// The best time over grids that have a thread for each tile, or as many as fit.
double bestUs(Image& image, const Group& g, const char* algorithm, int type, size_t bytes, bool general, char* grid) {
  double best = 1e9;
  for (const int threads : {64, 128, 256, 512}) {
    Shape s;
    s.algorithm = algorithm;
    s.type = type;
    s.count = bytes / (type == 8 ? 4 : 2);
    s.threads = threads;
    s.general = general;
    size_t tiles = bytes / 16;
    if (strcmp(algorithm, "oneshot") != 0) tiles = (tiles + static_cast<size_t>(g.world) - 1) / static_cast<size_t>(g.world);
    if (strcmp(algorithm, "pull") == 0 && bytes >= 65536) tiles = (tiles + 1) / 2;
    const int most = mostBlocks(kernelOf(image, g, s), threads, g.world);
    if (most == 0) continue;
    s.blocks = static_cast<int>(std::min<size_t>(static_cast<size_t>(most), (tiles + 32 + static_cast<size_t>(threads) - 1) / static_cast<size_t>(threads)));
    const double us = timeUs(image, g, s);
    if (us >= best) continue;
    best = us;
    snprintf(grid, 16, "%dx%d", s.blocks, s.threads);
  }
  return best;
}

void times(Image& image, int world, size_t most) {
  Group g = makeGroup(world, 512 << 10);
  printf("us for one operation on %d virtual ranks, bf16 sums (and the best grid); any: the kernels for any world size; i32: packets\n", world);
  printf("%9s %8s %10s %8s %10s %8s %10s %8s %8s %8s\n", "bytes", "oneshot", "", "twoshot", "", "pull", "", "any 1s", "i32 1s", "i32 2s");
  for (size_t bytes = 1024; bytes <= most; bytes *= 2) {
    printf("%9zu", bytes);
    for (const char* algorithm : {"oneshot", "twoshot", "pull"}) {
      char grid[16] = "";
      if (strcmp(algorithm, "oneshot") == 0 && bytes > (world == 2 ? 4u << 20 : 1u << 20)) {
        printf(" %8s %10s", "-", "");
        continue;
      }
      const double us = bestUs(image, g, algorithm, 1, bytes, false, grid);
      printf(" %8.2f %10s", us, grid);
    }
    char grid[16];
    if (bytes <= 262144) {
      printf(" %8.2f", bestUs(image, g, "oneshot", 1, bytes, true, grid));
      printf(" %8.2f", bestUs(image, g, "oneshot", 8, bytes, false, grid));
      printf(" %8.2f", bestUs(image, g, "twoshot", 8, bytes, false, grid));
    }
    printf("\n");
    fflush(stdout);
  }
  freeGroup(g);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: virtual_ranks IMAGE check [ROUNDS] | time [MOST]\n");
    return 2;
  }
  cudaDeviceProp p;
  CHECK_CUDA(cudaGetDeviceProperties(&p, 0));
  printf("%s, %d multiprocessors\n", p.name, p.multiProcessorCount);
  Image image(argv[1]);
  if (strcmp(argv[2], "time") == 0) {
    const size_t most = argc > 3 ? std::min<size_t>(strtoull(argv[3], nullptr, 10), kMaxBytes) : kMaxBytes;
    for (const int world : {2, 4, 8}) times(image, world, most);
    return 0;
  }
  const int rounds = argc > 3 ? atoi(argv[3]) : 150;
  std::random_device fresh;
  const uint64_t seed = uint64_t{fresh()} << 32 | fresh();
  printf("seed %lu\n", seed);
  for (const int world : {2, 3, 4, 5, 7, 8, 16}) {
    if (rounds < 20 && world != 2 && world != 5 && world != 8) continue;
    checkRandom(image, world, rounds, seed + static_cast<uint64_t>(world), rounds < 20 ? 3000 : 60000);
    if (failures != 0) break;
  }
  if (failures == 0 && rounds >= 20) {
    for (const int world : {2, 8}) checkReplays(image, world, rounds / 2, seed);
    for (const int world : {2, 6, 8}) checkValues(image, world, seed);
    for (const int world : {2, 4}) checkStops(image, world);
  }
  if (failures != 0) {
    fprintf(stderr, "%d checks failed\n", failures);
    return 1;
  }
  return 0;
}
