// Pull all-reduce: zero-copy between windows. Each rank owns a slice. It loads the slice from every rank's send window, reduces it, and
// stores the result to every rank's recv window.
#ifndef RAILHEAD_KERNELS_ALLREDUCE_PULL_H_
#define RAILHEAD_KERNELS_ALLREDUCE_PULL_H_

#include "railhead/base/fold.h"
#include "railhead/base/mutant.h"
#include "railhead/base/target.h"

namespace railhead {

// send and recv are offsets in this rank's heap, or kNoOffset; they may be the same. The first exchange is a barrier, after which every
// rank's send is complete, and it publishes the offsets. All ranks see the same offers. If one rank has no offset, *zeroCopy is false on
// every rank and nothing was done; an offer that is not in the rank's windows ends the operation. Otherwise only its owner accesses a
// slice until the second exchange, after which every rank's recv is complete.
template <class Elements, class Exchange>
RH_FN bool allReducePull(Exchange& exchange, const Elements& e, uint64_t send, uint64_t recv, size_t count, bool* zeroCopy) {
  using Raw = typename Elements::Raw;
  const uint32_t worldSize = static_cast<uint32_t>(exchange.worldSize());
  const uint64_t tiles = (count + e.kElements - 1) / e.kElements;
  const uint64_t slice = (tiles + worldSize - 1) / worldSize;
  const uint64_t begin = slice * static_cast<uint32_t>(exchange.rank());
  const uint64_t end = begin + slice < tiles ? begin + slice : tiles;
  // Elements up to the end of this rank's slice. A tile there may be a run of tiles, which ends with them.
  const size_t own = end * e.kElements < count ? end * e.kElements : count;

  exchange.beginEpoch();
  exchange.offer(send, recv);
  if (!mutated(Mutant::kPullWithoutFirstBarrier) && !exchange.meet(0)) return false;
  if (!exchange.readOffers(count * e.kBytes, true, zeroCopy)) return false;
  if (!*zeroCopy) return exchange.fallBack();
  RH_ROLLED
  for (uint64_t i = begin + exchange.first(); i < end; i += exchange.step()) {
    Raw sum;
    if (!foldRanks<Exchange::kBatch>(
            e, exchange.worldSize(), exchange.reduceGroup(),
            [&](int r, int ranks, Raw(&raw)[Exchange::kBatch]) {
              RH_UNROLL
              for (int q = 0; q < Exchange::kBatch; q++) {
                if (q < ranks) raw[q] = exchange.template loadRemote<Elements>(r + q, i, own);
              }
              return true;
            },
            &sum)) {
      return false;
    }
    RH_ROLLED
    for (int k = 0; k < exchange.worldSize(); k++) {
      const int r = exchange.rank() + k < exchange.worldSize() ? exchange.rank() + k : exchange.rank() + k - exchange.worldSize();
      exchange.template storeRemote<Elements>(r, i, own, sum);
    }
  }
  return mutated(Mutant::kPullWithoutLastBarrier) || exchange.meet(1);
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLREDUCE_PULL_H_
