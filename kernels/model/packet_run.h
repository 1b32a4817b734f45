// Runs of the packets personality: ranks with threads in blocks, and kernels that follow each other on each rank's stream. Kernels exchange cells
// or packets, and nothing else: the signatures and counters of whole kernels are in gpu_run.h.
#ifndef RAILHEAD_KERNELS_MODEL_PACKET_RUN_H_
#define RAILHEAD_KERNELS_MODEL_PACKET_RUN_H_

#include <deque>
#include <string>
#include <vector>

#include "model/mem.h"
#include "model/tiles.h"
#include "railhead/collectives/allreduce_oneshot.h"
#include "railhead/collectives/allreduce_rmsnorm.h"
#include "railhead/collectives/allreduce_twoshot.h"
#include "railhead/exchange/cells.h"
#include "railhead/exchange/inbox_exchange.h"
#include "railhead/exchange/packets.h"
#include "railhead/gpu/exchanged.h"

namespace railhead::model {

// RMSNorm exchanges cells.
enum class PacketAlgorithm { kOneshot, kTwoshot, kAllGather, kAllToAll, kCellOneshot, kCellTwoshot, kReduceScatter, kRMSNorm };
inline bool usesCells(PacketAlgorithm a) { return a >= PacketAlgorithm::kCellOneshot; }

struct Kernel {
  PacketAlgorithm algorithm;
  uint32_t count;  // elements, of a part where there are parts; of RMSNorm rows * hidden
  bool inPlace = false;
  int blocks = 1, blockThreads = 1;
  uint32_t rows = 1;
};

struct PacketShape {
  int worldSize = 2, reduceGroup = 2;
  uint32_t slotTiles = 2;
  uint32_t startEpoch = 0;
  std::vector<Kernel> kernels;
  bool special = false;  // cells of two ranks by the kernels for two ranks
  bool abort = false;    // the last rank does not run its last kernel, and the abort word is set
  bool aborts = false;   // the abort word is set at any time; every rank runs every kernel
};

class PacketRun {
 public:
  using Elements = Tiles<Raw16>;
  template <int kWorld>
  using CellExchange = InboxExchange<PacketMem, Cells<PacketMem, kWorld>>;
  using PacketExchange = InboxExchange<PacketMem, Packets<PacketMem>>;

  PacketRun(World& world, const PacketShape& shape) : world_(world), shape_(shape) {
    const int n = shape.worldSize;
    bool cells = false, packets = false;
    int threads = 1;
    for (const Kernel& k : shape.kernels) {
      (usesCells(k.algorithm) ? cells : packets) = true;
      threads = std::max(threads, k.blocks * k.blockThreads);
    }
    if (packets) setUpInboxes(packets_, shape.slotTiles * Packets<PacketMem>::kTileBytes, false);
    if (cells) setUpInboxes(cells_, shape.slotTiles * Cells<PacketMem>::kTileBytes, true);
    if (cells) world.letEndsFence();
    world.memory.add(&abort_, 4, 4, [](size_t) { return std::string("abort"); });
    ends_.resize(size(n));
    setUpEpochs();
    for (int r = 0; r < n; r++) {
      setUpBuffers(r);
      ends_[size(r)].expected = threads;
      for (int t = 0; t < threads; t++) world.addFiber(r, t, [this, r, t] { thread(r, t); });
    }
    if (shape.abort || shape.aborts) {
      world.addFiber(-1, 0, [this] { world_.store(&abort_, 4, 1, Order::kRelease, "store.release"); });
    }
  }

  // After a run that passed: an error, or nothing.
  std::string check() const {
    for (int r = 0; r < shape_.worldSize; r++) {
      for (size_t k = 0; k < shape_.kernels.size(); k++) {
        if (const std::string wrong = checkKernel(r, k); !wrong.empty()) return wrong;
      }
    }
    return "";
  }

 private:
  struct Job {
    std::vector<uint32_t> send, recv, out;  // in place, recv is not used and send has the result. RMSNorm: x, residual, out
    Grid grid;
    bool ran = false, broken = false;
  };

  static size_t size(int n) { return static_cast<size_t>(n); }

