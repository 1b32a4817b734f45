// Reduce: all ranks send their elements to the root in chunks, and the root folds them.
#ifndef RAILHEAD_KERNELS_REDUCE_H_
#define RAILHEAD_KERNELS_REDUCE_H_

#include "railhead/base/fold.h"
#include "railhead/exchange/pipes.h"

namespace railhead {

// recv is written on the root only, and may be send there. Reduced in the order of fold.h. Returns false when the group broke.
template <class Elements, class Mem>
bool reduce(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, int root, const char* send, char* recv,
            size_t count) {
  using Raw = typename Elements::Raw;
  Pipes<Mem> pipes(mem, team, flags);
  flags.announce();
  const size_t perChunk = static_cast<size_t>(pipes.chunkBytes() / e.kTileBytes) * e.kElements;
  for (size_t base = 0; base == 0 || base < count; base += perChunk) {
    const size_t at = base * e.kBytes;
    const size_t n = count - base < perChunk ? count - base : perChunk;
    const uint32_t tiles = static_cast<uint32_t>((n + e.kElements - 1) / e.kElements);
    if (team.rank != root) {
      char* slot = pipes.reserve(root);
      if (slot == nullptr) return false;
      if (mutated(Mutant::kPipePublishBeforeData)) pipes.send(root);
      pipes.writeHeader(slot, team.call, n * e.kBytes);
      for (uint32_t i = 0; i < tiles; i += Mem::kStep) mem.storeSlotTile(slot + kSlotHeaderBytes + i * e.kTileBytes, e.load(send + at, i, n));
      if (!mutated(Mutant::kPipePublishBeforeData)) pipes.send(root);
      continue;
    }
    const char* slots[kMaxWorldSize] = {};
    for (int r = 0; r < team.worldSize; r++) {
      if (r == root) continue;
      slots[r] = pipes.receive(r);
      if (slots[r] == nullptr || !pipes.agrees(slots[r], team.call, r)) return false;
      if (mutated(Mutant::kPipeReleaseBeforeRead)) pipes.release(r);
    }
    for (uint32_t i = 0; i < tiles; i += Mem::kStep) {
      Raw sum;
      foldRanks<1>(
          e, team.worldSize, team.reduceGroup,
          [&](int r, int, Raw(&raw)[1]) {
            raw[0] = r == root ? e.load(send + at, i, n) : mem.template loadSlotTile<Raw>(slots[r] + kSlotHeaderBytes + i * e.kTileBytes, tiles - i);
            return true;
          },
          &sum);
      e.store(recv + at, i, n, sum);
    }
    for (int r = 0; r < team.worldSize && !mutated(Mutant::kPipeReleaseBeforeRead); r++) {
      if (r != root) pipes.release(r);
    }
  }
  return true;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_REDUCE_H_
