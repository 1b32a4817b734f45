// The same bits as the GPU: no fused multiply-add.
#pragma GCC optimize("fp-contract=off")

#include "railhead/gpu/ep_combine_ht.h"

#include <string.h>

#include "gpuhost/ep_target.h"
#include "railhead/gpu/ep_cached_plan.h"
#include "railhead/gpu/ep_dispatch_ll.h"
#include "railhead/gpu/ep_encode.h"
#include "railhead/gpu/ep_entries.h"

namespace railhead::gpuhost {

namespace {

// The parameter of a kernel begins with its call.
template <class C, class Body>
void runEp(const gpu::Call* called, Grid grid, Body body) {
  gpu::Shared shared = {};
  gpu::EpShared ep = {};
  const auto& call = *reinterpret_cast<const C*>(called);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  EpContext context(call.call, EpTarget(&shared, &ep, grid));
  body(context, call);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#define RH_HOST_EP(name, C, ...)                                                                             \
  {#name, [](const gpu::Call* called, Grid grid) {                                                           \
     runEp<gpu::C>(called, grid, [](EpContext& c, const gpu::C& call) { gpu::__VA_ARGS__(c, call).run(); }); \
   }},

const HostKernel kEps[] = {RH_EP_ENTRIES(RH_HOST_EP, EpContext){nullptr, nullptr}};

}  // namespace

Run findEpKernel(const char* name) {
  const HostKernel* k = kEps;
  while (k->name != nullptr && strcmp(k->name, name) != 0) k++;
  return k->run;
}

}  // namespace railhead::gpuhost
