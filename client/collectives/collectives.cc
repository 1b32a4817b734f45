// The data path: a checked call runs the kernel that the daemon's plans name.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "collectives/operation.h"
#include "comm/choice.h"
#include "comm/thread_group.h"
#include "host/kernel_set.h"
#include "memory/window.h"

namespace railhead::client {

namespace {

using host::Outcome;

// Where a buffer lies for the other ranks, as an offer (railhead/exchange/flags.h); kNoOffset if they cannot see it.
uint64_t offerOf(const Comm* comm, const void* buffer, uint64_t bytes) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(buffer) - reinterpret_cast<uintptr_t>(comm->team.heap[comm->rank]);
  const bool inside = offset >= comm->scratchBytes && offset < comm->heapBytes && bytes <= comm->heapBytes - offset;
  return inside ? offset : offerInRegions(comm, buffer, bytes);
}

const host::Reductions& reductionsOf(const Comm* comm, const Operation& o) { return comm->kernels->reductions[o.dtype]; }

// Ranks multiply their contributions themselves: nobody else may take them from where they lie.
bool mayPull(const Comm* comm, const Operation& o, int planned, uint64_t bytes, Choice* choice) {
  const Choice c = choose(comm->plans.zero_copy[planned], bytes);
  if (c.algo != RHW_ALGO_PULL || o.reduce.kind == host::Reduction::kPreMulSum) return false;
  *choice = c;
  return true;
}

RingPlan ringFor(const Comm* comm, uint64_t bytes) {
  RingPlan ring = comm->ring;
  ring.protocol = bytes < comm->plans.ll_below_bytes ? RingProtocol::kLL : RingProtocol::kSimple;
  return ring;
}

Outcome allReduce(const Comm* comm, const Operation& o, Choice* choice) {
  const host::Reductions& kernels = reductionsOf(comm, o);
  const uint64_t bytes = bytesOf(o);
  if (mayPull(comm, o, RHW_PLAN_ALL_REDUCE, bytes, choice)) {
    bool zeroCopy = false;
    const Outcome outcome = kernels.pull(comm->team, o.reduce, offerOf(comm, o.send, bytes), offerOf(comm, o.recv, bytes), o.count, &zeroCopy);
    if (outcome.stop != Stop::kNone || zeroCopy) return outcome;
  }
  *choice = choose(comm->plans.copied[RHW_PLAN_ALL_REDUCE], bytes);
  switch (choice->algo) {
    case RHW_ALGO_RING:
      if (comm->reproducible == 0) return kernels.ring(comm->team, ringFor(comm, bytes), o.reduce, o.send, o.recv, o.count);
      return kernels.tree(comm->team, o.reduce, Tree::kChain, o.send, o.recv, o.count);
    case RHW_ALGO_TREE: return kernels.tree(comm->team, o.reduce, Tree::kDouble, o.send, o.recv, o.count);
    case RHW_ALGO_TWOSHOT: return kernels.twoshot(comm->team, o.reduce, o.send, o.recv, o.count);
    default: return kernels.oneshot(comm->team, o.reduce, o.send, o.recv, o.count);
  }
}

Outcome reduceScatter(const Comm* comm, const Operation& o, Choice* choice) {
  const host::Reductions& kernels = reductionsOf(comm, o);
  const uint64_t bytes = bytesOf(o) * static_cast<uint64_t>(comm->worldSize);
  if (mayPull(comm, o, RHW_PLAN_REDUCE_SCATTER, bytes, choice)) {
    bool zeroCopy = false;
    const Outcome outcome = kernels.reduceScatterPull(comm->team, o.reduce, offerOf(comm, o.send, bytes), o.recv, o.count, &zeroCopy);
    if (outcome.stop != Stop::kNone || zeroCopy) return outcome;
  }
  *choice = choose(comm->plans.copied[RHW_PLAN_REDUCE_SCATTER], bytes);
  if (choice->algo == RHW_ALGO_RING && comm->reproducible == 0) {
    return kernels.reduceScatterRing(comm->team, ringFor(comm, bytes), o.reduce, o.send, o.recv, o.count);
  }
  if (choice->algo == RHW_ALGO_RING) return kernels.reduceScatterTree(comm->team, o.reduce, Tree::kChain, o.send, o.recv, o.count);
  if (choice->algo == RHW_ALGO_TREE) return kernels.reduceScatterTree(comm->team, o.reduce, Tree::kDouble, o.send, o.recv, o.count);
  return kernels.reduceScatter(comm->team, o.reduce, o.send, o.recv, o.count);
}

Outcome allGather(const Comm* comm, const Operation& o, Choice* choice) {
  const host::Copies& kernels = comm->kernels->copies;
  const uint64_t part = bytesOf(o), bytes = part * static_cast<uint64_t>(comm->worldSize);
  if (mayPull(comm, o, RHW_PLAN_ALL_GATHER, bytes, choice)) {
    bool zeroCopy = false;
    const Outcome outcome = kernels.allGatherPull(comm->team, offerOf(comm, o.send, part), o.send, o.recv, part, &zeroCopy);
    if (outcome.stop != Stop::kNone || zeroCopy) return outcome;
  }
  *choice = choose(comm->plans.copied[RHW_PLAN_ALL_GATHER], bytes);
  if (choice->algo == RHW_ALGO_RING) return kernels.allGatherRing(comm->team, ringFor(comm, bytes), o.send, o.recv, part);
  if (choice->algo == RHW_ALGO_TREE) return kernels.allGatherTree(comm->team, comm->ring, o.send, o.recv, part);
  return kernels.allGather(comm->team, o.send, o.recv, part);
}

Outcome allToAll(const Comm* comm, const Operation& o, Choice* choice) {
  const host::Copies& kernels = comm->kernels->copies;
  const uint64_t part = bytesOf(o), bytes = part * static_cast<uint64_t>(comm->worldSize);
  if (mayPull(comm, o, RHW_PLAN_ALL_TO_ALL, bytes, choice)) {
    bool zeroCopy = false;
    const uint64_t offer = o.send == o.recv ? kNoOffset : offerOf(comm, o.send, bytes);
    const Outcome outcome = kernels.allToAllPull(comm->team, offer, o.recv, part, &zeroCopy);
    if (outcome.stop != Stop::kNone || zeroCopy) return outcome;
  }
  *choice = choose(comm->plans.copied[RHW_PLAN_ALL_TO_ALL], bytes);
  return kernels.allToAll(comm->team, o.send, o.recv, part);
}

void copy(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) memcpy(to, from, bytes);
}

