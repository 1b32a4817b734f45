// The same bits as the GPU: no fused multiply-add.
#pragma GCC optimize("fp-contract=off")

#include "railhead/gpu/collectives.h"

#include "gpuhost/entry.h"
#include "railhead/gpu/collective_entries.h"

namespace railhead::gpuhost {

#define RH_HOST_KERNEL(name, ...)                                    \
  {#name, [](const gpu::Call* called, Grid grid) {                   \
     runOnHost(*called, grid, [](Target target, const gpu::Call& call) { \
       Context c(call, target);                                      \
       gpu::__VA_ARGS__(c);                                          \
     });                                                             \
   }},

// A WindowCall begins with its call.
#define RH_HOST_PULL(name, ...)                                                         \
  {#name, [](const gpu::Call* called, Grid grid) {                                      \
     runOnHost(*called, grid, [](Target target, const gpu::Call& call) {                \
       Context c(call, target);                                                         \
       gpu::__VA_ARGS__(c, reinterpret_cast<const gpu::WindowCall&>(call).windows);     \
     });                                                                                \
   }},

#define RH_HOST_REDUCE_SCATTER(name, T, world)                           \
  {#name, [](const gpu::Call* called, Grid grid) {                       \
     runOnHost(*called, grid, [](Target target, const gpu::Call& call) { \
       gpu::reduceScatterOneshot<gpu::T, world, Context>(target, call);  \
     });                                                                 \
   }},

const HostKernel kCollectives[] = {RH_COPIES(RH_HOST_KERNEL) RH_PULLS(RH_HOST_PULL) RH_REDUCE_SCATTERS(RH_HOST_REDUCE_SCATTER){nullptr, nullptr}};

}  // namespace railhead::gpuhost
