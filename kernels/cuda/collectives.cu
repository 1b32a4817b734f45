// GPU entry points of the operations of all ranks but all-reduce.
#include "railhead/gpu/collectives.h"

#include "cuda/entry.cuh"
#include "railhead/gpu/collective_entries.h"

#define RH_COLLECTIVE_ENTRY(name, ...)        \
  RH_ENTRY(name) {                            \
    namespace gpu = railhead::gpu;            \
    railhead::cuda::Context context(call, {}); \
    gpu::__VA_ARGS__(context);                \
  }

RH_COPIES(RH_COLLECTIVE_ENTRY)

#define RH_WINDOWS_ENTRY(name, ...)                 \
  RH_ENTRY_OF(name, WindowCall) {                   \
    namespace gpu = railhead::gpu;                  \
    railhead::cuda::Context context(call.call, {}); \
    gpu::__VA_ARGS__(context, call.windows);        \
  }

RH_PULLS(RH_WINDOWS_ENTRY)

#define RH_REDUCE_SCATTER_ENTRY(name, T, world)                                                       \
  RH_ENTRY(name) {                                                                                   \
    railhead::gpu::reduceScatterOneshot<railhead::gpu::T, world, railhead::cuda::Context>({}, call); \
  }

RH_REDUCE_SCATTERS(RH_REDUCE_SCATTER_ENTRY)
