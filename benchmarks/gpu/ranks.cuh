// The ranks: eight streams of one process, their memory, and how an operation is launched on one of them.
#ifndef RAILHEAD_BENCHMARKS_GPU_RANKS_CUH_
#define RAILHEAD_BENCHMARKS_GPU_RANKS_CUH_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "allreduce.cu"
#include "hand_oneshot.cuh"

#define CHECK_CUDA(call)                                                                      \
  do {                                                                                        \
    const cudaError_t e = (call);                                                             \
    if (e != cudaSuccess) {                                                                   \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e));   \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

namespace {

constexpr size_t kMaxBytes = 16 << 20;
constexpr int kMaxBlocks = 16;  // eight ranks of 16 blocks are resident together on 132 multiprocessors

__global__ void emptyKernel() {}

// The group: inboxes, states, buffers with room for misaligned starts.
struct Group {
  PacketTeam team[kRanks];
  HandTeam hand[kRanks];
  WaitControl control[kRanks];
  BlockTeam blocks[kRanks];
  PacketState* state[kRanks];
  char* inbox[kRanks];
  uint64_t inboxBytes;
  char* heap[kRanks];
  char *send[kRanks], *recv[kRanks], *residual[kRanks];  // the first two in the heap
  char* weight;
  uint32_t* host;  // word 0: abort; 16 + r: stop; from 64: missing, 64 bits each
  cudaStream_t stream[kRanks];
};

Group makeGroup(int ranks) {
  Group g = {};
  CHECK_CUDA(cudaHostAlloc(&g.host, 4096, cudaHostAllocMapped));
  memset(g.host, 0, 4096);
  g.inboxBytes = packetInboxBytes(ranks, kSlotBytes);
  const size_t heapBytes = 2 * (kMaxBytes + 256);
  const auto lines = static_cast<uint32_t>(kMaxBlocks * ranks);
  BlockLine* allLines;
  CHECK_CUDA(cudaMalloc(&g.heap[0], heapBytes * static_cast<size_t>(ranks)));
  CHECK_CUDA(cudaMalloc(&allLines, sizeof(BlockLine) * lines * static_cast<size_t>(ranks)));
  CHECK_CUDA(cudaMemset(allLines, 0, sizeof(BlockLine) * lines * static_cast<size_t>(ranks)));
  for (int r = 0; r < ranks; r++) {
    CHECK_CUDA(cudaMalloc(&g.inbox[r], g.inboxBytes));
    CHECK_CUDA(cudaMemset(g.inbox[r], 0, g.inboxBytes));
    CHECK_CUDA(cudaMalloc(&g.state[r], sizeof(PacketState)));
    CHECK_CUDA(cudaMemset(g.state[r], 0, sizeof(PacketState)));
    g.heap[r] = g.heap[0] + heapBytes * static_cast<size_t>(r);
    CHECK_CUDA(cudaMalloc(&g.residual[r], kMaxBytes + 256));
    g.send[r] = g.heap[r];
    g.recv[r] = g.heap[r] + kMaxBytes + 256;
    CHECK_CUDA(cudaMalloc(&g.blocks[r].state, sizeof(BlockState)));
    CHECK_CUDA(cudaMemset(g.blocks[r].state, 0, sizeof(BlockState)));
    CHECK_CUDA(cudaStreamCreateWithFlags(&g.stream[r], cudaStreamNonBlocking));
  }
  CHECK_CUDA(cudaMalloc(&g.weight, 1 << 16));
  for (int r = 0; r < ranks; r++) {
    g.control[r] = {g.host, 3000000000ull, g.host + 16 + r, reinterpret_cast<uint64_t*>(g.host + 128) + r};
    g.team[r].rank = r;
    g.team[r].worldSize = ranks;
    g.team[r].reduceGroup = ranks;
    g.team[r].state = g.state[r];
    g.team[r].inboxes.own = g.inbox[r];
    g.team[r].inboxes.slotBytes = kSlotBytes;
    for (int k = 0; k < ranks; k++) g.team[r].inboxes.peer[k] = g.inbox[(r + k) % ranks];
    g.blocks[r].rank = r;
    g.blocks[r].worldSize = ranks;
    g.blocks[r].reduceGroup = ranks;
    g.blocks[r].lines = allLines;
    g.blocks[r].lineStride = lines;
    g.blocks[r].heaps = g.heap[0];
    g.blocks[r].heapStride = g.blocks[r].heapBytes = heapBytes;
    g.hand[r].rank = r;
    g.hand[r].state = g.state[r];
    for (int p = 0; p < kRanks && ranks == kRanks; p++) g.hand[r].inbox[p] = g.inbox[p];
  }
  CHECK_CUDA(cudaDeviceSynchronize());
  return g;
}

float fromBF16(uint16_t b) {
  const uint32_t u = static_cast<uint32_t>(b) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
uint16_t toBF16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

enum class What { kEmpty, kHand, kOneshot, kTwoshot, kPull, kFused };
const char* nameOf(What w) {
  static const char* names[] = {"empty", "hand", "oneshot", "twoshot", "pull", "fused"};
  return names[static_cast<int>(w)];
}

struct Shape {
  size_t count;  // elements
  int elementBytes;
  int offset = 0;  // bytes by which send and recv are misaligned
  int threads = 128;
  uint32_t rows = 1, hidden = 0;  // of fused
  bool inPlace = false;
  bool outside = false;  // pull: rank 0 says that its buffers are not in its heap
};

void launch(const Group& g, What what, int r, const Shape& s) {
  const char* send = g.send[r] + s.offset;
  char* recv = (s.inPlace ? g.send[r] : g.recv[r]) + s.offset;
  const uint32_t tiles = static_cast<uint32_t>((s.count * s.elementBytes + 15) / 16);
  const uint32_t share = what == What::kTwoshot || what == What::kPull ? (tiles + g.team[r].worldSize - 1) / g.team[r].worldSize : tiles;
  const int blocks = std::clamp(static_cast<int>((share + s.threads - 1) / s.threads), 1, kMaxBlocks);
  cudaStream_t stream = g.stream[r];
  switch (what) {
    case What::kEmpty: emptyKernel<<<1, 64, 0, stream>>>(); break;
    case What::kHand:
      handOneshot<<<blocks, s.threads, 0, stream>>>(g.hand[r], reinterpret_cast<const uint4*>(send), reinterpret_cast<uint4*>(recv), tiles);
      break;
    case What::kOneshot:
      if (s.elementBytes == 2) {
        rh_allreduce_oneshot_bf16<<<blocks, s.threads, 0, stream>>>(g.team[r], g.control[r], send, recv, s.count);
      } else {
        rh_allreduce_oneshot_f32<<<blocks, s.threads, 0, stream>>>(g.team[r], g.control[r], send, recv, s.count);
      }
      break;
    case What::kTwoshot:
      if (s.elementBytes == 2) {
        rh_allreduce_twoshot_bf16<<<blocks, s.threads, 0, stream>>>(g.team[r], g.control[r], send, recv, s.count);
      } else {
        rh_allreduce_twoshot_f32<<<blocks, s.threads, 0, stream>>>(g.team[r], g.control[r], send, recv, s.count);
      }
      break;
    case What::kPull: {
      const bool offered = !s.outside || r != 0;
      const uint64_t sendAt = offered ? static_cast<uint64_t>(send - g.heap[r]) : kNoOffset;
      const uint64_t recvAt = offered ? static_cast<uint64_t>(recv - g.heap[r]) : kNoOffset;
      if (s.elementBytes == 2) {
        rh_allreduce_pull_bf16<<<blocks, s.threads, 0, stream>>>(g.team[r], g.blocks[r], g.control[r], send, recv, sendAt, recvAt, s.count);
      } else {
        rh_allreduce_pull_f32<<<blocks, s.threads, 0, stream>>>(g.team[r], g.blocks[r], g.control[r], send, recv, sendAt, recvAt, s.count);
      }
      break;
    }
    case What::kFused: {
      // A row is spread over a cluster of up to 8 blocks while there are blocks for it, so that a thread has few tiles.
      const uint32_t perRow = s.hidden / 8;
      int cluster = 1;
      while (cluster < 8 && cluster * 64u < perRow && cluster * 2 * static_cast<int>(s.rows) <= kMaxBlocks) cluster *= 2;
      const int threads = std::clamp(static_cast<int>((perRow / static_cast<uint32_t>(cluster) + 31) / 32 * 32), 32, 256);
      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(cluster * std::min<int>(static_cast<int>(s.rows), kMaxBlocks / cluster)));
      config.blockDim = dim3(static_cast<unsigned>(threads));
      config.stream = stream;
      config.attrs = &attribute;
      config.numAttrs = 1;
      CHECK_CUDA(cudaLaunchKernelEx(&config, rh_allreduce_rmsnorm_bf16, g.team[r], g.control[r], send, g.residual[r],
                                    static_cast<const char*>(g.weight), recv, s.rows, s.hidden, 1e-5f));
      break;
    }
  }
  CHECK_CUDA(cudaGetLastError());
}

bool stopped(const Group& g, int ranks) {
  for (int r = 0; r < ranks; r++) {
    if (g.host[16 + r] != 0) {
      fprintf(stderr, "rank %d gave up (%u), waiting for ranks %#llx\n", r, g.host[16 + r],
              static_cast<unsigned long long>(reinterpret_cast<uint64_t*>(g.host + 128)[r]));
      return true;
    }
  }
  return false;
}

cudaGraphExec_t capture(const Group& g, int ranks, int rounds, const std::function<void(int)>& body) {
  cudaEvent_t fork, join;
  CHECK_CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK_CUDA(cudaStreamBeginCapture(g.stream[0], cudaStreamCaptureModeThreadLocal));
  CHECK_CUDA(cudaEventRecord(fork, g.stream[0]));
  for (int r = 1; r < ranks; r++) CHECK_CUDA(cudaStreamWaitEvent(g.stream[r], fork, 0));
  for (int k = 0; k < rounds; k++) {
    for (int r = 0; r < ranks; r++) body(r);
  }
  for (int r = 1; r < ranks; r++) {
    CHECK_CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CHECK_CUDA(cudaEventRecord(join, g.stream[r]));
    CHECK_CUDA(cudaStreamWaitEvent(g.stream[0], join, 0));
  }
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_CUDA(cudaStreamEndCapture(g.stream[0], &graph));
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return exec;
}

}  // namespace

#endif  // RAILHEAD_BENCHMARKS_GPU_RANKS_CUH_
