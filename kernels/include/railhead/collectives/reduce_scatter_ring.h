// The classic ring reduce-scatter: the partial sum of each rank's part passes all ranks and ends at that rank.
#ifndef RAILHEAD_KERNELS_REDUCE_SCATTER_RING_H_
#define RAILHEAD_KERNELS_REDUCE_SCATTER_RING_H_

#include "railhead/collectives/ring_run.h"

namespace railhead {

// As reduceScatter, but adds in the order of ring_run.h. Returns false when the group broke.
template <class Elements, class Mem>
bool reduceScatterRing(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, const RingPlan& plan, const char* send, char* recv, size_t count) {
  return runRing<true>(mem, team, flags, e, plan, {RingKind::kReduceScatter, send, recv, count});
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_REDUCE_SCATTER_RING_H_
