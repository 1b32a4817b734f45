// Registered windows: memory that the application has allocated on the GPUs.
//
// Memory of cuMemCreate: each process maps the allocations of all ranks, its own a second time, into the addresses that each device heap has behind its
// windows. Physical memory can only be mapped whole, at multiples of a granule: the ranks' memory must begin at the same place of a granule. Memory of
// cudaMalloc: apart.cc.
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "base/error.h"
#include "device/cuda/bundle.h"
#include "device/cuda/cuda_comm.h"
#include "device/cuda/shareable.h"
#include "memory/shareable.h"

namespace railhead::client::cuda {

namespace {

// Records why the memory cannot be shared.
rh_result cannot(const Comm* comm, const char* why, client::Shareable* out) {
  out->fd = -1;
  snprintf(out->reason, sizeof out->reason, "rank %d: %.*s", number(comm->rank), static_cast<int>(sizeof out->reason) - 16, why);
  return RH_OK;
}

// The allocations must follow each other in the heap as they do in their process, and contain the window.
bool fits(const Bundle& bundle, const Offered& offered, uint64_t granularity, uint64_t bytes) {
  uint64_t total = 0;
  for (int i = 0; i < bundle.count; i++) {
    if (bundle.bytes[i] == 0 || bundle.bytes[i] % granularity != 0 || __builtin_add_overflow(total, bundle.bytes[i], &total)) return false;
  }
  return total == offered.allocationBytes && offered.offset <= total && bytes <= total - offered.offset;
}

// Maps a rank's allocations one behind the other. own: where they lie in this process, if it is this rank's, else 0.
bool mapAll(DeviceHeaps* heaps, int rank, uint64_t at, const Bundle& bundle, CUdeviceptr own, Failure* why) {
  for (int i = 0; i < bundle.count; i++) {
    const HeapPart part = {rank, at, bundle.bytes[i]};
    if (own != 0 ? !heaps->alias(part, own, why) : !heaps->import(part, bundle.fds[i], why)) return false;
    at += bundle.bytes[i];
    if (own != 0) own += bundle.bytes[i];
  }
  return true;
}

bool placeOne(Comm* comm, LocalRank r, CUdeviceptr pointer, uint64_t bytes, const Offered& offered, const Placed& placed, Failure* why) {
  DeviceHeaps* heaps = &onCuda(comm)->heaps;
  Bundle bundle;
  if (!unpack(offered.fd, &bundle, why)) return false;
  bool mapped = fits(bundle, offered, heaps->granularity(), bytes) ||
                because(why, RH_ERR_PROTOCOL, "the allocations of local rank %d do not contain %llu bytes at %llu", number(r), static_cast<unsigned long long>(bytes),
                        static_cast<unsigned long long>(offered.offset));
  const CUdeviceptr own = r == comm->localRank ? pointer - offered.offset : 0;
  mapped = mapped && mapAll(heaps, number(r), placed.offset - offered.offset, bundle, own, why);
  closeAll(&bundle);
  return mapped;
}

// Finds addresses for the allocations of all ranks. Returns 0 or an error as place does.
int findPlace(const Comm* comm, const Offered* offers, Placed* out) {
  const DeviceHeaps& heaps = onCuda(comm)->heaps;
  const uint64_t granularity = heaps.granularity(), place = offers[number(comm->localRank)].offset % granularity;
  uint64_t before = 0, behind = 0;  // the most that lies before the window's first byte, and from it on
  for (const LocalRank r : comm->localRanks()) {
    const Offered& o = offers[number(r)];
    if (o.offset > o.allocationBytes || o.allocationBytes > RHW_MAX_REGISTERED) return CUDA_ERROR_INVALID_VALUE;
    if (o.offset % granularity != place) return RHW_NOT_PLACED_OFFSETS;
    before = std::max(before, o.offset);
    behind = std::max(behind, o.allocationBytes - o.offset);
  }
  out->bytes = before - place + (place + behind + granularity - 1) / granularity * granularity;
  if (!heaps.findRoom(comm->deviceHeapBytes, out->bytes, &out->begin)) return RHW_NOT_PLACED_ROOM;
  out->offset = out->begin + before;
  return 0;
}

}  // namespace

rh_result shareRegistered(const Comm* comm, void* pointer, uint64_t bytes, client::Shareable* out) {
  const CudaComm* of = onCuda(comm);
  if (of->staged) return cannot(comm, of->reason, out);
  Shareable found;
  Failure why;
  if (!findShareable(of->context, reinterpret_cast<CUdeviceptr>(pointer), bytes, &found, &why)) {
    if (why.result != RH_ERR_INVALID_ARGUMENT) return cannot(comm, why.text, out);
    return fail(why.result, "window_register: rank %d: %s", number(comm->rank), why.text);
  }
  if (found.by == ShareBy::kNothing) return cannot(comm, found.reason, out);
  if (found.by == ShareBy::kIpc) {
    out->byHandle = true;
    static_assert(sizeof out->handle == sizeof found.handle, "a handle fits");
    memcpy(out->handle, &found.handle, sizeof out->handle);
  } else {
    const bool packed = pack(found.allocations, &out->fd, &why);
    closeAll(&found.allocations);
    if (!packed) return cannot(comm, why.text, out);
  }
  out->offset = found.offset;
  out->allocationBytes = found.allocationBytes;
  return RH_OK;
}

int placeRegistered(Comm* comm, void* pointer, uint64_t bytes, const Offered* offers, Placed* out, char** parts) {
  CudaComm* of = onCuda(comm);
  int handles = 0;
  for (const LocalRank r : comm->localRanks()) handles += offers[number(r)].fd < 0 ? 1 : 0;
  if (handles == comm->localSize()) return placeApart(comm, pointer, bytes, offers, out, parts);
  if (handles != 0) return RHW_NOT_PLACED_MIXED;
  Placed placed;
  if (const int error = findPlace(comm, offers, &placed); error != 0) return error;
  of->failed = {};
  for (const LocalRank r : comm->localRanks()) {
    if (placeOne(comm, r, reinterpret_cast<CUdeviceptr>(pointer), bytes, offers[number(r)], placed, &of->failed)) continue;
    unplaceRegistered(comm, placed);
    return codeOf(of->failed);
  }
  *out = placed;
  return 0;
}

void unplaceRegistered(Comm* comm, const Placed& placed) {
  Failure ignored;  // what the driver cannot unmap stays until the comm ends
  if (placed.apart != 0) return closeApart(onCuda(comm), placed.apart);
  onCuda(comm)->heaps.unmapAll(placed.begin, placed.bytes, &ignored);
}

}  // namespace railhead::client::cuda
