/* Loops that `railhead bench` times. Not part of the ABI: they only call it, without a language boundary in the loop. */
#ifndef RAILHEAD_CLIENT_TIMING_H_
#define RAILHEAD_CLIENT_TIMING_H_

#include "railhead.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs the operation iterations times and stores the time of all of them together in total_ns. */
rh_result rh_time_all_reduce(const void *send, void *recv, size_t count, rh_dtype dtype, rh_comm *comm, int32_t iterations,
                             uint64_t *total_ns);
/* The same loop around the bare one-shot f32 kernel: what rh_all_reduce costs above it is the C ABI. */
rh_result rh_time_oneshot_kernel(const void *send, void *recv, size_t count, rh_comm *comm, int32_t iterations,
                                 uint64_t *total_ns);
rh_result rh_time_barrier(rh_comm *comm, int32_t iterations, uint64_t *total_ns);

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_CLIENT_TIMING_H_ */
