// The same bits as the GPU: no fused multiply-add.
#pragma GCC optimize("fp-contract=off")

#include "railhead/gpu/pipes.h"

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

// A GroupCall begins with its call.
#define RH_HOST_GROUP(name, function)                                          \
  {#name, [](const gpu::Call* called, Grid grid) {                             \
     runOnHost(*called, grid, [](Target target, const gpu::Call& call) {       \
       Context c(call, target);                                                \
       gpu::function(c, reinterpret_cast<const gpu::GroupCall&>(call));        \
     });                                                                       \
   }},

const HostKernel kPipes[] = {RH_PIPES(RH_HOST_KERNEL) RH_GROUPS(RH_HOST_GROUP){nullptr, nullptr}};

}  // namespace railhead::gpuhost
