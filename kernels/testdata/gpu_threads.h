// Kernels of MoE dispatch and combine on a CPU with the whole grid that they are launched with: a thread of this process for each thread of the grid.
#ifndef RAILHEAD_KERNELS_TESTDATA_GPU_THREADS_H_
#define RAILHEAD_KERNELS_TESTDATA_GPU_THREADS_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "gpuhost/target.h"
#include "railhead/gpu/ep_slots.h"

namespace {

class ThreadBarrier {
 public:
  explicit ThreadBarrier(uint32_t threads) : threads_(threads) {}
  // Whether v is true in all threads.
  bool meet(bool v) {
    std::unique_lock<std::mutex> lock(mutex_);
    all_ = all_ && v;
    if (++here_ == threads_) {
      result_ = all_;
      here_ = 0;
      all_ = true;
      turn_++;
      opened_.notify_all();
      return result_;
    }
    const uint64_t turn = turn_;
    opened_.wait(lock, [&] { return turn_ != turn; });
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  const uint32_t threads_;
  uint32_t here_ = 0;
  uint64_t turn_ = 0;
  bool all_ = true, result_ = true;
};

struct ThreadBlock {
  explicit ThreadBlock(uint32_t dataThreads) : data(dataThreads) {}
  ThreadBarrier data;
  railhead::gpu::Shared shared = {};
  railhead::gpu::EpShared ep = {};
};

class ThreadTarget : public railhead::gpuhost::Target {
 public:
  ThreadTarget(std::deque<ThreadBlock>* blocks, railhead::gpuhost::Grid grid, uint32_t thread)
      : Target(nullptr, grid), blocks_(blocks), grid_(grid), thread_(thread) {}

  uint32_t gridThread() const { return thread_; }
  uint32_t gridThreads() const { return grid_.blocks * grid_.threads; }
  uint32_t block() const { return thread_ / grid_.threads; }
  uint32_t blocks() const { return grid_.blocks; }
  uint32_t threadInBlock() const { return thread_ % grid_.threads; }
  uint32_t blockThreads() const { return grid_.threads; }
  uint32_t dataThreadsInBlock() const { return dataThreads(grid_, block()); }
  static uint32_t dataThreads(railhead::gpuhost::Grid grid, uint32_t block) {
    return grid.threads - (block + 1 == grid.blocks && grid.blocks * grid.threads > kControlThreads ? kControlThreads : 0);
  }
  void dataSync() { mine().data.meet(true); }
  bool dataAll(bool v) { return mine().data.meet(v); }
  railhead::gpu::Shared& shared() { return mine().shared; }
  railhead::gpu::EpShared& epShared() { return mine().ep; }
  uint64_t loadShared(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
  void storeShared(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
  static constexpr bool kSurvivesDeaths = true, kPlans = true;
  static constexpr uint32_t kLanes = 1;
  uint64_t laneSums(uint64_t v) { return v; }
  void fenceDevice() { fence(); }
  void add(uint32_t* p, uint32_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
  uint32_t fetchAdd(uint32_t* p, uint32_t n) { return __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
  void add(uint64_t* p, uint64_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
  uint32_t sharedOr(uint32_t* p, uint32_t bits) { return __atomic_fetch_or(p, bits, __ATOMIC_RELAXED); }
  void sharedAdd(uint32_t* p, uint32_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
  void sharedMin(uint32_t* p, uint32_t v) {
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < old && !swaps(p, &old, v)) {
    }
  }
  void sharedMax(uint32_t* p, uint32_t v) {
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v > old && !swaps(p, &old, v)) {
    }
  }

 private:
  static bool swaps(uint32_t* p, uint32_t* old, uint32_t v) {
    return __atomic_compare_exchange_n(p, old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
  ThreadBlock& mine() { return (*blocks_)[block()]; }
  std::deque<ThreadBlock>* blocks_;
  railhead::gpuhost::Grid grid_;
  uint32_t thread_;
};
using ThreadContext = railhead::gpu::Context<ThreadTarget>;

// body(target), in each thread of the grid. Threads of the kernels before have been joined, which orders their accesses.
template <class Body>
void runGrid(railhead::gpuhost::Grid grid, Body body) {
  std::deque<ThreadBlock> blocks;
  for (uint32_t b = 0; b < grid.blocks; b++) blocks.emplace_back(ThreadTarget::dataThreads(grid, b));
  std::vector<std::thread> threads;
  for (uint32_t t = 1; t < grid.blocks * grid.threads; t++) threads.emplace_back([&, t] { body(ThreadTarget(&blocks, grid, t)); });
  body(ThreadTarget(&blocks, grid, 0));
  for (std::thread& t : threads) t.join();
}

}  // namespace

#endif  // RAILHEAD_KERNELS_TESTDATA_GPU_THREADS_H_
