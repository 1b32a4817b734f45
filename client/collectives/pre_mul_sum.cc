// Reductions that the application creates for a comm.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "collectives/operation.h"

using namespace railhead::client;

namespace {

constexpr int kMaxPreMulSums = 64;  // in a comm
constexpr rh_op kFirstPreMulSum = 64;

void freePreMulSums(Comm* comm) {
  free(comm->preMulSums);
  comm->preMulSums = nullptr;
}

constexpr CommUser makeUser() {
  CommUser u = {};
  u.unmap = freePreMulSums;
  return u;
}
CommUser user = makeUser();

// Allocates the comm's ops, with the first of them. False: out of memory.
bool allocatePreMulSums(Comm* comm) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { addCommUser(&user); });
  if (comm->preMulSums == nullptr) comm->preMulSums = static_cast<PreMulSum*>(calloc(kMaxPreMulSums, sizeof(PreMulSum)));
  return comm->preMulSums != nullptr;
}

// Size of the scalar: a float for the types that are added in f32, otherwise one element.
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

// A new number for the op at an index, never given before.
rh_op nextNumber(int index) {
  static uint32_t given = 0;
  constexpr uint32_t kNumbers = static_cast<uint32_t>(INT32_MAX) / kMaxPreMulSums;
  const uint32_t n = __atomic_fetch_add(&given, 1, __ATOMIC_RELAXED) % (kNumbers - 1);
  return kFirstPreMulSum + static_cast<rh_op>(n) * kMaxPreMulSums + index;
}

}  // namespace

const PreMulSum* railhead::client::preMulSum(const Comm* comm, rh_op number) {
  if (number < kFirstPreMulSum || comm->preMulSums == nullptr) return nullptr;
  const PreMulSum& p = comm->preMulSums[number % kMaxPreMulSums];
  return p.number == number ? &p : nullptr;
}

extern "C" rh_result rh_op_create_pre_mul_sum(rh_comm* handle, rh_dtype dtype, const void* scalar, rh_op* op) {
  if (op == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "op_create_pre_mul_sum: op is NULL");
  *op = -1;
  Comms::Exclusive guard(comms(), handle);
  const rh_result result = checkGuard(guard, "op_create_pre_mul_sum");
  if (result != RH_OK) return result;
  Comm* comm = guard.get();
  if (sizeOf(dtype) == 0 || scalar == nullptr) {
    return scalar == nullptr ? fail(RH_ERR_INVALID_ARGUMENT, "op_create_pre_mul_sum: rank %d: scalar is NULL", number(comm->rank))
                             : fail(RH_ERR_INVALID_ARGUMENT, "op_create_pre_mul_sum: rank %d: dtype %d is none of RH_F32 .. RH_U64",
                                    number(comm->rank), dtype);
  }
  if (!allocatePreMulSums(comm)) return fail(RH_ERR_OUT_OF_MEMORY, "op_create_pre_mul_sum: rank %d: no memory for an op", number(comm->rank));
  for (int i = 0; i < kMaxPreMulSums; i++) {
    PreMulSum& p = comm->preMulSums[i];
    if (p.number != 0) continue;
    p = {};
    p.number = nextNumber(i);
    p.dtype = dtype;
    memcpy(p.scalar, scalar, scalarBytes(dtype));
    *op = p.number;
    return RH_OK;
  }
  return fail(RH_ERR_LIMIT, "op_create_pre_mul_sum: rank %d: the comm has %d ops, the most there can be; destroy some", number(comm->rank), kMaxPreMulSums);
}

extern "C" rh_result rh_op_destroy(rh_comm* handle, rh_op op) {
  Comms::Exclusive guard(comms(), handle);
  const rh_result result = checkGuard(guard, "op_destroy");
  if (result != RH_OK) return result;
  const PreMulSum* p = preMulSum(guard.get(), op);
  if (p == nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "op_destroy: rank %d: op %d is not an op of this comm: never created, or already destroyed",
                number(guard.get()->rank), op);
  }
  guard.get()->preMulSums[op % kMaxPreMulSums].number = 0;
  return RH_OK;
}
