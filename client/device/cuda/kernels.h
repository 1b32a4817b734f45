// The kernels, loaded into a context.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_KERNELS_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_KERNELS_H_

#include <stdint.h>

#include "base/malloced.h"
#include "device/cuda/context.h"
#include "host/types.h"
#include "wire.h"

namespace railhead::client::cuda {

// Operations whose kernels have a type; those of others move bytes.
inline bool hasType(uint32_t op) { return op == RHW_OP_ALL_REDUCE || op == RHW_OP_REDUCE_SCATTER || op == RHW_OP_REDUCE; }

constexpr uint32_t kOperations = RHW_OP_GROUP + 1;

// The kernels for one world size.
struct Kernels : Malloced {
  CUmodule module = nullptr;
  // By rhw_algo, rhw_op and rh_dtype (0 for operations without a type); nullptr where there is no kernel.
  CUfunction functions[RHW_ALGOS][kOperations][host::kTypes] = {};

  CUfunction of(uint32_t algo, uint32_t op, uint32_t dtype) const {
    return algo < RHW_ALGOS && op < kOperations ? functions[algo][op][hasType(op) ? dtype : 0] : nullptr;
  }
};

// Loads the kernels for the device's architecture, and looks up those for a world size. nullptr: *why says why.
Kernels* loadKernels(const Context& context, uint32_t architecture, int worldSize, Failure* why);
// No kernel may be running any more.
void unloadKernels(const Context& context, Kernels* kernels);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_KERNELS_H_
