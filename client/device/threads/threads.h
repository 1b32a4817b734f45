/* A device for tests: streams, events and graphs, as a GPU has them, in ordinary threads. It is not part of the library.
 *
 * A stream is a thread with a queue. A piece of work is a function with a copy of its arguments; pieces run in order. While a stream is
 * captured, its work goes into a graph instead of the queue. An instantiated graph can be launched any number of times, on any stream.
 * A captured stream accepts neither events nor launches of graphs. Streams may be used from any thread, other objects from one thread at
 * a time.
 *
 * Work that fails breaks the group of its comm. A stream keeps the first failure until it is synchronized.
 */
#ifndef RAILHEAD_CLIENT_DEVICE_THREADS_THREADS_H_
#define RAILHEAD_CLIENT_DEVICE_THREADS_THREADS_H_

#include "railhead.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rht_stream rht_stream; /* the stream argument of the library's calls */
typedef struct rht_event rht_event;
typedef struct rht_graph rht_graph;
typedef struct rht_exec rht_exec; /* an instantiated graph */

/* Registers the device in this process. Returns its device_kind for rh_comm_config. */
uint32_t rht_device_kind(void);

rh_result rht_stream_create(rht_stream **stream);
/* Waits for the work that is queued, then ends the stream. */
rh_result rht_stream_destroy(rht_stream *stream);
/* Waits for the work queued so far. Returns the first failure since the last synchronize, or TIMEOUT. */
rh_result rht_stream_synchronize(rht_stream *stream, uint32_t timeout_ms);
/* The stream's number in messages. */
rh_result rht_stream_number(rht_stream *stream, uint32_t *number);
/* Queues a copy, or captures it like any other work. */
rh_result rht_copy(void *to, const void *from, size_t bytes, rht_stream *stream);

rh_result rht_event_create(rht_event **event);
rh_result rht_event_destroy(rht_event *event);
rh_result rht_event_record(rht_event *event, rht_stream *stream);
/* Later work of the stream waits until the event's newest record has run. */
rh_result rht_stream_wait(rht_stream *stream, rht_event *event);

rh_result rht_begin_capture(rht_stream *stream);
rh_result rht_end_capture(rht_stream *stream, rht_graph **graph);
/* The number of pieces of work. */
rh_result rht_graph_size(rht_graph *graph, uint32_t *size);
rh_result rht_graph_instantiate(rht_graph *graph, rht_exec **exec);
/* What captured calls keep alive is released when the graph, its execs and its launches have all ended. */
rh_result rht_graph_destroy(rht_graph *graph);
rh_result rht_exec_launch(rht_exec *exec, rht_stream *stream);
rh_result rht_exec_destroy(rht_exec *exec);

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_CLIENT_DEVICE_THREADS_THREADS_H_ */
