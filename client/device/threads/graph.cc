// Events, captures and graphs.
#include <stdio.h>

#include "base/error.h"
#include "device/threads/stream.h"
#include "host/futex.h"

using namespace railhead::client;
using namespace railhead::client::threads;

namespace {

// A bound for the work before the record. The record was queued before the wait, so the wait cannot depend on itself.
constexpr int64_t kEventNs = int64_t{300} * 1000000000;

}  // namespace

struct rht_event : Malloced {
  uint32_t references;  // the caller's, and one for each piece of work that uses the event; atomic
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t recorded, reached;  // number of records queued, and number of the newest one executed
};

namespace {

struct EventArgs {
  rht_event* event;
  uint64_t record;
};

void release(rht_event* e) {
  if (__atomic_sub_fetch(&e->references, 1, __ATOMIC_ACQ_REL) != 0) return;
  pthread_mutex_destroy(&e->mutex);
  pthread_cond_destroy(&e->changed);
  delete e;
}

rh_result runRecord(Stream*, Work* work) {
  const EventArgs* a = work->as<EventArgs>();
  pthread_mutex_lock(&a->event->mutex);
  if (a->event->reached < a->record) a->event->reached = a->record;
  pthread_cond_broadcast(&a->event->changed);
  pthread_mutex_unlock(&a->event->mutex);
  return RH_OK;
}

rh_result runWait(Stream* s, Work* work) {
  const EventArgs* a = work->as<EventArgs>();
  const int64_t deadline = railhead::host::nowNs() + kEventNs;
  pthread_mutex_lock(&a->event->mutex);
  bool inTime = true;
  while (a->event->reached < a->record && inTime) inTime = waitUntil(&a->event->changed, &a->event->mutex, deadline);
  const bool came = a->event->reached >= a->record;
  pthread_mutex_unlock(&a->event->mutex);
  return came ? RH_OK : fail(RH_ERR_TIMEOUT, "stream_wait: stream %u: the event's record did not run in time", s->number);
}

rh_result submitEvent(const char* operation, rht_event* e, rht_stream* handle, rh_result (*run)(Stream*, Work*), bool records) {
  StreamTable::Shared ref(streams(), handle);
  if (ref.get() == nullptr) return noStream(operation);
  if (captureOf(ref.get()) != 0) {
    return fail(RH_ERR_UNSUPPORTED, "%s: stream %u is being captured; a graph holds no events", operation, ref.get()->number);
  }
  Work* work = newWork(run, sizeof(EventArgs));
  if (work == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "%s: no memory", operation);
  __atomic_fetch_add(&e->references, 1, __ATOMIC_RELAXED);
  work->drop = [](Work* w) { release(w->as<EventArgs>()->event); };
  pthread_mutex_lock(&e->mutex);
  if (records) e->recorded++;
  *work->as<EventArgs>() = {e, e->recorded};
  pthread_mutex_unlock(&e->mutex);
  submit(ref.get(), work);
  return RH_OK;
}

}  // namespace

extern "C" rh_result rht_event_create(rht_event** out) {
  *out = new rht_event();
  if (*out == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "event_create: no memory");
  (*out)->references = 1;
  initialize(&(*out)->mutex, &(*out)->changed);
  return RH_OK;
}

extern "C" rh_result rht_event_destroy(rht_event* event) {
  release(event);
  return RH_OK;
}

extern "C" rh_result rht_event_record(rht_event* event, rht_stream* stream) {
  return submitEvent("event_record", event, stream, runRecord, true);
}

extern "C" rh_result rht_stream_wait(rht_stream* stream, rht_event* event) {
  return submitEvent("stream_wait", event, stream, runWait, false);
}

// A graph and an exec are both references to captured work.
struct rht_graph : Malloced {
  Sequence* sequence;
};
struct rht_exec : Malloced {
  Sequence* sequence;
};

