// Virtual ranks: streams of one process on one GPU, their memory, and how an operation is launched on one of them. The kernels are those of an
// image (kernels/cubin, kernels/ptx), as the client loads them.
#ifndef RAILHEAD_BENCHMARKS_GPU_RANKS_H_
#define RAILHEAD_BENCHMARKS_GPU_RANKS_H_

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "railhead/gpu/launch.h"

#define CHECK_CUDA(call)                                                                    \
  do {                                                                                      \
    const cudaError_t e = (call);                                                           \
    if (e != cudaSuccess) {                                                                 \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e)); \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

namespace virtual_ranks {

using namespace railhead;
using namespace railhead::gpu;

constexpr uint64_t kMaxBytes = 16 << 20;
constexpr uint64_t kWindowBytes = kMaxBytes + 4096;  // room for misaligned starts and guards

class Image {
 public:
  explicit Image(const char* path) { CHECK_CUDA(cudaLibraryLoadFromFile(&library_, path, nullptr, nullptr, 0, nullptr, nullptr, 0)); }
  // The kernel of an algorithm and rh_dtype for the world size if there is one (all_reduce_entries.h), else that for any. world 0: that for any.
  cudaKernel_t kernel(const std::string& algorithm, int type, int world) {
    std::string name = "rh_all_reduce_" + algorithm + "_" + kTypeNames[type];
    const bool special = (type == 0 || type == 1 || type == 3) && (world == 4 || world == 8 || (world == 2 && algorithm != "twoshot"));
    if (special) name += "_" + std::to_string(world);
    cudaKernel_t& found = kernels_[name];
    if (found == nullptr) CHECK_CUDA(cudaLibraryGetKernel(&found, library_, name.c_str()));
    return found;
  }

 private:
  cudaLibrary_t library_;
  std::map<std::string, cudaKernel_t> kernels_;
};

struct Shape {
  std::string algorithm;
  int type = 1;  // rh_dtype
  int reduction = 0, reduceGroup = 0;  // 0 = all ranks
  size_t count = 0;
  uint64_t scale = 0;
  uint64_t sendAt = 0, recvAt = 0;  // in the windows, on every rank
  bool inPlace = false;
  bool general = false;  // the kernel for any world size
  int blocks = 1, threads = 128;
  uint64_t detail = 0;   // added to what ranks must agree on
};

struct Group {
  int world;
  uint64_t slotBytes, stride;
  Layout layout;
  char* base;
  Status* status;  // pinned, one a rank
  std::vector<cudaStream_t> streams;
  uint64_t timeoutNs = 2000000000;

  char* heap(int r) const { return base + stride * static_cast<uint64_t>(r); }
  char* window(int r, int which) const { return heap(r) + layout.bytes + kWindowBytes * static_cast<uint64_t>(which); }
  GpuState* state(int r) const { return reinterpret_cast<GpuState*>(heap(r)); }
};

inline Group makeGroup(int world, uint64_t slotBytes) {
  Group g = {};
  g.world = world;
  g.slotBytes = slotBytes;
  g.layout = layoutOf(world, slotBytes);
  g.stride = (g.layout.bytes + 2 * kWindowBytes + 4095) / 4096 * 4096;
  g.timeoutNs = 2000000000;
  CHECK_CUDA(cudaMalloc(&g.base, g.stride * static_cast<uint64_t>(world)));
  CHECK_CUDA(cudaHostAlloc(&g.status, sizeof(Status) * static_cast<size_t>(world), cudaHostAllocMapped));
  memset(static_cast<void*>(g.status), 0, sizeof(Status) * static_cast<size_t>(world));
  for (int r = 0; r < world; r++) {
    CHECK_CUDA(cudaMemset(g.heap(r), 0, g.layout.inboxOffset));
    CHECK_CUDA(cudaMemset(g.heap(r) + g.layout.inboxOffset, 0xff, g.layout.inboxBytes));
    g.streams.emplace_back();
    CHECK_CUDA(cudaStreamCreateWithFlags(&g.streams.back(), cudaStreamNonBlocking));
  }
  CHECK_CUDA(cudaDeviceSynchronize());
  return g;
}
inline void freeGroup(Group& g) {
  for (cudaStream_t s : g.streams) CHECK_CUDA(cudaStreamDestroy(s));
  CHECK_CUDA(cudaFree(g.base));
  CHECK_CUDA(cudaFreeHost(g.status));
}

// Blocks of each rank, so that the blocks of all ranks are resident together.
inline int mostBlocks(cudaKernel_t kernel, int threads, int world) {
  int each = 0;
  cudaDeviceProp p;
  CHECK_CUDA(cudaGetDeviceProperties(&p, 0));
  CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, reinterpret_cast<const void*>(kernel), threads, 0));
  return std::min(each * p.multiProcessorCount / world, kMaxBlocks);
}