  // Memory of all ranks, one inbox after the other.
  struct Inboxes {
    std::vector<uint64_t> memory;
    uint32_t slotBytes;
  };
  void setUpInboxes(Inboxes& in, uint32_t slotBytes, bool cells) {
    const size_t n = size(shape_.worldSize), words = 2 * kPhases * n * slotBytes / 8;
    in.slotBytes = slotBytes;
    in.memory.resize(n * words);
    for (size_t r = 0; r < n; r++) {
      uint64_t* inbox = &in.memory[r * words];
      world_.memory.add(
          inbox, words * 8, 8, [=](size_t unit) { return inboxName(r, unit * 8, slotBytes, cells); },
          [=](size_t unit, int rank, uint64_t value) {
            const size_t source = unit * 8 / slotBytes % n;
            return size(rank) == source || (size(rank) == r && value == (cells ? ~uint64_t{0} : 0));
          });
      for (size_t i = 0; cells && i < words; i++) world_.memory.initial(inbox + i, ~uint64_t{0});
    }
  }
  Inbox inboxOf(Inboxes& in, int r) {
    return {reinterpret_cast<char*>(in.memory.data()), in.memory.size() * 8 / size(shape_.worldSize), in.slotBytes, r, shape_.worldSize,
            shape_.reduceGroup};
  }
  std::string inboxName(size_t r, size_t offset, uint32_t slotBytes, bool cells) const {
    const size_t slot = offset / slotBytes, n = size(shape_.worldSize);
    return std::string(cells ? "cells " : "inbox ") + std::to_string(r) + ": half " + std::to_string(slot / n / kPhases) + " phase " +
           std::to_string(slot / n % kPhases) + " from " + std::to_string(slot % n) + " element " + std::to_string(offset % slotBytes / 8);
  }

  // The last epoch used before each kernel.
  void setUpEpochs() {
    uint32_t cells = shape_.startEpoch, packets = shape_.startEpoch;
    for (const Kernel& k : shape_.kernels) {
      epochs_.push_back(usesCells(k.algorithm) ? cells : packets);
      const bool slices = k.algorithm == PacketAlgorithm::kTwoshot || k.algorithm == PacketAlgorithm::kCellTwoshot;
      const uint32_t chunk = shape_.slotTiles * 4 * static_cast<uint32_t>(slices ? shape_.worldSize : 1);
      for (uint32_t i = 0; i == 0 || i < k.count; i += chunk) {
        if (usesCells(k.algorithm)) {
          cells = Cells<PacketMem>::next(cells);
        } else {
          packets = Packets<PacketMem>::next(packets);
        }
      }
    }
  }

  void setUpBuffers(int r) {
    for (size_t k = 0; k < shape_.kernels.size(); k++) {
      const Kernel& kernel = shape_.kernels[k];
      jobs_[size(r)].emplace_back();
      Job& job = jobs_[size(r)].back();
      const size_t ranks = size(shape_.worldSize);
      job.send.resize(kernel.count * (sendsParts(kernel.algorithm) ? ranks : 1));
      for (size_t i = 0; i < job.send.size(); i++) job.send[i] = gpuContribution(static_cast<int>(k), r, i);
      job.recv.resize(kernel.count * (receivesParts(kernel.algorithm) ? ranks : 1));
      if (kernel.algorithm == PacketAlgorithm::kRMSNorm) {
        job.out.resize(kernel.count);
        for (size_t i = 0; i < kernel.count; i++) job.recv[i] = residual(i);
      }
      job.grid.blocks = kernel.blocks;
      job.grid.blockThreads = kernel.blockThreads;
      job.grid.block.resize(size(kernel.blocks));
      for (Block& b : job.grid.block) {
        b.barrier.expected = kernel.blockThreads;
        b.partial.resize(size(kernel.blockThreads));
      }
    }
  }
  static bool sendsParts(PacketAlgorithm a) { return a == PacketAlgorithm::kAllToAll || a == PacketAlgorithm::kReduceScatter; }
  static bool receivesParts(PacketAlgorithm a) { return a == PacketAlgorithm::kAllToAll || a == PacketAlgorithm::kAllGather; }
  static uint32_t residual(size_t i) { return static_cast<uint32_t>(i) * 7 + 3; }
  uint32_t weight(size_t i) const { return static_cast<uint32_t>(i) * 5 + 1; }

  void thread(int r, int t) {
    for (size_t k = 0; k < shape_.kernels.size(); k++) {
      if (shape_.abort && r == shape_.worldSize - 1 && k + 1 == shape_.kernels.size()) break;
      Job& job = jobs_[size(r)][k];
      if (t < job.grid.blocks * job.grid.blockThreads) kernel(r, t, k, job);
      world_.meet(ends_[size(r)], true);
      if (job.broken) break;
    }
  }

