// Runs of the packets personality: ranks with threads in blocks, and kernels that follow each other on each rank's stream.
#ifndef RAILHEAD_KERNELS_MODEL_PACKET_RUN_H_
#define RAILHEAD_KERNELS_MODEL_PACKET_RUN_H_

#include <deque>
#include <string>
#include <vector>

#include "model/mem.h"
#include "model/tiles.h"
#include "railhead/collectives/allreduce_oneshot.h"
#include "railhead/collectives/allreduce_pull.h"
#include "railhead/collectives/allreduce_rmsnorm.h"
#include "railhead/collectives/allreduce_twoshot.h"
#include "railhead/exchange/block_exchange.h"
#include "railhead/exchange/packet_exchange.h"

namespace railhead::model {

enum class PacketAlgorithm { kOneshot, kTwoshot, kRMSNorm, kPull };

struct Kernel {
  PacketAlgorithm algorithm;
  uint32_t count;  // elements; of RMSNorm rows * hidden
  bool inPlace = false;
  int blocks = 1, blockThreads = 1;
  uint32_t rows = 1;
  Offers offers = Offers::kAll;  // pull, which falls back to twoshot
};

struct PacketShape {
  int worldSize = 2, reduceGroup = 2;
  uint32_t slotTiles = 2;
  uint32_t startEpoch = 0;
  uint32_t windowCount = 0;  // elements of each of a rank's two windows
  std::vector<Kernel> kernels;
  bool abort = false;  // the last rank does not run its last kernel, and the abort word is set
  bool aborts = false;  // the abort word is set at any time; every rank runs every kernel
  bool badOffer = false;  // in the last kernel, a pull, rank 0 offers memory that is not in its heap
};

class PacketRun {
 public:
  using Elements = Tiles<Raw16>;

