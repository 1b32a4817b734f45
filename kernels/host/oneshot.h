// One-shot: one exchange for each block, in which every rank reads every other rank's buffer.
#ifndef RAILHEAD_KERNELS_HOST_ONESHOT_H_
#define RAILHEAD_KERNELS_HOST_ONESHOT_H_

#include "host/run_kernel.h"
#include "railhead/collectives/all_to_all.h"
#include "railhead/collectives/allgather.h"
#include "railhead/collectives/allreduce_oneshot.h"
#include "railhead/collectives/reduce_scatter.h"

namespace railhead::host::oneshot {

template <class T, class Isa>
Outcome allReduce(const KernelCall& c) {
  return reduceOverExchange<T, Isa>(c, [&](auto& exchange, const auto& e) { allReduceOneshot(exchange, e, in(c), out(c), c.count); });
}

template <class T, class Isa>
Outcome reduceScatter(const KernelCall& c) {
  return reduceOverExchange<T, Isa>(c, [&](auto& exchange, const auto& e) { railhead::reduceScatter(exchange, e, in(c), out(c), c.count); });
}

template <class Isa>
Outcome allGather(const KernelCall& c) {
  return copyOverExchange<Isa>(c, [&](auto& exchange, const auto& e) { railhead::allGather(exchange, e, in(c), out(c), c.bytes); });
}

template <class Isa>
Outcome allToAll(const KernelCall& c) {
  return copyOverExchange<Isa>(c, [&](auto& exchange, const auto& e) { railhead::allToAll(exchange, e, in(c), out(c), c.bytes); });
}

}  // namespace railhead::host::oneshot

#endif  // RAILHEAD_KERNELS_HOST_ONESHOT_H_
