// How memory that the engine owns, a CUDA tensor, can be shown to other processes.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_SHAREABLE_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_SHAREABLE_H_

#include <stdint.h>

#include "device/cuda/bundle.h"
#include "device/cuda/context.h"

namespace railhead::client::cuda {

enum class ShareBy {
  kNothing,     // it cannot be shared: data is staged
  kDescriptor,  // allocations of cuMemCreate, by POSIX descriptors
  kIpc,         // an allocation of cuMemAlloc (cudaMalloc), by a handle of 64 bytes
};

struct Shareable {
  ShareBy by = ShareBy::kNothing;
  Bundle allocations;          // kDescriptor, in the order of addresses; the owner of this struct closes them
  CUipcMemHandle handle = {};  // kIpc
  uint64_t allocationBytes = 0;  // what others map: the whole allocations
  uint64_t offset = 0;           // of the memory in the first allocation
  char reason[320] = "";         // kNothing: why, as a sentence that says what to do
};

// Finds how the bytes at pointer can be shared. False: they are no memory of the context's device, or do not all exist, or the driver failed.
// That something cannot be shared is an answer, not a failure.
bool findShareable(const Context& context, CUdeviceptr pointer, uint64_t bytes, Shareable* out, Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_SHAREABLE_H_
