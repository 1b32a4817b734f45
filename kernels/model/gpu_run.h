// Runs of whole GPU kernels: all-reduces over cells, packets and windows, and broadcasts over packets and windows, with the control of every kernel, its signatures, counters and epochs. Time
// stands still, so no deadline passes.
#ifndef RAILHEAD_KERNELS_MODEL_GPU_RUN_H_
#define RAILHEAD_KERNELS_MODEL_GPU_RUN_H_

#include <deque>
#include <string>
#include <vector>

#include "model/mem.h"
#include "model/tiles.h"
#include "railhead/gpu/all_reduce.h"
#include "railhead/gpu/collectives.h"

namespace railhead::model {

// What a thread of a kernel runs on: context.h lists it.
class GpuTarget {
 public:
  struct Block {
    Barrier data;
    std::vector<uint8_t> good;
    gpu::Shared shared;
  };
  struct Grid {
    int blocks, blockThreads;
    std::vector<Block> block;
  };
  static constexpr uint32_t kControlThreads = 1;
  static constexpr bool kSurvivesDeaths = false;
  static constexpr uint32_t kEpochMask = 15, kMeetingMask = 15;
  static constexpr int kCellBatch = 2, kPacketBatch = 2, kPullBatch = 2;

  GpuTarget(World& world, Grid& grid, int thread) : world_(&world), grid_(&grid), thread_(static_cast<uint32_t>(thread)) {}

  void storePacket(Packet* p, const Packet& v) {
    world_->store(&p->e[0], 8, v.e[0], Order::kRelaxed, "store");
    world_->store(&p->e[1], 8, v.e[1], Order::kRelaxed, "store");
  }
  Packet loadPacket(const Packet* p) {
    Packet v;
    v.e[0] = world_->load(&p->e[0], 8, Order::kRelaxed, "load");
    v.e[1] = world_->load(&p->e[1], 8, Order::kRelaxed, "load");
    return v;
  }
  Packet loadPacketAcquire(const Packet* p, const char* in = __builtin_FUNCTION()) {
    Packet v;
    v.e[0] = world_->load(&p->e[0], 8, Order::kAcquire, "load.acquire", in);
    v.e[1] = world_->load(&p->e[1], 8, Order::kAcquire, "load.acquire", in);
    return v;
  }
  void arrived(const Packet* p) {
    world_->load(&p->e[0], 8, Order::kArrived, "load arrived");
    world_->load(&p->e[1], 8, Order::kArrived, "load arrived");
  }
  void fence(const char* in = __builtin_FUNCTION()) { world_->fence(Fence::kBoth, in); }

  uint32_t loadFlagAcquire(const uint32_t* p, const char* in = __builtin_FUNCTION()) { return word(world_->load(p, 4, Order::kAcquire, "load.acquire", in)); }
  uint32_t loadFlag(const uint32_t* p) { return word(world_->load(p, 4, Order::kRelaxed, "load")); }
  void storeFlagRelease(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) { world_->store(p, 4, v, Order::kRelease, "store.release", in); }
  void storeFlag(uint32_t* p, uint32_t v) { world_->store(p, 4, v, Order::kRelaxed, "store"); }

  template <class Elements>
  typename Elements::Raw loadElements(const Elements&, const char* base, uint64_t tile, size_t count) {
    static_assert(Elements::kBytes == 4);
    return loadWindow<Elements>(*world_, base, tile, count);
  }
  template <class Elements>
  void storeElements(char* base, uint64_t tile, size_t count, const typename Elements::Raw& raw) {
    if constexpr (Elements::kBytes == 1) {  // whole words
      storeWindow<Tiles<Raw16>>(*world_, base, tile, count / 4, raw);
    } else {
      storeWindow<Elements>(*world_, base, tile, count, raw);
    }
  }

