// Reductions that a comm has besides the named ones.
#include <string.h>

#include "error.h"
#include "operation.h"

using namespace railhead::client;

namespace {

// A float for the types that are added in f32, else one element.
size_t scalarBytes(rh_dtype dtype) {
  switch (dtype) {
    case RH_F32:
    case RH_BF16:
    case RH_F16:
    case RH_FP8_E4M3:
    case RH_FP8_E5M2: return sizeof(float);
    default: return sizeOf(dtype);
  }
}

}  // namespace

extern "C" rh_result rh_op_create_pre_mul_sum(rh_comm* handle, rh_dtype dtype, const void* scalar, rh_op* op) {
  if (op == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "op_create_pre_mul_sum: op is NULL");
  *op = -1;
  Comms::Exclusive guard(comms(), handle);
  const rh_result result = checkGuard(guard, "op_create_pre_mul_sum");
  if (result != RH_OK) return result;
  Comm* comm = guard.get();
  if (sizeOf(dtype) == 0 || scalar == nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "op_create_pre_mul_sum: rank %d: %s", comm->rank, scalar == nullptr ? "scalar is NULL" : "dtype is none of RH_F32 .. RH_U64");
  }
  for (int i = 0; i < kMaxPreMulSums; i++) {
    PreMulSum& p = comm->preMulSums[i];
    if (p.live) continue;
    p = {};
    p.live = true;
    p.dtype = dtype;
    memcpy(p.scalar, scalar, scalarBytes(dtype));
    *op = kFirstPreMulSum + i;
    return RH_OK;
  }
  return fail(RH_ERR_LIMIT, "op_create_pre_mul_sum: rank %d: the comm has %d ops, the most there can be; destroy some", comm->rank, kMaxPreMulSums);
}

extern "C" rh_result rh_op_destroy(rh_comm* handle, rh_op op) {
  Comms::Exclusive guard(comms(), handle);
  const rh_result result = checkGuard(guard, "op_destroy");
  if (result != RH_OK) return result;
  const int32_t index = op - kFirstPreMulSum;
  if (op < kFirstPreMulSum || index >= kMaxPreMulSums || !guard.get()->preMulSums[index].live) {
    return fail(RH_ERR_INVALID_ARGUMENT, "op_destroy: rank %d: op %d is no live op of this comm", guard.get()->rank, op);
  }
  guard.get()->preMulSums[index].live = false;
  return RH_OK;
}
