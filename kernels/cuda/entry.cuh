// What makes an entry point of a kernel.
#ifndef RAILHEAD_KERNELS_CUDA_ENTRY_CUH_
#define RAILHEAD_KERNELS_CUDA_ENTRY_CUH_

#include "cuda/target.cuh"

#define RH_ENTRY_OF(name, type) \
  extern "C" __global__ void __launch_bounds__(railhead::gpu::kMaxThreads) name(const __grid_constant__ railhead::gpu::type call)
#define RH_ENTRY(name) RH_ENTRY_OF(name, Call)

#endif  // RAILHEAD_KERNELS_CUDA_ENTRY_CUH_
