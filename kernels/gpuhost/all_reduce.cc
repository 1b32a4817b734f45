// The same bits as the GPU: no fused multiply-add.
#pragma GCC optimize("fp-contract=off")

#include "railhead/gpu/all_reduce.h"

#include "gpuhost/entry.h"
#include "railhead/gpu/all_reduce_entries.h"

namespace railhead::gpuhost {

#define RH_HOST_KERNEL(name, algorithm, T, world)                                                                                      \
  {#name, [](const gpu::Call* called, Grid grid) {                                                                                     \
     runOnHost(*called, grid, [](Target target, const gpu::Call& call) {                                                               \
       gpu::allReduce<gpu::Algorithm::algorithm, gpu::T, world, Context>(target, call);                                                \
     });                                                                                                                               \
   }},

// A WindowCall begins with its call.
#define RH_HOST_PULL(name, T, world)                                                                                  \
  {#name, [](const gpu::Call* called, Grid grid) {                                                                    \
     runOnHost(*called, grid, [](Target target, const gpu::Call& call) {                                              \
       gpu::allReduceOfWindows<gpu::T, world, Context>(target, reinterpret_cast<const gpu::WindowCall&>(call));       \
     });                                                                                                              \
   }},

const HostKernel kAllReduces[] = {
    RH_ALL_REDUCES_F32(RH_HOST_KERNEL, RH_HOST_PULL) RH_ALL_REDUCES_BF16(RH_HOST_KERNEL, RH_HOST_PULL)
        RH_ALL_REDUCES_F16(RH_HOST_KERNEL, RH_HOST_PULL) RH_ALL_REDUCES_OTHERS(RH_HOST_KERNEL, RH_HOST_PULL){nullptr, nullptr}};

}  // namespace railhead::gpuhost
