// The functions of NVIDIA's driver that this package calls, by dlopen. The types are those of the driver's ABI.
#ifndef RAILHEAD_INTERNAL_CUDA_DRIVER_H_
#define RAILHEAD_INTERNAL_CUDA_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

typedef struct context context;
typedef struct stream stream;
typedef struct event event;
typedef struct graph graph;
typedef struct graph_exec graph_exec;
typedef uint64_t device_pointer;  // CUdeviceptr

// Results that are not the driver's.
enum {
  kMissing = 1 << 28,  // the library lacks the function
  kPush = 1 << 29,     // flag: cuCtxPushCurrent failed, with the result in the lower bits
};

// F(name, release, parameters): the release of CUDA, 1000 * major + 10 * minor, whose form of the function is meant.
#define DRIVER_FUNCTIONS(F) \
  F(cuGetErrorName, 6000, (int, const char **))                               \
  F(cuGetErrorString, 6000, (int, const char **))                             \
  F(cuInit, 2000, (unsigned))                                                 \
  F(cuDriverGetVersion, 2020, (int *))                                        \
  F(cuDeviceGetCount, 2000, (int *))                                          \
  F(cuDeviceGet, 2000, (int *, int))                                          \
  F(cuDeviceGetName, 2000, (char *, int, int))                                \
  F(cuDeviceGetUuid, 11040, (void *, int))                                    \
  F(cuDeviceGetAttribute, 2000, (int *, int, int))                            \
  F(cuDeviceGetPCIBusId, 4010, (char *, int, int))                            \
  F(cuDeviceTotalMem, 3020, (size_t *, int))                                  \
  F(cuDevicePrimaryCtxRetain, 7000, (context **, int))                        \
  F(cuDevicePrimaryCtxRelease, 11000, (int))                                  \
  F(cuCtxPushCurrent, 4000, (context *))                                      \
  F(cuCtxPopCurrent, 4000, (context **))                                      \
  F(cuStreamCreate, 2000, (stream **, unsigned))                              \
  F(cuStreamDestroy, 4000, (stream *))                                        \
  F(cuStreamQuery, 2000, (stream *))                                          \
  F(cuStreamWaitEvent, 3020, (stream *, event *, unsigned))                   \
  F(cuStreamBeginCapture, 10010, (stream *, int))                             \
  F(cuStreamEndCapture, 10000, (stream *, graph **))                          \
  F(cuEventCreate, 2000, (event **, unsigned))                                \
  F(cuEventDestroy, 4000, (event *))                                          \
  F(cuEventRecord, 2000, (event *, stream *))                                 \
  F(cuEventQuery, 2000, (event *))                                            \
  F(cuEventElapsedTime, 2000, (float *, event *, event *))                    \
  F(cuGraphGetNodes, 10000, (graph *, void *, size_t *))                      \
  F(cuGraphInstantiateWithFlags, 11040, (graph_exec **, graph *, uint64_t))   \
  F(cuGraphLaunch, 10000, (graph_exec *, stream *))                           \
  F(cuGraphDestroy, 10000, (graph *))                                         \
  F(cuGraphExecDestroy, 10000, (graph_exec *))                                \
  F(cuMemAlloc, 3020, (device_pointer *, size_t))                             \
  F(cuMemFree, 3020, (device_pointer))                                        \
  F(cuMemHostAlloc, 2020, (void **, size_t, unsigned))                        \
  F(cuMemFreeHost, 2000, (void *))                                            \
  F(cuMemcpyAsync, 4000, (device_pointer, device_pointer, size_t, stream *))  \
  F(cuMemsetD8Async, 3020, (device_pointer, unsigned char, size_t, stream *))

// Opens the library and looks the functions up. Returns 0, or -1 with the reason in error. A later call replaces the functions.
int driver_open(const char *path, char *error, size_t capacity);

// The driver's name and text of a result, or NULL.
const char *driver_error_name(int result);
const char *driver_error_text(int result);

// One function for each of the driver's. Those with a context make it current on the calling thread, and restore the one before.
int driver_init(void);
int driver_version(int *version);
int driver_device_count(int *count);
int driver_device_get(int *device, int ordinal);
int driver_device_name(char *name, int capacity, int device);
int driver_device_uuid(unsigned char uuid[16], int device);
int driver_device_attribute(int *value, int attribute, int device);
int driver_device_bus_id(char *id, int capacity, int device);
int driver_device_memory(size_t *bytes, int device);
int driver_context_retain(context **c, int device);
int driver_context_release(int device);
int driver_context_push(context *c);
int driver_stream_create(context *c, stream **s);
int driver_stream_destroy(context *c, stream *s);
int driver_stream_query(context *c, stream *s);
int driver_stream_wait(context *c, stream *s, event *e);
int driver_stream_begin_capture(context *c, stream *s);
int driver_stream_end_capture(context *c, stream *s, graph **g);
int driver_event_create(context *c, event **e);
int driver_event_destroy(context *c, event *e);
int driver_event_record(context *c, event *e, stream *s);
int driver_event_query(context *c, event *e);
int driver_event_elapsed(context *c, float *ms, event *from, event *to);
int driver_graph_nodes(context *c, graph *g, size_t *nodes);
int driver_graph_instantiate(context *c, graph_exec **x, graph *g);
int driver_graph_launch(context *c, graph_exec *x, stream *s);
int driver_graph_destroy(context *c, graph *g);
int driver_graph_exec_destroy(context *c, graph_exec *x);
int driver_alloc(context *c, void **p, size_t bytes);
int driver_free(context *c, void *p);
int driver_alloc_pinned(context *c, void **p, size_t bytes);
int driver_free_pinned(context *c, void *p);
int driver_copy(context *c, void *to, const void *from, size_t bytes, stream *s);
int driver_fill(context *c, void *to, unsigned char value, size_t bytes, stream *s);

#endif  // RAILHEAD_INTERNAL_CUDA_DRIVER_H_
