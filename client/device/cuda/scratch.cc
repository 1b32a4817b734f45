// The kernels' scratch: in the device heaps, or in the heaps of the host where GPUs cannot access each other's memory.
#include <string.h>

#include "base/error.h"
#include "device/cuda/cuda_comm.h"
#include "device/cuda/host_memory.h"
#include "memory/allocation.h"

namespace railhead::client::cuda {

namespace {

gpu::Layout layoutOf(const Comm* comm) { return gpu::layoutOf(comm->localSize(), comm->deviceSlotBytes); }

char* stagedPart(const Comm* comm, LocalRank r) { return comm->heap(r) + onCuda(comm)->stagedOffset; }

}  // namespace

rh_result allocateScratch(Comm* comm) {
  CudaComm* of = onCuda(comm);
  uint64_t offset = 0;
  const rh_result result = allocateDeviceMemory(comm, comm->deviceScratchBytes, &offset);
  if (result != RH_OK) return result;
  of->team.base = comm->deviceHeaps;
  of->team.stride = comm->deviceHeapStride;
  constexpr uint64_t kAlignment = 4096, kLeast = 1 << 20;  // with less, a call would be cut into many pieces
  of->stageOffset = (layoutOf(comm).bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (comm->deviceScratchBytes >= of->stageOffset + kLeast) of->stageBytes = comm->deviceScratchBytes - of->stageOffset;
  if (offset == 0) return RH_OK;
  return fail(RH_ERR_PROTOCOL, "comm_init: rank %d: the daemon put the scratch at %llu of the device heaps, expected 0", number(comm->rank),
              static_cast<unsigned long long>(offset));
}

bool allocateStagedScratch(Comm* comm, Failure* why) {
  CudaComm* of = onCuda(comm);
  of->staged = true;
  of->stageBytes = 0;
  const rh_result result = allocateHostMemory(comm, layoutOf(comm).bytes, &of->stagedOffset);
  if (result != RH_OK) return because(why, result, "%s", rh_last_error_message());
  of->team.base = comm->team.heaps + of->stagedOffset;
  of->team.stride = comm->team.heapStride;
  for (const LocalRank r : comm->localRanks()) {
    if (!pinHost(of->context, stagedPart(comm, r), layoutOf(comm).bytes, why)) return false;
    of->pinnedParts.add(r);
  }
  return true;
}

void releaseStagedScratch(Comm* comm) {
  CudaComm* of = onCuda(comm);
  Failure ignored;
  for (const LocalRank r : of->pinnedParts) unpinHost(of->context, stagedPart(comm, r), &ignored);
  of->pinnedParts = {};
}

bool clearScratch(Comm* comm, Failure* why) {
  const gpu::Layout layout = layoutOf(comm);
  const uint64_t ones = layout.bytes - layout.inboxOffset;
  if (!onCuda(comm)->staged) {
    return onCuda(comm)->heaps.fill(number(comm->localRank), layout.inboxOffset, ones, 0xff, comm->deadlineNs(), why);
  }
  memset(stagedPart(comm, comm->localRank) + layout.inboxOffset, 0xff, ones);
  return true;
}

}  // namespace railhead::client::cuda
