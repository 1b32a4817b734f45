// A library of the kernels for the fake driver of the client's tests (client/device/cuda/fake/c/hooks.h): each under the name of its entry point.
#include <stddef.h>
#include <string.h>

#include "gpuhost/kernels.h"
#include "railhead/gpu/all_reduce_entries.h"
#include "railhead/gpu/collective_entries.h"
#include "railhead/gpu/ep_call.h"
#include "railhead/gpu/ep_entries.h"

namespace {

// As fake_cuda_launch.
struct Launch {
  unsigned int grid[3], block[3];
};

void run(railhead::gpuhost::Run kernel, const void* call, const Launch* launch) {
  kernel(static_cast<const railhead::gpu::Call*>(call), {launch->grid[0], launch->block[0]});
}

}  // namespace

#define RH_EXPORT(name, ...) \
  extern "C" void name(const void* call, const Launch* launch) { run(railhead::gpuhost::findKernel(#name), call, launch); }
#define RH_EXPORT_EP(name, ...) \
  extern "C" void name(const void* call, const Launch* launch) { run(railhead::gpuhost::findEpKernel(#name), call, launch); }

RH_ALL_REDUCES_F32(RH_EXPORT, RH_EXPORT)
RH_ALL_REDUCES_BF16(RH_EXPORT, RH_EXPORT)
RH_ALL_REDUCES_F16(RH_EXPORT, RH_EXPORT)
RH_ALL_REDUCES_OTHERS(RH_EXPORT, RH_EXPORT)
RH_COPIES(RH_EXPORT)
RH_PULLS(RH_EXPORT)
RH_PIPES(RH_EXPORT)
RH_GROUPS(RH_EXPORT)
RH_REDUCE_SCATTERS(RH_EXPORT)
RH_EP_ENTRIES(RH_EXPORT_EP, void)

extern "C" size_t fake_cuda_kernel_parameter_bytes(const char* name) {
  if (strcmp(name, "rh_group_pipe_bytes") == 0) return sizeof(railhead::gpu::GroupCall);
#define RH_BYTES(entry, type, ...) \
  if (strcmp(name, #entry) == 0) return sizeof(railhead::gpu::type);
  RH_EP_ENTRIES(RH_BYTES, void)
  if (strstr(name, "_pull_") != nullptr) return sizeof(railhead::gpu::WindowCall);
  return railhead::gpuhost::findKernel(name) == nullptr ? 0 : sizeof(railhead::gpu::Call);
}
