// One call of the data path, as the engine made it: what is checked, noted in a group, signed and run.
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

struct Operation {
  uint32_t op;  // rhw_op
  const void* send;
  void* recv;
  size_t count;  // elements, as the call names them
  rh_dtype dtype;
  rh_op reduction;
  int32_t root;  // or peer; -1 = the operation has none
  railhead::host::ReduceOp reduce;  // filled by checkOperation
};

inline bool isTransfer(const Operation& o) { return o.op == RHW_OP_SEND || o.op == RHW_OP_RECV; }
inline size_t bytesOf(const Operation& o) { return o.count * sizeOf(o.dtype); }

// Everything that can be wrong with a call before anything is done; fills o->reduce.
rh_result checkOperation(const Comm* comm, Operation* o, const void* stream);

// Runs a checked call. The caller has the comm to itself.
rh_result runOperation(Comm* comm, const Operation& o);

// Runs checked sends and receives of one comm at the same time. They are none to or from this rank itself.
rh_result runTransfers(Comm* comm, const Operation* list, int n, uint32_t op);

// What all ranks must have called alike, as the comm's next collective.
railhead::Signature signatureOf(Comm* comm, const Operation& o);

// Notes a call in this thread's group.
rh_result noteOperation(rh_comm* handle, const Operation& o, const void* stream);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COLLECTIVES_OPERATION_H_
