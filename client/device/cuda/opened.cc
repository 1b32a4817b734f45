#include "device/cuda/opened.h"

#include <pthread.h>
#include <string.h>

#include "base/fork.h"
#include "base/malloced.h"
#include "device/cuda/memory.h"

namespace railhead::client::cuda {

namespace {

using unsigned64 = unsigned long long;

// A handle that is open in this process.
struct OpenHandle : Malloced {
  CUcontext context;
  CUipcMemHandle handle;
  CUdeviceptr base;
  uint64_t users = 1;
  OpenHandle* next;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards the list; held while the driver opens or closes a handle
OpenHandle* handles = nullptr;

// In the child of a fork there is no CUDA, and another thread of the parent may have held the lock.
void forget() {
  pthread_mutex_init(&mutex, nullptr);
  handles = nullptr;
}

void watchForksOnce() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] {
    static ForkHandler handler = {forget};
    addForkHandler(&handler);
  });
}

OpenHandle** find(CUcontext context, const CUipcMemHandle& handle) {
  OpenHandle** h = &handles;
  while (*h != nullptr && ((*h)->context != context || memcmp(&(*h)->handle, &handle, sizeof handle) != 0)) h = &(*h)->next;
  return h;
}

OpenHandle** findByBase(CUcontext context, CUdeviceptr base) {
  OpenHandle** h = &handles;
  while (*h != nullptr && ((*h)->context != context || (*h)->base != base)) h = &(*h)->next;
  return h;
}

// Opens the handle, or counts another user of it. The caller holds the lock and has made the context current.
bool openLocked(const Context& context, const CUipcMemHandle& handle, CUdeviceptr* base, Failure* why) {
  if (OpenHandle* before = *find(context.handle, handle)) {
    before->users++;
    *base = before->base;
    return true;
  }
  auto* opened = new OpenHandle();
  if (opened == nullptr) return because(why, RH_ERR_OUT_OF_MEMORY, "no memory to note an open handle");
  if (!context.driver->cuIpcOpenMemHandle(why, &opened->base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) {
    delete opened;
    return prefix(why, "device %d cannot open memory of another process (a process cannot open its own): ", context.device);
  }
  opened->context = context.handle;
  opened->handle = handle;
  opened->next = handles;
  handles = opened;
  *base = opened->base;
  return true;
}

bool closeLocked(const Context& context, CUdeviceptr base, Failure* why) {
  OpenHandle** found = findByBase(context.handle, base);
  OpenHandle* opened = *found;
  if (opened == nullptr) return because(why, RH_ERR_INVALID_ARGUMENT, "no open memory of another process begins at 0x%llx", base);
  if (--opened->users > 0) return true;
  *found = opened->next;
  delete opened;
  return context.driver->cuIpcCloseMemHandle(why, base);
}

// The range that a descriptor's allocation is mapped at.
bool reserveAndMap(const Context& context, int fd, uint64_t bytes, uint64_t alignment, CUdeviceptr* at, Failure* why) {
  if (!context.driver->cuMemAddressReserve(why, at, bytes, alignment, 0, 0)) return false;
  if (mapDescriptor(context, *at, bytes, fd, why)) return true;
  context.driver->cuMemAddressFree.call(*at, bytes);
  return false;
}

}  // namespace

bool openDescriptor(const Context& context, int fd, uint64_t allocationBytes, Opened* out, Failure* why) {
  *out = Opened();
  uint64_t granularity;
  if (!memoryGranularity(context, &granularity, why)) return false;
  if (allocationBytes == 0 || allocationBytes % granularity != 0) {
    return because(why, RH_ERR_PROTOCOL, "an allocation of %llu bytes, which is no multiple of %llu", static_cast<unsigned64>(allocationBytes),
                   static_cast<unsigned64>(granularity));
  }
  const Current current(context, why);
  CUdeviceptr at = 0;
  if (!current || !reserveAndMap(context, fd, allocationBytes, granularity, &at, why)) {
    return prefix(why, "device %d: mapping an allocation of %llu bytes of another process: ", context.device, static_cast<unsigned64>(allocationBytes));
  }
  *out = {at, allocationBytes, ShareBy::kDescriptor};
  return true;
}

bool openIpc(const Context& context, const CUipcMemHandle& handle, uint64_t allocationBytes, Opened* out, Failure* why) {
  *out = Opened();
  watchForksOnce();
  const Current current(context, why);
  if (!current) return false;
  CUdeviceptr base = 0;
  pthread_mutex_lock(&mutex);
  const bool opened = openLocked(context, handle, &base, why);
  pthread_mutex_unlock(&mutex);
  if (!opened) return false;
  *out = {base, allocationBytes, ShareBy::kIpc};
  // What the other rank said of its allocation must be true of the mapping, before addresses are computed with it.
  CUdeviceptr start = 0;
  size_t size = 0;
  const bool known = context.driver->cuMemGetAddressRange(why, &start, &size, base);
  // A small allocation may be part of a larger block, all of which is mapped.
  const size_t before = base - start;
  if (known && start <= base && before <= size && allocationBytes <= size - before) return true;
  if (known) {
    because(why, RH_ERR_PROTOCOL, "an allocation of another process has %zu bytes from where the handle points, not %llu", size - before, static_cast<unsigned64>(allocationBytes));
  }
  closeOpened(context, out, why);
  return false;
}

bool closeOpened(const Context& context, Opened* opened, Failure* why) {
  const Opened of = *opened;
  *opened = Opened();
  if (of.base == 0) return true;
  const Current current(context);
  if (of.by == ShareBy::kDescriptor) {
    return context.driver->cuMemUnmap(why, of.base, of.bytes) && context.driver->cuMemAddressFree(why, of.base, of.bytes);
  }
  pthread_mutex_lock(&mutex);
  const bool closed = closeLocked(context, of.base, why);
  pthread_mutex_unlock(&mutex);
  return closed;
}

}  // namespace railhead::client::cuda