  PacketRun(World& world, const PacketShape& shape) : world_(world), shape_(shape) {
    const int n = shape.worldSize;
    const uint32_t slotBytes = shape.slotTiles * kPacketTileBytes;
    inboxes_.resize(size(n));
    teams_.resize(size(n));
    ends_.resize(size(n));
    for (int r = 0; r < n; r++) {
      auto& inbox = inboxes_[size(r)];
      inbox.resize(packetInboxBytes(n, slotBytes) / 8);
      world.memory.add(
          inbox.data(), inbox.size() * 8, 8, [=](size_t unit) { return inboxName(r, unit * 8, slotBytes); },
          [=](size_t unit, int rank, uint64_t value) {
            const int source = static_cast<int>(unit * 8 / slotBytes) % n;
            return rank == source || (rank == r && value == 0);
          });
    }
    states_.resize(size(n));
    world.memory.add(states_.data(), sizeof(PacketState) * size(n), 4, [](size_t unit) {
      return std::string(unit % 2 == 0 ? "epoch" : "blocksDone") + " of rank " + std::to_string(unit / 2);
    });
    world.memory.add(&abort_, 4, 4, [](size_t) { return std::string("abort"); });
    for (int r = 0; r < n; r++) {
      world.memory.initial(&states_[size(r)].epoch, shape.startEpoch);
      PacketTeam& team = teams_[size(r)];
      team = {};
      team.rank = r;
      team.worldSize = n;
      team.reduceGroup = shape.reduceGroup;
      team.state = &states_[size(r)];
      team.inboxes.own = reinterpret_cast<char*>(inboxes_[size(r)].data());
      for (int k = 0; k < n; k++) team.inboxes.peer[k] = reinterpret_cast<char*>(inboxes_[size((r + k) % n)].data());
      team.inboxes.slotBytes = slotBytes;
      setUpBuffers(r);
    }
    if (shape.windowCount != 0) setUpWindows();
    int threads = 1;
    for (const Kernel& k : shape.kernels) threads = std::max(threads, k.blocks * k.blockThreads);
    for (int r = 0; r < n; r++) {
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
    bool ran = false, broken = false, refused = false;
  };

  static size_t size(int n) { return static_cast<size_t>(n); }

  std::string inboxName(int r, size_t offset, uint32_t slotBytes) const {
    const size_t slot = offset / slotBytes, n = size(shape_.worldSize), within = offset % slotBytes;
    return "inbox " + std::to_string(r) + ": half " + std::to_string(slot / n / kPhases) + " phase " + std::to_string(slot / n % kPhases) +
           " from " + std::to_string(slot % n) + " tile " + std::to_string(within / kPacketTileBytes) + " element " +
           std::to_string(within % kPacketTileBytes / 8);
  }

  void setUpBuffers(int r) {
    for (size_t k = 0; k < shape_.kernels.size(); k++) {
      const Kernel& kernel = shape_.kernels[k];
      jobs_[size(r)].emplace_back();
      Job& job = jobs_[size(r)].back();
      job.send.resize(kernel.count);
      for (size_t i = 0; i < kernel.count; i++) job.send[i] = contribution(static_cast<int>(k), r, i);
      job.recv.resize(kernel.count);
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
  static uint32_t residual(size_t i) { return static_cast<uint32_t>(i) * 7 + 3; }
  uint32_t weight(size_t i) const { return static_cast<uint32_t>(i) * 5 + 1; }

  void setUpWindows() {
    const size_t n = size(shape_.worldSize), windowBytes = shape_.windowCount * 4;
    heaps_.resize(n * shape_.windowCount * 2);
    lines_.resize(n * n * kMaxBlocks);
    blockTeams_.resize(n);
    blockStates_.resize(n);
    for (size_t r = 0; r < n; r++) {
      const std::string of = " of rank " + std::to_string(r);
      world_.memory.add(heapOf(r), 2 * windowBytes, 4, [=](size_t unit) {
        return "window " + std::to_string(unit * 4 / windowBytes) + of + " element " + std::to_string(unit % (windowBytes / 4));
      });
      world_.memory.add(
          &lines_[r * n * kMaxBlocks], n * kMaxBlocks * sizeof(BlockLine), 8,
          [=](size_t unit) {
            static const char* const kWords[] = {"generation", "send offer", "recv offer", "pad"};
            return kWords[unit % 4] + std::string(" for block ") + std::to_string(unit / 4 / n) + of + " from " + std::to_string(unit / 4 % n);
          },
          [=](size_t unit, int rank, uint64_t) { return size(rank) == unit / 4 % n; });
      world_.memory.add(&blockStates_[r].generation, 8, 8, [=](size_t) { return "generation" + of; });
      world_.memory.add(&blockStates_[r].blocksDone, 4, 4, [=](size_t) { return "blocksDone" + of; });
    }
    for (size_t r = 0; r < n; r++) {
      BlockTeam& team = blockTeams_[r];
      team = {};
      team.rank = static_cast<int>(r);
      team.worldSize = shape_.worldSize;
      team.reduceGroup = shape_.reduceGroup;
      team.state = &blockStates_[r];
      team.lines = lines_.data();
      team.lineStride = static_cast<uint32_t>(n * kMaxBlocks);
      team.heaps = heapOf(0);
      team.heapStride = team.heapBytes = 2 * windowBytes;
    }
  }

  char* heapOf(size_t r) { return reinterpret_cast<char*>(&heaps_[r * shape_.windowCount * 2]); }

  void thread(int r, int t) {
    for (size_t k = 0; k < shape_.kernels.size(); k++) {
      if (shape_.abort && r == shape_.worldSize - 1 && k + 1 == shape_.kernels.size()) break;
      Job& job = jobs_[size(r)][k];
      const Kernel& what = shape_.kernels[k];
      const bool inWindows = what.algorithm == PacketAlgorithm::kPull && hasWindow(r, what);
      if (inWindows) copyWindow(r, t, k, true);
      if (t < job.grid.blocks * job.grid.blockThreads) kernel(r, t, k, job);
      world_.meet(ends_[size(r)], true);
      if (job.broken) break;
      if (inWindows && what.offers == Offers::kAll) copyWindow(r, t, k, false);
    }
  }

  // The kernel before a pull, which writes its send window, or the one after it, which reads its recv window.
  void copyWindow(int r, int t, size_t k, bool fill) {
    Job& job = jobs_[size(r)][k];
    const Kernel& what = shape_.kernels[k];
    for (size_t i = size(t); i < what.count; i += size(ends_[size(r)].expected)) {
      char* at = heapOf(size(r)) + windowOf(r, k, fill) + 4 * i;
      if (fill) {
        world_.store(at, 4, job.send[i], Order::kPlain, "fill");
      } else {
        (what.inPlace ? job.send : job.recv)[i] = static_cast<uint32_t>(world_.load(at, 4, Order::kPlain, "read out"));
      }
    }
    world_.meet(ends_[size(r)], true);
  }
  static bool hasWindow(int r, const Kernel& kernel) { return kernel.offers != Offers::kNotRank0s || r != 0; }
  // Each rank chooses which of its two windows is send and which is recv.
  uint64_t windowOf(int r, size_t k, bool send) const {
    const bool second = (mix(k, static_cast<uint64_t>(r)) >> 20 & 1) != 0;
    return send == second || (shape_.kernels[k].inPlace && second) ? shape_.windowCount * 4 : 0;
  }
  bool pull(int r, size_t k, PacketMem& mem, PacketExchange<PacketMem>& packets, const char* send, char* recv) {
    const Kernel& what = shape_.kernels[k];
    const bool has = hasWindow(r, what);
    BlockExchange<PacketMem> exchange(mem, blockTeams_[size(r)]);
    bool zeroCopy = true;
    uint64_t sendAt = has ? windowOf(r, k, true) : kNoOffset, recvAt = has ? windowOf(r, k, false) : kNoOffset;
    if (what.offers == Offers::kNotRank0sRecv && r == 0) recvAt = kNoOffset;
    if (r == 0 && isBad(k)) (mix(k, 1) % 2 == 0 ? sendAt : recvAt) = badOffer(k);
    bool ok = allReducePull(exchange, Elements(), sendAt, recvAt, what.count, &zeroCopy);
    exchange.finish();
    if (mem.refused() && mem.missing() != 1) world_.fail("names another rank than 0 for the bad offer");
    if (mem.refused()) jobs_[size(r)][k].refused = true;
    if (ok && zeroCopy != (what.offers == Offers::kAll)) world_.fail("kernel %zu: wrong about whether all buffers are in windows", k);
    if (ok && !zeroCopy) ok = allReduceTwoshot(packets, Elements(), send, recv, what.count);
    return ok;
  }

  bool isBad(size_t k) const { return shape_.badOffer && k + 1 == shape_.kernels.size(); }
  // Offers too near the end, or beyond it.
  uint64_t badOffer(size_t k) const {
    const uint64_t end = uint64_t{shape_.windowCount} * 8;
    const uint64_t offers[] = {end - shape_.kernels[k].count * 4 + 4, end + 4, uint64_t{1} << 40, kNoOffset - 1};
    return offers[mix(k, shape_.kernels[k].count) % 4];
  }

  void kernel(int r, int t, size_t k, Job& job) {
    const Kernel& kernel = shape_.kernels[k];
    PacketMem mem(world_, job.grid, t, shape_.abort || shape_.aborts ? &abort_ : nullptr);
    PacketExchange<PacketMem> exchange(mem, teams_[size(r)]);
    const char* send = reinterpret_cast<const char*>(job.send.data());
    char* recv = reinterpret_cast<char*>(kernel.inPlace ? job.send.data() : job.recv.data());
    bool ok = false;
    job.ran = true;
    switch (kernel.algorithm) {
      case PacketAlgorithm::kOneshot: ok = allReduceOneshot(exchange, Elements(), send, recv, kernel.count); break;
      case PacketAlgorithm::kTwoshot: ok = allReduceTwoshot(exchange, Elements(), send, recv, kernel.count); break;
      case PacketAlgorithm::kPull: ok = pull(r, k, mem, exchange, send, recv); break;
      case PacketAlgorithm::kRMSNorm: {
        const uint32_t hidden = kernel.count / kernel.rows;
        uint32_t weights[64];
        for (uint32_t i = 0; i < hidden; i++) weights[i] = weight(i);
        ok = allReduceRMSNorm(exchange, Elements(), send, reinterpret_cast<char*>(job.recv.data()), reinterpret_cast<const char*>(weights),
                                        reinterpret_cast<char*>(job.out.data()), kernel.rows, hidden, 0);
      }
    }
    exchange.finish();
    if (ok && isBad(k)) world_.fail("accepted rank 0's offer, which is not in its heap");
    if (ok) return;
    job.broken = true;
    if (!shape_.abort && !shape_.aborts && !isBad(k)) world_.fail("gave up");
    if (!isBad(k) && (mem.missing() >> r & 1) != 0) world_.fail("names itself as missing");
  }

  std::string checkKernel(int r, size_t k) const {
    const Kernel& kernel = shape_.kernels[k];
    const Job& job = jobs_[size(r)][k];
    if (shape_.abort && k + 1 == shape_.kernels.size() && job.ran && !job.broken) {
      return "rank " + std::to_string(r) + " ended the last kernel without one of the ranks";
    }
    if (isBad(k)) return job.refused ? "" : "rank " + std::to_string(r) + " does not name the rank with the bad offer";
    if ((shape_.abort || shape_.aborts) && (!job.ran || job.broken)) return "";
    for (size_t i = 0; i < kernel.count; i++) {
      uint32_t want = reference(static_cast<int>(k), shape_.worldSize, shape_.reduceGroup, i);
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
  uint32_t kept(size_t k, size_t i) const {
    return reference(static_cast<int>(k), shape_.worldSize, shape_.reduceGroup, i) * 31 + residual(i);
  }

  static constexpr size_t kMaxBlocks = 2;

  World& world_;
  const PacketShape& shape_;
  std::vector<std::vector<uint64_t>> inboxes_;
  std::vector<PacketState> states_;
  std::vector<uint32_t> heaps_;  // of pull: each rank's two windows
  std::vector<BlockLine> lines_;
  std::vector<BlockState> blockStates_;
  std::vector<BlockTeam> blockTeams_;
  uint32_t abort_ = 0;
  std::vector<PacketTeam> teams_;
  std::vector<Barrier> ends_;
  std::deque<Job> jobs_[kMaxWorldSize];
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_PACKET_RUN_H_
