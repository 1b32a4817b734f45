// Reduce-scatter: every rank receives the reduction of its part of all ranks' elements.
#ifndef RAILHEAD_KERNELS_REDUCE_SCATTER_H_
#define RAILHEAD_KERNELS_REDUCE_SCATTER_H_

#include "railhead/base/fold.h"
#include "railhead/base/target.h"

namespace railhead {

// send has count elements for each rank, in rank order; recv receives this rank's, reduced in the order of fold.h. In place: recv is this
// rank's part of send. Returns false when the group broke.
template <class Elements, class Exchange>
bool reduceScatter(Exchange& exchange, const Elements& e, const char* send, char* recv, size_t count) {
  using Raw = typename Elements::Raw;
  const int worldSize = exchange.worldSize(), self = exchange.rank();
  // A chunk has a slice for each rank.
  const size_t perChunk = static_cast<size_t>(exchange.sliceTiles()) * e.kElements;
  const size_t part = count * e.kBytes;
  for (size_t base = 0; base == 0 || base < count; base += perChunk) {
    const size_t at = base * e.kBytes;
    const size_t n = count - base < perChunk ? count - base : perChunk;
    const uint32_t slice = static_cast<uint32_t>((n + e.kElements - 1) / e.kElements);
    const char* own = send + static_cast<size_t>(self) * part + at;
    exchange.beginEpoch();
    for (int k = Exchange::kKeepsOwn ? 1 : 0; k < worldSize; k++) {
      const int owner = (self + k) % worldSize;
      const char* in = send + static_cast<size_t>(owner) * part + at;
      for (uint32_t j = exchange.first(); j < slice; j += exchange.step()) exchange.pushSlice(k, owner, j, slice, e.load(in, j, n));
    }
    if (!exchange.meet(0)) return false;
    for (uint32_t j = exchange.first(); j < slice; j += exchange.step()) {
      const Raw mine = e.load(own, j, n);
      Raw sum;
      if (!foldRanks<Exchange::kBatch>(
              e, worldSize, exchange.reduceGroup(),
              [&](int r, int ranks, Raw(&raw)[Exchange::kBatch]) { return exchange.pollSlice(r, ranks, j, slice, mine, raw); }, &sum)) {
        return false;
      }
      e.store(recv + at, j, n, sum);
    }
  }
  return true;
}

// Zero-copy: every rank's send buffer lies in memory that all ranks map, at sendOffer. If that is not so on one rank, *zeroCopy is false
// on every rank and nothing was done. In place is safe: no other rank reads what this rank writes.
template <class Elements, class Exchange>
bool reduceScatterPull(Exchange& exchange, const Elements& e, uint64_t sendOffer, char* recv, size_t count, bool* zeroCopy) {
  using Raw = typename Elements::Raw;
  const uint64_t tiles = (count + e.kElements - 1) / e.kElements;
  const uint64_t own = static_cast<uint64_t>(exchange.rank()) * count * e.kBytes;
  exchange.beginEpoch();
  exchange.offer(sendOffer, kNoOffset);
  if (!exchange.meet(0)) return false;
  if (!exchange.readOffers(static_cast<uint64_t>(exchange.worldSize()) * count * e.kBytes, false, zeroCopy)) return false;
  if (!*zeroCopy) return exchange.fallBack();
  for (uint64_t i = exchange.first(); i < tiles; i += exchange.step()) {
    Raw sum;
    if (!foldRanks<Exchange::kBatch>(
            e, exchange.worldSize(), exchange.reduceGroup(),
            [&](int r, int ranks, Raw(&raw)[Exchange::kBatch]) {
              raw[0] = exchange.template loadRemoteAt<Elements>(r, own, i, count);
              for (int q = 1; q < Exchange::kBatch && q < ranks; q++) raw[q] = exchange.template loadRemoteAt<Elements>(r + q, own, i, count);
              return true;
            },
            &sum)) {
      return false;
    }
    e.store(recv, i, count, sum);
  }
  return exchange.meet(1);
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_REDUCE_SCATTER_H_
