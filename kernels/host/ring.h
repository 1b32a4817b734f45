// Ring: chunks pass from neighbour to neighbour. If sums must be reproducible, they pass along a chain from rank 0 to the last rank, which
// adds in rank order, and the results come back; else around a ring (ring_run.h).
#ifndef RAILHEAD_KERNELS_HOST_RING_H_
#define RAILHEAD_KERNELS_HOST_RING_H_

#include "host/run_kernel.h"
#include "host/tree.h"
#include "railhead/collectives/allgather_ring.h"
#include "railhead/collectives/allreduce_ring.h"
#include "railhead/collectives/reduce_scatter_ring.h"

namespace railhead::host::ring {

static inline RingPlan planOf(const KernelCall& c) {
  RingPlan plan = c.ring;
  plan.protocol = c.protocol;
  return plan;
}

inline Outcome allReduce(const KernelCall& c) {
  if (c.reproducible) return tree::allReduceOver(Tree::kChain, c);
  return reduceOverFlags(
      c, [&](auto& mem, auto& flags, const auto& e) { allReduceRing(mem, c.team, flags, e, planOf(c), in(c), out(c), c.count); });
}

inline Outcome reduceScatter(const KernelCall& c) {
  if (c.reproducible) return tree::reduceScatterOver(Tree::kChain, c);
  return reduceOverFlags(
      c, [&](auto& mem, auto& flags, const auto& e) { reduceScatterRing(mem, c.team, flags, e, planOf(c), in(c), out(c), c.count); });
}

inline Outcome allGather(const KernelCall& c) {
  return copyOverFlags(
      c.team, [&](auto& mem, auto& flags, const auto& bytes) { allGatherRing(mem, c.team, flags, bytes, planOf(c), in(c), out(c), c.bytes); });
}

// A chain from the root on, in the order of the ring.
inline Outcome broadcast(const KernelCall& c) {
  return tree::broadcastOver(Tree::kChain, c);
}

}  // namespace railhead::host::ring

#endif  // RAILHEAD_KERNELS_HOST_RING_H_