  void kernel(int r, int t, size_t k, Job& job) {
    PacketMem mem(world_, job.grid, t, shape_.abort || shape_.aborts ? &abort_ : nullptr, epochs_[k]);
    const bool cells = usesCells(shape_.kernels[k].algorithm);
    const Inbox inbox = inboxOf(cells ? cells_ : packets_, r);
    job.ran = true;
    bool ok = false;
    if (!cells) {
      PacketExchange exchange(mem, inbox);
      ok = run(exchange, k, job);
    } else if (shape_.special) {
      CellExchange<2> exchange(mem, inbox);
      ok = run(exchange, k, job);
    } else {
      CellExchange<0> exchange(mem, inbox);
      ok = run(exchange, k, job);
    }
    if (ok) return;
    job.broken = true;
    if (!shape_.abort && !shape_.aborts) world_.fail("gave up");
    if ((mem.missing() >> r & 1) != 0) world_.fail("names itself as missing");
  }
  template <class Exchange>
  bool run(Exchange& exchange, size_t k, Job& job) {
    const Kernel& kernel = shape_.kernels[k];
    const char* send = reinterpret_cast<const char*>(job.send.data());
    char* recv = reinterpret_cast<char*>(kernel.inPlace ? job.send.data() : job.recv.data());
    bool ok = false;
    switch (kernel.algorithm) {
      case PacketAlgorithm::kOneshot:
      case PacketAlgorithm::kCellOneshot: ok = allReduceOneshot(exchange, Elements(), send, recv, kernel.count); break;
      case PacketAlgorithm::kTwoshot:
      case PacketAlgorithm::kCellTwoshot: ok = allReduceTwoshot(exchange, Elements(), send, recv, kernel.count); break;
      case PacketAlgorithm::kAllGather: ok = gpu::allGather(exchange, send, recv, 4 * kernel.count); break;
      case PacketAlgorithm::kAllToAll: ok = gpu::allToAll(exchange, send, recv, 4 * kernel.count); break;
      case PacketAlgorithm::kReduceScatter: ok = gpu::reduceScatter(exchange, Elements(), send, recv, kernel.count); break;
      case PacketAlgorithm::kRMSNorm: {
        const uint32_t hidden = kernel.count / kernel.rows;
        uint32_t weights[64];
        for (uint32_t i = 0; i < hidden; i++) weights[i] = weight(i);
        ok = allReduceRMSNorm(exchange, Elements(), send, reinterpret_cast<char*>(job.recv.data()), reinterpret_cast<const char*>(weights),
                              reinterpret_cast<char*>(job.out.data()), kernel.rows, hidden, 0);
      }
    }
    if (ok) exchange.finish();
    return ok;
  }

  std::string checkKernel(int r, size_t k) const {
    const Kernel& kernel = shape_.kernels[k];
    const Job& job = jobs_[size(r)][k];
    if (shape_.abort && k + 1 == shape_.kernels.size() && job.ran && !job.broken) {
      return "rank " + std::to_string(r) + " ended the last kernel without one of the ranks";
    }
    if ((shape_.abort || shape_.aborts) && (!job.ran || job.broken)) return "";
    const size_t received = kernel.count * (receivesParts(kernel.algorithm) ? size(shape_.worldSize) : 1);
    for (size_t i = 0; i < received; i++) {
      uint32_t want = wanted(r, k, i);
      uint32_t have = (kernel.inPlace ? job.send : job.recv)[i];
      if (kernel.algorithm == PacketAlgorithm::kRMSNorm) {
        const uint32_t hidden = kernel.count / kernel.rows;
        const size_t row = i / hidden;
        float squares = 0;
        for (size_t j = row * hidden; j < (row + 1) * hidden; j++) squares += static_cast<float>(kept(k, j) % 16);
        const float scale = squares / static_cast<float>(hidden);
        want = (kept(k, i) * 41 + static_cast<uint32_t>(scale * 8)) * 37 + weight(i % hidden);
        have = job.out[i];
      }
      if (have == want) continue;
      return "rank " + std::to_string(r) + ", kernel " + std::to_string(k) + ", element " + std::to_string(i) + ": " + std::to_string(have) +
             " instead of " + std::to_string(want);
    }
    return "";
  }
  uint32_t wanted(int r, size_t k, size_t i) const {
    const Kernel& kernel = shape_.kernels[k];
    const auto number = static_cast<int>(k);
    const size_t own = size(r) * kernel.count;  // where this rank's part begins
    switch (kernel.algorithm) {
      case PacketAlgorithm::kAllGather: return gpuContribution(number, static_cast<int>(i / kernel.count), i % kernel.count);
      case PacketAlgorithm::kAllToAll: return gpuContribution(number, static_cast<int>(i / kernel.count), own + i % kernel.count);
      case PacketAlgorithm::kReduceScatter: return gpuReference(number, shape_.worldSize, shape_.reduceGroup, own + i);
      default: return gpuReference(number, shape_.worldSize, shape_.reduceGroup, i);
    }
  }
  uint32_t kept(size_t k, size_t i) const {
    return gpuReference(static_cast<int>(k), shape_.worldSize, shape_.reduceGroup, i) * 31 + residual(i);
  }

  World& world_;
  const PacketShape& shape_;
  Inboxes packets_, cells_;
  std::vector<uint32_t> epochs_;  // by kernel
  uint32_t abort_ = 0;
  std::vector<Barrier> ends_;
  std::deque<Job> jobs_[kMaxWorldSize];
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_PACKET_RUN_H_
