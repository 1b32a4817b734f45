// One-shot: one exchange for each block, in which every rank reads every other rank's buffer.
#ifndef RAILHEAD_KERNELS_HOST_ONESHOT_H_
#define RAILHEAD_KERNELS_HOST_ONESHOT_H_

#include "host/run_kernel.h"
#include "railhead/collectives/all_to_all.h"
#include "railhead/collectives/allgather.h"
#include "railhead/collectives/allreduce_oneshot.h"
#include "railhead/collectives/reduce_scatter.h"

namespace railhead::host::oneshot {

inline Outcome allReduce(const KernelCall& c) {
  return reduceOverExchange(c, [&](auto& exchange, const auto& e) { allReduceOneshot(exchange, e, in(c), out(c), c.count); });
}

inline Outcome reduceScatter(const KernelCall& c) {
  return reduceOverExchange(c, [&](auto& exchange, const auto& e) { railhead::reduceScatter(exchange, e, in(c), out(c), c.count); });
}

inline Outcome allGather(const KernelCall& c) {
  return copyOverExchange(c, [&](auto& exchange, const auto& e) { railhead::allGather(exchange, e, in(c), out(c), c.bytes); });
}

inline Outcome allToAll(const KernelCall& c) {
  return copyOverExchange(c, [&](auto& exchange, const auto& e) { railhead::allToAll(exchange, e, in(c), out(c), c.bytes); });
}

}  // namespace railhead::host::oneshot

#endif  // RAILHEAD_KERNELS_HOST_ONESHOT_H_
