// GPU entry points of the operations over lanes.
#include "railhead/gpu/pipes.h"

#include "cuda/entry.cuh"
#include "railhead/gpu/collective_entries.h"

#define RH_PIPE_ENTRY(name, ...)              \
  RH_ENTRY(name) {                            \
    namespace gpu = railhead::gpu;            \
    railhead::cuda::Context context(call, {}); \
    gpu::__VA_ARGS__(context);                \
  }

RH_PIPES(RH_PIPE_ENTRY)

extern "C" __global__ void __launch_bounds__(railhead::gpu::kMaxThreads) rh_group_pipe_bytes(const __grid_constant__ railhead::gpu::GroupCall group) {
  railhead::cuda::Context context(group.call, {});
  railhead::gpu::groupOfTransfers(context, group);
}
