// All-gather: every rank receives the elements of every rank.
#ifndef RAILHEAD_KERNELS_ALLGATHER_H_
#define RAILHEAD_KERNELS_ALLGATHER_H_

#include "railhead/base/target.h"

namespace railhead {

// recv has count elements of each rank, in rank order. In place: send is this rank's part of recv. Elements are only copied, so any type
// will do. Returns false when the group broke.
template <class Elements, class Exchange>
bool allGather(Exchange& exchange, const Elements& e, const char* send, char* recv, size_t count) {
  const size_t perChunk = static_cast<size_t>(exchange.chunkTiles()) * e.kElements;
  const size_t part = count * e.kBytes;
  for (size_t base = 0; base == 0 || base < count; base += perChunk) {
    const size_t at = base * e.kBytes;
    const size_t n = count - base < perChunk ? count - base : perChunk;
    const uint32_t tiles = static_cast<uint32_t>((n + e.kElements - 1) / e.kElements);
    exchange.beginEpoch();
    for (uint32_t i = exchange.first(); i < tiles; i += exchange.step()) exchange.pushAll(i, e.load(send + at, i, n));
    if (!exchange.meet(0)) return false;
    for (int r = 0; r < exchange.worldSize(); r++) {
      char* out = recv + static_cast<size_t>(r) * part + at;
      if (r == exchange.rank() && out == send + at) continue;
      for (uint32_t i = exchange.first(); i < tiles; i += exchange.step()) {
        typename Elements::Raw raw[1];
        if (!exchange.poll(r, 1, i, r == exchange.rank() ? e.load(send + at, i, n) : typename Elements::Raw{}, raw)) return false;
        e.store(out, i, n, raw[0]);
      }
    }
  }
  return true;
}

// Zero-copy: every rank's send buffer lies in memory that all ranks map, at sendOffer. If that is not so on one rank, *zeroCopy is false
// on every rank and nothing was done.
template <class Elements, class Exchange>
bool allGatherPull(Exchange& exchange, const Elements& e, uint64_t sendOffer, const char* send, char* recv, size_t count, bool* zeroCopy) {
  const uint64_t tiles = (count + e.kElements - 1) / e.kElements;
  const size_t part = count * e.kBytes;
  exchange.beginEpoch();
  exchange.offer(sendOffer, kNoOffset);
  if (!exchange.meet(0)) return false;
  if (!exchange.readOffers(count * e.kBytes, false, zeroCopy)) return false;
  if (!*zeroCopy) return exchange.fallBack();
  for (int k = 0; k < exchange.worldSize(); k++) {
    // Starts with this rank, so that the ranks do not all read from the same one at once.
    const int r = (exchange.rank() + k) % exchange.worldSize();
    char* out = recv + static_cast<size_t>(r) * part;
    if (r == exchange.rank() && out == send) continue;
    for (uint64_t i = exchange.first(); i < tiles; i += exchange.step()) {
      e.store(out, i, count, exchange.template loadRemoteAt<Elements>(r, 0, i, count));
    }
  }
  return exchange.meet(1);
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLGATHER_H_
