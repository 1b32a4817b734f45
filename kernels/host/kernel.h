// What a kernel of the CPU target takes and returns. A kernel is one operation by one algorithm: a rank's part of it, run by one thread.
#ifndef RAILHEAD_KERNELS_HOST_KERNEL_H_
#define RAILHEAD_KERNELS_HOST_KERNEL_H_

#include <stddef.h>
#include <stdint.h>

#include "host/run_fold.h"
#include "host/types.h"
#include "railhead/exchange/flags.h"
#include "railhead/exchange/ring.h"

namespace railhead::host {

// A call of a collective among at least two ranks. All members but send, recv and the offers are the same on all ranks, and a group never
// changes its ring. Buffers may have any address and be in place as railhead.h says.
struct KernelCall {
  const FlagTeam& team;
  const RingPlan& ring;         // order and channels; `protocol` below replaces its protocol
  const RunKernels* elements = nullptr;  // of operations that reduce: of their type, on the instruction set of the comm
  ReduceOp reduce = {};         // the same
  int root = -1;                // the root's number in the team, of operations that have one
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;             // elements, as the argument of the operation in railhead.h
  size_t bytes = 0;             // the same in bytes
  uint64_t sendOffer = kNoOffset, recvOffer = kNoOffset;  // where the buffers lie in windows (flags.h)
  RingProtocol protocol = RingProtocol::kSimple;          // of a ring
  bool reproducible = false;    // sums must have the bits of fold.h
};

// How an operation ended.
struct Outcome {
  Stop stop;
  uint64_t missing;       // bit r = rank r had not arrived when it gave up (kMismatch: has called something else; kBadOffer: has offered what it does not have)
  Difference difference;  // of kMismatch
  bool declined;          // with kNone: it did not run, on any rank, and has changed nothing but the epoch. Another algorithm must run
};

using Kernel = Outcome (*)(const KernelCall&);

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_KERNEL_H_
