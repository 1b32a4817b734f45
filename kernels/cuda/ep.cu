// GPU entry points of dispatch and combine: a module of its own, which a process without mixtures of experts never loads.
#include "railhead/gpu/ep_combine_ht.h"

#include "cuda/ep_target.cuh"
#include "railhead/gpu/ep_cached_plan.h"
#include "railhead/gpu/ep_dispatch_ll.h"
#include "railhead/gpu/ep_encode.h"

// A kernel's parameter is in constant memory, and the first load of each of its 64-byte lines is a load of memory. The warps begin them all at once.
template <class Call>
__device__ __forceinline__ void touch(const Call& call) {
  for (uint32_t at = threadIdx.x / 32 * 64; at < sizeof call; at += blockDim.x / 32 * 64) {
    asm volatile("" ::"r"(*reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(&call) + at)));
  }
}

// One block of a multiprocessor: else ptxas spills registers of a kernel so that two fit.
#define RH_EP_ENTRY(name, type) \
  extern "C" __global__ void __launch_bounds__(railhead::gpu::kMaxThreads, 1) name(const __grid_constant__ railhead::gpu::type call)

#define RH_EP_ENCODE(name, type)                                                                       \
  RH_EP_ENTRY(rh_ep_encode_##name, EpEncodeCall) {                                                     \
    railhead::cuda::EpContext context(call.call, {});                                                  \
    railhead::gpu::EpEncodeKernel<railhead::gpu::type, railhead::cuda::EpContext>(context, call).run(); \
  }
RH_EP_ENCODE(f32, F32)
RH_EP_ENCODE(bf16, BF16)
RH_EP_ENCODE(f16, F16)
RH_EP_ENCODE(fp8_e4m3, E4M3)

RH_EP_ENTRY(rh_ep_plan, EpDispatchCall) {
  railhead::cuda::EpContext context(call.call, {});
  railhead::gpu::EpPlanKernel<railhead::cuda::EpContext>(context, call).run();
}

#define RH_EP_DISPATCH_LL(name, context_type)                          \
  RH_EP_ENTRY(name, EpDispatchCall) {                                  \
    touch(call);                                                       \
    railhead::cuda::context_type context(call.call, {});               \
    railhead::gpu::EpDispatchKernel<railhead::cuda::context_type>(context, call).run(); \
  }
RH_EP_DISPATCH_LL(rh_ep_dispatch_ll, EpContext)
RH_EP_DISPATCH_LL(rh_ep_dispatch_ll_planned, EpPlannedContext)
RH_EP_DISPATCH_LL(rh_ep_dispatch_ll_plain, EpPlainContext)

#define RH_EP_COMBINE(name, type)                                                                       \
  RH_EP_ENTRY(rh_ep_combine_ll_##name, EpCombineCall) {                                                 \
    touch(call);                                                                                        \
    railhead::cuda::EpContext context(call.call, {});                                                   \
    railhead::gpu::EpCombineKernel<railhead::gpu::type, railhead::cuda::EpContext>(context, call).run(); \
  }
RH_EP_COMBINE(f32, F32)
RH_EP_COMBINE(bf16, BF16)
RH_EP_COMBINE(f16, F16)

RH_EP_ENTRY(rh_ep_dispatch_ht, EpDispatchCall) {
  railhead::cuda::EpContext context(call.call, {});
  railhead::gpu::EpDispatchHtKernel<railhead::cuda::EpContext>(context, call).run();
}

#define RH_EP_COMBINE_HT(name, type)                                                                      \
  RH_EP_ENTRY(rh_ep_combine_ht_##name, EpCombineCall) {                                                   \
    railhead::cuda::EpContext context(call.call, {});                                                     \
    railhead::gpu::EpCombineHtKernel<railhead::gpu::type, railhead::cuda::EpContext>(context, call).run(); \
  }
RH_EP_COMBINE_HT(f32, F32)
RH_EP_COMBINE_HT(bf16, BF16)
RH_EP_COMBINE_HT(f16, F16)

RH_EP_ENTRY(rh_ep_release, EpCommonCall) {
  railhead::cuda::EpContext context(call.call, {});
  railhead::gpu::EpReleaseKernel<railhead::cuda::EpContext>(context, call).run();
}
