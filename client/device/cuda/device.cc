// The CUDA device: calls are kernels on the caller's streams. The host runs set-up calls, in its own memory, and counts them apart.
#include <string.h>

#include "base/commit.h"
#include "device/cpu/run.h"
#include "device/cuda/cuda_comm.h"

namespace railhead::client {

namespace {

uint64_t granularity(const Comm* comm) { return comm->deviceGranularity; }

void describe(const Comm* comm, rh_comm_info* info) {
  const cuda::CudaComm* of = cuda::onCuda(comm);
  info->stop_word = &of->pinned->stop;
  info->device_stop_word = &of->team.status->stop;
  info->device_staged = of->staged;
  static_assert(sizeof info->device_staged_reason == sizeof of->reason, "a reason fits");
  memcpy(info->device_staged_reason, of->reason, sizeof of->reason);
  info->device_fabric = of->fabric;
  static_assert(sizeof info->device_fabric_reason == sizeof of->fabricReason, "a reason fits");
  memcpy(info->device_fabric_reason, of->fabricReason, sizeof of->fabricReason);
}

constexpr Device makeDevice() {
  Device d = {};
  d.kind = RH_DEVICE_CUDA;
  d.wire = RHW_DEVICE_CUDA;
  d.name = "CUDA";
  d.memory = RH_MEMORY_DEVICE;
  d.streams = &cuda::kStreams;
  d.ownMemory = &cuda::kMemory;
  d.countsApart = true;
  d.locate = cuda::locate;
  d.open = cuda::open;
  d.close = cuda::close;
  d.setUp = cuda::setUp;
  d.end = cuda::end;
  d.leave = cuda::leave;
  d.tend = cuda::tend;
  d.stopped = cuda::stopped;
  d.describe = describe;
  d.admitCollective = cuda::admitCollective;
  d.admitTransfers = cuda::admitTransfers;
  d.collective = cuda::collective;
  d.transfers = cuda::transfers;
  d.expert = cuda::expert;
  d.experts = &cuda::kExperts;
  d.gather = runGather;
  d.synchronize = cuda::synchronize;
  d.granularity = granularity;
  d.commit = commitPages;
  return d;
}

}  // namespace

const Device kCudaDevice = makeDevice();

}  // namespace railhead::client
