// Two-shot all-reduce: each rank owns a slice, receives all contributions to it, reduces it, and sends the result to all ranks. There is
// no barrier besides the two exchanges: the second one needs only the data of the first.
#ifndef RAILHEAD_KERNELS_ALLREDUCE_TWOSHOT_H_
#define RAILHEAD_KERNELS_ALLREDUCE_TWOSHOT_H_

#include "railhead/base/fold.h"
#include "railhead/base/mutant.h"
#include "railhead/base/target.h"

namespace railhead {

// Rank r owns the tiles r * slice .. (r + 1) * slice - 1 of a chunk; the last slices may be short or empty. send and recv may be the same
// memory: a thread handles the same tile numbers in every slice, and has sent a tile before it stores the result there. The rest is as
// for allReduceOneshot.
template <class Elements, class Exchange>
RH_FN bool allReduceTwoshot(Exchange& exchange, const Elements& e, const char* send, char* recv, size_t count) {
  using Raw = typename Elements::Raw;
  const int worldSize = exchange.worldSize(), self = exchange.rank();
  // A chunk fills one slot for each slice.
  const size_t perChunk = static_cast<size_t>(exchange.sliceTiles()) * static_cast<size_t>(worldSize) * e.kElements;
  RH_ROLLED
  for (size_t base = 0; base == 0 || base < count; base += perChunk) {  // count 0: an exchange without data
    const char* in = send + base * e.kBytes;
    char* out = recv + base * e.kBytes;
    const size_t n = count - base < perChunk ? count - base : perChunk;
    const uint32_t tiles = static_cast<uint32_t>((n + e.kElements - 1) / e.kElements);
    // Tiles to exchange. The last of several chunks is padded if the exchange needs it (InboxExchange::kPadsChunks).
    const bool padded = Exchange::kPadsChunks && count > perChunk && !mutated(Mutant::kShortLastChunk);
    const uint32_t exchanged = padded ? exchange.sliceTiles() * static_cast<uint32_t>(worldSize) : tiles;
    const uint32_t slice = (exchanged + static_cast<uint32_t>(worldSize) - 1) / static_cast<uint32_t>(worldSize);
    const uint32_t begin = static_cast<uint32_t>(self) * slice;  // of this rank's slice
    const uint32_t first = exchange.first(), step = exchange.step();

    if (!exchange.beginEpoch()) return false;
    RH_ROLLED
    for (uint32_t j = first; j < slice; j += step) {
      // A batch of loads is in flight before the first store. Starts next to this rank, so that the ranks do not all send to the same one
      // at once.
      constexpr int kBatch = Exchange::kBatch;
      RH_ROLLED
      for (int begun = Exchange::kKeepsOwn ? 1 : 0; begun < worldSize; begun += kBatch) {
        const auto owner = [&](int q) { return self + begun + q < worldSize ? self + begun + q : self + begun + q - worldSize; };
        const auto tileOf = [&](int q) { return static_cast<uint32_t>(owner(q)) * slice + j; };
        Raw raw[kBatch] = {};
        RH_UNROLL
        for (int q = 0; q < kBatch; q++) {
          if (begun + q < worldSize && tileOf(q) < tiles) raw[q] = e.load(in, tileOf(q), n);
        }
        RH_UNROLL
        for (int q = 0; q < kBatch; q++) {
          if (begun + q < worldSize && tileOf(q) < exchanged) exchange.pushSlice(begun + q, owner(q), j, slice, raw[q]);
        }
      }
    }
    if (!exchange.meet(0)) return false;
    RH_ROLLED
    for (uint32_t j = first; j < slice && begin + j < exchanged; j += step) {
      Raw own = {};
      if (Exchange::kKeepsOwn && begin + j < tiles) own = e.load(in, begin + j, n);
      Raw sum;
      if (!foldRanks<Exchange::kBatch>(
              e, worldSize, exchange.reduceGroup(),
              [&](int r, int ranks, Raw(&raw)[Exchange::kBatch]) { return exchange.pollSlice(r, ranks, j, slice, own, raw); }, &sum)) {
        return false;
      }
      exchange.pushResult(j, slice, sum);
      if (begin + j < tiles) e.store(out, begin + j, n, sum);
      exchange.release(0, j);
    }
    if (!exchange.meet(1)) return false;
    RH_ROLLED
    for (uint32_t j = first; j < slice; j += step) {
      RH_ROLLED
      for (int r = 0; r < worldSize; r += Exchange::kBatch) {
        // Of the owners in this batch, only the first few have a tile j in their slice.
        int owners = worldSize - r < Exchange::kBatch ? worldSize - r : Exchange::kBatch;
        while (owners > 0 && static_cast<uint32_t>(r + owners - 1) * slice + j >= exchanged) owners--;
        Raw raw[Exchange::kBatch];
        if (!exchange.pollResult(r, owners, j, slice, raw)) return false;
        RH_UNROLL
        for (int q = 0; q < Exchange::kBatch; q++) {
          const uint32_t i = static_cast<uint32_t>(r + q) * slice + j;
          if (q < owners && r + q != self && i < tiles) e.store(out, i, n, raw[q]);
        }
      }
      exchange.release(1, j);
    }
  }
  return true;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLREDUCE_TWOSHOT_H_