  uint32_t loadState(const uint32_t* p) { return word(world_->load(p, 4, Order::kRelaxed, "load state")); }
  uint64_t loadState(const uint64_t* p) { return world_->load(p, 8, Order::kRelaxed, "load state"); }
  void storeState(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) { world_->store(p, 4, v, Order::kRelaxed, "store", in); }
  void storeState(uint64_t* p, uint64_t v, const char* in = __builtin_FUNCTION()) { world_->store(p, 8, v, Order::kRelaxed, "store", in); }
  void addOne(uint32_t* p, const char* in = __builtin_FUNCTION()) { world_->add(p, 4, 1, "add", in); }
  void addFlag(uint32_t* p, const char* in = __builtin_FUNCTION()) { world_->add(p, 4, 1, "add", in); }
  uint32_t loadOwn(const uint32_t* p) { return word(world_->load(p, 4, Order::kRelaxed, "load")); }
  uint64_t loadOwn(const uint64_t* p) { return world_->load(p, 8, Order::kRelaxed, "load"); }
  void storeOwn(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) { world_->store(p, 4, v, Order::kRelaxed, "store", in); }
  void storeOwn(uint64_t* p, uint64_t v, const char* in = __builtin_FUNCTION()) { world_->store(p, 8, v, Order::kRelaxed, "store", in); }
  uint32_t compareSwap(uint32_t* p, uint32_t expected, uint32_t desired) {
    return word(world_->swap(p, 4, expected, desired, Order::kRelaxed, "swap"));
  }
  // Words of the status (addStatus) are in the model's memory too. The release publishes what was stored before.
  uint32_t loadHost(const uint32_t* p) { return word(world_->load(p, 4, Order::kRelaxed, "load")); }
  template <class Word>
  void storeHost(Word* p, Word v) {
    if (hasToldHost_) world_->fail("stores to the status of the host behind the release that publishes it");
    *p = v;
    world_->store(p, sizeof v, v, Order::kRelaxed, "store");
  }
  void storeHostRelease(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) {
    *p = v;
    world_->store(p, 4, v, Order::kRelease, "store.release", in);
    hasToldHost_ = true;
  }

  uint64_t nowNs() { return 1000; }
  void pause() { world_->keepWaiting(); }
  char* once(char* p) const { return p; }

  uint32_t gridThread() const { return thread_; }
  uint32_t gridThreads() const { return static_cast<uint32_t>(grid_->blocks * grid_->blockThreads); }
  uint32_t block() const { return thread_ / blockThreads(); }
  uint32_t blocks() const { return static_cast<uint32_t>(grid_->blocks); }
  uint32_t blockThreads() const { return static_cast<uint32_t>(grid_->blockThreads); }
  uint32_t threadInBlock() const { return thread_ % blockThreads(); }
  uint32_t dataThreadsInBlock() const { return blockThreads() - (block() + 1 == blocks() && gridThreads() > kControlThreads ? kControlThreads : 0); }
  uint32_t launchedBlocks() const { return blocks(); }
  uint32_t launchedThreads() const { return blockThreads(); }
  void dataSync() { world_->meet(mine().data, false); }
  void controlSync() {}
  bool dataAll(bool v) {
    mine().good[threadInBlock()] = v;
    world_->meet(mine().data, false);
    bool all = true;
    for (uint32_t t = 0; t < dataThreadsInBlock(); t++) all = all && mine().good[t] != 0;
    world_->meet(mine().data, false);
    return all;
  }
  bool controlAll(bool v) { return v; }
  uint64_t loadShared(const uint64_t* p) { return *p; }  // not part of the model's memory
  void storeShared(uint64_t* p, uint64_t v) { *p = v; }
  gpu::Shared& shared() { return mine().shared; }

 private:
  static uint32_t word(uint64_t v) { return static_cast<uint32_t>(v); }
  Block& mine() { return grid_->block[block()]; }

