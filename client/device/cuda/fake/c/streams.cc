// Streams. A stream is a thread with a queue. The legacy default stream is a stream like the others, which waits for none of them.
#include "device/cuda/fake/c/streams.h"

namespace railhead::fake {

thread_local bool inCallback = false;
std::set<CUstream>& streams = *new std::set<CUstream>();
std::set<Capture*>& captures = *new std::set<Capture*>();

void runCallback(CUhostFn function, void* data) {
  inCallback = true;
  function(data);
  inCallback = false;
}

namespace {

thread_local CUstreamCaptureMode threadMode = CU_STREAM_CAPTURE_MODE_GLOBAL;

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

}  // namespace

CUstream findStream(CUstream handle) {
  if (reinterpret_cast<uintptr_t>(handle) > 2) return streams.count(handle) != 0 ? handle : nullptr;
  CUcontext context = current();
  if (context == nullptr) return nullptr;
  if (context->defaultStream == nullptr) context->defaultStream = newStream(context);
  return context->defaultStream;
}

CUresult unusable(CUstream handle, CUstream s) {
  if (s == nullptr) return current() == nullptr && reinterpret_cast<uintptr_t>(handle) <= 2 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  return s->capture != nullptr && s->capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult unusableHere(CUstream handle) {
  const std::lock_guard<std::mutex> lock(world);
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUstream s = findStream(handle);
  return s == nullptr || s->context == current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void noteCaptured(CUstream s) {
  s->captured++;
  if (s != s->capture->origin) s->capture->apart.insert(s);
}

void queue(CUstream s, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(s->mutex);
  s->queue.push_back(std::move(work));
  s->queued++;
  s->changed.notify_all();
}

namespace {

// The stream, if it is not captured: else the capture fails.
CUresult uncaptured(CUstream handle, CUstream* s) {
  const std::lock_guard<std::mutex> lock(world);
  *s = findStream(handle);
  if (*s == nullptr) return unusable(handle, *s);
  if ((*s)->capture == nullptr) return CUDA_SUCCESS;
  (*s)->capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void drainQueue(CUstream s) {
  std::unique_lock<std::mutex> lock(s->mutex);
  const uint64_t until = s->queued;
  s->changed.wait(lock, [&] { return s->done >= until; });
}

}  // namespace

CUresult enqueue(CUstream handle, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = findStream(handle);
  if (const CUresult code = unusable(handle, s); code != CUDA_SUCCESS) return code;
  if (s->capture != nullptr) {
    s->capture->body->nodes.push_back(std::move(work));
    noteCaptured(s);
  } else {
    queue(s, std::move(work));
  }
  return CUDA_SUCCESS;
}

CUresult drain(CUstream handle) {
  CUstream s;
  const CUresult code = uncaptured(handle, &s);
  if (code == CUDA_SUCCESS) drainQueue(s);
  return code;
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

CUresult drainAll() {
  std::vector<CUstream> all;
  {
    const std::lock_guard<std::mutex> lock(world);
    if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    for (CUstream s : streams) {
      if (s->context == current()) all.push_back(s);
    }
  }
  for (CUstream s : all) drainQueue(s);
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  {
    const std::lock_guard<std::mutex> lock(world);
    bool captured = false;
    for (Capture* c : captures) {
      if (c->origin->context == current()) captured = c->invalidated = true;
    }
    if (captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return drainAll();
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
  CUstream s = findStream(handle);
  if (s == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = s->context;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = findStream(handle);
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
  if (const CUresult code = unusableHere(handle); code != CUDA_SUCCESS) return code;
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = findStream(handle);
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

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, [function, data] { runCallback(function, data); });
}

}  // namespace railhead::fake
