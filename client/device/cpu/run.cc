#include "device/cpu/run.h"

#include <string.h>
#include <unistd.h>

#include "base/commit.h"
#include "host/fp_environment.h"
#include "host/kernels.h"

namespace railhead::client {

namespace {

using host::Outcome;

static_assert(uint32_t{host::kAlgorithms} <= RHW_ALGOS && uint32_t{host::kTree} == RHW_ALGO_TREE, "kernels/host/algorithms.h and wire.h are of the same table");

void copy(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) memcpy(to, from, bytes);
}

// Every other operation copies, and the floating-point environment does not matter to it.
bool reduces(const Operation& o) { return o.op == RHW_OP_ALL_REDUCE || o.op == RHW_OP_REDUCE_SCATTER || o.op == RHW_OP_REDUCE; }

Outcome runKernel(const Comm* comm, const CollectiveCall& c, Choice* ran) {
  const Operation& o = c.operation;
  *ran = c.copied;
  if (o.op == RHW_OP_BARRIER) return host::barrier(comm->team);
  host::KernelCall call = {comm->team, comm->ring};
  if (reduces(o)) call.elements = &comm->kernels->elements[o.dtype];
  call.reduce = o.reduce;
  if (o.root != kNoWorldRank) call.root = number(comm->localOf(o.root));
  call.send = o.send;
  call.recv = o.recv;
  call.count = o.count;
  call.bytes = bytesOf(o);
  call.sendOffer = c.sendOffer;
  call.recvOffer = c.recvOffer;
  if (c.ll) call.protocol = RingProtocol::kLL;
  call.reproducible = comm->reproducible != 0;
  const auto kernelOf = [&](const Choice& choice) { return host::kKernels.of[choice.algo][o.op]; };
  if (c.zeroCopy.algo != RHW_ALGO_AUTO) {
    const Outcome outcome = kernelOf(c.zeroCopy)(call);
    if (!outcome.declined) {
      *ran = c.zeroCopy;
      return outcome;
    }
  }
  return kernelOf(c.copied)(call);
}

Outcome runReduction(const Comm* comm, const CollectiveCall& c, Choice* ran) {
  const host::StandardFp standard;
  return runKernel(comm, c, ran);
}

// In a world of one every collective is a copy, or the reduction of one contribution.
void runAlone(const Comm* comm, const Operation& o) {
  if (o.op == RHW_OP_BARRIER || o.count == 0) return;
  if (reduces(o)) {
    const host::StandardFp standard;
    host::reduceAlone(comm->kernels->elements[o.dtype], o.reduce, o.send, o.recv, o.count);
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
  const Outcome outcome = host::transfers(comm->team, list, c.n);
  noteChoice(comm, {RHW_ALGO_PIPE, RHW_WHY_ONLY});
  return end(comm, outcome, RHW_ALGO_PIPE);
}

Outcome gatherBytes(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes) {
  DeviceState* state = comm->state();
  if (comm->worldSize == 1) {
    state->collectives++;
    memcpy(all, mine, bytes);
    return {};
  }
  comm->team.call = signNext(state, {op, 0, 0, kNoRoot, 1, 0, 0, 0});
  host::KernelCall call = {comm->team, comm->ring};
  call.send = mine;
  call.recv = all;
  call.count = call.bytes = bytes;
  return host::kKernels.of[RHW_ALGO_ONESHOT][RHW_OP_ALL_GATHER](call);
}

rh_result runGather(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes) {
  if (!beginOperation(comm, op, bytes, kNoCallDetails, comm->state()->collectives + comm->queuedCollectives + 1)) return whyBroken(comm);
  return end(comm, gatherBytes(comm, op, mine, all, bytes), RHW_ALGO_AUTO);
}

namespace {

rh_result open(Comm*) { return RH_OK; }
void close(Comm*) {}
rh_result collective(Comm* comm, const CollectiveCall& call, void*) { return runCollective(comm, call); }
rh_result transfers(Comm* comm, const TransfersCall& call, void*) { return runTransfers(comm, call); }
bool synchronize(Comm*, int64_t) { return true; }

uint64_t granularity(const Comm*) { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

constexpr Device makeDevice() {
  Device d = {};
  d.kind = kCpuKind;
  d.wire = RHW_DEVICE_CPU;
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
