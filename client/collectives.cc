// The data path: argument checks, then the kernel.
#include "comm.h"
#include "error.h"
#include "host/kernel_set.h"

namespace railhead::client {

namespace {

// Bytes of an element, 0 for a number that is no type.
size_t sizeOf(rh_dtype dtype) {
  switch (dtype) {
    case RH_F32: return 4;
    case RH_BF16: return 2;
  }
  return 0;
}

bool overlapPartly(const void* a, const void* b, size_t bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x != y && (x < y ? y - x : x - y) < bytes;
}

rh_result checkAllReduce(const Comm* comm, const void* send, const void* recv, size_t count, rh_dtype dtype, rh_op op,
                         const void* stream) {
  const int rank = comm->rank;
  if (sizeOf(dtype) == 0) {
    return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: dtype %d; RH_F32 and RH_BF16 work", rank, static_cast<int>(dtype));
  }
  if (op != RH_SUM) return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: op %d; RH_SUM works", rank, static_cast<int>(op));
  if (stream != nullptr) {
    return fail(RH_ERR_UNSUPPORTED, "all_reduce: rank %d: a stream was given to a CPU comm; pass NULL", rank);
  }
  if (count > SIZE_MAX / 16) return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: count %zu overflows", rank, count);
  if (count > 0 && (send == nullptr || recv == nullptr)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: %s is NULL", rank, send == nullptr ? "send" : "recv");
  }
  if (overlapPartly(send, recv, count * sizeOf(dtype))) {
    return fail(RH_ERR_INVALID_ARGUMENT, "all_reduce: rank %d: send and recv overlap partly; use the same buffer or two "
                "that do not touch", rank);
  }
  return RH_OK;
}

// Where a buffer lies in this rank's heap, kNoOffset if it does not.
uint64_t offsetInHeap(const Comm* comm, const void* buffer, uint64_t bytes) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(buffer) - reinterpret_cast<uintptr_t>(comm->team.heap[comm->rank]);
  const bool inside = offset >= comm->scratchBytes && offset < comm->heapBytes && bytes <= comm->heapBytes - offset;
  return inside ? offset : kNoOffset;
}

// Runs the algorithm that the daemon's thresholds name; *algo says which.
host::Outcome runAllReduce(const Comm* comm, const host::AllReduceSet& kernels, const void* send, void* recv, size_t count,
                           uint64_t bytes, uint32_t* algo) {
  if (bytes >= comm->pullBytes) {
    bool zeroCopy = false;
    *algo = RHW_ALGO_PULL;
    const host::Outcome outcome =
        kernels.pull(comm->team, offsetInHeap(comm, send, bytes), offsetInHeap(comm, recv, bytes), count, &zeroCopy);
    if (outcome.stop != Stop::kNone || zeroCopy) return outcome;
  }
  if (bytes >= comm->twoshotBytes) {
    *algo = RHW_ALGO_TWOSHOT;
    return kernels.twoshot(comm->team, send, recv, count);
  }
  *algo = RHW_ALGO_ONESHOT;
  return kernels.oneshot(comm->team, send, recv, count);
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_all_reduce(const void* send, void* recv, size_t count, rh_dtype dtype, rh_op op, rh_comm* handle,
                                   void* stream) {
  Comms::Exclusive guard(comms(), handle);
  Comm* comm = guard.get();
  if (__builtin_expect(comm == nullptr, 0)) return checkGuard(guard, "all_reduce");
  const rh_result bad = checkAllReduce(comm, send, recv, count, dtype, op, stream);
  if (__builtin_expect(bad != RH_OK, 0)) return bad;

  const uint64_t bytes = count * sizeOf(dtype);
  if (!beginOperation(comm, RHW_OP_ALL_REDUCE, bytes)) return whyBroken(comm);
  if (count > 0) {
    const auto& kernels = dtype == RH_F32 ? comm->kernels->f32 : comm->kernels->bf16;
    uint32_t algo = RHW_ALGO_AUTO;
    const auto outcome = runAllReduce(comm, kernels, send, recv, count, bytes, &algo);
    __atomic_store_n(&comm->line(comm->rank)->algo, algo, __ATOMIC_RELAXED);
    if (__builtin_expect(outcome.stop != railhead::Stop::kNone, 0)) return stopOperation(comm, outcome);
  }
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
  const auto outcome = comm->kernels->barrier(comm->team);
  if (__builtin_expect(outcome.stop != railhead::Stop::kNone, 0)) return stopOperation(comm, outcome);
  endOperation(comm);
  return RH_OK;
}
