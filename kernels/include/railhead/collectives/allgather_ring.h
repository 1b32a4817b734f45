// Ring all-gather: in each step every rank sends a block to its successor and receives one from its predecessor, which it sends in the
// next step.
#ifndef RAILHEAD_KERNELS_ALLGATHER_RING_H_
#define RAILHEAD_KERNELS_ALLGATHER_RING_H_

#include "railhead/collectives/ring_run.h"

namespace railhead {

// As allGather. Returns false when the group broke.
template <class Elements, class Mem>
bool allGatherRing(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, const RingPlan& plan, const char* send, char* recv, size_t count) {
  return runRing<false>(mem, team, flags, e, plan, {RingKind::kAllGather, send, recv, count});
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLGATHER_RING_H_
