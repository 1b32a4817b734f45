#include "timing.h"

#include "comm.h"
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

extern "C" rh_result rh_time_oneshot_kernel(const void* send, void* recv, size_t count, rh_comm* handle, int32_t iterations,
                                            uint64_t* total_ns) {
  namespace client = railhead::client;
  client::Comms::Exclusive guard(client::comms(), handle);
  client::Comm* comm = guard.get();
  if (comm == nullptr) return client::checkGuard(guard, "time_oneshot_kernel");
  const auto kernel = comm->kernels->f32.oneshot;
  return timeLoop(iterations, total_ns, [&] {
    const auto outcome = kernel(comm->team, send, recv, count);
    return outcome.stop == railhead::Stop::kNone ? RH_OK : client::stopOperation(comm, outcome);
  });
}

extern "C" rh_result rh_time_barrier(rh_comm* comm, int32_t iterations, uint64_t* total_ns) {
  return timeLoop(iterations, total_ns, [&] { return rh_barrier(comm, nullptr); });
}
