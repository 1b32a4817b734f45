// Streams, events, captures and graphs. A stream is a thread with a queue. The legacy default stream is a stream like the others, which waits
// for none of them. A graph holds its work in the order of the capture, and runs it in that order.
#include <time.h>

#include <algorithm>
#include <set>

#include "device/cuda/fake/c/fake.h"

namespace railhead::client::cuda {

struct CUuserObject_st {
  void* data;
  CUhostFn destroy;
  long references;
};

}  // namespace railhead::client::cuda

namespace railhead::fake {

thread_local bool inCallback = false;

void runCallback(CUhostFn function, void* data) {
  inCallback = true;
  function(data);
  inCallback = false;
}

namespace {

thread_local CUstreamCaptureMode threadMode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void release(CUuserObject object, long count) {
  bool last;
  {
    const std::lock_guard<std::mutex> lock(world);
    object->references -= count;
    last = object->references == 0;
    if (last) account.user_objects--;
  }
  if (!last) return;
  runCallback(object->destroy, object->data);
  delete object;
}

// Captured work, of a graph, its execs and their launches.
struct Body {
  std::vector<std::function<void()>> nodes;
  std::vector<std::pair<CUuserObject, long>> kept;
  Body() = default;
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;
  ~Body() {
    for (const auto& [object, count] : kept) release(object, count);
  }
};

}  // namespace

// A capture in progress. Guarded by world.
struct Capture {
  uint64_t id;
  std::shared_ptr<Body> body;
  CUgraph graph = nullptr;
  CUstream origin;
  CUstreamCaptureMode mode;
  std::thread::id thread;
  bool invalidated = false;
};

namespace {
auto& captures = *new std::set<Capture*>();  // in progress; guarded by world
}

}  // namespace railhead::fake

namespace railhead::client::cuda {

struct CUstream_st {
  uint64_t id;
  CUcontext context;
  std::shared_ptr<fake::Capture> capture;  // guarded by world
  std::thread thread;
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  uint64_t queued = 0, done = 0;
  bool ending = false;
};

struct CUevent_st {
  // Guarded by world: the capture that the newest record belongs to.
  std::weak_ptr<fake::Capture> capture;
  // What streams that wait share with the event, which may be destroyed before they have waited.
  struct State {
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;
    timespec at = {};
  };
  std::shared_ptr<State> state = std::make_shared<State>();
};

struct CUgraph_st {
  std::shared_ptr<fake::Body> body;
};
struct CUgraphExec_st {
  std::shared_ptr<fake::Body> body;
};

}  // namespace railhead::client::cuda

