// Opening what another process shows of its own memory (shareable.h).
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_OPENED_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_OPENED_H_

#include "device/cuda/shareable.h"

namespace railhead::client::cuda {

// An allocation of another process, mapped here for reading and writing.
struct Opened {
  CUdeviceptr base = 0;  // of the allocation; 0 = nothing
  uint64_t bytes = 0;
  ShareBy by = ShareBy::kNothing;
};

// Maps the allocation that a descriptor names. The caller still owns the descriptor.
bool openDescriptor(const Context& context, int fd, uint64_t allocationBytes, Opened* out, Failure* why);

// Opens an allocation of another process. A process opens a handle once: later calls get the same address. The process that made the handle
// cannot open it.
bool openIpc(const Context& context, const CUipcMemHandle& handle, uint64_t allocationBytes, Opened* out, Failure* why);

// Ends one opening. No kernel of this process may use it any more. It ends in any case; *why describes what the driver could not undo.
bool closeOpened(const Context& context, Opened* opened, Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_OPENED_H_
