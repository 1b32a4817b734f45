// Runs of the flags personality: ranks of one thread each, which call operations one after the other.
#ifndef RAILHEAD_KERNELS_MODEL_FLAG_RUN_H_
#define RAILHEAD_KERNELS_MODEL_FLAG_RUN_H_

#include <string>
#include <vector>

#include "model/mem.h"
#include "model/tiles.h"
#include "railhead/allreduce_oneshot.h"
#include "railhead/allreduce_pull.h"
#include "railhead/allreduce_twoshot.h"
#include "railhead/barrier.h"
#include "railhead/flag_lane.h"

namespace railhead::model {

enum class FlagAlgorithm { kOneshot, kTwoshot, kPull, kBarrier };

struct Call {
  FlagAlgorithm algorithm;
  uint32_t count = 0;
  bool inPlace = false;
  bool oneHasNoWindow = false;  // pull: rank 0's buffers are not in its heap, so that all fall back to oneshot
};

struct FlagShape {
  int worldSize = 2, reduceGroup = 2;
  uint32_t blockTiles = 2;   // of a buffer
  uint32_t windowCount = 0;  // elements of a window
  uint32_t startGeneration = 0;
  std::vector<Call> calls;
  bool abort = false;  // the last rank does not make the last call; somebody sets the abort word
};

class FlagRun {
 public:
  using Elements = Tiles<Raw8>;
  using Lane = FlagLane<FlagMem, Raw8>;

  FlagRun(World& world, const FlagShape& shape) : world_(world), shape_(shape) {
    const auto n = static_cast<size_t>(shape.worldSize);
    const size_t blockBytes = shape.blockTiles * sizeof(Raw8), windowBytes = shape.windowCount * 4;
    windows_ = kScratchHeaderBytes + 2 * blockBytes;
    heaps_.resize(n);
    teams_.resize(n);
    for (int r = 0; r < shape.worldSize; r++) {
      auto& heap = heaps_[static_cast<size_t>(r)];
      heap.resize((windows_ + 2 * windowBytes + 127) / 64);
      char* base = reinterpret_cast<char*>(heap.data());
      auto* header = reinterpret_cast<ScratchHeader*>(base);
      const std::string of = " of rank " + std::to_string(r);
      world.memory.add(
          &header->published, 8, 4, [=](size_t unit) { return (unit == 0 ? "generation" : "sleepers") + of; },
          [=](size_t unit, int rank, uint64_t) { return unit != 0 || rank == r; });
      world.memory.add(
          base + kScratchHeaderBytes, 2 * blockBytes, 8,
          [=](size_t unit) {
            return "buffer " + std::to_string(unit * 8 / blockBytes) + of + " tile " + std::to_string(unit * 8 % blockBytes / 8);
          },
          [=](size_t, int rank, uint64_t) { return rank == r; });
      world.memory.add(
          &header->sendOffset, 16, 8, [=](size_t unit) { return (unit == 0 ? "send offer" : "recv offer") + of; },
          [=](size_t, int rank, uint64_t) { return rank == r; });
      if (windowBytes != 0) {
        world.memory.add(base + windows_, 2 * windowBytes, 4, [=](size_t unit) {
          return "window " + std::to_string(unit * 4 / windowBytes) + of + " element " + std::to_string(unit % (windowBytes / 4));
        });
      }
      header->generation = shape.startGeneration;
      world.memory.initial(&header->published.generation, shape.startGeneration);
    }
    world.memory.add(&abort_, 4, 4, [](size_t) { return std::string("abort"); });
    for (int r = 0; r < shape.worldSize; r++) {
      FlagTeam& team = teams_[static_cast<size_t>(r)];
      team = {};
      team.rank = r;
      team.worldSize = shape.worldSize;
      team.reduceGroup = shape.reduceGroup;
      team.blockBytes = static_cast<uint32_t>(blockBytes);
      team.spinNs = 0;
      team.timeoutNs = 1000;
      for (int q = 0; q < shape.worldSize; q++) team.heap[q] = reinterpret_cast<char*>(heaps_[static_cast<size_t>(q)].data());
      team.abortWord = &abort_;
      team.waitingFor = &waitingFor_;
      world.addFiber(r, 0, [this, r] { rank(r); });
    }
    if (shape.abort) {
      world.addFiber(-1, 0, [this] {
        FlagMem mem(world_);
        mem.storeRelease(&abort_, 1);
        mem.futexWakeAll(&abort_);
      });
    }
  }

