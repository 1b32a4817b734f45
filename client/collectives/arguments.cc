// Checks of the arguments of a call on the data path.
#include <string.h>

#include "base/error.h"
#include "collectives/operation.h"
#include "memory/streams.h"

namespace railhead::client {

Buffers buffersOf(const Comm* comm, const Operation& o) {
  const size_t part = bytesOf(o), whole = part * static_cast<size_t>(comm->worldSize);
  const auto mine = static_cast<ptrdiff_t>(part * static_cast<size_t>(number(comm->rank)));
  const bool root = comm->rank == o.root;
  switch (o.op) {
    case RHW_OP_ALL_GATHER: return {part, whole, -mine};
    case RHW_OP_REDUCE_SCATTER: return {whole, part, mine};
    case RHW_OP_ALL_TO_ALL: return {whole, whole, 0};
    case RHW_OP_BROADCAST: return {root ? part : 0, part, 0};
    case RHW_OP_REDUCE: return {part, root ? part : 0, 0};
    case RHW_OP_GATHER: return {part, root ? whole : 0, -mine};
    case RHW_OP_SCATTER: return {root ? whole : 0, part, mine};
    case RHW_OP_SEND: return {part, 0, 0};
    case RHW_OP_RECV: return {0, part, 0};
    default: return {part, part, 0};  // all_reduce
  }
}

namespace {

bool reduces(uint32_t op) { return op == RHW_OP_ALL_REDUCE || op == RHW_OP_REDUCE_SCATTER || op == RHW_OP_REDUCE; }

rh_result checkBuffers(const Comm* comm, const Operation& o) {
  const Buffers b = buffersOf(comm, o);
  const char* name = operationName(o.op);
  if ((b.sendBytes > 0 && o.send == nullptr) || (b.recvBytes > 0 && o.recv == nullptr)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %s is NULL", name, number(comm->rank),
                b.sendBytes > 0 && o.send == nullptr ? "send" : "recv");
  }
  const auto send = reinterpret_cast<uintptr_t>(o.send), recv = reinterpret_cast<uintptr_t>(o.recv);
  if (b.sendBytes > UINTPTR_MAX - send || b.recvBytes > UINTPTR_MAX - recv) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %zu elements at %p or %p end beyond the address space", name, number(comm->rank),
                o.count, o.send, o.recv);
  }
  const bool touch = b.sendBytes > 0 && b.recvBytes > 0 && send < recv + b.recvBytes && recv < send + b.sendBytes;
  if (touch && static_cast<ptrdiff_t>(recv - send) != b.inPlace) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: send and recv overlap partly: recv begins %td bytes behind send; in place it "
                "would be %td, else they must not touch", name, number(comm->rank), static_cast<ptrdiff_t>(recv - send), b.inPlace);
  }
  return RH_OK;
}

rh_result resolveReduction(const Comm* comm, Operation* o) {
  const char* name = operationName(o->op);
  o->reduce = {};
  if (o->reduction >= RH_SUM && o->reduction <= RH_AVG) {
    o->reduce.kind = static_cast<host::Reduction>(o->reduction);
    return RH_OK;
  }
  const PreMulSum* p = preMulSum(comm, o->reduction);
  if (p == nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: op %d is not RH_SUM .. RH_AVG and not an op of this comm", name,
                number(comm->rank), o->reduction);
  }
  if (p->dtype != o->dtype) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: op %d was made for %s, the call is of %s", name, number(comm->rank), o->reduction,
                dtypeName(static_cast<uint32_t>(p->dtype)), dtypeName(static_cast<uint32_t>(o->dtype)));
  }
  o->reduce.kind = host::Reduction::kPreMulSum;
  memcpy(o->reduce.scalar, p->scalar, sizeof p->scalar);
  return RH_OK;
}

}  // namespace

rh_result checkOperation(const Comm* comm, Operation* o, const void* stream) {
  const char* name = operationName(o->op);
  const int rank = number(comm->rank);
  rh_result bad = RH_OK;
  if (stream != nullptr || comm->device->streams != nullptr) bad = checkStream(comm, name, stream);
  if (bad != RH_OK) return bad;
  if (o->op == RHW_OP_BARRIER) return RH_OK;
  const size_t size = sizeOf(o->dtype);
  if (size == 0) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: dtype %d is none of RH_F32 .. RH_U64", name, rank, o->dtype);
  if (o->count > SIZE_MAX / 2 / size / static_cast<size_t>(comm->worldSize)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: count %zu overflows; no buffer has so many %s", name, rank, o->count,
                dtypeName(static_cast<uint32_t>(o->dtype)));
  }
  if (o->op >= RHW_OP_BROADCAST && o->op <= RHW_OP_RECV && comm->localOf(o->root) == kNoLocalRank) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %s %d is outside 0..%d", name, rank, isTransfer(*o) ? "peer" : "root", number(o->root),
                comm->worldSize - 1);
  }
  if (reduces(o->op)) {
    bad = resolveReduction(comm, o);
    if (bad != RH_OK) return bad;
  }
  return checkBuffers(comm, *o);
}

}  // namespace railhead::client
