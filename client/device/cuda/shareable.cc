#include "device/cuda/shareable.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

namespace railhead::client::cuda {

namespace {

using unsigned64 = unsigned long long;

constexpr const char* kInstead = "allocate a window with rh_window_alloc and put the tensor there";

// Records why the memory cannot be shared. Returns true, because that is a valid answer.
__attribute__((format(printf, 2, 3))) bool cannot(Shareable* out, const char* format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(out->reason, sizeof out->reason, format, args);
  va_end(args);
  out->by = ShareBy::kNothing;
  return true;
}

template <class Value>
bool attribute(const Context& context, CUpointer_attribute of, CUdeviceptr pointer, Value* value, Failure* why) {
  return context.driver->cuPointerGetAttribute(why, value, of, pointer);
}

// Refuses what is no memory of the context's device.
bool checkPointer(const Context& context, CUdeviceptr pointer, Failure* why) {
  unsigned int type = 0;
  const CUresult code = context.driver->cuPointerGetAttribute.call(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
  if (code == CUDA_ERROR_INVALID_VALUE || (code == CUDA_SUCCESS && type != CU_MEMORYTYPE_DEVICE)) {
    return because(why, RH_ERR_INVALID_ARGUMENT, "0x%llx is %s, and a GPU's memory was expected", pointer, code == CUDA_SUCCESS ? "pinned memory of the host" : "no memory of CUDA");
  }
  if (code != CUDA_SUCCESS) return driverFailed(context.driver, "cuPointerGetAttribute", code, why);
  int device = -1;
  if (!attribute(context, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer, &device, why)) return false;
  if (device == context.device) return true;
  return because(why, RH_ERR_INVALID_ARGUMENT, "0x%llx is memory of device %d, and the comm is on device %d", pointer, device, context.device);
}

struct Allocation {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  bool covers(CUdeviceptr pointer, uint64_t n) const { return pointer >= base && pointer - base <= bytes && n <= bytes - (pointer - base); }
};

// Narrows the allocation to the mapping that pointer is in, which begins where its physical memory does. A range of addresses may hold many.
bool narrowToMapping(const Context& context, CUdeviceptr pointer, Allocation* of, Failure* why) {
  void* base = nullptr;
  size_t size = 0;
  if (!attribute(context, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, pointer, &base, why) || !attribute(context, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, pointer, &size, why)) return false;
  const Allocation mapping = {reinterpret_cast<CUdeviceptr>(base), size};
  if (!of->covers(mapping.base, mapping.bytes)) return true;  // the driver already gave something narrower
  *of = mapping;
  return true;
}

// Adds an allocation of cuMemCreate, of which handle is held, to the bundle. *out->reason says why not, if it cannot be shared.
bool addExported(const Context& context, CUmemGenericAllocationHandle handle, const Allocation& of, Shareable* out, Failure* why) {
  CUmemAllocationProp properties = {};
  if (!context.driver->cuMemGetAllocationPropertiesFromHandle(why, &properties, handle)) return false;
  if ((properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
    return cannot(out, "0x%llx was allocated by cuMemCreate without a POSIX descriptor (requestedHandleTypes is %u); %s", of.base,
                  static_cast<unsigned>(properties.requestedHandleTypes), kInstead);
  }
  int fd = -1;
  const CUresult code = context.driver->cuMemExportToShareableHandle.call(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (code != CUDA_SUCCESS) {
    Failure exporting;
    driverFailed(context.driver, "cuMemExportToShareableHandle", code, &exporting);
    return cannot(out, "0x%llx: the driver exports no descriptor of it, as of memory of another process: %.160s", of.base, exporting.text);
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  out->allocations.fds[out->allocations.count] = fd;
  out->allocations.bytes[out->allocations.count++] = of.bytes;
  out->allocationBytes += of.bytes;
  return true;
}

// Adds the allocation of cuMemCreate that pointer is in, of which handle is held.
bool shareOne(const Context& context, CUmemGenericAllocationHandle handle, CUdeviceptr pointer, Allocation* of, Shareable* out, Failure* why) {
  if (!context.driver->cuMemGetAddressRange(why, &of->base, &of->bytes, pointer) || !narrowToMapping(context, pointer, of, why)) return false;
  if (!of->covers(pointer, 1)) return because(why, RH_ERR_SYSTEM, "the driver says that 0x%llx is in the %zu bytes at 0x%llx", pointer, of->bytes, of->base);
  return addExported(context, handle, *of, out, why);
}

// Memory of cuMemCreate, in one allocation or several, as PyTorch's expandable segments are.
bool shareMapped(const Context& context, CUdeviceptr pointer, uint64_t bytes, Shareable* out, Failure* why) {
  const Driver& driver = *context.driver;
  out->allocationBytes = 0;
  for (CUdeviceptr next = pointer; next - pointer < bytes;) {
    const auto before = static_cast<unsigned64>(next - pointer);
    CUmemGenericAllocationHandle handle;
    const CUresult code = driver.cuMemRetainAllocationHandle.call(&handle, reinterpret_cast<void*>(next));
    if (code == CUDA_ERROR_INVALID_VALUE) {
      return because(why, RH_ERR_INVALID_ARGUMENT, "of the %llu bytes at 0x%llx only the first %llu are mapped", static_cast<unsigned64>(bytes), pointer, before);
    }
    if (code != CUDA_SUCCESS) return driverFailed(&driver, "cuMemRetainAllocationHandle", code, why);
    Allocation of;
    const bool full = out->allocations.count == Bundle::kMost;
    const bool found = full || shareOne(context, handle, next, &of, out, why);
    if (!driver.cuMemRelease(why, handle) || !found) return false;
    if (full) {
      return cannot(out, "0x%llx: the first %llu of %llu bytes lie in %d allocations, the most that can be shared together; register less at once, or %s", pointer, before,
                    static_cast<unsigned64>(bytes), Bundle::kMost, kInstead);
    }
    if (out->reason[0] != '\0') return true;
    if (next == pointer) out->offset = pointer - of.base;
    next = of.base + of.bytes;
  }
  out->by = ShareBy::kDescriptor;
  return true;
}

// Memory of cuMemAlloc, or of a pool.
bool shareAllocated(const Context& context, const Allocation& of, CUdeviceptr pointer, uint64_t bytes, Shareable* out, Failure* why) {
  if (!of.covers(pointer, bytes)) {
    return because(why, RH_ERR_INVALID_ARGUMENT, "of the %llu bytes at 0x%llx only the first %llu are allocated", static_cast<unsigned64>(bytes), pointer,
                   static_cast<unsigned64>(of.base + of.bytes - pointer));
  }
  unsigned int managed = 0, capable = 0;
  void* pool = nullptr;
  if (!attribute(context, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer, &managed, why) || !attribute(context, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer, &pool, why) ||
      !attribute(context, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pointer, &capable, why)) {
    return false;
  }
  if (managed != 0) return cannot(out, "0x%llx is managed memory (cudaMallocManaged), which other processes cannot map; %s", pointer, kInstead);
  if (pool != nullptr) {
    return cannot(out, "0x%llx is memory of a pool (cudaMallocAsync), which other processes cannot map; %s, or unset PyTorch's backend:cudaMallocAsync", pointer, kInstead);
  }
  if (capable == 0) return cannot(out, "0x%llx is memory that the driver does not share between processes (no CUDA IPC); %s", pointer, kInstead);
  const CUresult code = context.driver->cuIpcGetMemHandle.call(&out->handle, of.base);
  if (code != CUDA_SUCCESS) {
    Failure sharing;
    driverFailed(context.driver, "cuIpcGetMemHandle", code, &sharing);
    return cannot(out, "0x%llx: %.160s; %s", pointer, sharing.text, kInstead);
  }
  out->by = ShareBy::kIpc;
  return true;
}

}  // namespace

bool findShareable(const Context& context, CUdeviceptr pointer, uint64_t bytes, Shareable* out, Failure* why) {
  *out = Shareable();
  const Driver& driver = *context.driver;
  const Current current(context, why);
  if (!current || !checkPointer(context, pointer, why)) return false;
  CUmemGenericAllocationHandle handle;
  // It fails for memory that cuMemCreate did not make; that is how the two are told apart.
  if (driver.cuMemRetainAllocationHandle.call(&handle, reinterpret_cast<void*>(pointer)) == CUDA_SUCCESS) {
    const bool shared = driver.cuMemRelease(why, handle) && shareMapped(context, pointer, bytes, out, why);
    if (out->by != ShareBy::kDescriptor || !shared) closeAll(&out->allocations);
    return shared;
  }
  Allocation allocation;
  if (!driver.cuMemGetAddressRange(why, &allocation.base, &allocation.bytes, pointer)) return false;
  out->allocationBytes = allocation.bytes;
  out->offset = pointer - allocation.base;
  return shareAllocated(context, allocation, pointer, bytes, out, why);
}

}  // namespace railhead::client::cuda