Outcome broadcast(const Comm* comm, const Operation& o, Choice* choice) {
  const host::Copies& kernels = comm->kernels->copies;
  const size_t bytes = bytesOf(o);
  const bool root = comm->rank == o.root;
  void* buffer = root ? const_cast<void*>(o.send) : o.recv;
  *choice = choose(comm->plans.copied[RHW_PLAN_BROADCAST], bytes);
  Outcome outcome;
  switch (choice->algo) {
    case RHW_ALGO_TREE: outcome = kernels.broadcastTree(comm->team, comm->ring, Tree::kDouble, o.root, buffer, bytes); break;
    case RHW_ALGO_RING: outcome = kernels.broadcastTree(comm->team, comm->ring, Tree::kChain, o.root, buffer, bytes); break;
    default: outcome = kernels.broadcast(comm->team, o.root, buffer, bytes);
  }
  if (root && outcome.stop == Stop::kNone) copy(o.recv, o.send, bytes);
  return outcome;
}

// Gather and scatter are transfers between the root and everybody else, under the signature of the collective.
Outcome rootTransfers(const Comm* comm, const Operation& o) {
  const size_t part = bytesOf(o);
  const bool scatters = o.op == RHW_OP_SCATTER;
  Transfer list[RHW_MAX_WORLD];
  int n = 0;
  const auto add = [&](int peer, bool sends, const void* buffer) {
    list[n++] = {peer, sends, static_cast<char*>(const_cast<void*>(buffer)), part, comm->team.call, 0, false};
  };
  if (comm->rank != o.root) {
    add(o.root, !scatters, scatters ? o.recv : o.send);
  } else {
    const char* all = scatters ? static_cast<const char*>(o.send) : static_cast<const char*>(o.recv);
    for (int k = 1; k < comm->worldSize; k++) {
      const int peer = (comm->rank + k) % comm->worldSize;
      add(peer, scatters, all + static_cast<size_t>(peer) * part);
    }
    const char* own = all + static_cast<size_t>(comm->rank) * part;
    if (scatters) {
      copy(o.recv, own, part);
    } else {
      copy(const_cast<char*>(own), o.send, part);
    }
  }
  return comm->kernels->copies.transfers(comm->team, list, n);
}

