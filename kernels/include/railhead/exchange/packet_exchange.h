// One thread's view of an exchange by packets: what the algorithms see on a GPU.
#ifndef RAILHEAD_KERNELS_PACKET_EXCHANGE_H_
#define RAILHEAD_KERNELS_PACKET_EXCHANGE_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/packets.h"

namespace railhead {

// Words of a rank in its own memory.
struct PacketState {
  // The epoch used last. It lives here so that a replayed graph goes on counting. Read by all threads of a kernel at its
  // begin, written by its last block at its end; kernels of a rank follow each other on a stream.
  uint32_t epoch;
  uint32_t blocksDone;  // of the kernel that runs; atomic
};

// What a kernel needs to know of its group. Filled by the host.
struct PacketTeam {
  int rank;
  int worldSize;
  int reduceGroup;
  PacketState* state;
  PacketInboxes inboxes;
};

// Mem is the target's memory: packets, waits, and the threads of this rank.
//   loadPacket, storePacket     relaxed, system scope, atomic per 64-bit element
//   keepWaiting()               called between looks; false = aborted or past the deadline
//   missing(r)                  rank r had not arrived when keepWaiting said no
//   fence()                     full fence, system scope
//   loadState, storeState       a word of PacketState, plain
//   blockSync()                 barrier of the block's threads
//   countBlock(word)            adds 1 to word; returns true in the last of the kernel's blocks, which sets it to 0 again
//   thread(), threads()         of the whole grid; threadInBlock()
//   row(), rows(), threadInRow(), rowThreads(), rowSum(v), rsqrt(v)   for kernels that work on rows
template <class Mem>
class PacketExchange {
 public:
  static constexpr int kBatch = Packets<Mem>::kBatch;

  RH_FN PacketExchange(Mem& mem, const PacketTeam& team)
      : mem_(mem), team_(team), packets_(mem, team.inboxes, team.rank, team.worldSize), epoch_(mem.loadState(&team.state->epoch)) {}

  RH_FN int rank() const { return team_.rank; }
  RH_FN int worldSize() const { return team_.worldSize; }
  RH_FN int reduceGroup() const { return team_.reduceGroup; }
  RH_FN uint32_t chunkTiles() const { return team_.inboxes.slotBytes / kPacketTileBytes; }
  RH_FN uint32_t sliceTiles() const { return chunkTiles(); }
  RH_FN uint32_t first() const { return mem_.thread(); }
  RH_FN uint32_t step() const { return mem_.threads(); }
  RH_FN uint32_t row() const { return mem_.row(); }
  RH_FN uint32_t rows() const { return mem_.rows(); }
  RH_FN uint32_t firstInRow() const { return mem_.threadInRow(); }
  RH_FN uint32_t stepInRow() const { return mem_.rowThreads(); }
  RH_FN float rowSum(float v) { return mem_.rowSum(v); }
  RH_FN float rsqrt(float v) { return mem_.rsqrt(v); }

  RH_FN void beginEpoch() {
    endHalf();
    epoch_ = (epoch_ + 1) & Mem::kEpochMask;
    // 0 is untouched memory; 1 would use the same half as the epoch before.
    if (epoch_ == 0 && !mutated(Mutant::kEpochZero)) epoch_ = mutated(Mutant::kEpochOne) ? 1 : 2;
    begun_ = true;
    packets_.setEpoch(epoch_);
    if (mutated(Mutant::kClearBeforeRead)) clearHalf();
  }

  // For kernels that deal out rows of so many tiles, and not single tiles.
  RH_FN void beginEpochOfRows(uint32_t rowTiles) {
    rowTiles_ = rowTiles;
    beginEpoch();
  }

  // Packets carry their own flags: there is nothing to publish and nothing to wait for.
  RH_FN bool meet(int) { return true; }

