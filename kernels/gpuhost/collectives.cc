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

#define RH_HOST_REDUCE_SCATTER(name, algorithm, T, world)                                      \
  {#name, [](const gpu::Call* called, Grid grid) {                                           \
     runOnHost(*called, grid, [](Target target, const gpu::Call& call) {                     \
       gpu::reduceScatterOf<gpu::Algorithm::algorithm, gpu::T, world, Context>(target, call); \
     });                                                                                     \
   }},

const HostKernel kCollectives[] = {RH_COPIES(RH_HOST_KERNEL) RH_REDUCE_SCATTERS(RH_HOST_REDUCE_SCATTER){nullptr, nullptr}};

}  // namespace railhead::gpuhost
