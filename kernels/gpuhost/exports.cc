// A library of the kernels for the fake driver of the client's tests (client/device/cuda/fake/c/hooks.h): each under the name of its entry point.
#include <stddef.h>
#include <string.h>

#include "gpuhost/kernels.h"
#include "railhead/gpu/all_reduce_entries.h"
#include "railhead/gpu/collective_entries.h"

namespace {

// As fake_cuda_launch.
struct Launch {
  unsigned int grid[3], block[3];
};

void run(const char* name, const void* call, const Launch* launch) {
  railhead::gpuhost::findKernel(name)(static_cast<const railhead::gpu::Call*>(call), {launch->grid[0], launch->block[0]});
}

}  // namespace

#define RH_EXPORT(name, ...) \
  extern "C" void name(const void* call, const Launch* launch) { run(#name, call, launch); }

RH_ALL_REDUCES_F32(RH_EXPORT, RH_EXPORT)
RH_ALL_REDUCES_BF16(RH_EXPORT, RH_EXPORT)
RH_ALL_REDUCES_F16(RH_EXPORT, RH_EXPORT)
RH_ALL_REDUCES_OTHERS(RH_EXPORT, RH_EXPORT)
RH_COPIES(RH_EXPORT)
RH_PULLS(RH_EXPORT)
RH_PIPES(RH_EXPORT)
RH_GROUPS(RH_EXPORT)
RH_REDUCE_SCATTERS(RH_EXPORT)

extern "C" size_t fake_cuda_kernel_parameter_bytes(const char* name) {
  if (strcmp(name, "rh_group_pipe_bytes") == 0) return sizeof(railhead::gpu::GroupCall);
  if (strstr(name, "_pull_") != nullptr) return sizeof(railhead::gpu::WindowCall);
  return railhead::gpuhost::findKernel(name) == nullptr ? 0 : sizeof(railhead::gpu::Call);
}
