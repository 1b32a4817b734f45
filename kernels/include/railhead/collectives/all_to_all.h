// All-to-all: every rank sends a part of its elements to every rank.
#ifndef RAILHEAD_KERNELS_ALL_TO_ALL_H_
#define RAILHEAD_KERNELS_ALL_TO_ALL_H_

#include "railhead/base/target.h"

namespace railhead {

// send and recv have count elements for each rank, in rank order. In place (send == recv) is safe: a chunk overwrites only what it has
// sent. Elements are only copied. Returns false when the group broke.
template <class Elements, class Exchange>
bool allToAll(Exchange& exchange, const Elements& e, const char* send, char* recv, size_t count) {
  const int worldSize = exchange.worldSize(), self = exchange.rank();
  const size_t perChunk = static_cast<size_t>(exchange.sliceTiles()) * e.kElements;
  const size_t part = count * e.kBytes;
  for (size_t base = 0; base == 0 || base < count; base += perChunk) {
    const size_t at = base * e.kBytes;
    const size_t n = count - base < perChunk ? count - base : perChunk;
    const uint32_t slice = static_cast<uint32_t>((n + e.kElements - 1) / e.kElements);
    exchange.beginEpoch();
    for (int k = Exchange::kKeepsOwn ? 1 : 0; k < worldSize; k++) {
      const int owner = (self + k) % worldSize;
      const char* in = send + static_cast<size_t>(owner) * part + at;
      for (uint32_t j = exchange.first(); j < slice; j += exchange.step()) exchange.pushSlice(k, owner, j, slice, e.load(in, j, n));
    }
    if (!exchange.meet(0)) return false;
    for (int r = 0; r < worldSize; r++) {
      const size_t place = static_cast<size_t>(r) * part + at;
      if (r == self && send == recv) continue;
      for (uint32_t j = exchange.first(); j < slice; j += exchange.step()) {
        typename Elements::Raw raw[1];
        const auto own = r == self ? e.load(send + place, j, n) : typename Elements::Raw{};
        if (!exchange.pollSlice(r, 1, j, slice, own, raw)) return false;
        e.store(recv + place, j, n, raw[0]);
      }
    }
  }
  return true;
}

// Zero-copy: every rank's send buffer lies in memory that all ranks map, at sendOffer, and is not recv. If that is not so on one rank,
// *zeroCopy is false on every rank and nothing was done.
template <class Elements, class Exchange>
bool allToAllPull(Exchange& exchange, const Elements& e, uint64_t sendOffer, char* recv, size_t count, bool* zeroCopy) {
  const uint64_t tiles = (count + e.kElements - 1) / e.kElements;
  const size_t part = count * e.kBytes;
  exchange.beginEpoch();
  exchange.offer(sendOffer, kNoOffset);
  if (!exchange.meet(0)) return false;
  if (!exchange.readOffers(static_cast<uint64_t>(exchange.worldSize()) * count * e.kBytes, false, zeroCopy)) return false;
  if (!*zeroCopy) return exchange.fallBack();
  for (int k = 0; k < exchange.worldSize(); k++) {
    const int r = (exchange.rank() + k) % exchange.worldSize();
    char* out = recv + static_cast<size_t>(r) * part;
    for (uint64_t i = exchange.first(); i < tiles; i += exchange.step()) {
      e.store(out, i, count, exchange.template loadRemoteAt<Elements>(r, static_cast<uint64_t>(exchange.rank()) * part, i, count));
    }
  }
  return exchange.meet(1);
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALL_TO_ALL_H_