Outcome runKernel(const Comm* comm, const Operation& o, Choice* choice) {
  *choice = {RHW_ALGO_PIPE, RHW_WHY_ONLY};
  switch (o.op) {
    case RHW_OP_ALL_REDUCE: return allReduce(comm, o, choice);
    case RHW_OP_REDUCE_SCATTER: return reduceScatter(comm, o, choice);
    case RHW_OP_ALL_GATHER: return allGather(comm, o, choice);
    case RHW_OP_ALL_TO_ALL: return allToAll(comm, o, choice);
    case RHW_OP_BROADCAST: return broadcast(comm, o, choice);
    case RHW_OP_REDUCE: return reductionsOf(comm, o).reduce(comm->team, o.reduce, o.root, o.send, o.recv, o.count);
    case RHW_OP_GATHER:
    case RHW_OP_SCATTER: return rootTransfers(comm, o);
    default: *choice = {RHW_ALGO_AUTO, RHW_WHY_NONE}; return comm->kernels->copies.barrier(comm->team);
  }
}

// Says in the rank's line what has run.
void noteChoice(const Comm* comm, const Choice& choice) {
  if (choice.algo == RHW_ALGO_AUTO) return;
  __atomic_store_n(&comm->line(comm->rank)->chosen, choice.algo | choice.why << 16, __ATOMIC_RELAXED);
}

// In a world of one every collective is a copy, or the reduction of one contribution.
void runAlone(const Comm* comm, const Operation& o) {
  if (o.op == RHW_OP_BARRIER || o.count == 0) return;
  if (o.op == RHW_OP_ALL_REDUCE || o.op == RHW_OP_REDUCE_SCATTER || o.op == RHW_OP_REDUCE) {
    reductionsOf(comm, o).local(o.reduce, o.send, o.recv, o.count);
  } else {
    copy(o.recv, o.send, bytesOf(o));
  }
}

rh_result end(Comm* comm, const Outcome& outcome, uint32_t algo) {
  if (__builtin_expect(outcome.stop != Stop::kNone, 0)) return stopOperation(comm, outcome, algo);
  endOperation(comm, algo);
  return RH_OK;
}

// The upper 24 bits of the first half of a Signature, where every field has a value for "none".
uint32_t detailsOf(const Operation& o) {
  const auto reduction = static_cast<uint32_t>(o.reduce.kind);
  const uint32_t root = o.root < 0 ? 0xff : static_cast<uint32_t>(o.root);
  return static_cast<uint32_t>(o.dtype) << 8 | reduction << 16 | root << 24;
}

}  // namespace

