#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

#define DECLARE(name, release, parameters) int(*name) parameters;
static struct {
  DRIVER_FUNCTIONS(DECLARE)
} driver;  // NULL where the library lacks a function

// cuGetProcAddress of CUDA 12.0, whose name in the library is this one for good.
typedef int get_address(const char *name, void **address, int release, uint64_t flags, int *found);
static const char kGetAddress[] = "cuGetProcAddress_v2";
enum { kLegacyStream = 1 };  // flag: stream NULL is the legacy default stream

int driver_open(const char *path, char *error, size_t capacity) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *why = dlerror();
    snprintf(error, capacity, "%s", why != NULL ? why : "dlopen failed");
    return -1;
  }
  get_address *lookUp;
  *(void **)(&lookUp) = dlsym(library, kGetAddress);  // ISO C has no conversion from an object's pointer to a function's; POSIX has
  if (lookUp == NULL) {
    snprintf(error, capacity, "%s has no %s: it is not the CUDA driver's library, or the driver is older than CUDA 12", path, kGetAddress);
    dlclose(library);
    return -1;
  }
  int found;
#define LOOK_UP(name, release, parameters)                                                                        \
  if (lookUp(#name, (void **)(&driver.name), release, kLegacyStream, &found) != 0 || found != 0) driver.name = NULL;
  DRIVER_FUNCTIONS(LOOK_UP)
  return 0;
}

#define CALL(name, ...) (driver.name == NULL ? kMissing : driver.name(__VA_ARGS__))

// Runs a call with c as the thread's current context.
#define CALL_IN(c, name, ...)                \
  do {                                       \
    int r = CALL(cuCtxPushCurrent, c);       \
    if (r != 0) return r | kPush;            \
    r = CALL(name, __VA_ARGS__);             \
    context *popped;                         \
    (void)CALL(cuCtxPopCurrent, &popped);    \
    return r;                                \
  } while (0)

static device_pointer address(const void *p) { return (device_pointer)(uintptr_t)p; }

const char *driver_error_name(int result) {
  const char *text = NULL;
  return CALL(cuGetErrorName, result, &text) == 0 ? text : NULL;
}

const char *driver_error_text(int result) {
  const char *text = NULL;
  return CALL(cuGetErrorString, result, &text) == 0 ? text : NULL;
}

int driver_init(void) { return CALL(cuInit, 0); }
int driver_version(int *version) { return CALL(cuDriverGetVersion, version); }
int driver_device_count(int *count) { return CALL(cuDeviceGetCount, count); }
int driver_device_get(int *device, int ordinal) { return CALL(cuDeviceGet, device, ordinal); }
int driver_device_name(char *name, int capacity, int device) { return CALL(cuDeviceGetName, name, capacity, device); }
int driver_device_uuid(unsigned char uuid[16], int device) { return CALL(cuDeviceGetUuid, uuid, device); }
int driver_device_attribute(int *value, int attribute, int device) { return CALL(cuDeviceGetAttribute, value, attribute, device); }
int driver_device_bus_id(char *id, int capacity, int device) { return CALL(cuDeviceGetPCIBusId, id, capacity, device); }
int driver_device_memory(size_t *bytes, int device) { return CALL(cuDeviceTotalMem, bytes, device); }
int driver_context_retain(context **c, int device) { return CALL(cuDevicePrimaryCtxRetain, c, device); }
int driver_context_release(int device) { return CALL(cuDevicePrimaryCtxRelease, device); }
int driver_context_push(context *c) { return CALL(cuCtxPushCurrent, c); }

enum { kNonBlocking = 1, kThreadLocalCapture = 1, kDefaultEvent = 0, kPortable = 1 };

int driver_stream_create(context *c, stream **s) { CALL_IN(c, cuStreamCreate, s, kNonBlocking); }
int driver_stream_destroy(context *c, stream *s) { CALL_IN(c, cuStreamDestroy, s); }
int driver_stream_query(context *c, stream *s) { CALL_IN(c, cuStreamQuery, s); }
int driver_stream_wait(context *c, stream *s, event *e) { CALL_IN(c, cuStreamWaitEvent, s, e, 0); }
int driver_stream_begin_capture(context *c, stream *s) { CALL_IN(c, cuStreamBeginCapture, s, kThreadLocalCapture); }
int driver_stream_end_capture(context *c, stream *s, graph **g) { CALL_IN(c, cuStreamEndCapture, s, g); }
int driver_event_create(context *c, event **e) { CALL_IN(c, cuEventCreate, e, kDefaultEvent); }
int driver_event_destroy(context *c, event *e) { CALL_IN(c, cuEventDestroy, e); }
int driver_event_record(context *c, event *e, stream *s) { CALL_IN(c, cuEventRecord, e, s); }
int driver_event_query(context *c, event *e) { CALL_IN(c, cuEventQuery, e); }
int driver_event_elapsed(context *c, float *ms, event *from, event *to) { CALL_IN(c, cuEventElapsedTime, ms, from, to); }
int driver_graph_nodes(context *c, graph *g, size_t *nodes) { CALL_IN(c, cuGraphGetNodes, g, NULL, nodes); }
int driver_graph_instantiate(context *c, graph_exec **x, graph *g) { CALL_IN(c, cuGraphInstantiateWithFlags, x, g, 0); }
int driver_graph_launch(context *c, graph_exec *x, stream *s) { CALL_IN(c, cuGraphLaunch, x, s); }
int driver_graph_destroy(context *c, graph *g) { CALL_IN(c, cuGraphDestroy, g); }
int driver_graph_exec_destroy(context *c, graph_exec *x) { CALL_IN(c, cuGraphExecDestroy, x); }

// A device's address as a pointer, which is NULL after a failure.
int driver_alloc(context *c, void **p, size_t bytes) {
  *p = NULL;
  // The driver writes a CUdeviceptr, 64 bits, where the ABI has a pointer of 64 bits.
  _Static_assert(sizeof(void *) == sizeof(device_pointer), "addresses of the device fit a pointer");
  CALL_IN(c, cuMemAlloc, (device_pointer *)p, bytes);
}
int driver_free(context *c, void *p) { CALL_IN(c, cuMemFree, address(p)); }
int driver_alloc_pinned(context *c, void **p, size_t bytes) { CALL_IN(c, cuMemHostAlloc, p, bytes, kPortable); }
int driver_free_pinned(context *c, void *p) { CALL_IN(c, cuMemFreeHost, p); }
int driver_copy(context *c, void *to, const void *from, size_t bytes, stream *s) {
  CALL_IN(c, cuMemcpyAsync, address(to), address(from), bytes, s);
}
int driver_fill(context *c, void *to, unsigned char value, size_t bytes, stream *s) {
  CALL_IN(c, cuMemsetD8Async, address(to), value, bytes, s);
}
