// The data path: argument checks, then the kernel.
#include "comm.h"
#include "error.h"
#include "host/entry.h"

namespace railhead::client {

namespace {

// What the ABI knows of an element type.
struct Dtype {
  size_t bytes;
  host::Stop (*allReduceOneshot)(const host::Team&, const void*, void*, size_t, uint64_t*);
};

const Dtype* findDtype(rh_dtype dtype) {
  static constexpr Dtype f32 = {4, host::allReduceOneshotF32};
  static constexpr Dtype bf16 = {2, host::allReduceOneshotBF16};
  switch (dtype) {
    case RH_F32: return &f32;
    case RH_BF16: return &bf16;
  }
  return nullptr;
}

bool overlapPartly(const void* a, const void* b, size_t bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x != y && (x < y ? y - x : x - y) < bytes;
}

rh_result checkAllReduce(const Comm* comm, const void* send, const void* recv, size_t count, rh_dtype number, const Dtype* dtype,
                         rh_op op, const void* stream) {
  const int rank = comm->rank;
  if (dtype == nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: dtype %d; RH_F32 and RH_BF16 work", rank, static_cast<int>(number));
  }
  if (op != RH_SUM) return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: op %d; RH_SUM works", rank, static_cast<int>(op));
  if (stream != nullptr) {
    return fail(RH_ERR_UNSUPPORTED, "all_reduce: rank %d: a stream was given to a CPU comm; pass NULL", rank);
  }
  if (count > SIZE_MAX / 16) return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: count %zu overflows", rank, count);
  if (count > 0 && (send == nullptr || recv == nullptr)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: %s is NULL", rank, send == nullptr ? "send" : "recv");
  }
  if (overlapPartly(send, recv, count * dtype->bytes)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: send and recv overlap partly; use the same buffer or two "
                "that do not touch", rank);
  }
  return RH_OK;
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_all_reduce(const void* send, void* recv, size_t count, rh_dtype dtype, rh_op op, rh_comm* handle,
                                   void* stream) {
  Comms::Exclusive guard(comms(), handle);
  Comm* comm = guard.get();
  if (__builtin_expect(comm == nullptr, 0)) return checkGuard(guard, "all_reduce");
  const Dtype* type = findDtype(dtype);
  const rh_result bad = checkAllReduce(comm, send, recv, count, dtype, type, op, stream);
  if (__builtin_expect(bad != RH_OK, 0)) return bad;

  if (!beginOperation(comm, RHW_OP_ALL_REDUCE, count * type->bytes)) return whyBroken(comm);
  uint64_t missing = 0;
  const auto stop = type->allReduceOneshot(comm->team, send, recv, count, &missing);
  if (__builtin_expect(stop != railhead::host::Stop::kNone, 0)) return stopOperation(comm, stop, missing);
  endOperation(comm);
  return RH_OK;
}

extern "C" rh_result rh_barrier(rh_comm* handle, void* stream) {
  Comms::Exclusive guard(comms(), handle);
  Comm* comm = guard.get();
  if (__builtin_expect(comm == nullptr, 0)) return checkGuard(guard, "barrier");
  if (stream != nullptr) {
    return fail(RH_ERR_UNSUPPORTED, "barrier: rank %d: a stream was given to a CPU comm; pass NULL", comm->rank);
  }
  if (!beginOperation(comm, RHW_OP_BARRIER, 0)) return whyBroken(comm);
  uint64_t missing = 0;
  const auto stop = railhead::host::barrier(comm->team, &missing);
  if (__builtin_expect(stop != railhead::host::Stop::kNone, 0)) return stopOperation(comm, stop, missing);
  endOperation(comm);
  return RH_OK;
}
