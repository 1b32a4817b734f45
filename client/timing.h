/* Loops that `railhead bench` times. They are in C so that the loop crosses no language boundary. They are not part of the ABI. */
#ifndef RAILHEAD_CLIENT_TIMING_H_
#define RAILHEAD_CLIENT_TIMING_H_

#include "railhead.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rh_timed_kind {
  RH_TIMED_ALL_REDUCE = 0,
  RH_TIMED_ALL_GATHER = 1,
  RH_TIMED_REDUCE_SCATTER = 2,
  RH_TIMED_ALL_TO_ALL = 3,
  RH_TIMED_BROADCAST = 4,
  RH_TIMED_REDUCE = 5,
  RH_TIMED_GATHER = 6,
  RH_TIMED_SCATTER = 7,
  RH_TIMED_SENDRECV = 8, /* a group: send to the next rank, receive from the previous one */
  RH_TIMED_BARRIER = 9
} rh_timed_kind;

/* An operation with its arguments. Arguments that the operation does not have are ignored. */
typedef struct rh_timed_operation {
  rh_timed_kind kind;
  const void *send;
  void *recv;
  size_t count;
  rh_dtype dtype;
  rh_op op;
  int32_t root;
} rh_timed_operation;

/* Runs the operation iterations times and stores the time of all of them together in total_ns. On a stream they are queued, and that is
 * timed. */
rh_result rh_time_operation(rh_timed_operation operation, rh_comm *comm, void *stream, int32_t iterations, uint64_t *total_ns);
/* The same loop around the one-shot f32 kernel, or on a stream around its launch. The time that rh_all_reduce takes longer is the cost of
 * the C ABI. */
rh_result rh_time_oneshot_kernel(const void *send, void *recv, size_t count, rh_comm *comm, void *stream, int32_t iterations,
                                 uint64_t *total_ns);

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_CLIENT_TIMING_H_ */
