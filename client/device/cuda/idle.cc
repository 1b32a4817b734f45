// Waits until no call of a comm runs, with a deadline.
//
// Only the driver knows what graphs that hold calls of the comm have queued, on any stream. It can wait for the whole context, without a deadline. So a
// thread of its own waits for the context, and the caller waits for that thread.
//
// The context may have other work that does not end soon: a kernel of another comm that waits for a rank which comes after this call. So without such
// graphs, the caller also looks at the streams on which it has queued calls, but not at once: a stream that the application has destroyed since
// must not be touched, and then the context mostly is idle soon.
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "base/malloced.h"
#include "device/cuda/cuda_comm.h"
#include "host/futex.h"

namespace railhead::client::cuda {

namespace {

struct Wait : Malloced {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed;  // on the monotonic clock
  int references = 2;      // of the waiting thread and the caller; guarded by mutex, like the next three
  bool ended = false;      // the context was idle
  bool given = false;      // the caller waits no more
  int64_t enteredNs = 0;   // when the thread was about to call the driver; 0 = it has not been
  Context context;
  bool retained = false;   // the thread has a reference to the context: it may wait longer than the comm lives
};

void drop(Wait* w) {
  pthread_mutex_lock(&w->mutex);
  const bool last = --w->references == 0;
  pthread_mutex_unlock(&w->mutex);
  if (!last) return;
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->mutex);
  delete w;
}

void release(const Wait& w) {
  if (w.retained) w.context.driver->cuDevicePrimaryCtxRelease.call(w.context.device);
}

// A context that an earlier kernel has broken runs nothing any more, so an error ends the wait too. But while another thread captures, the driver
// refuses to wait, and kernels may run: then only the comm's own streams can tell.
void* waitForContext(void* p) {
  auto* w = static_cast<Wait*>(p);
  CUresult result = CUDA_SUCCESS;
  {
    Failure ignored;
    const Current current(w->context, &ignored);
    pthread_mutex_lock(&w->mutex);
    const bool late = w->given;  // a capture that began since must not be disturbed
    if (!late) w->enteredNs = host::nowNs();
    pthread_mutex_unlock(&w->mutex);
    if (current && !late) result = w->context.driver->cuCtxSynchronize.call();
  }
  release(*w);
  pthread_mutex_lock(&w->mutex);
  w->ended = result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->mutex);
  drop(w);
  return nullptr;
}

Wait* start(const Context& context) {
  auto* w = new Wait();
  if (w == nullptr) return nullptr;
  w->context = context;
  CUcontext same;
  w->retained = context.driver->cuDevicePrimaryCtxRetain.call(&same, context.device) == CUDA_SUCCESS;
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&w->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the application
  pthread_t thread;
  const int error = pthread_create(&thread, &detached, waitForContext, w);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&detached);
  if (error == 0) return w;
  release(*w);
  w->references = 1;
  drop(w);
  return nullptr;
}

bool isBroken(const Comm* comm) { return comm->control != nullptr && __atomic_load_n(comm->team.abortWord, __ATOMIC_ACQUIRE) != 0; }

// Only captured calls hold references beside that of the handle. Acquire: what they did happens before their end.
bool graphsMayRun(const Comm* comm) { return __atomic_load_n(&comm->references, __ATOMIC_ACQUIRE) > 1; }

// CU_STREAM_PER_THREAD, one handle for the streams of all threads.
constexpr uintptr_t kStreamOfThread = 2;

bool isIdle(const Driver& driver, const StreamNumbers& streams, int i) {
  const auto stream = static_cast<CUstream>(const_cast<void*>(streams.streams[i]));
  if (reinterpret_cast<uintptr_t>(stream) == kStreamOfThread) return false;  // another thread's is not asked here
  unsigned long long id = 0;
  CUstreamCaptureStatus captured = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return driver.cuStreamGetId.call(stream, &id) == CUDA_SUCCESS && id == streams.ids[i] && driver.cuStreamIsCapturing.call(stream, &captured) == CUDA_SUCCESS &&
         captured == CU_STREAM_CAPTURE_STATUS_NONE && driver.cuStreamQuery.call(stream) == CUDA_SUCCESS;
}

// Whether it is certain that nothing runs on the streams which the comm has used since it was last idle.
bool ownStreamsAreIdle(const Comm* comm) {
  const CudaComm* of = onCuda(comm);
  if (of->streams.lost || graphsMayRun(comm)) return false;
  const Current current(of->context);
  if (!current) return false;
  for (uint64_t left = of->streams.busy; left != 0; left &= left - 1) {
    if (!isIdle(*of->context.driver, of->streams, __builtin_ctzll(left))) return false;
  }
  return true;
}

// Once the caller has returned, the application may begin a capture, and the driver ends a capture in which a thread begins to wait for the context. So the
// caller returns only if the thread has not said that it will call the driver, and then does not call, or has said so long ago, and is within the driver.
// A wait that ends at its deadline is excepted.
bool mayReturnBefore(const Wait& w, int64_t now) {
  constexpr int64_t kEnterNs = 250 * 1000 * 1000;
  return w.enteredNs == 0 || now - w.enteredNs >= kEnterNs;
}

// Waits in short turns, because neither the abort word nor a stream signals a change.
bool await(const Comm* comm, Wait* w, int64_t deadlineNs) {
  constexpr int64_t kTurnNs = 1000 * 1000;
  constexpr int64_t kContextFirstNs = 20 * kTurnNs;
  const int64_t lookAt = host::nowNs() + kContextFirstNs;
  bool told = false, idle = false;
  pthread_mutex_lock(&w->mutex);
  while (!w->ended && !idle) {
    const int64_t now = host::nowNs();
    if (now >= deadlineNs) break;
    if (!told && isBroken(comm)) {
      told = true;
      stopKernels(comm);
    }
    const int64_t turn = deadlineNs < now + kTurnNs ? deadlineNs : now + kTurnNs;
    const timespec until = {static_cast<time_t>(turn / 1000000000), static_cast<long>(turn % 1000000000)};
    pthread_cond_timedwait(&w->changed, &w->mutex, &until);
    idle = !w->ended && turn >= lookAt && mayReturnBefore(*w, turn) && ownStreamsAreIdle(comm);
  }
  idle = idle || w->ended;
  w->given = true;
  pthread_mutex_unlock(&w->mutex);
  return idle;
}

unsigned long long idOf(const CudaComm& of, const void* stream) {
  unsigned long long id = 0;
  const Entered entered(of.context);
  of.context.driver->cuStreamGetId.call(static_cast<CUstream>(const_cast<void*>(stream)), &id);
  return id;
}

}  // namespace

uint32_t queues(CudaComm* of, const void* stream) {
  StreamNumbers& s = of->streams;
  const uint32_t number = s.of(stream);
  // Since the device was idle, another stream may have got the address.
  if (__builtin_expect((s.busy >> s.last & 1) == 0, 0)) s.ids[s.last] = idOf(*of, stream);
  s.busy |= uint64_t{1} << s.last;
  return number;
}

bool synchronize(Comm* comm, int64_t deadlineNs) {
  return (onCuda(comm)->streams.busy == 0 && !graphsMayRun(comm)) || awaitIdle(comm, deadlineNs);
}

bool awaitIdle(Comm* comm, int64_t deadlineNs) {
  CudaComm* of = onCuda(comm);
  Wait* w = start(of->context);
  if (w == nullptr) return false;
  const bool idle = await(comm, w, deadlineNs);
  drop(w);
  if (idle) {
    of->streams.busy = 0;
    of->streams.lost = false;
  }
  return idle;
}

}  // namespace railhead::client::cuda
