#include "timing.h"

#include "host/futex.h"

namespace {

template <class Operation>
rh_result timeLoop(int32_t iterations, uint64_t* totalNs, Operation operation) {
  const int64_t start = railhead::host::nowNs();
  for (int32_t i = 0; i < iterations; i++) {
    const rh_result r = operation();
    if (r != RH_OK) return r;
  }
  *totalNs = static_cast<uint64_t>(railhead::host::nowNs() - start);
  return RH_OK;
}

}  // namespace

extern "C" rh_result rh_time_all_reduce(const void* send, void* recv, size_t count, rh_dtype dtype, rh_comm* comm,
                                        int32_t iterations, uint64_t* total_ns) {
  return timeLoop(iterations, total_ns, [&] { return rh_all_reduce(send, recv, count, dtype, RH_SUM, comm, nullptr); });
}

extern "C" rh_result rh_time_barrier(rh_comm* comm, int32_t iterations, uint64_t* total_ns) {
  return timeLoop(iterations, total_ns, [&] { return rh_barrier(comm, nullptr); });
}