namespace railhead::fake {

namespace {

auto& streams = *new std::set<CUstream>();  // live; guarded by world

void runStream(CUstream s) {
  std::unique_lock<std::mutex> lock(s->mutex);
  for (;;) {
    while (s->queue.empty() && !s->ending) s->changed.wait(lock);
    if (s->queue.empty()) return;
    std::function<void()> work = std::move(s->queue.front());
    s->queue.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // what it refers to ends before it counts as done
    lock.lock();
    s->done++;
    s->changed.notify_all();
  }
}

CUstream newStream(CUcontext context) {
  static uint64_t given = 0;
  auto* s = new CUstream_st();
  s->id = ++given;
  s->context = context;
  s->thread = std::thread(runStream, s);
  streams.insert(s);
  return s;
}

// The stream of a handle; the default streams' are 0, 1 and 2. nullptr: it is not live. The caller holds world.
CUstream find(CUstream handle) {
  if (reinterpret_cast<uintptr_t>(handle) > 2) return streams.count(handle) != 0 ? handle : nullptr;
  CUcontext context = current();
  if (context == nullptr) return nullptr;
  if (context->defaultStream == nullptr) context->defaultStream = newStream(context);
  return context->defaultStream;
}

// Why work cannot go to the stream; CUDA_SUCCESS: it can. The caller holds world.
CUresult unusable(CUstream handle, CUstream s) {
  if (s == nullptr) return current() == nullptr && reinterpret_cast<uintptr_t>(handle) <= 2 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  return s->capture != nullptr && s->capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

void queue(CUstream s, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(s->mutex);
  s->queue.push_back(std::move(work));
  s->queued++;
  s->changed.notify_all();
}

// The stream, if it is not captured: else the capture fails.
CUresult uncaptured(CUstream handle, CUstream* s) {
  const std::lock_guard<std::mutex> lock(world);
  *s = find(handle);
  if (*s == nullptr) return unusable(handle, *s);
  if ((*s)->capture == nullptr) return CUDA_SUCCESS;
  (*s)->capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace

CUresult enqueue(CUstream handle, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = find(handle);
  if (const CUresult code = unusable(handle, s); code != CUDA_SUCCESS) return code;
  if (s->capture != nullptr) {
    s->capture->body->nodes.push_back(std::move(work));
  } else {
    queue(s, std::move(work));
  }
  return CUDA_SUCCESS;
}

CUresult drain(CUstream handle) {
  CUstream s;
  if (const CUresult code = uncaptured(handle, &s); code != CUDA_SUCCESS) return code;
  std::unique_lock<std::mutex> lock(s->mutex);
  const uint64_t until = s->queued;
  s->changed.wait(lock, [&] { return s->done >= until; });
  return CUDA_SUCCESS;
}

bool forbiddenByCapture() {
  if (threadMode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  const std::lock_guard<std::mutex> lock(world);
  bool forbidden = false;
  for (Capture* c : captures) {
    const bool mine = c->thread == std::this_thread::get_id();
    const bool applies = (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && (mine || threadMode == CU_STREAM_CAPTURE_MODE_GLOBAL)) ||
                         (c->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && mine);
    if (applies) forbidden = c->invalidated = true;
  }
  return forbidden;
}

CUresult cuCtxSynchronize() {
  std::vector<CUstream> all;
  {
    const std::lock_guard<std::mutex> lock(world);
    if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    for (CUstream s : streams) {
      if (s->context == current()) all.push_back(s);
    }
  }
  for (CUstream s : all) {
    if (const CUresult code = drain(s); code != CUDA_SUCCESS) return code;
  }
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  const std::lock_guard<std::mutex> lock(world);
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *stream = newStream(current());
  account.streams++;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  {
    const std::lock_guard<std::mutex> lock(world);
    if (streams.erase(stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
    account.streams--;
  }
  {
    const std::lock_guard<std::mutex> lock(stream->mutex);
    stream->ending = true;
    stream->changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
  CUstream s;
  if (const CUresult code = uncaptured(handle, &s); code != CUDA_SUCCESS) return code;
  const std::lock_guard<std::mutex> lock(s->mutex);
  return s->done == s->queued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream stream) { return drain(stream); }

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = find(handle);
  if (s == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = s->context;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = find(handle);
  if (s == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *id = s->id;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return cuStreamGetCaptureInfo(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
                                const CUgraphEdgeData** edges, size_t* count) {
  if (dependencies != nullptr || edges != nullptr) return CUDA_ERROR_NOT_SUPPORTED;  // not modelled
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = find(handle);
  if (s == nullptr) return unusable(handle, s);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (s->capture == nullptr) return CUDA_SUCCESS;
  *status = s->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id != nullptr) *id = s->capture->id;
  if (graph != nullptr) *graph = s->capture->graph;
  if (count != nullptr) *count = s->capture->body->nodes.empty() ? 0 : 1;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, threadMode);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  static uint64_t given = 0;
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = find(handle);
  if (s == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (reinterpret_cast<uintptr_t>(handle) <= 1) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto body = std::make_shared<Body>();
  auto* graph = new CUgraph_st{body};
  account.graphs++;
  s->capture = std::shared_ptr<Capture>(new Capture{++given, body, graph, s, mode, std::this_thread::get_id()});
  captures.insert(s->capture.get());
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  *graph = nullptr;
  std::shared_ptr<Capture> ended;
  {
    const std::lock_guard<std::mutex> lock(world);
    CUstream s = find(handle);
    if (s == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    if (s->capture->origin != s) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (s->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && s->capture->thread != std::this_thread::get_id()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    ended = s->capture;
    captures.erase(ended.get());
    for (CUstream joined : streams) {
      if (joined->capture == ended) joined->capture = nullptr;
    }
  }
  if (!ended->invalidated) {
    *graph = ended->graph;
    return CUDA_SUCCESS;
  }
  cuGraphDestroy(ended->graph);
  return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (graph == nullptr || nodes != nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(world);
  *count = graph->body->nodes.size();
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(world);
  *exec = new CUgraphExec_st{graph->body};
  account.execs++;
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, [body = exec->body] {
    for (const auto& node : body->nodes) node();
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard<std::mutex> lock(world);
    account.graphs--;
  }
  delete graph;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard<std::mutex> lock(world);
    account.execs--;
  }
  delete exec;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn destroy, unsigned int references, unsigned int flags) {
  if (destroy == nullptr || references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(world);
  *object = new CUuserObject_st{data, destroy, references};
  account.user_objects++;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  if (object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  release(object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
  if (graph == nullptr || object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(world);
  if (flags != CU_GRAPH_USER_OBJECT_MOVE) object->references += count;
  graph->body->kept.push_back({object, count});
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned int) {
  const std::lock_guard<std::mutex> lock(world);
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *event = new CUevent_st();
  account.events++;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  {
    const std::lock_guard<std::mutex> lock(world);
    account.events--;
  }
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = find(handle);
  if (const CUresult code = unusable(handle, s); code != CUDA_SUCCESS) return code;
  event->capture = s->capture;
  if (s->capture != nullptr) return CUDA_SUCCESS;  // the order of the capture is that of its nodes
  auto state = event->state;
  uint64_t number;
  {
    const std::lock_guard<std::mutex> own(state->mutex);
    number = ++state->recorded;
  }
  queue(s, [state, number] {
    const std::lock_guard<std::mutex> own(state->mutex);
    state->reached = std::max(state->reached, number);
    clock_gettime(CLOCK_MONOTONIC, &state->at);
    state->changed.notify_all();
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int) {
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = find(handle);
  if (const CUresult code = unusable(handle, s); code != CUDA_SUCCESS) return code;
  if (const auto capture = event->capture.lock(); capture != nullptr && captures.count(capture.get()) != 0) {
    if (s->capture != nullptr && s->capture != capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    s->capture = capture;  // the stream joins the capture
    return CUDA_SUCCESS;
  }
  if (s->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  auto state = event->state;
  uint64_t number;
  {
    const std::lock_guard<std::mutex> own(state->mutex);
    number = state->recorded;
  }
  queue(s, [state, number] {
    std::unique_lock<std::mutex> own(state->mutex);
    state->changed.wait(own, [&] { return state->reached >= number; });
  });
  return CUDA_SUCCESS;
}

namespace {
// The state of an event whose newest record is not part of a capture.
CUresult stateOf(CUevent event, std::shared_ptr<CUevent_st::State>* state) {
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard<std::mutex> lock(world);
  *state = event->state;
  return event->capture.expired() ? CUDA_SUCCESS : CUDA_ERROR_CAPTURED_EVENT;
}
}  // namespace

CUresult cuEventQuery(CUevent event) {
  std::shared_ptr<CUevent_st::State> state;
  if (const CUresult code = stateOf(event, &state); code != CUDA_SUCCESS) return code;
  const std::lock_guard<std::mutex> lock(state->mutex);
  return state->reached == state->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  std::shared_ptr<CUevent_st::State> state;
  if (const CUresult code = stateOf(event, &state); code != CUDA_SUCCESS) return code;
  std::unique_lock<std::mutex> lock(state->mutex);
  const uint64_t until = state->recorded;
  state->changed.wait(lock, [&] { return state->reached >= until; });
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  timespec at[2];
  CUevent events[] = {start, end};
  for (int i = 0; i < 2; i++) {
    std::shared_ptr<CUevent_st::State> state;
    if (const CUresult code = stateOf(events[i], &state); code != CUDA_SUCCESS) return code;
    const std::lock_guard<std::mutex> lock(state->mutex);
    if (state->recorded == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (state->reached != state->recorded) return CUDA_ERROR_NOT_READY;
    at[i] = state->at;
  }
  *ms = static_cast<float>(static_cast<double>(at[1].tv_sec - at[0].tv_sec) * 1e3 + static_cast<double>(at[1].tv_nsec - at[0].tv_nsec) * 1e-6);
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, [function, data] { runCallback(function, data); });
}

}  // namespace railhead::fake
