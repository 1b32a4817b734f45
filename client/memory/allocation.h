// How the ranks of a group allocate memory at the same offset of all heaps. Each function is a collective that survives restarts of the
// daemon; the caller has begun the operation. Either all ranks have the memory afterwards, or none has.
#ifndef RAILHEAD_CLIENT_MEMORY_ALLOCATION_H_
#define RAILHEAD_CLIENT_MEMORY_ALLOCATION_H_

#include <stdint.h>

#include "comm/comm.h"

namespace railhead::client {

// In the heaps.
rh_result allocateHostMemory(Comm* comm, uint64_t bytes, uint64_t* offset);

// In the device heaps, where every rank maps the memory of all ranks. The kernels' scratch is the first such memory.
rh_result allocateDeviceMemory(Comm* comm, uint64_t bytes, uint64_t* offset);

// Frees what allocateDeviceMemory has allocated, on all ranks. No call may use it.
rh_result freeDeviceMemory(Comm* comm, uint64_t offset, uint64_t bytes);

// Bytes of device memory that an allocation of that size has.
inline uint64_t wholeGranules(const Comm* comm, uint64_t bytes) {
  const uint64_t g = comm->deviceGranularity;
  return (bytes + g - 1) / g * g;
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_MEMORY_ALLOCATION_H_
