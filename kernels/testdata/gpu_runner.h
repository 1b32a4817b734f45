// Where the GPU kernels of a test run, and the memory that they use: functions of the host (gpuhost), each rank in a thread; or, compiled with
// -DRH_ON_DEVICE and linked with the CUDA driver, the committed machine code on a GPU, each rank on a stream.
#ifndef RAILHEAD_KERNELS_TESTDATA_GPU_RUNNER_H_
#define RAILHEAD_KERNELS_TESTDATA_GPU_RUNNER_H_

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "railhead/gpu/launch.h"

#if defined(RH_ON_DEVICE)
#include <cuda.h>
#else
#include <sys/mman.h>

#include "gpuhost/kernels.h"
#endif

namespace {

struct TestGrid {
  uint32_t blocks, threads;
};
#if defined(RH_ON_DEVICE)
constexpr bool kOnDevice = true;
#else
constexpr bool kOnDevice = false;
#endif

#if defined(RH_ON_DEVICE)

#define CHECK_CUDA(call)                                                \
  do {                                                                  \
    const CUresult e = (call);                                          \
    const char* name = "?";                                             \
    if (e != CUDA_SUCCESS) {                                            \
      cuGetErrorName(e, &name);                                         \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, name); \
      _Exit(1);                                                         \
    }                                                                   \
  } while (0)

struct Machine {
  CUmodule module;
  std::vector<CUstream> streams;

  Machine() {
    CUcontext context;
    // A kernel that is loaded at its first launch makes the driver wait until the device is idle: for ever, if a rank on another stream waits for
    // this kernel.
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    CHECK_CUDA(cuInit(0));
    CHECK_CUDA(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_CUDA(cuCtxSetCurrent(context));
    const char* image = getenv("RAILHEAD_TEST_CUBIN");
    CHECK(image != nullptr);
    CHECK_CUDA(cuModuleLoad(&module, image));
    streams.resize(railhead::kMaxWorldSize);
    for (CUstream& s : streams) CHECK_CUDA(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  }
};
inline Machine& machine() {
  static Machine m;
  return m;
}
// Memory that the host may use while no kernel runs.
inline char* allocateShared(uint64_t bytes) {
  machine();
  CUdeviceptr p;
  CHECK_CUDA(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
  memset(reinterpret_cast<void*>(p), 0, bytes);
  return reinterpret_cast<char*>(p);
}
inline void freeShared(char* p, uint64_t) { CHECK_CUDA(cuMemFree(reinterpret_cast<CUdeviceptr>(p))); }
// Memory that kernels and host use at the same time.
inline void* allocatePinned(size_t bytes) {
  machine();
  void* p;
  CHECK_CUDA(cuMemHostAlloc(&p, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
  memset(p, 0, bytes);
  return p;
}
inline railhead::gpu::Status* allocateStatus(int n) {
  return static_cast<railhead::gpu::Status*>(allocatePinned(sizeof(railhead::gpu::Status) * static_cast<size_t>(n)));
}
inline void freeStatus(railhead::gpu::Status* p, int) { CHECK_CUDA(cuMemFreeHost(p)); }

inline bool hasKernel(const std::string& name) {
  CUfunction f;
  return cuModuleGetFunction(&f, machine().module, name.c_str()) == CUDA_SUCCESS;
}
// parameter: the kernel's.
inline void launch(int rank, const std::string& name, railhead::gpu::Call* parameter, TestGrid grid) {
  CUfunction f;
  CHECK_CUDA(cuModuleGetFunction(&f, machine().module, name.c_str()));
  void* parameters[] = {parameter};
  CHECK_CUDA(cuLaunchKernel(f, grid.blocks, 1, 1, grid.threads, 1, 1, 0, machine().streams[static_cast<size_t>(rank)], parameters, nullptr));
}
// Whether all that rank r has launched has ended.
inline bool hasEnded(int r) {
  const CUresult e = cuStreamQuery(machine().streams[static_cast<size_t>(r)]);
  if (e != CUDA_ERROR_NOT_READY) CHECK_CUDA(e);
  return e == CUDA_SUCCESS;
}
// Runs body for each rank, and waits for what it has launched. One thread launches: a launch may wait inside the driver for kernels that run, and those of
// one step of all ranks, launched in a row, need no later one.
inline void onRanks(int n, const std::function<void(int)>& body) {
  for (int r = 0; r < n; r++) body(r);
  CHECK_CUDA(cuCtxSynchronize());
}

// Of vectors that kernels use.
template <class T>
struct SharedAllocator {
  using value_type = T;
  SharedAllocator() = default;
  template <class U>
  SharedAllocator(const SharedAllocator<U>&) {}
  T* allocate(size_t n) { return reinterpret_cast<T*>(allocateShared(n * sizeof(T))); }
  void deallocate(T* p, size_t n) { freeShared(reinterpret_cast<char*>(p), n * sizeof(T)); }
  bool operator==(const SharedAllocator&) const { return true; }
  bool operator!=(const SharedAllocator&) const { return false; }
};
template <class T>
struct PinnedAllocator {
  using value_type = T;
  PinnedAllocator() = default;
  template <class U>
  PinnedAllocator(const PinnedAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(allocatePinned(n * sizeof(T))); }
  void deallocate(T* p, size_t) { CHECK_CUDA(cuMemFreeHost(p)); }
  bool operator==(const PinnedAllocator&) const { return true; }
  bool operator!=(const PinnedAllocator&) const { return false; }
};

#else

template <class T>
using SharedAllocator = std::allocator<T>;
template <class T>
using PinnedAllocator = std::allocator<T>;

inline char* allocateShared(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED);
  return static_cast<char*>(p);
}
inline void freeShared(char* p, uint64_t bytes) { munmap(p, bytes); }
inline railhead::gpu::Status* allocateStatus(int n) {
  return reinterpret_cast<railhead::gpu::Status*>(allocateShared(sizeof(railhead::gpu::Status) * static_cast<size_t>(n)));
}
inline void freeStatus(railhead::gpu::Status* p, int n) { freeShared(reinterpret_cast<char*>(p), sizeof *p * static_cast<size_t>(n)); }

inline bool hasKernel(const std::string& name) { return railhead::gpuhost::findKernel(name.c_str()) != nullptr; }
inline void launch(int, const std::string& name, railhead::gpu::Call* parameter, TestGrid grid) {
  const railhead::gpuhost::Run run = railhead::gpuhost::findKernel(name.c_str());
  CHECK(run != nullptr);
  run(parameter, {grid.blocks, grid.threads});
}
inline bool hasEnded(int) { return true; }  // launch() has run it
inline void onRanks(int n, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < n; r++) threads.emplace_back(body, r);
  for (auto& t : threads) t.join();
}

#endif

}  // namespace

#endif  // RAILHEAD_KERNELS_TESTDATA_GPU_RUNNER_H_
