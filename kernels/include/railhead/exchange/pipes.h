// Pipes: bounded queues of chunks with credits, from one rank to another or from one to all. Rooted and point-to-point operations use
// them: there a rank does not receive from every rank, so no epoch tells when a buffer is free.
//
// The writer of a pipe has kPipeSlots slots in its own heap, and a tail: how many chunks it has written. Each reader has a head: how many
// chunks it has read. A flag lies in the heap of the rank that writes it. The writer has a credit for chunk t while t - head < kPipeSlots
// for every reader.
#ifndef RAILHEAD_KERNELS_PIPES_H_
#define RAILHEAD_KERNELS_PIPES_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/flags.h"

namespace railhead {

constexpr uint32_t kPipeSlots = 4;
constexpr uint32_t kSlotHeaderBytes = 128;

// Offset 0 of a slot; the chunk's data follow at kSlotHeaderBytes. Writer: the pipe's writer, before it publishes its tail. Readers: the
// pipe's readers, before they publish their head.
struct SlotHeader {
  Signature signature;  // of the operation
  uint64_t bytes;       // of this chunk
};

// Offsets of flags in a heap: a cache line for each other rank, by its number.
constexpr uint64_t kTailsOffset = 4096;            // tail of this rank's pipe to rank d
constexpr uint64_t kHeadsOffset = 8192;            // head of this rank in the pipe of rank s
constexpr uint64_t kBroadcastHeadsOffset = 12288;  // head of this rank in the broadcasts of rank s
constexpr uint64_t kResultTailsOffset = 16384;     // tails and heads of the second set
constexpr uint64_t kResultHeadsOffset = 20480;
constexpr uint64_t kFlagLineBytes = 64;
static_assert(kResultHeadsOffset + kMaxWorldSize * kFlagLineBytes == kScratchHeaderBytes, "scratch layout");

// Two sets of pipes between each two ranks. The second one is for the results of trees (allreduce_tree.h) and for more channels of rings
// (ring.h).
constexpr int kPipeSets = 2;
constexpr int kMessages = 0, kResults = 1;

// The slots follow the two buffers: those of broadcasts, then those to rank 0, 1, ... of the first set, then those of the second.
static inline uint64_t broadcastSlotsOffset(const FlagTeam& team) { return kScratchHeaderBytes + 2 * static_cast<uint64_t>(team.blockBytes); }
static inline uint64_t pipeSlotsOffset(const FlagTeam& team, int set, int to) {
  const auto number = static_cast<uint64_t>(set * team.worldSize + to);
  return broadcastSlotsOffset(team) + kPipeSlots * (team.broadcastSlotBytes + number * team.pipeSlotBytes);
}

// LL pipes (ll_pipes.h) follow those slots, one for each channel of a ring: a line with this rank's tail, a line with this rank's head in
// its predecessor's pipe, the slots to its successor.
constexpr int kMaxRingChannels = 4;
constexpr uint32_t kLLSlotBytes = 1024;  // part of the scratch's layout: the daemon computes the scratch's size with the same number
                                         // (wire.LLSlotBytes)
constexpr uint64_t kLLFlagsBytes = 2 * kFlagLineBytes;
static inline uint64_t llPipeBytes(uint64_t slotBytes) { return kLLFlagsBytes + kPipeSlots * slotBytes; }
static inline uint64_t llPipeOffset(const FlagTeam& team, int channel) {
  return pipeSlotsOffset(team, kPipeSets, 0) + static_cast<uint64_t>(channel) * llPipeBytes(team.llSlotBytes);
}

// Bytes at the front of a heap that all of this needs. wire.ScratchNeed is the daemon's copy.
static inline uint64_t scratchBytes(int worldSize, uint64_t blockBytes, uint64_t broadcastSlotBytes, uint64_t pipeSlotBytes, uint64_t llSlotBytes) {
  const uint64_t pipes = kPipeSlots * (broadcastSlotBytes + static_cast<uint64_t>(kPipeSets * worldSize) * pipeSlotBytes);
  return kScratchHeaderBytes + 2 * blockBytes + pipes + kMaxRingChannels * llPipeBytes(llSlotBytes);
}

template <class Mem>
class Pipes {
 public:
  Pipes(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, int set = kMessages) : mem_(mem), team_(team), flags_(flags), set_(set) {}

