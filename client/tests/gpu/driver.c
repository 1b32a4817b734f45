#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>

typedef unsigned long long address; /* CUdeviceptr */
typedef unsigned long long handle;  /* CUmemGenericAllocationHandle */

struct place { /* CUmemLocation */
  int type, id;
};
struct properties { /* CUmemAllocationProp */
  int type, handle_types;
  struct place place;
  void *other_system;
  unsigned char flags[8];
};
struct access { /* CUmemAccessDesc */
  struct place place;
  int flags;
};

/* name, version of cuGetProcAddress, parameters */
#define FUNCTIONS(X)                                                                     \
  X(cuInit, 2000, (unsigned))                                                            \
  X(cuDeviceGet, 2000, (int *, int))                                                     \
  X(cuDevicePrimaryCtxRetain, 7000, (void **, int))                                      \
  X(cuCtxPushCurrent, 4000, (void *))                                                    \
  X(cuCtxPopCurrent, 4000, (void **))                                                    \
  X(cuStreamCreate, 2000, (void **, unsigned))                                           \
  X(cuStreamDestroy, 4000, (void *))                                                     \
  X(cuStreamQuery, 2000, (void *))                                                       \
  X(cuStreamWaitEvent, 3020, (void *, void *, unsigned))                                 \
  X(cuEventCreate, 2000, (void **, unsigned))                                            \
  X(cuEventDestroy, 4000, (void *))                                                      \
  X(cuEventRecord, 2000, (void *, void *))                                               \
  X(cuMemAlloc, 3020, (address *, size_t))                                               \
  X(cuMemFree, 3020, (address))                                                          \
  X(cuMemsetD8, 3020, (address, unsigned char, size_t))                                  \
  X(cuMemcpyAsync, 4000, (address, address, size_t, void *))                             \
  X(cuMemAddressReserve, 10020, (address *, size_t, size_t, address, unsigned long long)) \
  X(cuMemAddressFree, 10020, (address, size_t))                                          \
  X(cuMemCreate, 10020, (handle *, size_t, const struct properties *, unsigned long long)) \
  X(cuMemRelease, 10020, (handle))                                                       \
  X(cuMemMap, 10020, (address, size_t, size_t, handle, unsigned long long))              \
  X(cuMemUnmap, 10020, (address, size_t))                                                \
  X(cuMemSetAccess, 10020, (address, size_t, const struct access *, size_t))             \
  X(cuStreamBeginCapture, 10010, (void *, unsigned))                                     \
  X(cuStreamEndCapture, 10000, (void *, void **))                                        \
  X(cuGraphGetNodes, 10000, (void *, void **, size_t *))                                 \
  X(cuGraphDestroy, 10000, (void *))                                                     \
  X(cuGraphInstantiateWithFlags, 11040, (void **, void *, unsigned long long))           \
  X(cuGraphLaunch, 10000, (void *, void *))                                              \
  X(cuGraphExecDestroy, 10000, (void *))

#define DECLARE(name, version, parameters) static int(*name) parameters;
FUNCTIONS(DECLARE)

static const char *missing;
static void *library;

static void *find(const char *name, int version) {
  static int (*lookup)(const char *, void **, int, uint64_t, int *);
  if (lookup == NULL) *(void **)&lookup = dlsym(library, "cuGetProcAddress_v2");
  void *found = NULL;
  int why;
  if (lookup == NULL || lookup(name, &found, version, 1 /* CU_GET_PROC_ADDRESS_LEGACY_STREAM */, &why) != 0 || found == NULL) missing = name;
  return found;
}

const char *gpu_open(const char *name) {
  if (library != NULL) return missing;
  library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return dlerror();
#define FIND(name, version, parameters) *(void **)&name = find(#name, version);
  FUNCTIONS(FIND)
  if (missing == NULL && cuInit(0) != 0) missing = "cuInit: no driver or device";
  return missing;
}

/* The primary contexts of the devices, retained until the process ends, as the CUDA runtime does. */
static void *contexts[64];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

int gpu_enter(int ordinal) {
  int device, r = 0;
  if (ordinal < 0 || ordinal >= 64) return 101;
  pthread_mutex_lock(&mutex);
  if (contexts[ordinal] == NULL) {
    r = cuDeviceGet(&device, ordinal);
    if (r == 0) r = cuDevicePrimaryCtxRetain(&contexts[ordinal], device);
  }
  pthread_mutex_unlock(&mutex);
  return r == 0 ? cuCtxPushCurrent(contexts[ordinal]) : r;
}