Signature signatureOf(Comm* comm, const Operation& o) {
  const uint64_t root = o.root < 0 ? 0xff : static_cast<uint64_t>(o.root);
  const uint64_t reduction = static_cast<uint64_t>(o.reduce.kind);
  const uint64_t call = o.op | static_cast<uint64_t>(o.dtype) << 8 | reduction << 16 | root << 24 |
                        (comm->collectives++ * kSequenceOne & kSequenceMask) | comm->history << kHistoryShift;
  // SplitMix64's multiplier and a fold to 16 bits: any difference in a call changes the history of those behind it, but for
  // one in 65536.
  const uint64_t mixed = (call ^ o.count * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  comm->history = mixed >> kHistoryShift;
  return {call, o.count};
}

rh_result runOperation(Comm* comm, const Operation& o) {
  if (isTransfer(o)) return runTransfers(comm, &o, 1, o.op);
  if (!beginOperation(comm, o.op, bytesOf(o), detailsOf(o), comm->collectives + 1)) return whyBroken(comm);
  if (comm->worldSize == 1) {
    comm->collectives++;
    runAlone(comm, o);
    endOperation(comm);
    return RH_OK;
  }
  comm->team.call = signatureOf(comm, o);
  Choice choice;
  const Outcome outcome = runKernel(comm, o, &choice);
  noteChoice(comm, choice);
  return end(comm, outcome, choice.algo);
}

rh_result runTransfers(Comm* comm, const Operation* list, int n, uint32_t op) {
  uint64_t bytes = 0;
  for (int i = 0; i < n; i++) bytes += bytesOf(list[i]);
  Transfer few[16];
  auto* transfers = n <= 16 ? few : static_cast<Transfer*>(malloc(static_cast<size_t>(n) * sizeof(Transfer)));
  if (transfers == nullptr) {
    return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory for %d transfers; end the group earlier", operationName(op), comm->rank, n);
  }
  if (!beginOperation(comm, op, bytes, op == RHW_OP_GROUP ? kNoCallDetails : detailsOf(list[0]))) {
    if (transfers != few) free(transfers);
    return whyBroken(comm);
  }
  for (int i = 0; i < n; i++) {
    const Operation& o = list[i];
    const bool sends = o.op == RHW_OP_SEND;
    const Signature signature = {RHW_OP_SEND | static_cast<uint64_t>(o.dtype) << 8 | uint64_t{0xff} << 24, o.count};
    transfers[i] = {o.root, sends, static_cast<char*>(sends ? const_cast<void*>(o.send) : o.recv), bytesOf(o), signature, 0, false};
  }
  comm->team.call = {};
  const Outcome outcome = comm->kernels->copies.transfers(comm->team, transfers, n);
  noteChoice(comm, {RHW_ALGO_PIPE, RHW_WHY_ONLY});
  if (transfers != few) free(transfers);
  return end(comm, outcome, RHW_ALGO_PIPE);
}

namespace {

rh_result call(rh_comm* handle, Operation o, const void* stream) {
  if (__builtin_expect(inGroup(), 0)) return noteOperation(handle, o, stream);
  Comms::Exclusive guard(comms(), handle);
  Comm* comm = guard.get();
  if (__builtin_expect(comm == nullptr, 0)) return checkGuard(guard, operationName(o.op));
  const rh_result bad = checkOperation(comm, &o, stream);
  if (__builtin_expect(bad != RH_OK, 0)) return bad;
  if (isTransfer(o) && o.root == comm->rank) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: peer is this rank; put the send and the receive between rh_group_start and "
                "rh_group_end", operationName(o.op), comm->rank);
  }
  return runOperation(comm, o);
}

}  // namespace
}  // namespace railhead::client

using railhead::client::call;

extern "C" rh_result rh_all_reduce(const void* send, void* recv, size_t count, rh_dtype dtype, rh_op op, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_ALL_REDUCE, send, recv, count, dtype, op, -1, {}}, stream);
}
extern "C" rh_result rh_all_gather(const void* send, void* recv, size_t count, rh_dtype dtype, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_ALL_GATHER, send, recv, count, dtype, RH_SUM, -1, {}}, stream);
}
extern "C" rh_result rh_reduce_scatter(const void* send, void* recv, size_t count, rh_dtype dtype, rh_op op, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_REDUCE_SCATTER, send, recv, count, dtype, op, -1, {}}, stream);
}
extern "C" rh_result rh_all_to_all(const void* send, void* recv, size_t count, rh_dtype dtype, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_ALL_TO_ALL, send, recv, count, dtype, RH_SUM, -1, {}}, stream);
}
extern "C" rh_result rh_broadcast(const void* send, void* recv, size_t count, rh_dtype dtype, int32_t root, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_BROADCAST, send, recv, count, dtype, RH_SUM, root, {}}, stream);
}
extern "C" rh_result rh_reduce(const void* send, void* recv, size_t count, rh_dtype dtype, rh_op op, int32_t root, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_REDUCE, send, recv, count, dtype, op, root, {}}, stream);
}
extern "C" rh_result rh_gather(const void* send, void* recv, size_t count, rh_dtype dtype, int32_t root, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_GATHER, send, recv, count, dtype, RH_SUM, root, {}}, stream);
}
extern "C" rh_result rh_scatter(const void* send, void* recv, size_t count, rh_dtype dtype, int32_t root, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_SCATTER, send, recv, count, dtype, RH_SUM, root, {}}, stream);
}
extern "C" rh_result rh_send(const void* send, size_t count, rh_dtype dtype, int32_t peer, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_SEND, send, nullptr, count, dtype, RH_SUM, peer, {}}, stream);
}
extern "C" rh_result rh_recv(void* recv, size_t count, rh_dtype dtype, int32_t peer, rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_RECV, nullptr, recv, count, dtype, RH_SUM, peer, {}}, stream);
}
extern "C" rh_result rh_barrier(rh_comm* comm, void* stream) {
  return call(comm, {RHW_OP_BARRIER, nullptr, nullptr, 0, RH_F32, RH_SUM, -1, {}}, stream);
}
