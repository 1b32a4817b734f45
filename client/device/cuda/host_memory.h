// Memory of the host that kernels use: where the driver refuses a GPU access to another one, the ranks' scratch lies in their host heaps.
// The kernels are the same; they only get another base and stride.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_HOST_MEMORY_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_HOST_MEMORY_H_

#include "device/cuda/context.h"

namespace railhead::client::cuda {

// Pins mapped memory of this process, so that its device's kernels can use it under its own address. It may be shared with other processes, each of
// which pins it for itself. The memory must stay mapped, and its pages committed, until unpinHost.
bool pinHost(const Context& context, void* memory, uint64_t bytes, Failure* why);
// No kernel of this process may use it any more.
bool unpinHost(const Context& context, void* memory, Failure* why);

// Pinned memory of this process alone, zeroed, at the same address for the host and its devices: for words that kernels and host exchange.
// Freeing it waits for running kernels, so end or abort them first.
void* allocateHost(const Context& context, uint64_t bytes, Failure* why);
bool freeHost(const Context& context, void* memory, Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_HOST_MEMORY_H_