void gpu_leave(void) {
  void *popped;
  cuCtxPopCurrent(&popped);
}

int gpu_stream_create(void **stream) { return cuStreamCreate(stream, 1 /* CU_STREAM_NON_BLOCKING, as PyTorch's */); }
int gpu_stream_destroy(void *stream) { return cuStreamDestroy(stream); }
int gpu_stream_query(void *stream) { return cuStreamQuery(stream); }
int gpu_copy(void *to, const void *from, size_t bytes, void *stream) {
  return cuMemcpyAsync((address)(uintptr_t)to, (address)(uintptr_t)from, bytes, stream);
}
int gpu_alloc(void **memory, size_t bytes) {
  address at = 0;
  int r = cuMemAlloc(&at, bytes);
  if (r == 0) r = cuMemsetD8(at, 0, bytes);
  *memory = (void *)(uintptr_t)at;
  return r;
}
int gpu_free(void *memory) { return cuMemFree((address)(uintptr_t)memory); }
static int map_piece(address at, int device, size_t bytes, int handle_types) {
  const struct properties properties = {1 /* CU_MEM_ALLOCATION_TYPE_PINNED */, handle_types, {1 /* CU_MEM_LOCATION_TYPE_DEVICE */, device}, NULL, {0}};
  const struct access access = {properties.place, 3 /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */};
  handle piece;
  int r = cuMemCreate(&piece, bytes, &properties, 0);
  if (r != 0) return r;
  r = cuMemMap(at, bytes, 0, piece, 0);
  cuMemRelease(piece); /* what is mapped stays */
  return r == 0 ? cuMemSetAccess(at, bytes, &access, 1) : r;
}
int gpu_map(void **memory, int device, size_t piece, int pieces, int shareable) {
  address at = 0;
  int r = cuMemAddressReserve(&at, piece * (size_t)pieces, 0, 0, 0);
  for (int i = 0; i < pieces && r == 0; i++) r = map_piece(at + piece * (size_t)i, device, piece, shareable ? 1 /* a POSIX descriptor */ : 0);
  if (r == 0) r = cuMemsetD8(at, 0, piece * (size_t)pieces);
  *memory = (void *)(uintptr_t)at;
  return r;
}
int gpu_unmap(void *memory, size_t bytes) {
  const int r = cuMemUnmap((address)(uintptr_t)memory, bytes);
  return r == 0 ? cuMemAddressFree((address)(uintptr_t)memory, bytes) : r;
}
int gpu_event_create(void **event) { return cuEventCreate(event, 2 /* CU_EVENT_DISABLE_TIMING */); }
int gpu_event_destroy(void *event) { return cuEventDestroy(event); }
int gpu_event_record(void *event, void *stream) { return cuEventRecord(event, stream); }
int gpu_stream_wait(void *stream, void *event) { return cuStreamWaitEvent(stream, event, 0); }
int gpu_begin_capture(void *stream) { return cuStreamBeginCapture(stream, 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */); }
int gpu_end_capture(void *stream, void **graph) { return cuStreamEndCapture(stream, graph); }
int gpu_graph_size(void *graph, size_t *nodes) { return cuGraphGetNodes(graph, NULL, nodes); }
int gpu_graph_destroy(void *graph) { return cuGraphDestroy(graph); }
int gpu_instantiate(void **exec, void *graph) { return cuGraphInstantiateWithFlags(exec, graph, 0); }
int gpu_exec_launch(void *exec, void *stream) { return cuGraphLaunch(exec, stream); }
int gpu_exec_destroy(void *exec) { return cuGraphExecDestroy(exec); }

int gpu_read_account(struct gpu_account *account) {
  void (*read)(struct gpu_account *);
  *(void **)&read = dlsym(library, "fake_cuda_read_account");
  if (read != NULL) read(account);
  return read != NULL;
}

long gpu_calls(const char *function) {
  long (*calls)(const char *);
  *(void **)&calls = dlsym(library, "fake_cuda_calls");
  return calls == NULL ? -1 : calls(function);
}

int gpu_fail(const char *function, long nth, unsigned code) {
  void (*fail)(const char *, long, unsigned);
  *(void **)&fail = dlsym(library, "fake_cuda_fail");
  if (fail != NULL) fail(function, nth, code);
  return fail != NULL;
}

int gpu_delay(const char *function, unsigned milliseconds) {
  void (*delay)(const char *, unsigned);
  *(void **)&delay = dlsym(library, "fake_cuda_delay");
  if (delay != NULL) delay(function, milliseconds);
  return delay != NULL;
}
