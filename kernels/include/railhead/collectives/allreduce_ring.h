// The classic ring all-reduce: a ring reduce-scatter, then a ring all-gather of the results.
#ifndef RAILHEAD_KERNELS_ALLREDUCE_RING_H_
#define RAILHEAD_KERNELS_ALLREDUCE_RING_H_

#include "railhead/collectives/ring_run.h"

namespace railhead {

// The chain of allreduce_tree.h passes every partial sum through all ranks in rank order, so that the bits are those of fold.h. Here all
// ranks add at the same time, each slice in another order. In place: send == recv. Returns false when the group broke.
template <class Elements, class Mem>
bool allReduceRing(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, const RingPlan& plan, const char* send, char* recv, size_t count) {
  return runRing<true>(mem, team, flags, e, plan, {RingKind::kAllReduce, send, recv, count});
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLREDUCE_RING_H_
