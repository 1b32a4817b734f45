// Streams and captures, as the driver has them.
#include <pthread.h>
#include <signal.h>

#include "base/error.h"
#include "device/cuda/cuda_comm.h"

namespace railhead::client::cuda {

namespace {

// NULL is the legacy default stream. Whether another value is a stream, only the driver knows.
bool isStream(const void*) { return true; }

CUstream streamOf(const void* stream) { return static_cast<CUstream>(const_cast<void*>(stream)); }

struct CaptureInfo {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t id = 0;
  CUgraph graph = nullptr;
};

CUresult captureInfo(const Comm* comm, const void* stream, CaptureInfo* out) {
  const Entered entered(onCuda(comm)->context);
  return onCuda(comm)->context.driver->cuStreamGetCaptureInfo.call(streamOf(stream), &out->status, &out->id, &out->graph, nullptr, nullptr, nullptr);
}

// Mostly a stream is not captured, which it knows whatever context is current.
bool isFree(const Comm* comm, const void* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return !isDefaultStream(stream) && !onCuda(comm)->enters && onCuda(comm)->context.driver->cuStreamIsCapturing.call(streamOf(stream), &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_NONE;
}

rh_result captureOf(const Comm* comm, const void* stream, uint64_t* capture) {
  *capture = 0;
  if (__builtin_expect(isFree(comm, stream), 1)) return RH_OK;
  CaptureInfo info;
  Failure why;
  const CUresult code = captureInfo(comm, stream, &info);
  if (__builtin_expect(code == CUDA_SUCCESS && info.status != CU_STREAM_CAPTURE_STATUS_INVALIDATED, 1)) {
    *capture = info.status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? info.id : 0;
    return RH_OK;
  }
  driverFailed(onCuda(comm)->context.driver, "cuStreamGetCaptureInfo", code == CUDA_SUCCESS ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : code, &why);
  return fail(why.result, "rank %d: nothing was run or captured on stream %p: %s", number(comm->rank), stream, why.text);
}

bool isCapturing(const Comm* comm, const void* stream, uint64_t capture) {
  CaptureInfo info;
  return captureInfo(comm, stream, &info) == CUDA_SUCCESS && info.status != CU_STREAM_CAPTURE_STATUS_NONE && info.id == capture;
}

// What a graph holds. The driver calls releaseKept on a thread of its own, where no call of CUDA is allowed.
struct Kept : Malloced {
  void (*release)(void*);
  void* object;
};

thread_local bool onDriversThread = false;

void releaseKept(void* p) {
  auto* kept = static_cast<Kept*>(p);
  const DriversThread here;
  kept->release(kept->object);
  delete kept;
}

bool keep(const Comm* comm, void* stream, void (*release)(void*), void* object) {
  const Driver& driver = *onCuda(comm)->context.driver;
  auto* kept = new Kept();
  if (kept == nullptr) return false;
  kept->release = release;
  kept->object = object;
  CaptureInfo info;
  CUuserObject user = nullptr;
  const Entered entered(onCuda(comm)->context);
  const bool made = captureInfo(comm, stream, &info) == CUDA_SUCCESS && info.status == CU_STREAM_CAPTURE_STATUS_ACTIVE &&
                    driver.cuUserObjectCreate.call(&user, kept, releaseKept, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS;
  if (made && driver.cuGraphRetainUserObject.call(info.graph, user, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS) return true;
  // The object is still the caller's, so the user object must not release it.
  kept->release = [](void*) {};
  if (made) driver.cuUserObjectRelease.call(user, 1);
  else delete kept;
  return false;
}

constexpr Streams makeStreams() {
  Streams s = {};
  s.isStream = isStream;
  s.captureOf = captureOf;
  s.isCapturing = isCapturing;
  s.keep = keep;
  return s;
}

struct Ending : Malloced {
  Comm* comm;
  void (*end)(Comm* comm);
};

void* runEnding(void* p) {
  auto* ending = static_cast<Ending*>(p);
  ending->end(ending->comm);
  delete ending;
  return nullptr;
}

}  // namespace

const Streams kStreams = makeStreams();

DriversThread::DriversThread() { onDriversThread = true; }
DriversThread::~DriversThread() { onDriversThread = false; }

// The last reference of a comm may be that of a graph, which the driver drops on its own thread.
void end(Comm* comm, void (*end)(Comm* comm)) {
  if (!onDriversThread) return end(comm);
  auto* ending = new Ending();
  if (ending == nullptr) return;  // the comm's memory stays until the process ends
  ending->comm = comm;
  ending->end = end;
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the application
  pthread_t thread;
  if (pthread_create(&thread, &detached, runEnding, ending) != 0) delete ending;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&detached);
}

// Kernels read the word when they begin. The device is idle, or its kernels give up because the group is broken.
void leave(Comm* comm) {
  CudaComm* of = onCuda(comm);
  gpu::Status* status = __atomic_load_n(&of->status, __ATOMIC_ACQUIRE);
  if (status == nullptr) return;
  __atomic_store_n(&of->left, true, __ATOMIC_RELEASE);
  stopKernels(comm);
  uint32_t running = 0;  // what replays do not compute may not be used
  __atomic_compare_exchange_n(&status->stop, &running, static_cast<uint32_t>(Stop::kAborted), false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  Failure ignored;
  const Current current(of->context, &ignored);
  const auto left = reinterpret_cast<CUdeviceptr>(of->team.base + static_cast<uint64_t>(of->team.rank) * of->team.stride) + offsetof(gpu::GpuState, device.left);
  if (current && of->context.driver->cuMemsetD32Async(&ignored, left, 1, 1, of->context.stream)) {
    finish(of->context, of->context.stream, comm->deadlineNs(), &ignored);
  }
}

}  // namespace railhead::client::cuda
