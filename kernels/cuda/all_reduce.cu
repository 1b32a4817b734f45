// GPU entry points of all-reduces.
#include "railhead/gpu/all_reduce.h"

#include "cuda/entry.cuh"
#include "railhead/gpu/all_reduce_entries.h"

#define RH_ALL_REDUCE_ENTRY(name, algorithm, T, world)                                                                            \
  RH_ENTRY(name) {                                                                                                                \
    railhead::gpu::allReduce<railhead::gpu::Algorithm::algorithm, railhead::gpu::T, world, railhead::cuda::Context>({}, call);    \
  }

#define RH_PULL_ENTRY(name, T, world)                                                                  \
  RH_ENTRY_OF(name, WindowCall) {                                                                      \
    railhead::gpu::allReduceOfWindows<railhead::gpu::T, world, railhead::cuda::Context>({}, call);     \
  }

RH_ALL_REDUCES_F32(RH_ALL_REDUCE_ENTRY, RH_PULL_ENTRY)
RH_ALL_REDUCES_BF16(RH_ALL_REDUCE_ENTRY, RH_PULL_ENTRY)
RH_ALL_REDUCES_F16(RH_ALL_REDUCE_ENTRY, RH_PULL_ENTRY)
RH_ALL_REDUCES_OTHERS(RH_ALL_REDUCE_ENTRY, RH_PULL_ENTRY)
