// Calls of the data path: checking them, noting them in a group, and passing them to the comm's device.
#ifndef RAILHEAD_CLIENT_COLLECTIVES_OPERATION_H_
#define RAILHEAD_CLIENT_COLLECTIVES_OPERATION_H_

#include <stddef.h>
#include <stdint.h>

#include "base/element_types.h"
#include "comm/comm.h"
#include "host/types.h"
#include "railhead.h"
#include "wire.h"

namespace railhead::client {

inline bool isTransfer(const Operation& o) { return o.op == RHW_OP_SEND || o.op == RHW_OP_RECV; }

// A reduction made by rh_op_create_pre_mul_sum. Its number gives its index (modulo kMaxPreMulSums) and is unique in the process (for the
// first 2^25 of them), so that an op of another comm or a destroyed op is recognised.
struct PreMulSum {
  rh_op number;  // 0 = there is none
  rh_dtype dtype;
  unsigned char scalar[8];
};

// The op with that number; nullptr = the comm has none.
const PreMulSum* preMulSum(const Comm* comm, rh_op number);

// Checks all arguments of a call before it has any effect, and fills in o->reduce.
rh_result checkOperation(const Comm* comm, Operation* o, const void* stream);

// The bytes that a call reads and writes on this rank. If the buffers overlap, recv must lie inPlace bytes after send.
struct Buffers {
  size_t sendBytes, recvBytes;
  ptrdiff_t inPlace;
};
Buffers buffersOf(const Comm* comm, const Operation& o);

// Passes a checked collective (not a send or receive) to the comm's device. The caller has exclusive access to the comm.
rh_result submitOperation(Comm* comm, const Operation& o, void* stream);

// The same for checked sends and receives of one comm, which run concurrently. The list begins with pairs: a send of this rank to itself
// and the matching receive. n transfers with other ranks follow.
rh_result submitTransfers(Comm* comm, const Operation* list, int pairs, int n, uint32_t op, void* stream);

// Adds a call to this thread's group.
rh_result noteOperation(rh_comm* handle, const Operation& o, void* stream);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COLLECTIVES_OPERATION_H_
