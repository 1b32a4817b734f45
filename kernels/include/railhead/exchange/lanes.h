// Lanes: bounded queues of chunks with credits between two ranks on GPUs, for operations in which not all ranks take part. The counterpart of
// pipes.h. A pipe from one rank to another has several lanes, each of which one block writes and one block reads, so that blocks need not meet.
//
// A lane has kLaneSlots slots in its reader's memory, and two flags: the tail, how many chunks its writer has written, in the reader's memory, and
// the head, how many chunks its reader has read, in the writer's. So each rank polls its own memory. The writer has a credit for chunk t while
// t - head < kLaneSlots. Both sides keep their own counts in their own memory, so that a replayed operation continues to count.
#ifndef RAILHEAD_KERNELS_LANES_H_
#define RAILHEAD_KERNELS_LANES_H_

#include "railhead/base/mutant.h"
#include "railhead/base/signature.h"
#include "railhead/base/target.h"

namespace railhead {

// In a rank's memory, for each peer and lane. Each flag has a sector of the GPU's cache. Both wrap.
struct LaneFlags {
  // Chunks that the peer has written to this rank. Writer: the first thread of the peer's block (store release, system scope, after a barrier of
  // the block). Reader: the first thread of this rank's block (load acquire, before a barrier of the block). It publishes header and data of the
  // slots.
  uint32_t tail;
  uint32_t pad0[7];
  // Chunks that the peer has read of those that this rank has written. Writer and reader as of tail. It publishes that the peer's block has read
  // the slots.
  uint32_t head;
  uint32_t pad1[7];
};
// The same of this rank: chunks that it has written to the peer, and read from it. Reader and writer: the first thread of the block, and of later
// kernels'.
struct LaneCounts {
  uint32_t written, read;
};
// Offset 0 of a slot. Writer: the first thread of the writer's block, before it publishes the tail. Reader: that of the reader's block, before it
// publishes the head.
struct LaneHeader {
  Signature signature;  // of the operation
  uint64_t way;         // what else both ranks must agree on
};

// Filled in by the kernel. Offsets are in each rank's memory.
struct LaneTeam {
  char* base;  // the memory of rank r begins at base + r * stride
  uint64_t stride;
  int rank;
  uint64_t flagsOffset, countsOffset, slotsOffset;
  uint32_t lanes;  // of each pipe that there is memory for
  uint32_t slots;
  uint64_t slotBytes;

  RH_FN char* of(int r) const { return base + static_cast<uint64_t>(static_cast<uint32_t>(r)) * stride; }
  // The flags of rank `owner` for a lane between it and the peer.
  RH_FN LaneFlags* flags(int owner, int peer, uint32_t lane) const {
    return reinterpret_cast<LaneFlags*>(of(owner) + flagsOffset) + static_cast<uint32_t>(peer) * lanes + lane;
  }
  RH_FN LaneCounts* counts(int peer, uint32_t lane) const {
    return reinterpret_cast<LaneCounts*>(of(rank) + countsOffset) + static_cast<uint32_t>(peer) * lanes + lane;
  }
  RH_FN char* slot(int reader, int writer, uint32_t lane, uint32_t chunk) const {
    const uint32_t number = (static_cast<uint32_t>(writer) * lanes + lane) * slots + chunk % slots;
    return of(reader) + slotsOffset + number * slotBytes;
  }
};

// What the first thread of a block does for a lane. Mem has loadFlag (relaxed), loadFlagAcquire, storeFlag, storeFlagRelease: 32-bit words, system
// scope; loadState, storeState: words of this rank; storeSlotWord, loadSlotWord: 64-bit words of slots; kMeetingMask: the largest count.
template <class Mem>
class Lane {
 public:
  RH_FN Lane(Mem& mem, const LaneTeam& team, int peer, uint32_t lane) : mem_(mem), team_(team), peer_(peer), lane_(lane) {}

  RH_FN uint32_t written() { return mem_.loadState(&team_.counts(peer_, lane_)->written); }
  RH_FN uint32_t read() { return mem_.loadState(&team_.counts(peer_, lane_)->read); }

  // Whether this rank may write the next chunk.
  RH_FN bool hasCredit() {
    const uint32_t slots = team_.slots + (mutated(Mutant::kLaneOneMoreSlot) ? 1 : 0);
    return hasReached(&team_.flags(team_.rank, peer_, lane_)->head, written() + 1 - slots, Mutant::kLaneHeadRelaxed);
  }
  // Whether the peer has written the next chunk.
  RH_FN bool hasChunk() { return hasReached(&team_.flags(team_.rank, peer_, lane_)->tail, read() + 1, Mutant::kLaneTailRelaxed); }

  RH_FN char* slotToWrite() { return team_.slot(peer_, team_.rank, lane_, written()); }
  RH_FN char* slotToRead() { return team_.slot(team_.rank, peer_, lane_, read()); }

  RH_FN void writeHeader(char* slot, const Signature& signature, uint64_t way) {
    auto* h = reinterpret_cast<LaneHeader*>(slot);
    mem_.storeSlotWord(&h->signature.call, signature.call);
    mem_.storeSlotWord(&h->signature.count, signature.count);
    mem_.storeSlotWord(&h->signature.detail, signature.detail);
    mem_.storeSlotWord(&h->way, way);
  }
  RH_FN void readHeader(const char* slot, Signature* signature, uint64_t* way) {
    const auto* h = reinterpret_cast<const LaneHeader*>(slot);
    *signature = {mem_.loadSlotWord(&h->signature.call), mem_.loadSlotWord(&h->signature.count), mem_.loadSlotWord(&h->signature.detail)};
    *way = mem_.loadSlotWord(&h->way);
  }

  // After a barrier of the block behind its last store to the slot.
  RH_FN void publishChunk() {
    const uint32_t n = next(written());
    mem_.storeState(&team_.counts(peer_, lane_)->written, n);
    publish(&team_.flags(peer_, team_.rank, lane_)->tail, n, Mutant::kLanePublishRelaxed);
  }
  // After a barrier of the block behind its last load from the slot.
  RH_FN void releaseChunk() {
    const uint32_t n = next(read());
    mem_.storeState(&team_.counts(peer_, lane_)->read, n);
    publish(&team_.flags(peer_, team_.rank, lane_)->head, n, Mutant::kLaneReleaseRelaxed);
  }

 private:
  RH_FN static uint32_t next(uint32_t n) { return (n + 1) & Mem::kMeetingMask; }

  // Polls relaxed; an acquire takes several times as long.
  RH_FN bool hasReached(const uint32_t* flag, uint32_t want, Mutant relaxed) {
    const auto reached = [&](uint32_t seen) { return ((seen - want) & Mem::kMeetingMask) <= Mem::kMeetingMask / 2; };
    if (!reached(mem_.loadFlag(flag))) return false;
    return mutated(relaxed) || reached(mem_.loadFlagAcquire(flag));
  }
  RH_FN void publish(uint32_t* flag, uint32_t n, Mutant relaxed) {
    if (mutated(relaxed)) {
      mem_.storeFlag(flag, n);
    } else {
      mem_.storeFlagRelease(flag, n);
    }
  }

  Mem& mem_;
  const LaneTeam& team_;
  int peer_;
  uint32_t lane_;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_LANES_H_
