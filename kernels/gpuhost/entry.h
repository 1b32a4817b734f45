// What makes a function of the host of a kernel.
#ifndef RAILHEAD_KERNELS_GPUHOST_ENTRY_H_
#define RAILHEAD_KERNELS_GPUHOST_ENTRY_H_

#include "gpuhost/kernels.h"
#include "gpuhost/target.h"

namespace railhead::gpuhost {

// The fences are the ends of the kernels before and of this one (railhead/exchange/cells.h).
template <class Body>
void runOnHost(const gpu::Call& call, Grid grid, Body body) {
  gpu::Shared shared = {};
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  body(Target(&shared, grid), call);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

}  // namespace railhead::gpuhost

#endif  // RAILHEAD_KERNELS_GPUHOST_ENTRY_H_
