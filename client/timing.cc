#include "timing.h"

#include "base/error.h"
#include "comm/comm.h"
#include "device/cuda/launch.h"
#include "host/futex.h"
#include "host/kernels.h"

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

// A ring: every rank sends to the next rank and receives from the previous one.
rh_result sendrecv(const rh_timed_operation& o, rh_comm* comm, void* stream, int32_t next, int32_t before) {
  rh_result r = rh_group_start();
  if (r != RH_OK) return r;
  r = rh_send(o.send, o.count, o.dtype, next, comm, stream);
  if (r == RH_OK) r = rh_recv(o.recv, o.count, o.dtype, before, comm, stream);
  const rh_result ended = rh_group_end();  // the group must end even after an invalid call
  return r != RH_OK ? r : ended;
}

rh_result timeSendrecv(const rh_timed_operation& o, rh_comm* comm, void* stream, int32_t iterations, uint64_t* totalNs) {
  int32_t rank = 0, world = 0;
  rh_result r = rh_comm_rank(comm, &rank);
  if (r == RH_OK) r = rh_comm_world_size(comm, &world);
  if (r != RH_OK) return r;
  const int32_t next = (rank + 1) % world, before = (rank + world - 1) % world;
  return timeLoop(iterations, totalNs, [&] { return sendrecv(o, comm, stream, next, before); });
}

}  // namespace

extern "C" rh_result rh_time_operation(rh_timed_operation o, rh_comm* comm, void* stream, int32_t iterations, uint64_t* total_ns) {
  const auto loop = [&](auto operation) { return timeLoop(iterations, total_ns, operation); };
  switch (o.kind) {
    case RH_TIMED_ALL_REDUCE: return loop([&] { return rh_all_reduce(o.send, o.recv, o.count, o.dtype, o.op, comm, stream); });
    case RH_TIMED_ALL_GATHER: return loop([&] { return rh_all_gather(o.send, o.recv, o.count, o.dtype, comm, stream); });
    case RH_TIMED_REDUCE_SCATTER:
      return loop([&] { return rh_reduce_scatter(o.send, o.recv, o.count, o.dtype, o.op, comm, stream); });
    case RH_TIMED_ALL_TO_ALL: return loop([&] { return rh_all_to_all(o.send, o.recv, o.count, o.dtype, comm, stream); });
    case RH_TIMED_BROADCAST: return loop([&] { return rh_broadcast(o.send, o.recv, o.count, o.dtype, o.root, comm, stream); });
    case RH_TIMED_REDUCE: return loop([&] { return rh_reduce(o.send, o.recv, o.count, o.dtype, o.op, o.root, comm, stream); });
    case RH_TIMED_GATHER: return loop([&] { return rh_gather(o.send, o.recv, o.count, o.dtype, o.root, comm, stream); });
    case RH_TIMED_SCATTER: return loop([&] { return rh_scatter(o.send, o.recv, o.count, o.dtype, o.root, comm, stream); });
    case RH_TIMED_SENDRECV: return timeSendrecv(o, comm, stream, iterations, total_ns);
    case RH_TIMED_BARRIER: return loop([&] { return rh_barrier(comm, stream); });
  }
  return railhead::client::fail(RH_ERR_INVALID_ARGUMENT, "time_operation: kind %d is not an operation", static_cast<int>(o.kind));
}

namespace {

// Launches the kernel on a GPU by the driver's function alone, with the context current. Every rank launches the same grid.
rh_result timeLaunches(railhead::client::Comm* comm, const void* send, void* recv, size_t count, void* stream, int32_t iterations, uint64_t* totalNs) {
  namespace cuda = railhead::client::cuda;
  cuda::CudaComm* of = cuda::onCuda(comm);
  const cuda::CUfunction kernel = of->kernels->of(RHW_ALGO_ONESHOT, RHW_OP_ALL_REDUCE, RH_F32);
  if (kernel == nullptr) return railhead::client::fail(RH_ERR_UNSUPPORTED, "time_oneshot_kernel: there is no such kernel");
  auto call = cuda::callOf(comm, {RHW_OP_ALL_REDUCE, RH_F32, RH_SUM, railhead::kNoRoot, count, 0, 0, 0}, count * sizeof(float), cuda::queues(of, stream));
  call.send = static_cast<const char*>(send);
  call.recv = static_cast<char*>(recv);
  call.count = count;
  cuda::CUlaunchConfig config = {};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 64;
  config.hStream = static_cast<cuda::CUstream>(stream);
  void* parameters[] = {&call};
  const cuda::Entered entered(of->context);
  return timeLoop(iterations, totalNs, [&] {
    cuda::Failure why;
    if (of->context.driver->cuLaunchKernelEx(&why, &config, kernel, parameters, nullptr)) return RH_OK;
    return railhead::client::fail(why.result, "time_oneshot_kernel: %s", why.text);
  });
}

}  // namespace

extern "C" rh_result rh_time_oneshot_kernel(const void* send, void* recv, size_t count, rh_comm* handle, void* stream, int32_t iterations,
                                            uint64_t* total_ns) {
  namespace client = railhead::client;
  client::Comms::Exclusive guard(client::comms(), handle);
  client::Comm* comm = guard.get();
  if (comm == nullptr) return client::checkGuard(guard, "time_oneshot_kernel");
  if (comm->device->wire == RHW_DEVICE_CUDA) return timeLaunches(comm, send, recv, count, stream, iterations, total_ns);
  const auto kernel = railhead::host::kKernels.of[RHW_ALGO_ONESHOT][RHW_OP_ALL_REDUCE];
  railhead::host::KernelCall call = {comm->team, comm->ring};
  call.elements = &comm->kernels->elements[RH_F32];
  call.send = send;
  call.recv = recv;
  call.count = count;
  call.bytes = count * sizeof(float);
  return timeLoop(iterations, total_ns, [&] {
    const auto outcome = kernel(call);
    return outcome.stop == railhead::Stop::kNone ? RH_OK : client::stopOperation(comm, outcome);
  });
}
