// The data path: a call is checked, its algorithm is looked up in the daemon's plans, and the comm's device runs it.
#include <stdlib.h>

#include "base/error.h"
#include "collectives/operation.h"
#include "comm/choice.h"
#include "comm/thread_group.h"
#include "memory/streams.h"
#include "memory/window.h"

namespace railhead::client {

namespace {

// The offset of a buffer in this rank's device heap, behind the scratch; kNoOffset if it is elsewhere.
uint64_t offerOnDevice(const Comm* comm, const void* buffer, uint64_t bytes) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(buffer) - reinterpret_cast<uintptr_t>(comm->deviceHeap(comm->localRank));
  const bool inside = offset >= comm->deviceScratchBytes && offset < comm->deviceHeapBytes && bytes <= comm->deviceHeapBytes - offset;
  return inside ? offset : kNoOffset;
}

// A buffer's location for the other ranks, as an offer (railhead/exchange/flags.h); kNoOffset if they cannot access it.
uint64_t offerOf(const Comm* comm, const void* buffer, uint64_t bytes) {
  if (comm->device->ownMemory != nullptr) {
    const uint64_t onDevice = offerOnDevice(comm, buffer, bytes);
    return onDevice != kNoOffset ? onDevice : offerInRegions(comm, buffer, bytes);
  }
  const uint64_t offset = reinterpret_cast<uintptr_t>(buffer) - reinterpret_cast<uintptr_t>(comm->ownHeap());
  const bool inside = offset >= comm->scratchBytes && offset < comm->heapBytes && bytes <= comm->heapBytes - offset;
  return inside ? offset : offerInRegions(comm, buffer, bytes);
}

// Fills in the offers of a call that may run zero-copy. In the host's memory other ranks read send buffers; on a device with memory of its own
// they write to recv buffers, but where they reduce, and but for copies by copy engines: these read send buffers, and of a broadcast the
// root's recv buffer.
void offerBuffers(const Comm* comm, CollectiveCall* c) {
  if (c->zeroCopy.algo == RHW_ALGO_AUTO) return;
  const Operation& o = c->operation;
  const uint64_t part = bytesOf(o), whole = part * static_cast<uint64_t>(comm->worldSize);
  if (comm->device->ownMemory != nullptr && o.op != RHW_OP_ALL_REDUCE && o.op != RHW_OP_REDUCE_SCATTER) {
    if (o.op == RHW_OP_ALL_TO_ALL && o.send == o.recv) return;  // other ranks would overwrite what this one sends, or read what it has received
    c->recvOffer = offerOf(comm, o.recv, o.op == RHW_OP_BROADCAST ? part : whole);
    if (c->zeroCopy.algo == RHW_ALGO_COPY && o.op != RHW_OP_BROADCAST) c->sendOffer = offerOf(comm, o.send, o.op == RHW_OP_ALL_GATHER ? part : whole);
    return;
  }
  switch (o.op) {
    case RHW_OP_ALL_REDUCE:
      c->sendOffer = offerOf(comm, o.send, part);
      c->recvOffer = offerOf(comm, o.recv, part);
      return;
    case RHW_OP_ALL_GATHER: c->sendOffer = offerOf(comm, o.send, part); return;
    case RHW_OP_REDUCE_SCATTER: c->sendOffer = offerOf(comm, o.send, whole); return;
    default:
      if (o.send != o.recv) c->sendOffer = offerOf(comm, o.send, whole);
  }
}

rh_result submitCollective(Comm* comm, CollectiveCall* c, void* stream) {
  const Operation& o = c->operation;
  if (comm->worldSize > 1) {
    choose(comm, c);
    offerBuffers(comm, c);
  }
  if (comm->device->admitCollective != nullptr) {
    const rh_result bad = comm->device->admitCollective(comm, *c);
    if (bad != RH_OK) return bad;
  }
  if (comm->device->streams != nullptr) {
    const Buffers b = buffersOf(comm, o);
    const Extent extents[] = {{o.send, b.sendBytes}, {o.recv, b.recvBytes}};
    const rh_result bad = admitCall(comm, operationName(o.op), stream, extents, 2, &c->captured);
    if (bad != RH_OK) return bad;
  }
  return comm->device->collective(comm, *c, stream);
}

// The arguments in which a send and its receive must agree.
Signature transferSignature(const Operation& o) {
  return sign({RHW_OP_SEND, static_cast<uint32_t>(o.dtype), 0, kNoRoot, o.count, 0, 0, 0});
}

Transfer transferOf(const Comm* comm, const Operation& o) {
  const bool sends = o.op == RHW_OP_SEND;
  return {number(comm->localOf(o.root)), sends, static_cast<char*>(sends ? const_cast<void*>(o.send) : o.recv), bytesOf(o), transferSignature(o), 0, false};
}

rh_result admitTransfers(Comm* comm, TransfersCall* c, void* stream) {
  const int n = 2 * c->pairs + c->n;
  auto* extents = static_cast<Extent*>(malloc(static_cast<size_t>(n) * sizeof(Extent)));
  if (extents == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory for %d transfers", operationName(c->op), number(comm->rank), n);
  for (int i = 0; i < n; i++) extents[i] = {c->list[i].buffer, c->list[i].bytes};
  Capture* capture = nullptr;
  rh_result result = whyBroken(comm);
  if (result == RH_OK) result = keepForGraph(comm, operationName(c->op), stream, extents, n, &capture);
  c->captured = capture != nullptr;
  free(extents);
  return result;
}

}  // namespace

rh_result submitOperation(Comm* comm, const Operation& o, void* stream) {
  CollectiveCall c = {o};
  return submitCollective(comm, &c, stream);
}

rh_result submitTransfers(Comm* comm, const Operation* list, int pairs, int n, uint32_t op, void* stream) {
  const int all = 2 * pairs + n;
  Transfer few[16];
  auto* transfers = all <= 16 ? few : static_cast<Transfer*>(malloc(static_cast<size_t>(all) * sizeof(Transfer)));
  if (transfers == nullptr) {
    return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory for %d transfers; end the group earlier", operationName(op), number(comm->rank), all);
  }
  TransfersCall c = {op, op == RHW_OP_GROUP ? kNoCallDetails : callDetails(list[0]), 0, pairs, n, transfers, false};
  for (int i = 0; i < all; i++) transfers[i] = transferOf(comm, list[i]);
  for (int i = 2 * pairs; i < all; i++) c.bytes += transfers[i].bytes;
  rh_result result = comm->device->admitTransfers == nullptr ? RH_OK : comm->device->admitTransfers(comm, c);
  if (result == RH_OK && comm->device->streams != nullptr) result = admitTransfers(comm, &c, stream);
  if (result == RH_OK) result = comm->device->transfers(comm, c, stream);
  if (transfers != few) free(transfers);
  return result;
}

namespace {

// Each of the functions below fills in c, which has only its operation set.
rh_result call(rh_comm* handle, CollectiveCall&& c, void* stream) {
  Operation& o = c.operation;
  if (__builtin_expect(inGroup(), 0)) return noteOperation(handle, o, stream);
  Comms::Exclusive guard(comms(), handle);
  Comm* comm = guard.get();
  if (__builtin_expect(comm == nullptr, 0)) return checkGuard(guard, operationName(o.op));
  const rh_result bad = checkOperation(comm, &o, stream);
  if (__builtin_expect(bad != RH_OK, 0)) return bad;
  if (!isTransfer(o)) return submitCollective(comm, &c, stream);
  if (o.root == comm->rank) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: peer is this rank; put the send and the receive between rh_group_start and "
                "rh_group_end", operationName(o.op), number(comm->rank));
  }
  return submitTransfers(comm, &o, 0, 1, o.op, stream);
}

}  // namespace
}  // namespace railhead::client

