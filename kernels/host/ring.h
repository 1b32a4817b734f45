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

template <class T, class Isa>
Outcome allReduce(const KernelCall& c) {
  if constexpr (!own<T, Isa>) {
    return portableKernel<T>(kRing, kAllReduce)(c);
  } else {
    if (c.reproducible) return tree::allReduceOver<T, Isa>(Tree::kChain, c);
    return overFlags<Isa>(c.team, [&](auto& mem, auto& flags) {
      allReduceRing(mem, c.team, flags, Elements<T, Isa>(c.reduce, c.team.worldSize), planOf(c), in(c), out(c), c.count);
    });
  }
}

template <class T, class Isa>
Outcome reduceScatter(const KernelCall& c) {
  if constexpr (!own<T, Isa>) {
    return portableKernel<T>(kRing, kReduceScatter)(c);
  } else {
    if (c.reproducible) return tree::reduceScatterOver<T, Isa>(Tree::kChain, c);
    return overFlags<Isa>(c.team, [&](auto& mem, auto& flags) {
      reduceScatterRing(mem, c.team, flags, Elements<T, Isa>(c.reduce, c.team.worldSize), planOf(c), in(c), out(c), c.count);
    });
  }
}

template <class Isa>
Outcome allGather(const KernelCall& c) {
  return overFlags<Isa>(
      c.team, [&](auto& mem, auto& flags) { allGatherRing(mem, c.team, flags, Bytes<Isa>(), planOf(c), in(c), out(c), c.bytes); });
}

// A chain from the root on, in the order of the ring.
template <class Isa>
Outcome broadcast(const KernelCall& c) {
  return tree::broadcastOver<Isa>(Tree::kChain, c);
}

}  // namespace railhead::host::ring

#endif  // RAILHEAD_KERNELS_HOST_RING_H_
