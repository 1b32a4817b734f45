// The memory of the flags personality: heaps with headers, buffers, pipes and windows, and the ranks' teams.
#ifndef RAILHEAD_KERNELS_MODEL_FLAG_HEAPS_H_
#define RAILHEAD_KERNELS_MODEL_FLAG_HEAPS_H_

#include <string>
#include <vector>

#include "model/mem.h"
#include "model/tiles.h"
#include "railhead/exchange/pipes.h"

namespace railhead::model {

class FlagHeaps {
 public:
  // windowCount: elements of each of a rank's two windows. slotBytes: of pipes and broadcasts, llSlotBytes: of LL pipes; 0 = none.
  FlagHeaps(World& world, int worldSize, int reduceGroup, uint32_t blockBytes, uint32_t windowCount, uint32_t slotBytes, uint32_t llSlotBytes)
      : world_(world), worldSize_(worldSize), windowBytes_(windowCount * 4) {
    const auto n = static_cast<size_t>(worldSize);
    teams_.resize(n);
    calls_.resize(n);
    world.memory.add(&abort_, 4, 4, [](size_t) { return std::string("abort"); });
    world.memory.add(
        calls_.data(), n * sizeof(CallWords), 8,
        [](size_t unit) {
          static const char* const words[] = {"call", "call's count", "call's detail"};
          return words[unit % 3] + (" of rank " + std::to_string(unit / 3));
        },
        [](size_t unit, int rank, uint64_t) { return static_cast<size_t>(rank) == unit / 3; });
    windows_ = scratchBytes(worldSize, blockBytes, slotBytes, slotBytes, llSlotBytes);
    heapLines_ = (windows_ + 2 * windowBytes_ + 127) / 64;
    heaps_.resize(n * heapLines_);
    for (int r = 0; r < worldSize; r++) makeTeam(r, reduceGroup, blockBytes, slotBytes, llSlotBytes);
    for (int r = 0; r < worldSize; r++) addHeap(r);
  }

  FlagTeam& team(int r) { return teams_[static_cast<size_t>(r)]; }
  ScratchHeader* header(int r) { return reinterpret_cast<ScratchHeader*>(base(r)); }
  uint32_t* abortWord() { return &abort_; }
  // Offset of one of the two windows in every heap.
  uint64_t window(bool second) const { return windows_ + (second ? windowBytes_ : 0); }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };

  char* base(int r) { return reinterpret_cast<char*>(&heaps_[static_cast<size_t>(r) * heapLines_]); }

  void makeTeam(int r, int reduceGroup, uint32_t blockBytes, uint32_t slotBytes, uint32_t llSlotBytes) {
    FlagTeam& t = team(r);
    t = {};
    t.rank = r;
    t.worldSize = worldSize_;
    t.reduceGroup = reduceGroup;
    t.blockBytes = blockBytes;
    t.pipeSlotBytes = t.broadcastSlotBytes = slotBytes;
    t.llSlotBytes = llSlotBytes;
    t.spinNs = 0;
    t.pollsPerTurn = 8;
    t.longTurnNs = INT64_MAX;
    t.busy = &busy_;
    t.recheckNs = 100 * 1000 * 1000;
    t.timeoutNs = 1000;
    t.heaps = base(0);
    t.heapStride = heapLines_ * sizeof(Line);
    t.heapBytes = windows_ + 2 * windowBytes_;
    t.scratchBytes = windows_;
    t.calls = reinterpret_cast<char*>(calls_.data());
    t.callStride = sizeof(CallWords);
    t.abortWord = &abort_;
    t.waitingFor = &waitingFor_;
    t.asleepSince = &asleepSince_;
  }

  // A flag that rank r writes and any rank may sleep on.
  void addFlag(Flag* flag, int r, const std::string& name) {
    world_.memory.add(
        flag, 8, 4, [=](size_t unit) { return (unit == 0 ? "" : "sleepers of ") + name + " of rank " + std::to_string(r); },
        [=](size_t unit, int rank, uint64_t) { return unit != 0 || rank == r; });
  }
  // Memory that rank r writes. Its words of 8 bytes are atomic and ordered by flags.
  void addOwn(void* at, size_t bytes, size_t unitBytes, int r, const std::string& name) {
    Region& region = world_.memory.add(
        at, bytes, unitBytes, [=](size_t unit) { return name + " " + std::to_string(unit) + " of rank " + std::to_string(r); },
        [=](size_t, int rank, uint64_t) { return rank == r; });
    region.ordered = true;
  }

