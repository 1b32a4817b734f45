// What the client calls: the kernels of the CPU target, instantiated for each element type.
#ifndef RAILHEAD_KERNELS_HOST_ENTRY_H_
#define RAILHEAD_KERNELS_HOST_ENTRY_H_

#include <stddef.h>

#include "host/target.h"

namespace railhead::host {

// Each returns how it ended; on kTimeout and kAborted, missing tells who had not arrived.
Stop allReduceOneshotF32(const Team& team, const void* send, void* recv, size_t count, uint64_t* missing);
Stop allReduceOneshotBF16(const Team& team, const void* send, void* recv, size_t count, uint64_t* missing);
Stop barrier(const Team& team, uint64_t* missing);

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_ENTRY_H_