  uint32_t chunkBytes() const { return team_.pipeSlotBytes - kSlotHeaderBytes; }
  uint32_t broadcastChunkBytes() const { return team_.broadcastSlotBytes - kSlotHeaderBytes; }

  // Flags of the pipe between two ranks.
  Flag& tail(int from, int to) const { return flagAt(from, set_ == kMessages ? kTailsOffset : kResultTailsOffset, to); }
  Flag& head(int from, int to) const { return flagAt(to, set_ == kMessages ? kHeadsOffset : kResultHeadsOffset, from); }
  Flag& broadcastHead(int from, int to) const { return flagAt(to, kBroadcastHeadsOffset, from); }

  // The value that the reader's head must reach before the writer may fill chunk number tail.
  static uint32_t credit(uint32_t tail) {
    return (tail + 1 - kPipeSlots - (mutated(Mutant::kPipeOneMoreSlot) ? 1 : 0)) & Mem::kGenerationMask;
  }
  static uint32_t next(uint32_t n) { return (n + 1) & Mem::kGenerationMask; }

  char* slot(int from, int to, uint32_t chunk) const {
    return team_.heap(from) + pipeSlotsOffset(team_, set_, to) + (chunk % kPipeSlots) * static_cast<uint64_t>(team_.pipeSlotBytes);
  }
  char* broadcastSlot(int from, uint32_t chunk) const {
    return team_.heap(from) + broadcastSlotsOffset(team_) + (chunk % kPipeSlots) * static_cast<uint64_t>(team_.broadcastSlotBytes);
  }

  void writeHeader(char* slot, const Signature& signature, uint64_t bytes) {
    auto* h = reinterpret_cast<SlotHeader*>(slot);
    storeSignature(mem_, &h->signature, signature);
    mem_.storeWord(&h->bytes, bytes);
  }
  // Whether the slot's chunk belongs to the operation that this rank is in. If not, the operation ends.
  bool agrees(const char* slot, const Signature& signature, int from) {
    const auto* h = reinterpret_cast<const SlotHeader*>(slot);
    const Signature theirs = loadSignature(mem_, &h->signature);
    if (theirs == signature || mutated(Mutant::kPipeSignatureNotCompared)) return true;
    flags_.mismatch(from, theirs, signature);
    return false;
  }

  // Writer of a pipe to one rank: waits for a credit and returns the slot. nullptr: as Flags::await.
  char* reserve(int to) {
    const uint32_t t = mem_.loadRelaxed(&tail(team_.rank, to).value);
    return flags_.await(head(team_.rank, to), credit(t), to) ? slot(team_.rank, to, t) : nullptr;
  }
  void send(int to) {
    Flag& t = tail(team_.rank, to);
    flags_.publish(t, next(mem_.loadRelaxed(&t.value)));
  }
  // Reader: waits for a chunk and returns its slot. nullptr: as Flags::await.
  const char* receive(int from) {
    const uint32_t h = mem_.loadRelaxed(&head(from, team_.rank).value);
    return flags_.await(tail(from, team_.rank), next(h), from) ? slot(from, team_.rank, h) : nullptr;
  }
  void release(int from) {
    Flag& h = head(from, team_.rank);
    flags_.publish(h, next(mem_.loadRelaxed(&h.value)));
  }

 private:
  Flag& flagAt(int rank, uint64_t lines, int other) const {
    return *reinterpret_cast<Flag*>(team_.heap(rank) + lines + static_cast<uint64_t>(other) * kFlagLineBytes);
  }

  Mem& mem_;
  const FlagTeam& team_;
  Flags<Mem>& flags_;
  int set_;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_PIPES_H_
