#include "device/cuda/host_memory.h"

#include <string.h>

namespace railhead::client::cuda {

namespace {

// Kernels compute addresses from a base and a stride that the host knows, so both must use the same ones.
bool sameAddress(const Context& context, void* memory, Failure* why) {
  CUdeviceptr device = 0;
  if (!context.driver->cuMemHostGetDevicePointer(why, &device, memory, 0)) return false;
  if (device == reinterpret_cast<CUdeviceptr>(memory)) return true;
  return because(why, RH_ERR_UNSUPPORTED, "pinned memory at %p has the address 0x%llx on device %d, and the kernels need the same one", memory, device, context.device);
}

}  // namespace

bool pinHost(const Context& context, void* memory, uint64_t bytes, Failure* why) {
  const Current current(context, why);
  if (!current) return false;
  if (!context.driver->cuMemHostRegister(why, memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)) {
    return prefix(why, "device %d: pinning %llu bytes of shared memory: ", context.device, static_cast<unsigned long long>(bytes));
  }
  if (sameAddress(context, memory, why)) return true;
  context.driver->cuMemHostUnregister.call(memory);
  return false;
}

bool unpinHost(const Context& context, void* memory, Failure* why) {
  const Current current(context);
  return context.driver->cuMemHostUnregister(why, memory);
}

void* allocateHost(const Context& context, uint64_t bytes, Failure* why) {
  const Current current(context, why);
  void* memory = nullptr;
  if (!current || !context.driver->cuMemHostAlloc(why, &memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)) {
    prefix(why, "device %d: %llu bytes of pinned memory: ", context.device, static_cast<unsigned long long>(bytes));
    return nullptr;
  }
  if (sameAddress(context, memory, why)) return memset(memory, 0, bytes);
  context.driver->cuMemFreeHost.call(memory);
  return nullptr;
}

bool freeHost(const Context& context, void* memory, Failure* why) {
  const Current current(context);
  return context.driver->cuMemFreeHost(why, memory);
}

}  // namespace railhead::client::cuda
