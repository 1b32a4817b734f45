// The entry points of dispatch and combine: X(name, type of the parameter, kernel). C: the context.
#ifndef RAILHEAD_KERNELS_GPU_EP_ENTRIES_H_
#define RAILHEAD_KERNELS_GPU_EP_ENTRIES_H_

#define RH_EP_ENTRIES(X, C)                                                 \
  X(rh_ep_encode_f32, EpEncodeCall, EpEncodeKernel<gpu::F32, C>)            \
  X(rh_ep_encode_bf16, EpEncodeCall, EpEncodeKernel<gpu::BF16, C>)          \
  X(rh_ep_encode_f16, EpEncodeCall, EpEncodeKernel<gpu::F16, C>)            \
  X(rh_ep_encode_fp8_e4m3, EpEncodeCall, EpEncodeKernel<gpu::E4M3, C>)      \
  X(rh_ep_plan, EpDispatchCall, EpPlanKernel<C>)                            \
  X(rh_ep_dispatch_ll, EpDispatchCall, EpDispatchKernel<C>)                 \
  X(rh_ep_dispatch_ll_planned, EpDispatchCall, EpDispatchKernel<C>)         \
  X(rh_ep_dispatch_ll_plain, EpDispatchCall, EpDispatchKernel<C>)           \
  X(rh_ep_combine_ll_f32, EpCombineCall, EpCombineKernel<gpu::F32, C>)      \
  X(rh_ep_combine_ll_bf16, EpCombineCall, EpCombineKernel<gpu::BF16, C>)    \
  X(rh_ep_combine_ll_f16, EpCombineCall, EpCombineKernel<gpu::F16, C>)      \
  X(rh_ep_dispatch_ht, EpDispatchCall, EpDispatchHtKernel<C>)               \
  X(rh_ep_combine_ht_f32, EpCombineCall, EpCombineHtKernel<gpu::F32, C>)    \
  X(rh_ep_combine_ht_bf16, EpCombineCall, EpCombineHtKernel<gpu::BF16, C>)  \
  X(rh_ep_combine_ht_f16, EpCombineCall, EpCombineHtKernel<gpu::F16, C>)    \
  X(rh_ep_release, EpCommonCall, EpReleaseKernel<C>)

#endif  // RAILHEAD_KERNELS_GPU_EP_ENTRIES_H_