namespace {

Sequence* refer(Sequence* sequence) {
  __atomic_fetch_add(&sequence->references, 1, __ATOMIC_RELAXED);
  return sequence;
}

// Runs all of the work, even after a failure; the first failure is the result.
rh_result runSequence(Stream* s, Work* work) {
  rh_result result = RH_OK;
  char message[512] = "";
  Sequence* sequence = *work->as<Sequence*>();
  launch = {sequence->number, __atomic_add_fetch(&sequence->launches, 1, __ATOMIC_RELAXED)};
  for (Work* w = sequence->first; w != nullptr; w = w->next) {
    const rh_result r = w->run(s, w);
    removePending(w);
    if (r == RH_OK || result != RH_OK) continue;
    result = r;
    snprintf(message, sizeof message, "%s", rh_last_error_message());
  }
  launch = {};
  return result == RH_OK ? RH_OK : fail(result, "%s", message);
}

}  // namespace

extern "C" rh_result rht_begin_capture(rht_stream* handle) {
  static uint64_t given = 0;
  StreamTable::Shared ref(streams(), handle);
  Stream* s = ref.get();
  if (s == nullptr) return noStream("begin_capture");
  if (captureOf(s) != 0) return fail(RH_ERR_INVALID_ARGUMENT, "begin_capture: stream %u is being captured already", s->number);
  auto* sequence = new Sequence();
  if (sequence == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "begin_capture: no memory");
  sequence->references = 1;
  sequence->end = &sequence->first;
  pthread_mutex_lock(&s->mutex);
  s->sequence = sequence;
  s->capture = __atomic_add_fetch(&given, 1, __ATOMIC_RELAXED);
  sequence->number = static_cast<uint32_t>(s->capture);
  pthread_mutex_unlock(&s->mutex);
  return RH_OK;
}

extern "C" rh_result rht_end_capture(rht_stream* handle, rht_graph** out) {
  *out = nullptr;
  StreamTable::Shared ref(streams(), handle);
  Stream* s = ref.get();
  if (s == nullptr) return noStream("end_capture");
  pthread_mutex_lock(&s->mutex);
  Sequence* sequence = s->sequence;
  s->sequence = nullptr;
  s->capture = 0;
  pthread_mutex_unlock(&s->mutex);
  if (sequence == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "end_capture: stream %u is not being captured", s->number);
  *out = new rht_graph();
  if (*out == nullptr) {
    dropSequence(sequence);
    return fail(RH_ERR_OUT_OF_MEMORY, "end_capture: no memory");
  }
  (*out)->sequence = sequence;
  return RH_OK;
}

extern "C" rh_result rht_graph_size(rht_graph* graph, uint32_t* size) {
  *size = graph->sequence->size;
  return RH_OK;
}

extern "C" rh_result rht_graph_instantiate(rht_graph* graph, rht_exec** out) {
  *out = new rht_exec();
  if (*out == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "graph_instantiate: no memory");
  (*out)->sequence = refer(graph->sequence);
  return RH_OK;
}

extern "C" rh_result rht_graph_destroy(rht_graph* graph) {
  dropSequence(graph->sequence);
  delete graph;
  return RH_OK;
}

extern "C" rh_result rht_exec_launch(rht_exec* exec, rht_stream* handle) {
  StreamTable::Shared ref(streams(), handle);
  if (ref.get() == nullptr) return noStream("exec_launch");
  if (captureOf(ref.get()) != 0) {
    return fail(RH_ERR_UNSUPPORTED, "exec_launch: stream %u is being captured; a graph holds no other graph", ref.get()->number);
  }
  Work* work = newWork(runSequence, sizeof(Sequence*));
  if (work == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "exec_launch: no memory");
  *work->as<Sequence*>() = refer(exec->sequence);
  work->drop = [](Work* w) { dropSequence(*w->as<Sequence*>()); };
  for (const Work* w = exec->sequence->first; w != nullptr; w = w->next) addPending(w);
  submit(ref.get(), work);
  return RH_OK;
}

extern "C" rh_result rht_exec_destroy(rht_exec* exec) {
  dropSequence(exec->sequence);
  delete exec;
  return RH_OK;
}
