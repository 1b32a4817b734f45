#include "device/cuda/kernels.h"

#include <stdint.h>
#include <stdio.h>

#include "comm/choice.h"
#include "comm/comm.h"
#include "device/cuda/images.h"
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
bool lookUp(const Driver& driver, Kernels* kernels, uint32_t algo, uint32_t op, int dtype, const char* type, int worldSize, Failure* why) {
  const CUfunction found = findKernel(driver, kernels->module, algo, op, type, worldSize);
  if (found != nullptr && !driver.cuFuncLoad(why, found)) return false;
  kernels->functions[algo][op][dtype] = found;
  return true;
}

bool lookUpAll(const Driver& driver, Kernels* kernels, int worldSize, Failure* why) {
  for (uint32_t algo = 0; algo < RHW_ALGOS; algo++) {
    for (uint32_t op = 0; op < kOperations; op++) {
      if (!mayHaveKernels(op)) continue;
      const int types = hasType(op) ? host::kTypes : 1;
      for (int t = 0; t < types; t++) {
        if (!lookUp(driver, kernels, algo, op, t, hasType(op) ? gpu::kTypeNames[t] : "bytes", worldSize, why)) return false;
      }
    }
  }
  return true;
}

// The compiler's log says why it refuses PTX.
bool loadModule(const Driver& driver, const char* image, CUmodule* module, Failure* why) {
  char log[512] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  if (driver.cuModuleLoadDataEx(why, module, image, 2, options, values)) return true;
  log[sizeof log - 1] = '\0';
  return prefix(why, "the kernels cannot be loaded%s%s: ", log[0] == '\0' ? "" : ": ", log);
}

}  // namespace

Kernels* loadKernels(const Context& context, uint32_t architecture, int worldSize, Failure* why) {
  const Driver& driver = *context.driver;
  auto* kernels = new Kernels();
  if (kernels == nullptr) {
    because(why, RH_ERR_OUT_OF_MEMORY, "no memory for a table of kernels");
    return nullptr;
  }
  {
    const Current current(context, why);
    if (current && loadModule(driver, imageFor(architecture), &kernels->module, why) && lookUpAll(driver, kernels, worldSize, why)) return kernels;
  }
  unloadKernels(context, kernels);
  return nullptr;
}

void unloadKernels(const Context& context, Kernels* kernels) {
  if (kernels == nullptr) return;
  Failure ignored;
  const Current current(context, &ignored);
  if (current && kernels->module != nullptr) context.driver->cuModuleUnload.call(kernels->module);
  delete kernels;
}

}  // namespace railhead::client::cuda