using railhead::client::call;
using railhead::client::kNoWorldRank;
using railhead::client::WorldRank;

extern "C" rh_result rh_all_reduce(const void* send, void* recv, size_t count, rh_dtype dtype, rh_op op, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_ALL_REDUCE, send, recv, count, dtype, op, kNoWorldRank, {}}}, stream);
}
extern "C" rh_result rh_all_gather(const void* send, void* recv, size_t count, rh_dtype dtype, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_ALL_GATHER, send, recv, count, dtype, RH_SUM, kNoWorldRank, {}}}, stream);
}
extern "C" rh_result rh_reduce_scatter(const void* send, void* recv, size_t count, rh_dtype dtype, rh_op op, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_REDUCE_SCATTER, send, recv, count, dtype, op, kNoWorldRank, {}}}, stream);
}
extern "C" rh_result rh_all_to_all(const void* send, void* recv, size_t count, rh_dtype dtype, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_ALL_TO_ALL, send, recv, count, dtype, RH_SUM, kNoWorldRank, {}}}, stream);
}
extern "C" rh_result rh_broadcast(const void* send, void* recv, size_t count, rh_dtype dtype, int32_t root, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_BROADCAST, send, recv, count, dtype, RH_SUM, WorldRank{root}, {}}}, stream);
}
extern "C" rh_result rh_reduce(const void* send, void* recv, size_t count, rh_dtype dtype, rh_op op, int32_t root, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_REDUCE, send, recv, count, dtype, op, WorldRank{root}, {}}}, stream);
}
extern "C" rh_result rh_gather(const void* send, void* recv, size_t count, rh_dtype dtype, int32_t root, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_GATHER, send, recv, count, dtype, RH_SUM, WorldRank{root}, {}}}, stream);
}
extern "C" rh_result rh_scatter(const void* send, void* recv, size_t count, rh_dtype dtype, int32_t root, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_SCATTER, send, recv, count, dtype, RH_SUM, WorldRank{root}, {}}}, stream);
}
extern "C" rh_result rh_send(const void* send, size_t count, rh_dtype dtype, int32_t peer, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_SEND, send, nullptr, count, dtype, RH_SUM, WorldRank{peer}, {}}}, stream);
}
extern "C" rh_result rh_recv(void* recv, size_t count, rh_dtype dtype, int32_t peer, rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_RECV, nullptr, recv, count, dtype, RH_SUM, WorldRank{peer}, {}}}, stream);
}
extern "C" rh_result rh_barrier(rh_comm* comm, void* stream) {
  return call(comm, {{RHW_OP_BARRIER, nullptr, nullptr, 0, RH_F32, RH_SUM, kNoWorldRank, {}}}, stream);
}
