// The table of kernels of a comm.
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
  // By rhw_algo, rhw_op and rh_dtype (0 for operations without a type); nullptr where there is no kernel.
  CUfunction functions[RHW_ALGOS][kOperations][host::kTypes] = {};

  CUfunction of(uint32_t algo, uint32_t op, uint32_t dtype) const {
    return algo < RHW_ALGOS && op < kOperations ? functions[algo][op][hasType(op) ? dtype : 0] : nullptr;
  }
};

// Looks up the kernels of a module for a world size. The caller deletes them. nullptr: *why says why.
Kernels* findKernels(const Context& context, CUmodule module, int worldSize, Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_KERNELS_H_
