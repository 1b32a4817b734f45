// Why something of CUDA could not be done.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_FAILURE_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_FAILURE_H_

#include <stddef.h>

#include "device/cuda/driver_types.h"
#include "railhead.h"

namespace railhead::client::cuda {

struct Driver;

// The first thing that failed. Its text names what was tried, the value and what to do; the caller puts the operation and the rank before it:
// fail(why.result, "window_alloc: rank %d: %s", rank, why.text).
struct Failure {
  Failure() { text[0] = '\0'; }  // no more: every call of the data path makes one

  rh_result result = RH_OK;
  CUresult code = CUDA_SUCCESS;  // what the driver returned; CUDA_SUCCESS: the reason was another one
  char text[640];
};

// Records a reason, printf-style, unless there is one already. Returns false.
bool because(Failure* why, rh_result result, const char* format, ...) __attribute__((format(printf, 3, 4)));

// Puts words before the text of a failure. Returns false.
bool prefix(Failure* why, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Records that a function of the driver returned code, which is not CUDA_SUCCESS, as
// "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; <what to do>", unless there is a reason already. Returns false.
// driver: for its texts; nullptr = not loaded.
bool driverFailed(const Driver* driver, const char* function, CUresult code, Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_FAILURE_H_
