#include "device/threads/stream.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "host/futex.h"

namespace railhead::client::threads {

thread_local Launch launch = {};

StreamTable& streams() {
  static StreamTable table;
  return table;
}

Work* newWork(rh_result (*run)(Stream*, Work*), size_t argsBytes) {
  auto* work = static_cast<Work*>(malloc(sizeof(Work) + argsBytes));
  if (work == nullptr) return nullptr;
  work->next = nullptr;
  work->run = run;
  work->drop = nullptr;
  work->comm = nullptr;
  return work;
}

void freeWork(Work* work) {
  if (work->drop != nullptr) work->drop(work);
  free(work);
}

void dropSequence(Sequence* sequence) {
  // Acquire and release: runs under the other references happen before the free.
  if (__atomic_sub_fetch(&sequence->references, 1, __ATOMIC_ACQ_REL) != 0) return;
  while (Work* work = sequence->first) {
    sequence->first = work->next;
    freeWork(work);
  }
  while (Sequence::Kept* kept = sequence->kept) {
    sequence->kept = kept->next;
    kept->release(kept->object);
    delete kept;
  }
  delete sequence;
}

rh_result noStream(const char* operation) { return fail(RH_ERR_INVALID_HANDLE, "%s: not a live stream: was it destroyed?", operation); }

uint64_t captureOf(Stream* s) {
  pthread_mutex_lock(&s->mutex);
  const uint64_t capture = s->capture;
  pthread_mutex_unlock(&s->mutex);
  return capture;
}

void submit(Stream* s, Work* work) {
  pthread_mutex_lock(&s->mutex);
  Work*** end = s->sequence != nullptr ? &s->sequence->end : &s->end;
  **end = work;
  *end = &work->next;
  if (s->sequence != nullptr) {
    s->sequence->size++;
  } else {
    addPending(work);
    s->queued++;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->mutex);
}

void addPending(const Work* work) {
  if (work->comm == nullptr) return;
  auto* of = static_cast<CommWork*>(work->comm->onDevice);
  pthread_mutex_lock(&of->mutex);
  of->pending++;
  pthread_mutex_unlock(&of->mutex);
}

void removePending(const Work* work) {
  if (work->comm == nullptr) return;
  auto* of = static_cast<CommWork*>(work->comm->onDevice);
  pthread_mutex_lock(&of->mutex);
  of->pending--;
  pthread_cond_broadcast(&of->changed);
  pthread_mutex_unlock(&of->mutex);
}

void initialize(pthread_mutex_t* mutex, pthread_cond_t* changed) {
  pthread_mutex_init(mutex, nullptr);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

bool waitUntil(pthread_cond_t* changed, pthread_mutex_t* mutex, int64_t deadlineNs) {
  const timespec until = {deadlineNs / 1000000000, deadlineNs % 1000000000};
  return pthread_cond_timedwait(changed, mutex, &until) != ETIMEDOUT;
}

namespace {

// Waits for the next work and takes it. nullptr: the stream has ended. Only the owner of the stream ends this wait, so it has no deadline.
Work* take(Stream* s) {
  pthread_mutex_lock(&s->mutex);
  while (s->first == nullptr && !s->ending) pthread_cond_wait(&s->changed, &s->mutex);
  Work* work = s->first;
  if (work != nullptr) {
    s->first = work->next;
    if (s->first == nullptr) s->end = &s->first;
  }
  pthread_mutex_unlock(&s->mutex);
  return work;
}

void* streamThread(void* p) {
  auto* s = static_cast<Stream*>(p);
  while (Work* work = take(s)) {
    const rh_result result = work->run(s, work);
    removePending(work);
    freeWork(work);
    pthread_mutex_lock(&s->mutex);
    if (result != RH_OK && s->failed == RH_OK) {
      s->failed = result;
      snprintf(s->message, sizeof s->message, "%s", rh_last_error_message());
    }
    s->done++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
  }
  return nullptr;
}

// Waits for the queued work. Each piece of work has its own deadline.
void end(Stream* s) {
  pthread_mutex_lock(&s->mutex);
  s->ending = true;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  pthread_join(s->thread, nullptr);
}

void destroy(Stream* s) {
  pthread_mutex_destroy(&s->mutex);
  pthread_cond_destroy(&s->changed);
  delete s;
}

// Returns the first failure since the last call, and clears it.
rh_result takeFailure(Stream* s) {
  const rh_result failed = s->failed;
  s->failed = RH_OK;
  return failed == RH_OK ? RH_OK : fail(failed, "%s", s->message);
}

}  // namespace
}  // namespace railhead::client::threads

using namespace railhead::client;
using namespace railhead::client::threads;

extern "C" rh_result rht_stream_create(rht_stream** out) {
  static uint32_t given = 0;
  *out = nullptr;
  auto* s = new Stream();
  if (s == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "stream_create: no memory");
  s->number = __atomic_add_fetch(&given, 1, __ATOMIC_RELAXED);
  s->end = &s->first;
  initialize(&s->mutex, &s->changed);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the application
  const int error = pthread_create(&s->thread, nullptr, streamThread, s);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  *out = error == 0 ? static_cast<rht_stream*>(streams().insert(s)) : nullptr;
  if (*out != nullptr) return RH_OK;
  if (error == 0) end(s);
  destroy(s);
  return error == 0 ? fail(RH_ERR_LIMIT, "stream_create: there are %d streams, the most there can be; destroy some", kMaxStreams)
                    : fail(RH_ERR_SYSTEM, "stream_create: no thread: %s", strerror(error));
}

extern "C" rh_result rht_stream_destroy(rht_stream* handle) {
  Stream* s = streams().remove(handle);
  if (s == nullptr) return noStream("stream_destroy");
  end(s);
  if (s->sequence != nullptr) dropSequence(s->sequence);
  destroy(s);
  return RH_OK;
}

extern "C" rh_result rht_stream_synchronize(rht_stream* handle, uint32_t timeoutMs) {
  const int64_t deadline = railhead::host::nowNs() + int64_t{timeoutMs} * 1000000;
  StreamTable::Shared ref(streams(), handle);
  Stream* s = ref.get();
  if (s == nullptr) return noStream("stream_synchronize");
  pthread_mutex_lock(&s->mutex);
  const uint64_t until = s->queued;
  bool inTime = true;
  while (s->done < until && inTime) inTime = waitUntil(&s->changed, &s->mutex, deadline);
  const uint64_t left = until - (s->done < until ? s->done : until);
  rh_result result = left == 0 ? takeFailure(s) : RH_OK;
  pthread_mutex_unlock(&s->mutex);
  if (left == 0) return result;
  return fail(RH_ERR_TIMEOUT, "stream_synchronize: stream %u: %llu pieces of work had not ended within %u ms", s->number,
              static_cast<unsigned long long>(left), timeoutMs);
}

extern "C" rh_result rht_stream_number(rht_stream* handle, uint32_t* number) {
  StreamTable::Shared ref(streams(), handle);
  if (ref.get() == nullptr) return noStream("stream_number");
  *number = ref.get()->number;
  return RH_OK;
}

namespace {

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

rh_result runCopy(Stream*, Work* work) {
  const Copy* c = work->as<Copy>();
  if (c->bytes > 0) memcpy(c->to, c->from, c->bytes);
  return RH_OK;
}

}  // namespace

extern "C" rh_result rht_copy(void* to, const void* from, size_t bytes, rht_stream* handle) {
  StreamTable::Shared ref(streams(), handle);
  if (ref.get() == nullptr) return noStream("copy");
  Work* work = newWork(runCopy, sizeof(Copy));
  if (work == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "copy: no memory");
  *work->as<Copy>() = {to, from, bytes};
  submit(ref.get(), work);
  return RH_OK;
}