inline void load(cudaKernel_t kernel) {
  cudaFuncAttributes ignored;
  CHECK_CUDA(cudaFuncGetAttributes(&ignored, reinterpret_cast<const void*>(kernel)));
}

inline WindowCall callOf(const Group& g, int r, const Shape& s) {
  WindowCall w = {};
  Call& c = w.call;
  c.team = {g.base, g.stride, r, g.world, s.reduceGroup == 0 ? g.world : s.reduceGroup, 256, g.slotBytes, g.timeoutNs, 2 * g.timeoutNs, &g.status[r]};
  const uint64_t send = g.layout.bytes + s.sendAt, recv = s.inPlace ? send : g.layout.bytes + kWindowBytes + s.recvAt;
  for (int q = 0; q < g.world; q++) {
    w.windows.send[q] = g.heap(q) + send;
    w.windows.recv[q] = g.heap(q) + recv;
  }
  c.send = g.heap(r) + send;
  c.recv = g.heap(r) + recv;
  c.count = s.count;
  c.call = {2, static_cast<uint32_t>(s.type), static_cast<uint32_t>(s.reduction), kNoRoot, s.count, 0, 0, 0};
  c.detail = (send ^ recv << 24) + s.detail;
  c.reduction = static_cast<uint32_t>(s.reduction);
  c.root = -1;
  c.scale = s.scale;
  c.stream = 1;
  return w;
}
inline cudaKernel_t kernelOf(Image& image, const Group& g, const Shape& s) {
  return image.kernel(s.algorithm, s.type, s.general ? 0 : g.world);
}
inline void launch(Image& image, const Group& g, int r, const Shape& s) {
  WindowCall call = callOf(g, r, s);
  void* arguments[] = {&call};  // a kernel takes as much of it as its parameter has
  CHECK_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(kernelOf(image, g, s)), dim3(static_cast<unsigned>(s.blocks)), dim3(static_cast<unsigned>(s.threads)), arguments, 0, g.streams[static_cast<size_t>(r)]));
}

// A graph of `rounds` times body(r) on each rank's stream.
inline cudaGraphExec_t capture(const Group& g, int rounds, const std::function<void(int)>& body) {
  cudaEvent_t fork, join;
  CHECK_CUDA(cudaEventCreate(&fork));
  CHECK_CUDA(cudaStreamBeginCapture(g.streams[0], cudaStreamCaptureModeThreadLocal));
  CHECK_CUDA(cudaEventRecord(fork, g.streams[0]));
  for (size_t r = 1; r < g.streams.size(); r++) CHECK_CUDA(cudaStreamWaitEvent(g.streams[r], fork, 0));
  for (int k = 0; k < rounds; k++) {
    for (int r = 0; r < g.world; r++) body(r);
  }
  for (size_t r = 1; r < g.streams.size(); r++) {
    CHECK_CUDA(cudaEventCreate(&join));
    CHECK_CUDA(cudaEventRecord(join, g.streams[r]));
    CHECK_CUDA(cudaStreamWaitEvent(g.streams[0], join, 0));
  }
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_CUDA(cudaStreamEndCapture(g.streams[0], &graph));
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return exec;
}

// Of `rounds` times body(r) on each rank's stream, all in one graph: the time of a replay over rounds, the median of kRepeats replays, us.
constexpr int kRepeats = 15;
inline double medianUs(const Group& g, int rounds, const std::function<void(int)>& body) {
  cudaGraphExec_t graph = capture(g, rounds, body);
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < kRepeats + 3; i++) {
    CHECK_CUDA(cudaEventRecord(begin, g.streams[0]));
    CHECK_CUDA(cudaGraphLaunch(graph, g.streams[0]));
    CHECK_CUDA(cudaEventRecord(end, g.streams[0]));
    CHECK_CUDA(cudaStreamSynchronize(g.streams[0]));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms * 1000 / static_cast<float>(rounds));
  }
  CHECK_CUDA(cudaGraphExecDestroy(graph));
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

inline bool hasStopped(const Group& g) {
  for (int r = 0; r < g.world; r++) {
    const Status& s = g.status[r];
    if (s.stop == 0) continue;
    fprintf(stderr, "rank %d of %d stopped with %u in operation %lu, missing %#lx, clash %#lx\n", r, g.world, s.stop, s.number, s.missing, s.clash);
    return true;
  }
  return false;
}

}  // namespace virtual_ranks

#endif  // RAILHEAD_BENCHMARKS_GPU_RANKS_H_
