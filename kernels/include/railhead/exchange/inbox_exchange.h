// Exchange by cells or packets: what the algorithms use on a GPU. Each thread has one.
#ifndef RAILHEAD_KERNELS_INBOX_EXCHANGE_H_
#define RAILHEAD_KERNELS_INBOX_EXCHANGE_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/inbox.h"

namespace railhead {

// Slots is Cells or Packets. Mem has, besides what they list:
//   begin(cells, epoch)                     before a kernel's first epoch: reads the last epoch used; false = the comm has stopped
//   row(), rows(), threadInRow(), rowThreads(), rowSum(v), rsqrt(v)   for kernels that work on rows
template <class Mem, class Slots>
class InboxExchange {
 public:
  static constexpr int kBatch = Slots::kBatch;
  static constexpr bool kKeepsOwn = Slots::kKeepsOwn;
  // Threads do not wait for each other between two chunks of a kernel. If the last chunk had fewer tiles, the peer's thread for a missing
  // tile could still be reading the previous chunk when this rank's next kernel writes to the same half. So a kernel of several chunks
  // exchanges every tile in every chunk.
  static constexpr bool kPadsChunks = true;

  RH_FN InboxExchange(Mem& mem, const Inbox& inbox) : mem_(mem), inbox_(inbox), slots_(mem, inbox) {}

  RH_FN int rank() const { return inbox_.rank; }
  RH_FN int worldSize() const { return Slots::kRanks != 0 ? Slots::kRanks : inbox_.worldSize; }
  RH_FN int reduceGroup() const { return Slots::kRanks != 0 ? Slots::kRanks : inbox_.reduceGroup; }
  RH_FN uint32_t chunkTiles() const { return inbox_.slotBytes / Slots::kTileBytes; }
  RH_FN uint32_t sliceTiles() const { return chunkTiles(); }
  RH_FN uint32_t first() const { return mem_.thread(); }
  RH_FN uint32_t step() const { return mem_.threads(); }
  RH_FN uint32_t row() const { return mem_.row(); }
  RH_FN uint32_t rows() const { return mem_.rows(); }
  RH_FN uint32_t firstInRow() const { return mem_.threadInRow(); }
  RH_FN uint32_t stepInRow() const { return mem_.rowThreads(); }
  RH_FN float rowSum(float v) { return mem_.rowSum(v); }
  RH_FN float rsqrt(float v) { return mem_.rsqrt(v); }

  RH_FN bool beginEpoch() {
    const bool first = !begun_;
    if (first) {
      if (!mem_.begin(Slots::kIsCells, &epoch_)) return false;
      begun_ = true;
    } else {
      slots_.end();
    }
    epoch_ = Slots::next(epoch_);
    slots_.begin(epoch_, first);
    return true;
  }

  // Tiles carry their own flags: nothing to publish, nothing to wait for.
  RH_FN bool meet(int) { return true; }

  RH_FN void pushAll(uint32_t tile, const Raw16& raw) { slots_.pushAll(0, tile, raw); }
  RH_FN bool poll(int first, int count, uint32_t tile, const Raw16& own, Raw16 (&out)[kBatch]) {
    return slots_.poll(first, count, 0, tile, own, out);
  }
  RH_FN void pushSlice(int, int owner, uint32_t j, uint32_t, const Raw16& raw) { slots_.push(owner, 0, j, raw); }
  RH_FN bool pollSlice(int first, int count, uint32_t j, uint32_t, const Raw16& own, Raw16 (&out)[kBatch]) {
    return slots_.poll(first, count, 0, j, own, out);
  }
  RH_FN void pushResult(uint32_t j, uint32_t, const Raw16& raw) { slots_.pushResult(j, raw); }
  RH_FN bool pollResult(int first, int count, uint32_t j, uint32_t, Raw16 (&out)[kBatch]) {
    return slots_.poll(first, count, 1, j, Raw16{}, out);
  }
  // A thread has read a tile of a phase for the last time in this epoch.
  RH_FN void release(int phase, uint32_t tile) { slots_.clear(phase, tile); }

  // Every thread calls it once, at its end.
  RH_FN void finish() {
    if (begun_) slots_.end();
  }

 private:
  Mem& mem_;
  const Inbox& inbox_;
  Slots slots_;
  uint32_t epoch_ = 0;
  bool begun_ = false;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_INBOX_EXCHANGE_H_
