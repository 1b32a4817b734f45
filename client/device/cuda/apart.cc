// Registered windows of memory of cudaMalloc, as PyTorch allocates without expandable segments. CUDA IPC maps it at an address of the driver's choice,
// so each rank's part lies at an address of its own. A process cannot open its own memory: ranks in one process cannot share it so.
#include <string.h>

#include "device/cuda/cuda_comm.h"
#include "device/cuda/opened.h"

namespace railhead::client::cuda {

struct OpenedPart : Malloced {
  OpenedPart* next;
  uint64_t number;  // of the window
  Opened opened;
};

namespace {

// Opens the memory of another rank and returns where the window begins in it; nullptr: of->failed says why.
char* open(CudaComm* of, const Offered& offered, uint64_t bytes, uint64_t number) {
  if (offered.offset > offered.allocationBytes || bytes > offered.allocationBytes - offered.offset) {
    because(&of->failed, RH_ERR_PROTOCOL, "an allocation of %llu bytes does not contain %llu bytes at %llu", static_cast<unsigned long long>(offered.allocationBytes),
            static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(offered.offset));
    return nullptr;
  }
  auto* part = new OpenedPart();
  if (part == nullptr) {
    because(&of->failed, RH_ERR_OUT_OF_MEMORY, "no memory to note memory of another rank");
    return nullptr;
  }
  CUipcMemHandle handle;
  memcpy(&handle, offered.handle, sizeof handle);
  if (!openIpc(of->context, handle, offered.allocationBytes, &part->opened, &of->failed)) {
    delete part;
    return nullptr;
  }
  part->number = number;
  part->next = of->opened;
  of->opened = part;
  return reinterpret_cast<char*>(part->opened.base + offered.offset);
}

bool agree(const void* a, const void* b) { return ((reinterpret_cast<uintptr_t>(a) ^ reinterpret_cast<uintptr_t>(b)) & 15) == 0; }

}  // namespace

int placeApart(Comm* comm, void* pointer, uint64_t bytes, const Offered* offers, Placed* out, char** parts) {
  CudaComm* of = onCuda(comm);
  of->failed = {};
  const uint64_t window = ++of->lastApart;
  int error = 0;
  for (const LocalRank r : comm->localRanks()) {
    if (r == comm->localRank || error != 0) continue;
    char* part = open(of, offers[number(r)], bytes, window);
    if (part == nullptr) {
      error = of->failed.code == CUDA_ERROR_INVALID_CONTEXT ? int{RHW_NOT_PLACED_PROCESS} : codeOf(of->failed);
    } else if (!agree(part, pointer)) {
      error = RHW_NOT_PLACED_ALIGNMENT;
    } else {
      parts[number(r)] = part;
    }
  }
  if (error != 0) {
    closeApart(of, window);
    return error;
  }
  out->apart = window;
  return 0;
}

void closeApart(CudaComm* of, uint64_t number) {
  for (OpenedPart** at = &of->opened; *at != nullptr;) {
    OpenedPart* part = *at;
    if (number != 0 && part->number != number) {
      at = &part->next;
      continue;
    }
    *at = part->next;
    Failure ignored;  // what the driver cannot close stays until the process ends
    closeOpened(of->context, &part->opened, &ignored);
    delete part;
  }
}

}  // namespace railhead::client::cuda
