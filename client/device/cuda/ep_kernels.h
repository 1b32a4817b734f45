// The kernels of dispatch and combine: a module of their own, which most processes never load.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_EP_KERNELS_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_EP_KERNELS_H_

#include "device/cuda/context.h"
#include "railhead/gpu/ep_call.h"

namespace railhead::client::cuda {

struct EpKernels {
  CUmodule module = nullptr;
  CUfunction encode[5] = {};      // by gpu::EpType of x
  CUfunction plan = nullptr;
  CUfunction dispatchLl = nullptr, plannedDispatchLl = nullptr, plainDispatchLl = nullptr, dispatchHt = nullptr;
  CUfunction combine[2][4] = {};  // of ll and of ht, by gpu::EpType of partial sums
  CUfunction release = nullptr;

  CUfunction encodeOf(gpu::EpType t) const { return encode[static_cast<uint32_t>(t)]; }
  CUfunction dispatchOf(const gpu::EpDispatchCall& call) const {
    if (call.team.countsFirst) return dispatchHt;
    if (call.team.dropsDead) return dispatchLl;
    return call.plan.idx != nullptr ? plannedDispatchLl : plainDispatchLl;
  }
  CUfunction combineOf(bool ht, gpu::EpType t) const { return combine[ht][static_cast<uint32_t>(t)]; }
};

// Looks up and loads all kernels of the module.
bool findEpKernels(const Context& context, EpKernels* kernels, Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_EP_KERNELS_H_
