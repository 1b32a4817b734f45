/* A device for tests: streams, events and graphs, as a GPU has them, in ordinary threads. It is no part of the library.
 *
 * A stream is a thread with a queue: work is put there as a function and a copy of its arguments, and runs later, in order. While
 * a stream is captured its work goes into a graph in place of the queue; what was instantiated runs any number of times, on any
 * stream. A captured stream takes neither events nor other captures. Objects are the caller's to use from one thread at a time,
 * but for streams, which take work from any thread.
 *
 * Work that fails breaks the group of its comm. A stream keeps the first failure until it is synchronized.
 */
#ifndef RAILHEAD_CLIENT_DEVICE_THREADS_THREADS_H_
#define RAILHEAD_CLIENT_DEVICE_THREADS_THREADS_H_

#include "railhead.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rht_stream rht_stream; /* what calls take as their stream */
typedef struct rht_event rht_event;
typedef struct rht_graph rht_graph;
typedef struct rht_exec rht_exec; /* an instantiated graph */

/* Makes the device known to this process. Returns what comms call its kind. */
uint32_t rht_device_kind(void);

rh_result rht_stream_create(rht_stream **stream);
/* Waits for the work that is queued, then ends the stream. */
rh_result rht_stream_destroy(rht_stream *stream);
/* Waits for the work that is queued at this moment. Returns its first failure since the last synchronize, or TIMEOUT. */
rh_result rht_stream_synchronize(rht_stream *stream, uint32_t timeout_ms);
/* Its number in messages. */
rh_result rht_stream_number(rht_stream *stream, uint32_t *number);
/* Copies bytes in the order of the stream. Captured like any other work. */
rh_result rht_copy(void *to, const void *from, size_t bytes, rht_stream *stream);

rh_result rht_event_create(rht_event **event);
rh_result rht_event_destroy(rht_event *event);
rh_result rht_event_record(rht_event *event, rht_stream *stream);
/* The stream's later work waits for the work that the event's newest record was behind. */
rh_result rht_stream_wait(rht_stream *stream, rht_event *event);

rh_result rht_begin_capture(rht_stream *stream);
rh_result rht_end_capture(rht_stream *stream, rht_graph **graph);
/* How much work is in it. */
rh_result rht_graph_size(rht_graph *graph, uint32_t *size);
rh_result rht_graph_instantiate(rht_graph *graph, rht_exec **exec);
/* What captured calls keep is released when the graph, what was instantiated of it, and its launches are all gone. */
rh_result rht_graph_destroy(rht_graph *graph);
rh_result rht_exec_launch(rht_exec *exec, rht_stream *stream);
rh_result rht_exec_destroy(rht_exec *exec);

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_CLIENT_DEVICE_THREADS_THREADS_H_ */
