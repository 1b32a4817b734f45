// Running calls on the host's processors: what the CPU device does before a call returns, and a device with streams does later.
// Each function counts, signs and records the operation, runs it, and breaks the group where it fails. Whoever calls it has the
// comm's operations to itself.
#ifndef RAILHEAD_CLIENT_DEVICE_CPU_RUN_H_
#define RAILHEAD_CLIENT_DEVICE_CPU_RUN_H_

#include "comm/comm.h"

namespace railhead::client {

rh_result runCollective(Comm* comm, const CollectiveCall& call);

// Leaves the list with how far each transfer has come.
rh_result runTransfers(Comm* comm, const TransfersCall& call);

// An all-gather of bytes under the signature of op.
rh_result runGather(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_DEVICE_CPU_RUN_H_
