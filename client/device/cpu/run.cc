#include "device/cpu/run.h"

#include <string.h>
#include <unistd.h>

#include "base/commit.h"
#include "host/fp_environment.h"

namespace railhead::client {

namespace {

using host::Outcome;

const host::Reductions& reductionsOf(const Comm* comm, const Operation& o) { return comm->kernels->reductions[o.dtype]; }

RingPlan ringFor(const Comm* comm, const CollectiveCall& c) {
  RingPlan ring = comm->ring;
  ring.protocol = c.ll ? RingProtocol::kLL : RingProtocol::kSimple;
  return ring;
}

// A reproducible ring is a chain: it adds in rank order.
bool isChain(const Comm* comm, const Choice& choice) { return choice.algo == RHW_ALGO_RING && comm->reproducible != 0; }

// Zero-copy (pull): runs if every rank has offered its buffers. False: it did not run and changed nothing.
bool pulled(const Comm* comm, const CollectiveCall& c, Outcome* outcome) {
  if (c.zeroCopy.algo != RHW_ALGO_PULL) return false;
  const Operation& o = c.operation;
  const host::Copies& copies = comm->kernels->copies;
  bool zeroCopy = false;
  switch (o.op) {
    case RHW_OP_ALL_REDUCE:
      *outcome = reductionsOf(comm, o).pull(comm->team, o.reduce, c.sendOffer, c.recvOffer, o.count, &zeroCopy);
      break;
    case RHW_OP_REDUCE_SCATTER:
      *outcome = reductionsOf(comm, o).reduceScatterPull(comm->team, o.reduce, c.sendOffer, o.recv, o.count, &zeroCopy);
      break;
    case RHW_OP_ALL_GATHER: *outcome = copies.allGatherPull(comm->team, c.sendOffer, o.send, o.recv, bytesOf(o), &zeroCopy); break;
    default: *outcome = copies.allToAllPull(comm->team, c.sendOffer, o.recv, bytesOf(o), &zeroCopy);
  }
  return outcome->stop != Stop::kNone || zeroCopy;
}

Outcome allReduce(const Comm* comm, const CollectiveCall& c) {
  const Operation& o = c.operation;
  const host::Reductions& kernels = reductionsOf(comm, o);
  if (isChain(comm, c.copied)) return kernels.tree(comm->team, o.reduce, Tree::kChain, o.send, o.recv, o.count);
  switch (c.copied.algo) {
    case RHW_ALGO_RING: return kernels.ring(comm->team, ringFor(comm, c), o.reduce, o.send, o.recv, o.count);
    case RHW_ALGO_TREE: return kernels.tree(comm->team, o.reduce, Tree::kDouble, o.send, o.recv, o.count);
    case RHW_ALGO_TWOSHOT: return kernels.twoshot(comm->team, o.reduce, o.send, o.recv, o.count);
    default: return kernels.oneshot(comm->team, o.reduce, o.send, o.recv, o.count);
  }
}

Outcome reduceScatter(const Comm* comm, const CollectiveCall& c) {
  const Operation& o = c.operation;
  const host::Reductions& kernels = reductionsOf(comm, o);
  if (isChain(comm, c.copied)) return kernels.reduceScatterTree(comm->team, o.reduce, Tree::kChain, o.send, o.recv, o.count);
  switch (c.copied.algo) {
    case RHW_ALGO_RING: return kernels.reduceScatterRing(comm->team, ringFor(comm, c), o.reduce, o.send, o.recv, o.count);
    case RHW_ALGO_TREE: return kernels.reduceScatterTree(comm->team, o.reduce, Tree::kDouble, o.send, o.recv, o.count);
    default: return kernels.reduceScatter(comm->team, o.reduce, o.send, o.recv, o.count);
  }
}

Outcome allGather(const Comm* comm, const CollectiveCall& c) {
  const Operation& o = c.operation;
  const host::Copies& kernels = comm->kernels->copies;
  switch (c.copied.algo) {
    case RHW_ALGO_RING: return kernels.allGatherRing(comm->team, ringFor(comm, c), o.send, o.recv, bytesOf(o));
    case RHW_ALGO_TREE: return kernels.allGatherTree(comm->team, comm->ring, o.send, o.recv, bytesOf(o));
    default: return kernels.allGather(comm->team, o.send, o.recv, bytesOf(o));
  }
}

void copy(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) memcpy(to, from, bytes);
}

// The root's number in the team.
int rootOf(const Comm* comm, const Operation& o) { return number(comm->localOf(o.root)); }

Outcome broadcast(const Comm* comm, const CollectiveCall& c) {
  const Operation& o = c.operation;
  const host::Copies& kernels = comm->kernels->copies;
  const bool root = comm->rank == o.root;
  void* buffer = root ? const_cast<void*>(o.send) : o.recv;
  Outcome outcome;
  switch (c.copied.algo) {
    case RHW_ALGO_TREE: outcome = kernels.broadcastTree(comm->team, comm->ring, Tree::kDouble, rootOf(comm, o), buffer, bytesOf(o)); break;
    case RHW_ALGO_RING: outcome = kernels.broadcastTree(comm->team, comm->ring, Tree::kChain, rootOf(comm, o), buffer, bytesOf(o)); break;
    default: outcome = kernels.broadcast(comm->team, rootOf(comm, o), buffer, bytesOf(o));
  }
  if (root && outcome.stop == Stop::kNone) copy(o.recv, o.send, bytesOf(o));
  return outcome;
}

// Gather and scatter are transfers between the root and all other ranks, under the signature of the collective.
Outcome rootTransfers(const Comm* comm, const Operation& o) {
  const size_t part = bytesOf(o);
  const bool scatters = o.op == RHW_OP_SCATTER;
  Transfer list[RHW_MAX_LOCAL];
  int n = 0;
  const auto add = [&](int peer, bool sends, const void* buffer) {
    list[n++] = {peer, sends, static_cast<char*>(const_cast<void*>(buffer)), part, comm->team.call, 0, false};
  };
  if (comm->rank != o.root) {
    add(rootOf(comm, o), !scatters, scatters ? o.recv : o.send);
  } else {
    const char* all = scatters ? static_cast<const char*>(o.send) : static_cast<const char*>(o.recv);
    for (int k = 1; k < comm->team.worldSize; k++) {
      const int peer = (comm->team.rank + k) % comm->team.worldSize;
      add(peer, scatters, all + static_cast<size_t>(peer) * part);
    }
    const char* own = all + static_cast<size_t>(comm->team.rank) * part;
    if (scatters) {
      copy(o.recv, own, part);
    } else {
      copy(const_cast<char*>(own), o.send, part);
    }
  }
  return comm->kernels->copies.transfers(comm->team, list, n);
}

Outcome runKernel(const Comm* comm, const CollectiveCall& c, Choice* ran) {
  const Operation& o = c.operation;
  Outcome outcome;
  *ran = c.zeroCopy;
  if (pulled(comm, c, &outcome)) return outcome;
  *ran = c.copied;
  switch (o.op) {
    case RHW_OP_ALL_REDUCE: return allReduce(comm, c);
    case RHW_OP_REDUCE_SCATTER: return reduceScatter(comm, c);
    case RHW_OP_ALL_GATHER: return allGather(comm, c);
    case RHW_OP_ALL_TO_ALL: return comm->kernels->copies.allToAll(comm->team, o.send, o.recv, bytesOf(o));
    case RHW_OP_BROADCAST: return broadcast(comm, c);
    case RHW_OP_REDUCE: return reductionsOf(comm, o).reduce(comm->team, o.reduce, rootOf(comm, o), o.send, o.recv, o.count);
    case RHW_OP_GATHER:
    case RHW_OP_SCATTER: return rootTransfers(comm, o);
    default: return comm->kernels->copies.barrier(comm->team);
  }
}

// Every other operation copies, and the floating-point environment does not matter to it.
bool reduces(const Operation& o) { return o.op == RHW_OP_ALL_REDUCE || o.op == RHW_OP_REDUCE_SCATTER || o.op == RHW_OP_REDUCE; }

Outcome runReduction(const Comm* comm, const CollectiveCall& c, Choice* ran) {
  const host::StandardFp standard;
  return runKernel(comm, c, ran);
}

// Publishes in the rank's line which algorithm ran.
void noteChoice(const Comm* comm, const Choice& choice) {
  if (choice.algo == RHW_ALGO_AUTO) return;
  __atomic_store_n(&comm->ownLine()->chosen, choice.algo | choice.why << 16, __ATOMIC_RELAXED);
}

// In a world of one every collective is a copy, or the reduction of one contribution.
void runAlone(const Comm* comm, const Operation& o) {
  if (o.op == RHW_OP_BARRIER || o.count == 0) return;
  if (reduces(o)) {
    const host::StandardFp standard;
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

}  // namespace

rh_result runCollective(Comm* comm, const CollectiveCall& c) {
  const Operation& o = c.operation;
  DeviceState* state = comm->state();
  CallDetails details = callDetails(o);
  details.captured = c.captured;
  if (!beginOperation(comm, o.op, bytesOf(o), details, state->collectives + 1)) return whyBroken(comm);
  if (comm->worldSize == 1) {
    state->collectives++;
    runAlone(comm, o);
    endOperation(comm);
    return RH_OK;
  }
  const uint32_t root = o.root == kNoWorldRank ? kNoRoot : details.root;
  comm->team.call = signNext(state, {o.op, details.dtype, details.reduction, root, o.count, c.captured, 0, 0});
  Choice ran;
  const Outcome outcome = reduces(o) ? runReduction(comm, c, &ran) : runKernel(comm, c, &ran);
  noteChoice(comm, ran);
  return end(comm, outcome, ran.algo);
}

rh_result runTransfers(Comm* comm, const TransfersCall& c) {
  const rh_result broken = whyBroken(comm);
  if (broken != RH_OK) return broken;
  Transfer* list = c.list;
  // The two are different calls, so their buffers have not been checked for overlap.
  for (int i = 0; i < c.pairs; i++, list += 2) {
    if (list->bytes > 0) memmove(list[1].buffer, list[0].buffer, list->bytes);
  }
  if (c.n == 0) return RH_OK;
  if (!beginOperation(comm, c.op, c.bytes, c.details)) return whyBroken(comm);
  comm->team.call = {};
  const Outcome outcome = comm->kernels->copies.transfers(comm->team, list, c.n);
  noteChoice(comm, {RHW_ALGO_PIPE, RHW_WHY_ONLY});
  return end(comm, outcome, RHW_ALGO_PIPE);
}

rh_result runGather(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes) {
  DeviceState* state = comm->state();
  if (!beginOperation(comm, op, bytes, kNoCallDetails, state->collectives + 1)) return whyBroken(comm);
  if (comm->worldSize == 1) {
    state->collectives++;
    memcpy(all, mine, bytes);
  } else {
    comm->team.call = signNext(state, {op, 0, 0, kNoRoot, 1, 0, 0, 0});
    const Outcome outcome = comm->kernels->copies.allGather(comm->team, mine, all, bytes);
    if (outcome.stop != Stop::kNone) return stopOperation(comm, outcome);
  }
  endOperation(comm);
  return RH_OK;
}

namespace {

rh_result open(Comm*) { return RH_OK; }
void close(Comm*) {}
rh_result collective(Comm* comm, const CollectiveCall& call, void*) { return runCollective(comm, call); }
rh_result transfers(Comm* comm, const TransfersCall& call, void*) { return runTransfers(comm, call); }
bool synchronize(Comm*, int64_t) { return true; }

uint64_t granularity() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

constexpr Device makeDevice() {
  Device d = {};
  d.kind = kCpuKind;
  d.name = "CPU";
  d.memory = RH_MEMORY_HOST;
  d.streams = nullptr;
  d.open = open;
  d.close = close;
  d.collective = collective;
  d.transfers = transfers;
  d.gather = runGather;
  d.synchronize = synchronize;
  d.granularity = granularity;
  d.commit = commitPages;
  return d;
}

}  // namespace

const Device kCpuDevice = makeDevice();

}  // namespace railhead::client