  // A rank's own tiles come back to it like everybody's.
  static constexpr bool kKeepsOwn = false;
  // Threads do not wait for each other between the chunks of a kernel. If the last chunk had fewer tiles, the thread of a
  // peer that handles one of the missing tiles could still be reading the chunk before it when this rank's next kernel
  // writes to the same half. So every tile is exchanged in every chunk of a kernel that has several.
  static constexpr bool kPadsChunks = true;
  RH_FN void pushAll(uint32_t tile, const Raw16& raw) { packets_.pushAll(0, tile, raw); }
  RH_FN bool poll(int first, int count, uint32_t tile, const Raw16&, Raw16 (&out)[kBatch]) {
    return packets_.poll(first, count, 0, tile, out);
  }
  RH_FN void pushSlice(int k, int, uint32_t j, uint32_t, const Raw16& raw) { packets_.push(k, 0, j, raw); }
  RH_FN bool pollSlice(int first, int count, uint32_t j, uint32_t, const Raw16&, Raw16 (&out)[kBatch]) {
    return packets_.poll(first, count, 0, j, out);
  }
  // A rank that owns no slice hears only results. Around the wrap these must also say what the owner has seen of the
  // contributions: that half of everybody's is zeroed (see endHalf).
  RH_FN void pushResult(uint32_t j, uint32_t, const Raw16& raw) {
    if ((epoch_ == Mem::kEpochMask || epoch_ == 2) && !mutated(Mutant::kResultWithoutFence)) mem_.fence();
    packets_.pushAll(1, j, raw);
  }
  RH_FN bool pollResult(int first, int count, uint32_t j, uint32_t, Raw16 (&out)[kBatch]) {
    return packets_.poll(first, count, 1, j, out);
  }

  // Every thread calls it once, at its end: the next kernel then goes on counting.
  RH_FN void finish() {
    endHalf();
    if (!mutated(Mutant::kNoBlockSync)) mem_.blockSync();
    if (mem_.threadInBlock() != 0) return;
    const bool last = mutated(Mutant::kFirstBlockWritesEpoch) ? mem_.thread() == 0 : mem_.countBlock(&team_.state->blocksDone);
    if (last && !mutated(Mutant::kEpochNotKept)) mem_.storeState(&team_.state->epoch, epoch_);
  }

 private:
  // In the last two epochs before the wrap: zeroes what was read (see packets.h). The fence orders this rank's zeros
  // before its packets of the next epoch, which let peers write there again; and on the peers' side, there and in the
  // first epoch after the wrap, what they saw of those packets before they write.
  RH_FN void endHalf() {
    if (!begun_) return;
    if (epoch_ >= Mem::kEpochMask - (mutated(Mutant::kClearOnlyLastEpoch) ? 0 : 1)) {
      if (!mutated(Mutant::kNoWrapClear) && !mutated(Mutant::kClearBeforeRead)) clearHalf();
      if (!mutated(Mutant::kNoFenceAfterClear)) mem_.fence();
    } else if (epoch_ == 2 && !mutated(Mutant::kNoFenceInFirstEpoch)) {
      mem_.fence();
    }
  }

  // Each tile by the thread that handles it.
  RH_FN void clearHalf() {
    if (rowTiles_ != 0 && !mutated(Mutant::kClearByOtherThreads)) {
      RH_ROLLED
      for (uint32_t base = row() * rowTiles_; base < chunkTiles(); base += rows() * rowTiles_) {
        RH_ROLLED
        for (uint32_t i = firstInRow(); i < rowTiles_; i += stepInRow()) {
          if (base + i < chunkTiles()) packets_.clear(base + i);
        }
      }
      return;
    }
    RH_ROLLED
    for (uint32_t tile = first(); tile < chunkTiles(); tile += step()) packets_.clear(tile);
  }

  Mem& mem_;
  const PacketTeam& team_;
  Packets<Mem> packets_;
  uint32_t epoch_;
  uint32_t rowTiles_ = 0;  // 0: single tiles are dealt out
  bool begun_ = false;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_PACKET_EXCHANGE_H_
