// The classic ring all-reduce: a reduce-scatter around the ring, and an all-gather of what each rank got.
#ifndef RAILHEAD_KERNELS_ALLREDUCE_RING_H_
#define RAILHEAD_KERNELS_ALLREDUCE_RING_H_

#include "railhead/collectives/ring_run.h"

namespace railhead {

// The chain of allreduce_tree.h sends every partial sum past all ranks in rank order, so that the bits are those of fold.h; this
// one makes all ranks add at the same time, each chunk in an order of its own. In place: send == recv. Returns false when the
// group broke.
template <class Elements, class Mem>
bool allReduceRing(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, const RingPlan& plan, const char* send, char* recv, size_t count) {
  return runRing<true>(mem, team, flags, e, plan, {RingKind::kAllReduce, send, recv, count});
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLREDUCE_RING_H_
