/* The part of the CUDA driver API that an application uses: streams, events, graphs, device memory. For tests. Results are the driver's. */
#ifndef RAILHEAD_CLIENT_TESTS_GPU_DRIVER_H_
#define RAILHEAD_CLIENT_TESTS_GPU_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

/* Opens the library, once. Returns NULL, or what is missing. */
const char *gpu_open(const char *library);

/* Makes the device's primary context current in this thread, until gpu_leave. */
int gpu_enter(int device);
void gpu_leave(void);

int gpu_stream_create(void **stream);
int gpu_stream_destroy(void *stream);
int gpu_stream_query(void *stream); /* 600: it has work that has not run */
int gpu_copy(void *to, const void *from, size_t bytes, void *stream);
int gpu_alloc(void **memory, size_t bytes); /* zeroed */
int gpu_free(void *memory);
/* Zeroed memory of allocations that follow each other, each of `piece` bytes, as of PyTorch's expandable segments. shareable: other processes may
   map it. After a failure what has been made stays until the process ends. */
int gpu_map(void **memory, int device, size_t piece, int pieces, int shareable);
int gpu_unmap(void *memory, size_t bytes);
int gpu_event_create(void **event);
int gpu_event_destroy(void *event);
int gpu_event_record(void *event, void *stream);
int gpu_stream_wait(void *stream, void *event);
int gpu_begin_capture(void *stream);
int gpu_end_capture(void *stream, void **graph);
int gpu_graph_size(void *graph, size_t *nodes);
int gpu_graph_destroy(void *graph);
int gpu_instantiate(void **exec, void *graph);
int gpu_exec_launch(void *exec, void *stream);
int gpu_exec_destroy(void *exec);

/* Of the driver for tests (client/device/cuda/fake/c/hooks.h): what this process holds, and a failure of the nth call of a function from now
   on. 0: the driver is another one. */
struct gpu_account {
  long contexts, streams, events, graphs, execs, user_objects, modules, reservations, handles, mappings, allocations, opened, pinned;
};
int gpu_read_account(struct gpu_account *account);
long gpu_calls(const char *function);
int gpu_fail(const char *function, long nth, unsigned code);
int gpu_delay(const char *function, unsigned milliseconds);

#endif
