// Waits until no kernel of a comm runs, with a deadline.
//
// Only the driver knows what graphs that hold calls of the comm have queued, on any stream. It can wait for the whole context, without a
// deadline. So a thread of its own waits for the context, and the caller waits for that thread.
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
  int references = 2;      // of the waiting thread and the caller; guarded by mutex, like ended
  bool ended = false;
  Context context;
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

// A context that an earlier kernel has broken runs nothing any more, so an error ends the wait too.
void* waitForContext(void* p) {
  auto* w = static_cast<Wait*>(p);
  {
    Failure ignored;
    const Current current(w->context, &ignored);
    if (current) w->context.driver->cuCtxSynchronize.call();
  }
  pthread_mutex_lock(&w->mutex);
  w->ended = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->mutex);
  drop(w);
  return nullptr;
}

Wait* start(const Context& context) {
  auto* w = new Wait();
  if (w == nullptr) return nullptr;
  w->context = context;
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
  w->references = 1;
  drop(w);
  return nullptr;
}

bool isBroken(const Comm* comm) { return comm->control != nullptr && __atomic_load_n(comm->team.abortWord, __ATOMIC_ACQUIRE) != 0; }

// Waits in short turns, because a change of the abort word is not signalled.
bool await(const Comm* comm, Wait* w, int64_t deadlineNs) {
  constexpr int64_t kTurnNs = 1000 * 1000;
  bool told = false;
  pthread_mutex_lock(&w->mutex);
  while (!w->ended) {
    const int64_t now = host::nowNs();
    if (now >= deadlineNs) break;
    if (!told && isBroken(comm)) {
      told = true;
      stopKernels(comm);
    }
    const int64_t turn = told || deadlineNs < now + kTurnNs ? deadlineNs : now + kTurnNs;
    const timespec until = {static_cast<time_t>(turn / 1000000000), static_cast<long>(turn % 1000000000)};
    pthread_cond_timedwait(&w->changed, &w->mutex, &until);
  }
  const bool ended = w->ended;
  pthread_mutex_unlock(&w->mutex);
  return ended;
}

}  // namespace

bool synchronize(Comm* comm, int64_t deadlineNs) {
  const CudaComm* of = onCuda(comm);
  return (!of->mayRun && !of->captured) || awaitIdle(comm, deadlineNs);
}

bool awaitIdle(Comm* comm, int64_t deadlineNs) {
  CudaComm* of = onCuda(comm);
  Wait* w = start(of->context);
  if (w == nullptr) return false;
  const bool idle = await(comm, w, deadlineNs);
  drop(w);
  if (idle) of->mayRun = false;
  return idle;
}

}  // namespace railhead::client::cuda