  World* world_;
  Grid* grid_;
  uint32_t thread_;
  bool hasToldHost_ = false;
};
using GpuContext = gpu::Context<GpuTarget>;

// What a rank's kernels tell the host.
inline void addStatus(World& world, gpu::Status* s, const std::string& of) {
  const auto word = [&](const void* at, size_t bytes, const char* name) {
    world.memory.add(at, bytes, bytes, [=](size_t) { return name + of; });
  };
  word(&s->stop, 4, "status stop");
  word(&s->operation, 4, "status operation");
  for (const uint64_t* at : {&s->missing, &s->number, &s->clash, &s->theirWay, &s->ourWay}) word(at, 8, "status word");
  for (const Signature* at : {&s->difference.theirs, &s->difference.ours}) {
    for (const uint64_t* w : {&at->call, &at->count, &at->detail}) word(w, 8, "status call");
  }
}

struct GpuKernel {
  gpu::Algorithm algorithm;
  bool cells;  // of oneshot and twoshot, else packets
  uint32_t count;
  bool inPlace = false;
  int blocks = 1, blockThreads = 2;  // with the control thread
  bool broadcasts = false;           // kernel k has root k modulo the world size; over packets or windows
};
inline bool operator!=(const GpuKernel& a, const GpuKernel& b) {
  return a.algorithm != b.algorithm || a.cells != b.cells || a.count != b.count || a.broadcasts != b.broadcasts;
}

struct GpuShape {
  int worldSize = 2, reduceGroup = 2;
  uint32_t slotTiles = 2;  // of cells; half as many of packets
  uint32_t startEpoch = 0;
  uint32_t windowCount = 12;  // elements of each of a rank's two windows
  std::vector<GpuKernel> kernels;
  bool special = false;  // of two ranks, by the kernels for two ranks
  int odd = -1;          // the kernel in which the last rank runs oddKernel instead
  GpuKernel oddKernel = {};
  bool abort = false;    // the last rank does not run its last kernel, and the abort words are set
};

class GpuRun {
 public:
  using Elements = Tiles<Raw16>;

