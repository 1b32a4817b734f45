// The device heaps of a comm, for its windows.
#include "base/error.h"
#include "device/cuda/cuda_comm.h"

namespace railhead::client::cuda {

int codeOf(const Failure& why) { return static_cast<int>(why.code != CUDA_SUCCESS ? why.code : CUDA_ERROR_UNKNOWN); }

namespace {

int create(Comm* comm, uint64_t offset, uint64_t bytes, int* fd) {
  CudaComm* of = onCuda(comm);
  const HeapPart part = {number(comm->localRank), offset, bytes};
  of->failed = {};
  *fd = -1;
  if (!of->heaps.create(part, comm->deadlineNs(), &of->failed)) return codeOf(of->failed);
  if (of->heaps.exportDescriptor(part, fd, &of->failed)) return 0;
  Failure ignored;
  of->heaps.unmap(part, &ignored);
  return codeOf(of->failed);
}

// Errors of GPUs that cannot access each other's memory.
bool isRefusal(CUresult code) {
  switch (code) {
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_TOO_MANY_PEERS: return true;
    default: return false;
  }
}

int map(Comm* comm, LocalRank local, uint64_t offset, uint64_t bytes, int fd) {
  CudaComm* of = onCuda(comm);
  of->failed = {};
  if (of->heaps.import({number(local), offset, bytes}, fd, &of->failed)) return 0;
  of->refused = isRefusal(of->failed.code);
  return codeOf(of->failed);
}

void unmap(Comm* comm, uint64_t offset, uint64_t bytes) {
  for (const LocalRank r : comm->localRanks()) {
    Failure ignored;  // a part that is not mapped; what the driver cannot unmap stays until the comm ends
    onCuda(comm)->heaps.unmap({number(r), offset, bytes}, &ignored);
  }
}

rh_result check(const Comm* comm, const char* operation) {
  const CudaComm* of = onCuda(comm);
  if (!of->staged) return RH_OK;
  return fail(RH_ERR_UNSUPPORTED, "%s: rank %d: no windows of device memory, because collectives go through the host's memory: %s; ask for RH_MEMORY_HOST",
              operation, number(comm->rank), of->reason);
}

constexpr DeviceMemory makeMemory() {
  DeviceMemory m = {};
  m.kind = RHW_MEMORY_CUDA;
  m.create = create;
  m.map = map;
  m.unmap = unmap;
  m.check = check;
  m.share = shareRegistered;
  m.place = placeRegistered;
  m.unplace = unplaceRegistered;
  return m;
}

}  // namespace

const DeviceMemory kMemory = makeMemory();

}  // namespace railhead::client::cuda