  std::string check() const { return ""; }  // ranks check at once: windows are used again

 private:
  struct alignas(64) Line {
    char bytes[64];
  };

  void rank(int r) {
    const FlagTeam& team = teams_[static_cast<size_t>(r)];
    for (size_t c = 0; c < shape_.calls.size(); c++) {
      const bool lacksARank = shape_.abort && c + 1 == shape_.calls.size();
      if (lacksARank && r == shape_.worldSize - 1) return;
      const Call& call = shape_.calls[c];
      FlagMem mem(world_);
      Lane lane(mem, team);
      const int operation = static_cast<int>(c);
      // On the heap of the run and not of the fiber, which may never end.
      std::vector<uint32_t>& send = buffers_.emplace_back(call.count);
      std::vector<uint32_t>& own = buffers_.emplace_back(call.count);
      for (size_t i = 0; i < call.count; i++) send[i] = contribution(operation, r, i);
      std::vector<uint32_t>& recv = call.inPlace ? send : own;
      const char* in = reinterpret_cast<const char*>(send.data());
      char* out = reinterpret_cast<char*>(recv.data());
      bool ok = false;
      switch (call.algorithm) {
        case FlagAlgorithm::kOneshot: ok = allReduceOneshot<Elements>(lane, in, out, call.count); break;
        case FlagAlgorithm::kTwoshot: ok = allReduceTwoshot<Elements>(lane, in, out, call.count); break;
        case FlagAlgorithm::kPull: ok = pull(lane, team, operation, send, recv); break;
        case FlagAlgorithm::kBarrier: ok = barrier(lane); break;
      }
      if (!ok) {
        if (!shape_.abort || lane.stop() != Stop::kAborted) world_.fail("gave up");
        return;
      }
      if (lacksARank) world_.fail("call %zu ended without one of the ranks", c);
      for (size_t i = 0; i < call.count; i++) {
        const uint32_t want = reference(operation, shape_.worldSize, shape_.reduceGroup, i);
        if (recv[i] != want) world_.fail("call %zu, element %zu: %u instead of %u", c, i, recv[i], want);
      }
    }
  }

  // Each rank has its own idea of which of its two windows is for what.
  bool pull(Lane& lane, const FlagTeam& team, int operation, std::vector<uint32_t>& send, std::vector<uint32_t>& recv) {
    const Call& call = shape_.calls[static_cast<size_t>(operation)];
    const uint64_t windowBytes = shape_.windowCount * 4;
    const uint64_t which = (mix(static_cast<uint64_t>(operation), static_cast<uint64_t>(team.rank)) >> 20) & 1;
    const uint64_t from = windows_ + which * windowBytes, to = call.inPlace ? from : windows_ + (1 - which) * windowBytes;
    const bool has = !call.oneHasNoWindow || team.rank != 0;
    for (size_t i = 0; has && i < send.size(); i++) world_.store(team.heap[team.rank] + from + 4 * i, 4, send[i], false, "store");
    bool zeroCopy = true;
    if (!allReducePull<Elements>(lane, has ? from : kNoOffset, has ? to : kNoOffset, send.size(), &zeroCopy)) return false;
    if (zeroCopy == call.oneHasNoWindow) world_.fail("call %d: wrong about who has a window", operation);
    if (!zeroCopy) {
      return allReduceOneshot<Elements>(lane, reinterpret_cast<const char*>(send.data()), reinterpret_cast<char*>(recv.data()), send.size());
    }
    for (size_t i = 0; i < recv.size(); i++) {
      recv[i] = static_cast<uint32_t>(world_.load(team.heap[team.rank] + to + 4 * i, 4, false, "load"));
    }
    return true;
  }

  World& world_;
  const FlagShape& shape_;
  uint64_t windows_;  // offset of the two windows in every heap
  std::vector<std::vector<Line>> heaps_;
  std::vector<FlagTeam> teams_;
  std::deque<std::vector<uint32_t>> buffers_;
  uint32_t abort_ = 0;
  uint64_t waitingFor_ = 0;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_FLAG_RUN_H_
