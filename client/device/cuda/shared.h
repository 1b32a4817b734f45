// What the comms of one context share: the module of their kernels, and pinned memory. The driver waits for all kernels of a context before it unloads a
// module or frees pinned memory. So both stay until the last comm of the context has ended: the end of another one waits for no kernel of the others.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_SHARED_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_SHARED_H_

#include <pthread.h>
#include <stdint.h>

#include "base/malloced.h"
#include "device/cuda/context.h"
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
  struct Unused {
    Unused* next;
  }* unused = nullptr;  // memory of a Status each
};

// What the comms of the context share, with one more user. Its module is loaded for the architecture. nullptr: *why says why. Any thread.
Shared* share(const Context& context, uint32_t architecture, Failure* why);
// Ends one use. After the last one no kernel of the module may be running.
void unshare(const Context& context, Shared* shared);

// Pinned memory of a comm, zeroed. nullptr: *why says why.
gpu::Status* takeStatus(const Context& context, Shared* shared, Failure* why);
// No kernel uses it any more.
void giveStatusBack(Shared* shared, gpu::Status* status);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_SHARED_H_