  GpuRun(World& world, const GpuShape& shape) : world_(world), shape_(shape) {
    const size_t n = size(shape.worldSize);
    layout_ = gpu::layoutOf(shape.worldSize, slotBytes());
    stride_ = (layout_.bytes + 2 * windowBytes() + 127) / 128 * 128;
    memory_.resize(n * stride_ / 8 + 16);
    status_.resize(n);
    base_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory_.data()) + 127) / 128 * 128);
    world.letEndsFence();
    int threads = 1;
    for (const GpuKernel& k : shape.kernels) threads = std::max(threads, k.blocks * k.blockThreads);
    threads = std::max(threads, shape.oddKernel.blocks * shape.oddKernel.blockThreads);
    ends_.resize(n);
    for (int r = 0; r < shape.worldSize; r++) {
      setUpRank(r);
      ends_[size(r)].expected = threads;
      for (int t = 0; t < threads; t++) world.addFiber(r, t, [this, r, t] { thread(r, t); });
    }
    if (shape.abort || shape.odd >= 0) {
      for (int r = 0; r < shape.worldSize - (shape.abort ? 1 : 0); r++) world.addFiber(-1, 1 + r, [this, r] { host(r); });
    }
    if (shape.abort) {
      world.addFiber(-1, 0, [this] {
        for (gpu::Status& s : status_) {
          for (size_t b = 0; b < kMaxBlocks; b++) world_.store(&s.abort[b].word, 4, 1, Order::kRelaxed, "abort");
        }
      });
    }
  }

  std::string check() const {
    for (int r = 0; r < shape_.worldSize; r++) {
      for (size_t k = 0; k < shape_.kernels.size(); k++) {
        if (const std::string wrong = checkKernel(r, k); !wrong.empty()) return wrong;
      }
      const auto stop = static_cast<Stop>(status_[size(r)].stop);
      if (shape_.odd >= 0 && stop != Stop::kMismatch) return "rank " + std::to_string(r) + " has not noticed that the calls differ";
      if (shape_.odd >= 0 || shape_.abort) continue;
      if (stop != Stop::kNone) return "rank " + std::to_string(r) + " stopped";
      if (newest(&state(r)->device.begun) != shape_.kernels.size()) return "rank " + std::to_string(r) + " has not counted its kernels";
      if (newest(&state(r)->device.history) != history()) return "rank " + std::to_string(r) + " has another history";
    }
    return "";
  }

 private:
  static constexpr size_t kMaxBlocks = 2;

  struct Job {
    std::vector<uint32_t> send, recv;
    GpuTarget::Grid grid;
    bool ran = false, broken = false;
  };

  static size_t size(int n) { return static_cast<size_t>(n); }
  uint64_t slotBytes() const { return shape_.slotTiles * 16; }
  uint64_t windowBytes() const { return shape_.windowCount * 4; }
  char* heap(int r) const { return base_ + stride_ * size(r); }
  gpu::GpuState* state(int r) const { return reinterpret_cast<gpu::GpuState*>(heap(r)); }
  const GpuKernel& kernelOf(int r, size_t k) const {
    return shape_.odd == static_cast<int>(k) && r == shape_.worldSize - 1 ? shape_.oddKernel : shape_.kernels[k];
  }

  uint64_t newest(const void* word) const { return world_.memory.at(world_.memory.find(word, 8)).newest().value; }
  // After all kernels.
  uint32_t history() const {
    uint32_t history = 0, sequence = 0;
    for (const GpuKernel& k : shape_.kernels) {
      SignedCall call = signedCall(k);
      call.sequence = sequence++;
      call.history = history;
      history = historyAfter(sign(call));
    }
    return history;
  }
  static SignedCall signedCall(const GpuKernel& k) { return {k.broadcasts ? 10u : 2u, k.cells ? 0u : 8u, 0, kNoRoot, k.count, 0, 0, 0}; }

  void word(void* at, size_t bytes, const std::string& name, uint64_t value = 0) {
    world_.memory.add(at, bytes, bytes, [=](size_t) { return name; });
    if (value != 0) world_.memory.initial(at, value);
  }
  void setUpRank(int r) {
    const std::string of = " of rank " + std::to_string(r);
    gpu::GpuState* s = state(r);
    word(&s->device.begun, 8, "begun" + of);
    word(&s->device.collectives, 8, "collectives" + of);
    word(&s->device.history, 8, "history" + of);
    word(&s->device.clash, 8, "clash" + of);
    word(&s->device.holder, 4, "holder" + of);
    word(&s->device.left, 4, "left" + of);
    word(&s->published, 4, "published" + of);
    word(&s->lines, 4, "lines" + of);
    word(&s->start.cellEpoch, 4, "cell epoch" + of, shape_.startEpoch);
    word(&s->start.packetEpoch, 4, "packet epoch" + of, shape_.startEpoch);
    word(&s->start.flagEpoch, 4, "flag epoch" + of, shape_.startEpoch);
    word(&s->start.stop, 4, "stop" + of);
    word(&s->arrived, 4, "arrived blocks" + of);
    const size_t n = size(shape_.worldSize);
    area(heap(r) + layout_.linesOffset, 2 * n * 64, 8, "line" + of, 0);
    for (size_t b = 0; b < kMaxBlocks * n; b++) {
      word(heap(r) + layout_.flagsOffset + b * sizeof(BlockFlag), 4, "block flag" + of, shape_.startEpoch);
    }
    area(heap(r) + layout_.packetsOffset, layout_.inboxBytes, 8, "packets" + of, 0);
    area(heap(r) + layout_.inboxOffset, layout_.inboxBytes, 8, "cells" + of, ~uint64_t{0});
    area(heap(r) + layout_.bytes, 2 * windowBytes(), 4, "window" + of, 0);
    for (size_t b = 0; b < kMaxBlocks; b++) word(&status_[size(r)].abort[b].word, 4, "abort" + of);
    addStatus(world_, &status_[size(r)], of);
    for (size_t k = 0; k < shape_.kernels.size(); k++) {
      jobs_[size(r)].emplace_back();
      setUpJob(r, k, &jobs_[size(r)].back());
    }
  }
  void area(char* at, uint64_t bytes, size_t unit, const std::string& name, uint64_t value) {
    world_.memory.add(at, bytes, unit, [=](size_t i) { return name + " word " + std::to_string(i); });
    for (uint64_t i = 0; value != 0 && i < bytes; i += unit) world_.memory.initial(at + i, value);
  }
  void setUpJob(int r, size_t k, Job* job) {
    const GpuKernel& kernel = kernelOf(r, k);
    for (size_t i = 0; i < kernel.count; i++) job->send.push_back(gpuContribution(static_cast<int>(k), r, i));
    job->recv.resize(kernel.count);
    job->grid.blocks = kernel.blocks;
    job->grid.blockThreads = kernel.blockThreads;
    job->grid.block.resize(size(kernel.blocks));
    for (int b = 0; b < kernel.blocks; b++) {
      GpuTarget::Block& block = job->grid.block[size(b)];
      block.data.expected = kernel.blockThreads - (b + 1 == kernel.blocks && kernel.blocks * kernel.blockThreads > 1 ? 1 : 0);
      block.good.resize(size(kernel.blockThreads));
    }
  }

  // The host of a rank whose kernels stop. It reads the words behind the first one once that is set.
  void host(int r) {
    const gpu::Status& s = status_[size(r)];
    while (world_.load(&s.stop, 4, Order::kAcquire, "look") == 0) world_.keepWaiting();
    if (world_.load(&s.operation, 4, Order::kRelaxed, "look") == 0) world_.fail("sees that rank %d has stopped, and not in which operation", r);
    if (world_.load(&s.number, 8, Order::kRelaxed, "look") == 0) world_.fail("sees that rank %d has stopped, and not which operation", r);
  }

  void thread(int r, int t) {
    for (size_t k = 0; k < shape_.kernels.size(); k++) {
      if (shape_.abort && r == shape_.worldSize - 1 && k + 1 == shape_.kernels.size()) break;
      Job& job = jobs_[size(r)][k];
      const bool inWindows = kernelOf(r, k).algorithm == gpu::Algorithm::kPull;
      if (inWindows) copyWindow(r, t, k, true);
      if (t < job.grid.blocks * job.grid.blockThreads) kernel(r, t, k, job);
      world_.meet(ends_[size(r)], true);
      const bool stopped = status_[size(r)].stop != 0;
      world_.meet(ends_[size(r)], true);  // no thread stops in the next kernel before all have looked
      if (stopped) {
        job.broken = true;
        break;
      }
      if (inWindows) copyWindow(r, t, k, false);
    }
  }
  // The kernel before a pull, which writes its send window, or the one after it, which reads its recv window.
  void copyWindow(int r, int t, size_t k, bool fill) {
    Job& job = jobs_[size(r)][k];
    const GpuKernel& what = kernelOf(r, k);
    for (size_t i = size(t); i < what.count; i += size(ends_[size(r)].expected)) {
      char* at = heap(r) + windowOf(k, fill, what) + 4 * i;
      if (fill) {
        world_.store(at, 4, job.send[i], Order::kPlain, "fill");
      } else {
        (what.inPlace ? job.send : job.recv)[i] = static_cast<uint32_t>(world_.load(at, 4, Order::kPlain, "read out"));
      }
    }
    world_.meet(ends_[size(r)], true);
  }
  // Which of the two windows is send, and which recv. The same on all ranks.
  uint64_t windowOf(size_t k, bool send, const GpuKernel& what) const {
    const bool second = (mix(k, 7) >> 20 & 1) != 0;
    return layout_.bytes + (send == second || (what.inPlace && second) ? windowBytes() : 0);
  }

  void kernel(int r, int t, size_t k, Job& job) {
    const GpuKernel& what = kernelOf(r, k);
    gpu::Call call = {};
    call.team = {base_, stride_, r, shape_.worldSize, shape_.reduceGroup, 1, slotBytes(), uint64_t{1} << 60, uint64_t{1} << 60, &status_[size(r)]};
    call.send = reinterpret_cast<const char*>(job.send.data());
    call.recv = reinterpret_cast<char*>(what.inPlace ? job.send.data() : job.recv.data());
    call.count = what.broadcasts ? 4 * what.count : what.count;
    call.root = rootOf(k);
    call.call = signedCall(what);
    call.detail = windowOf(k, true, what) ^ windowOf(k, false, what) << 20;
    call.stream = 1;
    GpuContext context(call, GpuTarget(world_, job.grid, t));
    context.setWay(gpu::wayOf(context, what.algorithm));
    job.ran = true;
    if (what.broadcasts) {
      broadcast(context, k, what);
    } else if (what.algorithm == gpu::Algorithm::kOneshot) {
      run<gpu::Algorithm::kOneshot>(context, what);
    } else if (what.algorithm == gpu::Algorithm::kTwoshot) {
      run<gpu::Algorithm::kTwoshot>(context, what);
    } else if (shape_.special) {
      pull<2>(context, k, what);
    } else {
      pull<0>(context, k, what);
    }
  }
  int rootOf(size_t k) const { return static_cast<int>(k) % shape_.worldSize; }
  gpu::Windows windowsOf(size_t k, const GpuKernel& what) {
    gpu::Windows w = {};
    for (int r = 0; r < shape_.worldSize; r++) {
      w.send[r] = heap(r) + windowOf(k, true, what);
      w.recv[r] = heap(r) + windowOf(k, false, what);
    }
    return w;
  }
  void broadcast(GpuContext& context, size_t k, const GpuKernel& what) {
    if (what.algorithm == gpu::Algorithm::kPull) {
      const gpu::Windows windows = windowsOf(k, what);
      gpu::broadcastPull(context, windows);
    } else {
      gpu::broadcastOneshot(context);
    }
  }
  // The kernel continues after its meeting: each thread loads what the threads of its number on all ranks have stored to this rank.
  template <int kWorld>
  void pull(GpuContext& context, size_t k, const GpuKernel& what) {
    constexpr int kTiles = kWorld == 2 ? 4 : 1;
    const gpu::Windows windows = windowsOf(k, what);
    gpu::runKernel<Cells<GpuContext>, Packets<GpuContext>>(context, gpu::Used{0, 0, false, 1}, [&](GpuContext& c) {
      if (!gpu::allReducePull<kWorld, kTiles>(c, windows, Elements())) return false;
      const uint64_t ranks = size(shape_.worldSize), tiles = (what.count + 3) / 4, slice = (tiles + ranks - 1) / ranks;
      for (uint64_t r = 0; r < ranks; r++) {
        for (uint64_t i = r * slice + c.thread(); i < (r + 1) * slice && i < tiles; i += c.threads()) {
          c.loadElements(Elements(), windows.recv[c.call().team.rank], i, what.count);
        }
      }
      return true;
    });
  }
  template <gpu::Algorithm kAlgorithm>
  void run(GpuContext& context, const GpuKernel& what) {
    if (!what.cells) {
      gpu::allReduceWith<kAlgorithm, gpu::I32, 0>(context, Elements());
    } else if (shape_.special) {
      gpu::allReduceWith<kAlgorithm, gpu::F32, 2>(context, Elements());
    } else {
      gpu::allReduceWith<kAlgorithm, gpu::F32, 0>(context, Elements());
    }
  }

  std::string checkKernel(int r, size_t k) const {
    const GpuKernel& kernel = shape_.kernels[k];
    const Job& job = jobs_[size(r)][k];
    if (shape_.abort && k + 1 == shape_.kernels.size() && job.ran && !job.broken) {
      return "rank " + std::to_string(r) + " ended the last kernel without one of the ranks";
    }
    if (!job.ran || job.broken) return "";
    for (size_t i = 0; i < kernel.count; i++) {
      const uint32_t want = kernel.broadcasts ? gpuContribution(static_cast<int>(k), rootOf(k), i)
                                              : gpuReference(static_cast<int>(k), shape_.worldSize, shape_.reduceGroup, i);
      const uint32_t have = (kernel.inPlace ? job.send : job.recv)[i];
      if (have == want) continue;
      return "rank " + std::to_string(r) + ", kernel " + std::to_string(k) + ", element " + std::to_string(i) + ": " + std::to_string(have) +
             " instead of " + std::to_string(want);
    }
    return "";
  }

  World& world_;
  const GpuShape& shape_;
  gpu::Layout layout_;
  uint64_t stride_;
  std::vector<uint64_t> memory_;
  char* base_;
  std::vector<gpu::Status> status_;
  std::vector<Barrier> ends_;
  std::deque<Job> jobs_[kMaxWorldSize];
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_GPU_RUN_H_
