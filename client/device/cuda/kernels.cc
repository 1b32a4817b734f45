#include "device/cuda/kernels.h"

#include <stdint.h>
#include <stdio.h>

#include "comm/choice.h"
#include "comm/comm.h"
#include "railhead/gpu/launch.h"

namespace railhead::client::cuda {

namespace {

bool mayHaveKernels(uint32_t op) {
  return op == RHW_OP_ALL_REDUCE || op == RHW_OP_BARRIER || (op >= RHW_OP_ALL_GATHER && op <= RHW_OP_GROUP);
}

// The kernel that is made for the world size, if there is one, else the one for any.
CUfunction findKernel(const Driver& driver, CUmodule module, uint32_t algo, uint32_t op, const char* type, int worldSize) {
  char name[96];
  snprintf(name, sizeof name, "rh_%s_%s_%s_%d", operationName(op), algorithmName(algo), type, worldSize);
  CUfunction found = nullptr;
  if (driver.cuModuleGetFunction.call(&found, module, name) == CUDA_SUCCESS) return found;
  snprintf(name, sizeof name, "rh_%s_%s_%s", operationName(op), algorithmName(algo), type);
  return driver.cuModuleGetFunction.call(&found, module, name) == CUDA_SUCCESS ? found : nullptr;
}

// Also loads it onto the device: a driver that loads kernels at their first launch would have to wait for running kernels then.
bool lookUp(const Driver& driver, CUmodule module, Kernels* kernels, uint32_t algo, uint32_t op, int dtype, const char* type, int worldSize, Failure* why) {
  const CUfunction found = findKernel(driver, module, algo, op, type, worldSize);
  if (found != nullptr && !driver.cuFuncLoad(why, found)) return false;
  kernels->functions[algo][op][dtype] = found;
  return true;
}

bool lookUpAll(const Driver& driver, CUmodule module, Kernels* kernels, int worldSize, Failure* why) {
  for (uint32_t algo = 0; algo < RHW_ALGOS; algo++) {
    for (uint32_t op = 0; op < kOperations; op++) {
      if (!mayHaveKernels(op)) continue;
      const int types = hasType(op) ? host::kTypes : 1;
      for (int t = 0; t < types; t++) {
        if (!lookUp(driver, module, kernels, algo, op, t, hasType(op) ? gpu::kTypeNames[t] : "bytes", worldSize, why)) return false;
      }
    }
  }
  return true;
}

}  // namespace

Kernels* findKernels(const Context& context, CUmodule module, int worldSize, Failure* why) {
  auto* kernels = new Kernels();
  if (kernels == nullptr) {
    because(why, RH_ERR_OUT_OF_MEMORY, "no memory for a table of kernels");
    return nullptr;
  }
  const Current current(context, why);
  if (current && lookUpAll(*context.driver, module, kernels, worldSize, why)) return kernels;
  delete kernels;
  return nullptr;
}

}  // namespace railhead::client::cuda
