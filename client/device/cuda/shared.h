// What the comms of one context share: the module of their kernels, and pinned memory. The driver waits for all kernels of a context before it unloads a
// module or frees pinned memory. So both stay until the last comm of the context has ended: the end of another one waits for no kernel of the others.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_SHARED_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_SHARED_H_

#include <pthread.h>
#include <stdint.h>

#include "base/malloced.h"
#include "device/cuda/context.h"
#include "device/cuda/ep_kernels.h"
#include "railhead/gpu/launch.h"

namespace railhead::client::cuda {

struct Shared : Malloced {
  CUcontext context;
  // Guarded by the mutex of the list, as is next.
  int users = 1;
  Shared* next;
  // Guarded by mutex. The first user loads the module, the others wait for it.
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  CUmodule module = nullptr;
  EpKernels ep;  // loaded by the first buffer of dispatch and combine
  struct Unused {
    Unused* next;
  }* unused = nullptr;  // kPinnedBytes each
};

// What the comms of the context share, with one more user. Its module is loaded for the architecture. nullptr: *why says why. Any thread.
Shared* share(const Context& context, uint32_t architecture, Failure* why);
// Ends one use. After the last one no kernel of the module may be running.
void unshare(const Context& context, Shared* shared);

// The kernels of dispatch and combine, for the same architecture. nullptr: *why says why. Any thread.
const EpKernels* shareEpKernels(const Context& context, Shared* shared, uint32_t architecture, Failure* why);

// Pinned memory of kPinnedBytes, zeroed. nullptr: *why says why.
constexpr uint64_t kPinnedBytes = 16384;
static_assert(sizeof(gpu::Status) <= kPinnedBytes, "a comm's fits");
void* takePinned(const Context& context, Shared* shared, Failure* why);
// No kernel uses it any more.
void givePinnedBack(Shared* shared, void* memory);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_SHARED_H_
