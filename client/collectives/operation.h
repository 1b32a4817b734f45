// Calls of the data path: checked, noted in a group, and given to the comm's device.
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

// What rh_op_create_pre_mul_sum made. Its number says where it is (modulo kMaxPreMulSums) and is given once in a process (up to
// 2^25 of them), so that an op of another comm, or one that was destroyed, is told from it.
struct PreMulSum {
  rh_op number;  // 0 = there is none
  rh_dtype dtype;
  unsigned char scalar[8];
};

// The op of that number, nullptr where the comm has none.
const PreMulSum* preMulSum(const Comm* comm, rh_op number);

// Everything that can be wrong with a call before anything is done; fills o->reduce.
rh_result checkOperation(const Comm* comm, Operation* o, const void* stream);

// The bytes that a call reads and writes on this rank. Where they overlap, recv must be at this distance from send.
struct Buffers {
  size_t sendBytes, recvBytes;
  ptrdiff_t inPlace;
};
Buffers buffersOf(const Comm* comm, const Operation& o);

// Gives a checked call that is no transfer to the comm's device. The caller has the comm to itself.
rh_result submitOperation(Comm* comm, const Operation& o, void* stream);

// The same for checked sends and receives of one comm, at the same time: first pairs of a send of this rank to itself and its receive,
// then n that are with other ranks.
rh_result submitTransfers(Comm* comm, const Operation* list, int pairs, int n, uint32_t op, void* stream);

// Notes a call in this thread's group.
rh_result noteOperation(rh_comm* handle, const Operation& o, void* stream);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COLLECTIVES_OPERATION_H_
