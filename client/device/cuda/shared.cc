#include "device/cuda/shared.h"

#include <string.h>

#include "device/cuda/host_memory.h"
#include "device/cuda/images.h"

namespace railhead::client::cuda {

namespace {

// A forked child has no CUDA, and never comes here.
pthread_mutex_t listed = PTHREAD_MUTEX_INITIALIZER;
Shared* all = nullptr;  // guarded by listed

// The entry of the context, with one more user. nullptr: out of memory.
Shared* entryOf(CUcontext context) {
  pthread_mutex_lock(&listed);
  Shared* s = all;
  while (s != nullptr && s->context != context) s = s->next;
  if (s != nullptr) {
    s->users++;
  } else if ((s = new Shared()) != nullptr) {
    s->context = context;
    s->next = all;
    all = s;
  }
  pthread_mutex_unlock(&listed);
  return s;
}

// False: there are other users. Otherwise the caller has the entry for itself.
bool dropEntry(Shared* shared) {
  pthread_mutex_lock(&listed);
  const bool last = --shared->users == 0;
  if (last) {
    Shared** at = &all;
    while (*at != shared) at = &(*at)->next;
    *at = shared->next;
  }
  pthread_mutex_unlock(&listed);
  return last;
}

// The compiler's log says why it refuses PTX.
bool loadModule(const Context& context, const char* image, CUmodule* module, Failure* why) {
  const Current current(context, why);
  if (!current) return false;
  char log[512] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  if (context.driver->cuModuleLoadDataEx(why, module, image, 2, options, values)) return true;
  *module = nullptr;
  log[sizeof log - 1] = '\0';
  return prefix(why, "the kernels cannot be loaded%s%s: ", log[0] == '\0' ? "" : ": ", log);
}

}  // namespace

Shared* share(const Context& context, uint32_t architecture, Failure* why) {
  Shared* s = entryOf(context.handle);
  if (s == nullptr) {
    because(why, RH_ERR_OUT_OF_MEMORY, "no memory for what the comms of a context share");
    return nullptr;
  }
  pthread_mutex_lock(&s->mutex);
  const bool loaded = s->module != nullptr || loadModule(context, imageFor(architecture), &s->module, why);
  pthread_mutex_unlock(&s->mutex);
  if (loaded) return s;
  unshare(context, s);
  return nullptr;
}

void unshare(const Context& context, Shared* shared) {
  if (!dropEntry(shared)) return;
  Failure ignored;
  for (Shared::Unused* u = shared->unused; u != nullptr;) {
    Shared::Unused* next = u->next;
    freeHost(context, u, &ignored);
    u = next;
  }
  const Current current(context);
  if (shared->module != nullptr) context.driver->cuModuleUnload.call(shared->module);
  if (shared->ep.module != nullptr) context.driver->cuModuleUnload.call(shared->ep.module);
  pthread_mutex_destroy(&shared->mutex);
  delete shared;
}

const EpKernels* shareEpKernels(const Context& context, Shared* shared, uint32_t architecture, Failure* why) {
  pthread_mutex_lock(&shared->mutex);
  EpKernels& ep = shared->ep;
  bool loaded = ep.module != nullptr;
  if (!loaded && loadModule(context, epImageFor(architecture), &ep.module, why)) {
    loaded = findEpKernels(context, &ep, why);
    if (!loaded) {
      const Current current(context);
      context.driver->cuModuleUnload.call(ep.module);
      ep = {};
    }
  }
  pthread_mutex_unlock(&shared->mutex);
  return loaded ? &ep : nullptr;
}

void* takePinned(const Context& context, Shared* shared, Failure* why) {
  pthread_mutex_lock(&shared->mutex);
  Shared::Unused* u = shared->unused;
  if (u != nullptr) shared->unused = u->next;
  pthread_mutex_unlock(&shared->mutex);
  return u == nullptr ? allocateHost(context, kPinnedBytes, why) : memset(static_cast<void*>(u), 0, kPinnedBytes);
}

void givePinnedBack(Shared* shared, void* memory) {
  auto* u = static_cast<Shared::Unused*>(memory);
  pthread_mutex_lock(&shared->mutex);
  u->next = shared->unused;
  shared->unused = u;
  pthread_mutex_unlock(&shared->mutex);
}

}  // namespace railhead::client::cuda
