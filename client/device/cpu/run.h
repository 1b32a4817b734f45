// Runs calls on the host's processors: the CPU device before a call returns, a device with host streams later. Each function counts, signs
// and records the operation, runs it, and breaks the group if it fails. The caller has exclusive use of the comm's operations.
#ifndef RAILHEAD_CLIENT_DEVICE_CPU_RUN_H_
#define RAILHEAD_CLIENT_DEVICE_CPU_RUN_H_

#include "comm/comm.h"

namespace railhead::client {

rh_result runCollective(Comm* comm, const CollectiveCall& call);

// On return the list says how far each transfer got.
rh_result runTransfers(Comm* comm, const TransfersCall& call);

// An all-gather of bytes under the signature of op.
rh_result runGather(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes);

// The same without counting and recording an operation, as a part of one. It breaks no group.
host::Outcome gatherBytes(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_DEVICE_CPU_RUN_H_
