// Checks and times the GPU all-reduces with eight virtual ranks: eight streams of one process on one GPU.
//
//   nvcc -arch=sm_90 -O3 -std=c++17 -Ikernels -Ikernels/include benchmarks/gpu/virtual_ranks.cu -o virtual_ranks
//   ./virtual_ranks            check, then time
//   ./virtual_ranks check      check alone (for compute-sanitizer)
//
// A time is that of one operation on all eight ranks: kRounds operations in a row on each stream, all in one graph, over
// kRounds; the median of kRepeats replays. "hand" is a one-shot kernel written by hand for eight ranks and aligned bf16,
// with the same packets: what the vocabulary is measured against. "empty" are eight kernels that do nothing.
#include "checks.cuh"
#include "ranks.cuh"

namespace {

constexpr int kRounds = 40, kRepeats = 21;

float timeUs(const Group& g, What what, const Shape& s) {
  cudaGraphExec_t graph = capture(g, kRanks, kRounds, [&](int r) { launch(g, what, r, s); });
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRepeats + 3; i++) {
    CHECK_CUDA(cudaEventRecord(begin, g.stream[0]));
    CHECK_CUDA(cudaGraphLaunch(graph, g.stream[0]));
    CHECK_CUDA(cudaEventRecord(end, g.stream[0]));
    CHECK_CUDA(cudaStreamSynchronize(g.stream[0]));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms * 1000 / kRounds);
  }
  if (stopped(g, kRanks)) exit(1);
  CHECK_CUDA(cudaGraphExecDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

float bestUs(const Group& g, What what, size_t bytes) {
  float best = 1e9;
  for (const int threads : {64, 128, 256}) {
    Shape s = {bytes / 2, 2};
    s.threads = threads;
    if (what == What::kHand && bytes > static_cast<size_t>(kMaxBlocks) * threads * 16) continue;
    if (what == What::kFused) {
      if (threads != 64 || bytes % 8192 != 0 || bytes > kSlotBytes / 2) continue;
      s.hidden = 4096;
      s.rows = static_cast<uint32_t>(bytes / 8192);
    }
    best = std::min(best, timeUs(g, what, s));
  }
  return best;
}

void times(const Group& g) {
  Shape nothing = {512, 2};
  printf("us for one operation on %d virtual ranks, bf16 (the best of 64, 128 and 256 threads a block); fused: hidden 4096\n", kRanks);
  printf("%10s %8s %8s %8s %8s %8s %8s\n", "bytes", "empty", "hand", "oneshot", "twoshot", "pull", "fused");
  for (size_t bytes = 1024; bytes <= kMaxBytes; bytes *= 2) {
    printf("%10zu %8.2f", bytes, timeUs(g, What::kEmpty, nothing));
    for (const What what : {What::kHand, What::kOneshot, What::kTwoshot, What::kPull, What::kFused}) {
      const float us = bestUs(g, what, bytes);
      if (us < 1e8) {
        printf(" %8.2f", us);
      } else {
        printf(" %8s", "-");
      }
    }
    printf("\n");
    fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  cudaDeviceProp p;
  CHECK_CUDA(cudaGetDeviceProperties(&p, 0));
  printf("%s, %d multiprocessors\n", p.name, p.multiProcessorCount);
  if (p.multiProcessorCount < kRanks * kMaxBlocks) {
    fprintf(stderr, "%d blocks would not be resident together here\n", kRanks * kMaxBlocks);
    return 1;
  }
  Group g = makeGroup(kRanks);
  checkSums(g, kRanks);
  checkFused(g, kRanks);
  checkReplays(g, kRanks);
  checkStops(4);
  for (const int ranks : {2, 3, 5, 7}) {
    Group small = makeGroup(ranks);
    checkSums(small, ranks);
  }
  if (failures != 0) {
    fprintf(stderr, "%d checks failed\n", failures);
    return 1;
  }
  if (argc < 2 || strcmp(argv[1], "check") != 0) times(g);
  return 0;
}
