// What the client calls: the kernels of the CPU target, compiled once for each instruction set, chosen when the library
// first needs them.
#ifndef RAILHEAD_KERNELS_HOST_KERNEL_SET_H_
#define RAILHEAD_KERNELS_HOST_KERNEL_SET_H_

#include <stddef.h>
#include <stdint.h>

#include "host/ep_row_kernels.h"
#include "host/types.h"
#include "railhead/base/tree.h"
#include "railhead/collectives/transfers.h"
#include "railhead/exchange/flags.h"
#include "railhead/exchange/ring.h"

namespace railhead::host {

// How an operation ended. missing: bit r = rank r had not arrived when it gave up (kMismatch: has called something else; kBadOffer: has offered what it does not have).
struct Outcome {
  Stop stop;
  uint64_t missing;
  Difference difference;  // of kMismatch
};

// The reductions of one element type. Buffers may have any address and be in place as railhead.h says. The world size is at
// least 2, but for local. count is in elements.
//
// Those named ...Pull are zero-copy: they take offers (flags.h), and return without a result, having changed nothing but the
// epoch, where a rank's offer is kNoOffset: *zeroCopy is then false, on every rank, and the caller takes another algorithm.
struct Reductions {
  Outcome (*oneshot)(const FlagTeam&, const ReduceOp&, const void* send, void* recv, size_t count);
  Outcome (*twoshot)(const FlagTeam&, const ReduceOp&, const void* send, void* recv, size_t count);
  Outcome (*pull)(const FlagTeam&, const ReduceOp&, uint64_t sendOffer, uint64_t recvOffer, size_t count, bool* zeroCopy);
  Outcome (*reduceScatter)(const FlagTeam&, const ReduceOp&, const void* send, void* recv, size_t count);
  Outcome (*reduceScatterPull)(const FlagTeam&, const ReduceOp&, uint64_t sendOffer, void* recv, size_t count, bool* zeroCopy);
  Outcome (*reduce)(const FlagTeam&, const ReduceOp&, int root, const void* send, void* recv, size_t count);
  Outcome (*tree)(const FlagTeam&, const ReduceOp&, Tree, const void* send, void* recv, size_t count);
  Outcome (*reduceScatterTree)(const FlagTeam&, const ReduceOp&, Tree, const void* send, void* recv, size_t count);
  // Not with the bits of the others: ring_run.h.
  Outcome (*ring)(const FlagTeam&, const RingPlan&, const ReduceOp&, const void* send, void* recv, size_t count);
  Outcome (*reduceScatterRing)(const FlagTeam&, const RingPlan&, const ReduceOp&, const void* send, void* recv, size_t count);
  // The reduction of a single rank's elements.
  void (*local)(const ReduceOp&, const void* send, void* recv, size_t count);
};

// Operations that only copy; bytes instead of elements.
struct Copies {
  Outcome (*allGather)(const FlagTeam&, const void* send, void* recv, size_t bytes);
  Outcome (*allGatherPull)(const FlagTeam&, uint64_t sendOffer, const void* send, void* recv, size_t bytes, bool* zeroCopy);
  Outcome (*allToAll)(const FlagTeam&, const void* send, void* recv, size_t bytes);
  Outcome (*allToAllPull)(const FlagTeam&, uint64_t sendOffer, void* recv, size_t bytes, bool* zeroCopy);
  Outcome (*allGatherRing)(const FlagTeam&, const RingPlan&, const void* send, void* recv, size_t bytes);
  Outcome (*allGatherTree)(const FlagTeam&, const RingPlan&, const void* send, void* recv, size_t bytes);
  Outcome (*broadcast)(const FlagTeam&, int root, void* buffer, size_t bytes);
  Outcome (*broadcastTree)(const FlagTeam&, const RingPlan&, Tree, int root, void* buffer, size_t bytes);
  Outcome (*transfers)(const FlagTeam&, Transfer* list, int n);
  Outcome (*barrier)(const FlagTeam&);
};

struct KernelSet {
  const char* isa;  // "portable", "avx2", "avx512"
  Reductions reductions[kTypes];  // by Type
  Copies copies;
  EpRowKernels rows;
};

// The best set for this processor; RAILHEAD_ISA names a lesser one (for tests and comparisons).
const KernelSet& kernels();

// A set by name, nullptr if this build or processor does not have it.
const KernelSet* kernelsFor(const char* isa);

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_KERNEL_SET_H_
