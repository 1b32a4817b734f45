// Two-shot: each rank reduces a slice, then every rank reads every other rank's result.
#ifndef RAILHEAD_KERNELS_HOST_TWOSHOT_H_
#define RAILHEAD_KERNELS_HOST_TWOSHOT_H_

#include "host/run_kernel.h"
#include "railhead/collectives/allreduce_twoshot.h"

namespace railhead::host::twoshot {

inline Outcome allReduce(const KernelCall& c) {
  return reduceOverExchange(c, [&](auto& exchange, const auto& e) { allReduceTwoshot(exchange, e, in(c), out(c), c.count); });
}

}  // namespace railhead::host::twoshot

#endif  // RAILHEAD_KERNELS_HOST_TWOSHOT_H_
