// Exchange by packets: what the algorithms use on a GPU. Each thread has one.
#ifndef RAILHEAD_KERNELS_PACKET_EXCHANGE_H_
#define RAILHEAD_KERNELS_PACKET_EXCHANGE_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/packets.h"

namespace railhead {

// Words in a rank's own memory.
struct PacketState {
  // The last epoch used. It lies here so that a replayed graph continues to count. All threads of a kernel read it at the start, the
  // kernel's last block writes it at the end; the kernels of a rank follow each other on a stream.
  uint32_t epoch;
  uint32_t blocksDone;  // blocks of the running kernel that have finished; atomic
};

// A kernel's view of its team. Filled in by the host.
struct PacketTeam {
  int rank;
  int worldSize;
  int reduceGroup;
  PacketState* state;
  PacketInboxes inboxes;
};

// Mem is the target's memory: packets, waits, and the threads of this rank.
//   loadPacket, storePacket     relaxed, system scope, atomic per 64-bit element
//   keepWaiting()               called between polls; false = aborted or past the deadline
//   missing(r)                  records that rank r had not arrived when keepWaiting() returned false
//   fence()                     acquire and release fence, system scope
//   loadState, storeState       a word of PacketState, plain
//   blockSync()                 barrier of the block's threads
//   countBlock(word)            adds 1 to word; true in the last of the kernel's blocks, which resets it to 0
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
    // 0 is the value of untouched memory; 1 would use the same half as the previous epoch.
    if (epoch_ == 0 && !mutated(Mutant::kEpochZero)) epoch_ = mutated(Mutant::kEpochOne) ? 1 : 2;
    begun_ = true;
    packets_.setEpoch(epoch_);
    if (mutated(Mutant::kClearBeforeRead)) clearHalf();
  }

  // For kernels that assign rows of so many tiles to threads, not single tiles.
  RH_FN void beginEpochOfRows(uint32_t rowTiles) {
    rowTiles_ = rowTiles;
    beginEpoch();
  }

  // Packets carry their own flags: nothing to publish, nothing to wait for.
  RH_FN bool meet(int) { return true; }

  // A rank receives its own tiles like those of any other rank.
  static constexpr bool kKeepsOwn = false;
  // Threads do not wait for each other between two chunks of a kernel. If the last chunk had fewer tiles, the peer's thread for a missing
  // tile could still be reading the previous chunk when this rank's next kernel writes to the same half. So a kernel of several chunks
  // exchanges every tile in every chunk.
  static constexpr bool kPadsChunks = true;
  RH_FN void pushAll(uint32_t tile, const Raw16& raw) { packets_.pushAll(0, tile, raw); }
  RH_FN bool poll(int first, int count, uint32_t tile, const Raw16&, Raw16 (&out)[kBatch]) {
    return packets_.poll(first, count, 0, tile, out);
  }
  RH_FN void pushSlice(int k, int, uint32_t j, uint32_t, const Raw16& raw) { packets_.push(k, 0, j, raw); }
  RH_FN bool pollSlice(int first, int count, uint32_t j, uint32_t, const Raw16&, Raw16 (&out)[kBatch]) {
    return packets_.poll(first, count, 0, j, out);
  }
  // A rank that owns no slice receives results only. Around the wrap, a result must therefore also publish what its owner has acquired
  // with the contributions: that all ranks have zeroed their half (see endHalf).
  RH_FN void pushResult(uint32_t j, uint32_t, const Raw16& raw) {
    if ((epoch_ == Mem::kEpochMask || epoch_ == 2) && !mutated(Mutant::kResultWithoutFence)) mem_.fence();
    packets_.pushAll(1, j, raw);
  }
  RH_FN bool pollResult(int first, int count, uint32_t j, uint32_t, Raw16 (&out)[kBatch]) {
    return packets_.poll(first, count, 1, j, out);
  }

  // Every thread calls it once, at its end, so that the next kernel continues to count.
  RH_FN void finish() {
    endHalf();
    if (!mutated(Mutant::kNoBlockSync)) mem_.blockSync();
    if (mem_.threadInBlock() != 0) return;
    const bool last = mutated(Mutant::kFirstBlockWritesEpoch) ? mem_.thread() == 0 : mem_.countBlock(&team_.state->blocksDone);
    if (last && !mutated(Mutant::kEpochNotKept)) mem_.storeState(&team_.state->epoch, epoch_);
  }

 private:
  // In the last two epochs before the wrap: zeroes what was read (see packets.h). The fence orders this rank's zeros before its packets
  // of the next epoch, which allow peers to write there again. On the peers, the fence of these epochs and of the first one after the
  // wrap orders their loads of those packets before their stores.
  RH_FN void endHalf() {
    if (!begun_) return;
    if (epoch_ >= Mem::kEpochMask - (mutated(Mutant::kClearOnlyLastEpoch) ? 0 : 1)) {
      if (!mutated(Mutant::kNoWrapClear) && !mutated(Mutant::kClearBeforeRead)) clearHalf();
      if (!mutated(Mutant::kNoFenceAfterClear)) mem_.fence();
    } else if (epoch_ == 2 && !mutated(Mutant::kNoFenceInFirstEpoch)) {
      mem_.fence();
    }
  }

  // A tile is zeroed by the thread that handles it.
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
  uint32_t rowTiles_ = 0;  // 0: threads are assigned single tiles
  bool begun_ = false;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_PACKET_EXCHANGE_H_