  void addHeap(int r) {
    FlagTeam& t = team(r);
    ScratchHeader* h = header(r);
    addFlag(&h->published.generation, r, "generation");
    addOwn(h->published.signature, sizeof h->published.signature, 8, r, "signature word");
    addOwn(&h->sendOffset, 16, 8, r, "offer");
    const size_t blocks = 2 * static_cast<size_t>(t.blockBytes), half = t.blockBytes / sizeof(Raw8);
    world_.memory.add(
        base(r) + kScratchHeaderBytes, blocks, 8,
        [=](size_t unit) {
          return "buffer " + std::to_string(unit / half) + " of rank " + std::to_string(r) + " tile " + std::to_string(unit % half);
        },
        [=](size_t, int rank, uint64_t) { return rank == r || worldSize_ == 2; });  // two ranks swap their buffers
    if (t.pipeSlotBytes != 0) addPipes(r);
    if (t.llSlotBytes != 0) addLLPipes(r);
    if (windowBytes_ != 0) {
      const size_t count = windowBytes_ / 4;
      world_.memory.add(base(r) + windows_, 2 * windowBytes_, 4, [=](size_t unit) {
        return "window " + std::to_string(unit / count) + " of rank " + std::to_string(r) + " element " + std::to_string(unit % count);
      });
    }
  }

  void addPipes(int r) {
    FlagTeam& t = team(r);
    addFlag(&header(r)->broadcastTail, r, "broadcast tail");
    for (int q = 0; q < worldSize_; q++) {
      if (q == r) continue;
      const uint64_t line = static_cast<uint64_t>(q) * kFlagLineBytes;
      const std::string other = std::to_string(q);
      addFlag(reinterpret_cast<Flag*>(base(r) + kTailsOffset + line), r, "tail to " + other);
      addFlag(reinterpret_cast<Flag*>(base(r) + kHeadsOffset + line), r, "head from " + other);
      addFlag(reinterpret_cast<Flag*>(base(r) + kResultTailsOffset + line), r, "result tail to " + other);
      addFlag(reinterpret_cast<Flag*>(base(r) + kResultHeadsOffset + line), r, "result head from " + other);
      addFlag(reinterpret_cast<Flag*>(base(r) + kBroadcastHeadsOffset + line), r, "broadcast head from " + other);
    }
    for (uint32_t i = 0; i < kPipeSlots; i++) {
      addSlot(base(r) + broadcastSlotsOffset(t) + i * t.broadcastSlotBytes, t, r, "broadcast slot " + std::to_string(i));
      for (int q = 0; q < worldSize_; q++) {
        if (q == r) continue;
        const std::string name = "slot " + std::to_string(i) + " to " + std::to_string(q);
        addSlot(base(r) + pipeSlotsOffset(t, kMessages, q) + i * t.pipeSlotBytes, t, r, name);
        addSlot(base(r) + pipeSlotsOffset(t, kResults, q) + i * t.pipeSlotBytes, t, r, "result " + name);
      }
    }
  }
  // The writer stores words, the reader stores zeros.
  void addLLPipes(int r) {
    FlagTeam& t = team(r);
    for (int channel = 0; channel < kMaxRingChannels; channel++) {
      char* at = base(r) + llPipeOffset(t, channel);
      const std::string which = "LL " + std::to_string(channel);
      addFlag(reinterpret_cast<Flag*>(at), r, which + " tail");
      addFlag(reinterpret_cast<Flag*>(at + kFlagLineBytes), r, which + " head");
      const size_t words = t.llSlotBytes / 8;
      world_.memory.add(
          at + kLLFlagsBytes, kPipeSlots * t.llSlotBytes, 8,
          [=](size_t unit) { return which + " slot " + std::to_string(unit / words) + " of rank " + std::to_string(r) + " word " + std::to_string(unit % words); },
          [=](size_t, int rank, uint64_t value) { return rank == r || value == 0; });
    }
  }
  void addSlot(char* at, const FlagTeam& t, int r, const std::string& name) {
    addOwn(at, sizeof(SlotHeader), 8, r, name + " header");
    addOwn(at + kSlotHeaderBytes, t.pipeSlotBytes - kSlotHeaderBytes, 4, r, name + " word");
  }

  World& world_;
  int worldSize_;
  uint64_t windowBytes_, windows_ = 0;
  size_t heapLines_ = 0;  // of a rank
  std::vector<Line> heaps_;
  std::vector<FlagTeam> teams_;
  std::vector<CallWords> calls_;
  uint32_t abort_ = 0;
  uint64_t waitingFor_ = 0, asleepSince_ = 0;
  Busy busy_ = {};
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_FLAG_HEAPS_H_
