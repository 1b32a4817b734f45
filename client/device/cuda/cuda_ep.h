// A buffer of dispatch and combine on a GPU: what only this rank uses of it. The window that other ranks write to is the buffer's own (Ep::window).
//
// Private memory lies in the rank's own device heap behind the windows, where no other rank maps it. So it is freed without a wait for the kernels of
// other comms, as windows are.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_CUDA_EP_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_CUDA_EP_H_

#include "base/malloced.h"
#include "device/cuda/cuda_comm.h"
#include "device/cuda/launch.h"
#include "ep/ep.h"
#include "railhead/gpu/ep_call.h"

namespace railhead::client::cuda {

constexpr uint32_t kMostCells = kEpHandles + kMaxEpGraphHandles;
constexpr uint32_t kCellsOfBlock = kPinnedBytes / sizeof(EpCell);

// The plan of a cached routing.
struct CudaPlan : Malloced {
  CudaPlan* next;  // in the buffer's list
  HeapPart memory;
  gpu::EpCachedPlan arrays;
};

struct CudaEp : Malloced {
  CudaEp* next;                // in the comm's list
  const EpKernels* kernels;
  HeapPart memory;             // private memory
  gpu::EpCommonCall common;    // of every call, but call, cell and flight
  int32_t* flights;            // [kMostCells] device memory
  EpCell* cells[(kMostCells + kCellsOfBlock - 1) / kCellsOfBlock];  // pinned memory, kCellsOfBlock in each block; blocks are made as handles are
  uint32_t cellsGiven;         // cells of lower numbers have been given out
  uint32_t blocks;             // of the grid of a call with many tokens
  LocalRankSet masked;         // by the host
  CudaPlan* plans;
  EpCounters* counted;         // what of the kernels' counters is in the rank's
};

inline CudaEp* onCuda(const Ep* ep) { return static_cast<CudaEp*>(ep->onDevice); }

// Carves parts out of memory at `base`; with base 0 it only counts bytes.
class Parts {
 public:
  explicit Parts(CUdeviceptr base) : base_(base) {}
  template <class T>
  void take(T** part, uint64_t n) {
    *part = reinterpret_cast<T*>(static_cast<uintptr_t>(base_ + used_));
    used_ += (n * sizeof(T) + 127) / 128 * 128;
  }
  uint64_t used() const { return used_; }

 private:
  CUdeviceptr base_;
  uint64_t used_ = 0;
};

// ep_memory.cc: allocates and fills the private memory. False: *why says why; what was made is in `out`.
bool makePrivateMemory(Ep* ep, CudaEp* out, Failure* why);

// ep_routing.cc: see Experts.
rh_result makePlan(Ep* ep, const char* operation, uint32_t tokens, void** out);
void dropPlan(Ep* ep, void* plan);
rh_result usesPlan(Ep* ep, const char* operation, const void* plan, bool* out);
// Of a buffer that ends.
void freePlan(CudaComm* of, CudaPlan* plan);

// ep_counters.cc
rh_result count(Comm* comm, const char* operation);

// ep_report.cc: a report that the caller wants in the order of the stream. prepare() comes before the call's kernels, queue() after them.
struct EpReporting;
bool prepareReport(Comm* comm, const EpRequest& call, Queue on, EpReporting** out, Failure* why);
bool queueReport(const CudaComm& of, EpReporting* reporting, Queue on, Failure* why);
// Of a call that was not queued.
void dropReport(EpReporting* reporting, Queue on);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_CUDA_EP_H_
