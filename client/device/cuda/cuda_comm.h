// A comm's state on its GPU.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_CUDA_COMM_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_CUDA_COMM_H_

#include <stdint.h>

#include "base/malloced.h"
#include "comm/comm.h"
#include "device/cuda/context.h"
#include "device/cuda/copies.h"
#include "device/cuda/devices.h"
#include "device/cuda/kernels.h"
#include "device/cuda/memory.h"
#include "device/cuda/shared.h"
#include "railhead/gpu/launch.h"

namespace railhead::client::cuda {

// Streams that have run calls of a comm, in the order of their first call. The number of a stream, its place from 1, is for messages.
struct StreamNumbers {
  static constexpr uint32_t kMost = 64;  // further streams take the places of the oldest
  const void* streams[kMost] = {};
  unsigned long long ids[kMost] = {};  // the driver's, where calls were queued; a later stream may have the same address
  uint32_t given = 0;
  uint32_t last = 0;   // place of the last one
  uint64_t busy = 0;   // bit i: calls were queued on streams[i] since the device was last known to be idle
  bool lost = false;   // one of these streams is not in the list any more

  uint32_t of(const void* stream) {
    if (last < given && streams[last] == stream) return last + 1;
    for (last = 0; last < given && last < kMost; last++) {
      if (streams[last] == stream) return last + 1;
    }
    last = given++ % kMost;
    streams[last] = stream;
    lost = lost || (busy >> last & 1) != 0;
    return last + 1;
  }
};

struct OpenedPart;  // apart.cc
struct CudaEp;      // cuda_ep.h

struct CudaComm : Malloced {
  Context context;
  DeviceHeaps heaps;
  Shared* shared = nullptr;
  Kernels* kernels = nullptr;
  gpu::Status* pinned = nullptr;  // host memory that kernels write
  gpu::Status* status = nullptr;  // the same once the comm is set up. Written with release, read with acquire, by any thread
  gpu::Team team = {};      // of every call, but limitNs
  uint64_t stageOffset = 0, stageBytes = 0;  // the window at the end of the scratch to which calls copy their buffers; stageBytes 0 = there is none
  bool left = false;        // the rank has left the group. Writer: leave (release). Readers: any thread (acquire)
  bool staged = false;      // the scratch is in the host's memory
  char reason[RHW_REASON] = {};  // why
  bool fabric = false;           // the driver creates memory with a FABRIC handle
  char fabricReason[256] = {};   // why not
  uint64_t stagedOffset = 0;     // of the scratch in the heaps, where it is staged
  LocalRankSet pinnedParts;      // of the staged scratch
  bool enters = false;           // another context, or none, was current in the last launch that looked; accessed like streams
  StreamNumbers streams;         // accessed by the thread that has exclusive access to the comm
  CopyStreams copyStreams;
  OpenedPart* opened = nullptr;  // memory of other ranks that lies apart from the heaps
  uint64_t lastApart = 0;        // number of the last such window
  CudaEp* eps = nullptr;         // of the buffers of dispatch and combine
  uint32_t survivors = 0;        // of these, such as survive deaths; atomic

  bool refused = false;     // mapping a peer's memory failed because the GPUs cannot access each other's memory
  char uuids[RHW_MAX_LOCAL][sizeof(DeviceFacts::uuid)] = {};  // by local rank
  Failure failed;           // the last failure of making or mapping memory

  // Used by the control thread.
  bool reported = false;    // the group knows why the kernels stopped
  int64_t tendUntil = 0;    // of a broken group
};

inline CudaComm* onCuda(const Comm* comm) { return static_cast<CudaComm*>(comm->onDevice); }

// The default streams are those of the current context; other streams have one of their own.
inline bool isDefaultStream(const void* stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

// Makes the comm's context current in this thread while it lives, where it is not. Cheaper than Current, for the data path.
class Entered {
 public:
  explicit Entered(const Context& context) : driver_(*context.driver) {
    CUcontext now = nullptr;
    driver_.cuCtxGetCurrent.call(&now);
    pushed_ = now != context.handle && driver_.cuCtxPushCurrent.call(context.handle) == CUDA_SUCCESS;
  }
  ~Entered() {
    CUcontext popped;
    if (__builtin_expect(pushed_, 0)) driver_.cuCtxPopCurrent.call(&popped);
  }
  bool pushed() const { return pushed_; }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  const Driver& driver_;
  bool pushed_;
};

// locate.cc
rh_result locate(const rh_comm_config& config, WorldRank rank, DevicePlace* place);

// set_up.cc
rh_result open(Comm* comm);
void close(Comm* comm);
rh_result setUp(Comm* comm);

// scratch.cc: the kernels' scratch, made and filled on every rank. Each is a step of setUp.
rh_result allocateScratch(Comm* comm);                 // collective
bool allocateStagedScratch(Comm* comm, Failure* why);  // collective
bool clearScratch(Comm* comm, Failure* why);           // this rank's
void releaseStagedScratch(Comm* comm);

// launch.cc
rh_result admitCollective(const Comm* comm, const CollectiveCall& call);
rh_result admitTransfers(const Comm* comm, const TransfersCall& call);
rh_result collective(Comm* comm, const CollectiveCall& call, void* stream);
rh_result transfers(Comm* comm, const TransfersCall& call, void* stream);

// watch.cc
StoppedKernel stopped(const Comm* comm);
int64_t tend(Comm* comm, int64_t now);
// Ends the running kernels of a broken group; after a death, those of buffers that survive it go on without the rank. Any thread.
void stopKernels(const Comm* comm);

// idle.cc
// Notes that a call is queued on the stream, and returns the stream's number.
uint32_t queues(CudaComm* of, const void* stream);
bool synchronize(Comm* comm, int64_t deadlineNs);
// Waits until no call of the comm runs any more. False: the deadline has passed.
bool awaitIdle(Comm* comm, int64_t deadlineNs);

// streams.cc
extern const Streams kStreams;
void end(Comm* comm, void (*end)(Comm* comm));
// While it lives this thread is one of the driver's, which calls back and permits no call of CUDA.
class DriversThread {
 public:
  DriversThread();
  ~DriversThread();
  DriversThread(const DriversThread&) = delete;
  DriversThread& operator=(const DriversThread&) = delete;
};
void leave(Comm* comm);

// heap.cc
extern const DeviceMemory kMemory;
// What the daemon passes to all ranks: the driver's number, or that of an unknown error where the reason is another one.
int codeOf(const Failure& why);

// registered.cc: as DeviceMemory has them.
rh_result shareRegistered(const Comm* comm, void* pointer, uint64_t bytes, client::Shareable* out);
int placeRegistered(Comm* comm, void* pointer, uint64_t bytes, const Offered* offers, Placed* out, char** parts);
void unplaceRegistered(Comm* comm, const Placed& placed);

// apart.cc: registered memory of cudaMalloc, as placeRegistered.
int placeApart(Comm* comm, void* pointer, uint64_t bytes, const Offered* offers, Placed* out, char** parts);
// Closes what was opened for the window of that number, or for all windows (0). No call may use it.
void closeApart(CudaComm* of, uint64_t number);

// ep_buffer.cc
extern const Experts kExperts;
// Ends what is left of buffers. No call may use it.
void freeEps(Comm* comm);

// ep_run.cc
rh_result expert(Comm* comm, const EpRequest& call, void* stream);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_CUDA_COMM_H_
