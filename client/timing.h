/* Loops that `railhead bench` times. Not part of the ABI: they only call it, without a language boundary in the loop. */
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
  RH_TIMED_SENDRECV = 8, /* a group: to the next rank, from the one before */
  RH_TIMED_BARRIER = 9
} rh_timed_kind;

/* An operation with its arguments. Those that it does not have are of no meaning. */
typedef struct rh_timed_operation {
  rh_timed_kind kind;
  const void *send;
  void *recv;
  size_t count;
  rh_dtype dtype;
  rh_op op;
  int32_t root;
} rh_timed_operation;

/* Runs the operation iterations times and stores the time of all of them together in total_ns. */
rh_result rh_time_operation(rh_timed_operation operation, rh_comm *comm, int32_t iterations, uint64_t *total_ns);
/* The same loop around the bare one-shot f32 kernel: what rh_all_reduce costs above it is the C ABI. */
rh_result rh_time_oneshot_kernel(const void *send, void *recv, size_t count, rh_comm *comm, int32_t iterations,
                                 uint64_t *total_ns);

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_CLIENT_TIMING_H_ */
