// One-shot all-reduce: every rank sends its contribution to all ranks, and every rank reduces all contributions itself.
#ifndef RAILHEAD_KERNELS_ALLREDUCE_ONESHOT_H_
#define RAILHEAD_KERNELS_ALLREDUCE_ONESHOT_H_

#include "railhead/base/fold.h"
#include "railhead/base/mutant.h"
#include "railhead/base/target.h"

namespace railhead {

// Reduces count elements at any address. send and recv may be the same memory: a thread stores a tile of recv after its last read of the
// same tile of send.
//
// Exchange is one thread's communication with the other ranks (inbox_exchange.h on a GPU, flag_exchange.h on a CPU, either in the
// model). Returns false when the group broke; recv is then partly written.
template <class Elements, class Exchange>
RH_FN bool allReduceOneshot(Exchange& exchange, const Elements& e, const char* send, char* recv, size_t count) {
  using Raw = typename Elements::Raw;
  const size_t perChunk = static_cast<size_t>(exchange.chunkTiles()) * e.kElements;
  RH_ROLLED
  for (size_t base = 0; base == 0 || base < count; base += perChunk) {  // count 0: an exchange without data
    const char* in = send + base * e.kBytes;
    char* out = recv + base * e.kBytes;
    const size_t n = count - base < perChunk ? count - base : perChunk;
    const uint32_t tiles = static_cast<uint32_t>((n + e.kElements - 1) / e.kElements);
    const uint32_t first = exchange.first(), step = exchange.step();
    // Tiles to exchange. The last of several chunks is padded if the exchange needs it (InboxExchange::kPadsChunks).
    const bool padded = Exchange::kPadsChunks && count > perChunk && !mutated(Mutant::kShortLastChunk);
    const uint32_t exchanged = padded ? exchange.chunkTiles() : tiles;

    // The first tile is loaded before the epoch, so that the two loads are in flight together.
    Raw mine = {};
    if (first < tiles) mine = e.load(in, first, n);
    if (!exchange.beginEpoch()) return false;
    RH_ROLLED
    for (uint32_t i = first; i < exchanged; i += step) {
      exchange.pushAll(i, i == first ? mine : i < tiles ? e.load(in, i, n) : Raw{});
    }
    if (!exchange.meet(0)) return false;
    RH_ROLLED
    for (uint32_t i = first; i < exchanged; i += step) {
      Raw own = {};
      if (Exchange::kKeepsOwn) own = !Exchange::kPadsChunks ? e.load(in, i, n) : i == first ? mine : i < tiles ? e.load(in, i, n) : Raw{};
      Raw sum;
      if (!foldRanks<Exchange::kBatch>(
              e, exchange.worldSize(), exchange.reduceGroup(),
              [&](int r, int ranks, Raw(&raw)[Exchange::kBatch]) { return exchange.poll(r, ranks, i, own, raw); }, &sum)) {
        return false;
      }
      if (i < tiles) e.store(out, i, n, sum);
      exchange.release(0, i);
    }
  }
  return true;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLREDUCE_ONESHOT_H_
