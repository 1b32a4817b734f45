// NVIDIA's driver library, opened at run time: the library needs no CUDA to be built or loaded.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_DRIVER_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_DRIVER_H_

#include <stdint.h>

#include "base/malloced.h"
#include "device/cuda/driver_functions.h"
#include "device/cuda/driver_types.h"
#include "device/cuda/failure.h"

namespace railhead::client::cuda {

// The driver if loadDriver has loaded it, else nullptr. It waits for nothing.
const Driver* loadedDriver();

template <class Signature>
struct Function;

// A function of the driver.
template <class... Parameters>
struct Function<CUresult(Parameters...)> {
  using Pointer = CUresult (*)(Parameters...);
  const char* name;
  Pointer call = nullptr;

  // Calls it. False: it failed, and *why says so.
  bool operator()(Failure* why, Parameters... arguments) const {
    const CUresult code = call(arguments...);
    return code == CUDA_SUCCESS || driverFailed(loadedDriver(), name, code, why);
  }
};

// The driver's functions under their names in CUDA's documentation: driver.cuMemRelease(&why, handle) records a failure,
// driver.cuStreamQuery.call(stream) returns the code.
struct Driver : Malloced {
#define RAILHEAD_CUDA_MEMBER(name, release, parameters) Function<CUresult parameters> name = {#name};
  RAILHEAD_CUDA_FUNCTIONS(RAILHEAD_CUDA_MEMBER)
#undef RAILHEAD_CUDA_MEMBER
  int version = 0;  // the CUDA release that the driver supports: 1000 * major + 10 * minor
};

constexpr int kOldestDriver = 12040;  // CUDA 12.4, driver 550: the newest function of the table is of that release

// Opens libcuda.so.1, or the library that RAILHEAD_CUDA_LIBRARY names, looks up every function and initializes the driver, once in the
// process. Later calls return the same pointer, which is valid until the process ends. nullptr: *why says why there is no CUDA; a later
// call tries again. Any thread.
const Driver* loadDriver(Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_DRIVER_H_
