// Captures and graphs. A graph holds its work in the order of the capture, and runs it in that order.
#include <chrono>

#include "device/cuda/fake/c/streams.h"

namespace railhead::client::cuda {

struct CUuserObject_st {
  void* data;
  CUhostFn destroy;
  long references;
};

}  // namespace railhead::client::cuda

namespace railhead::fake {

namespace {

// The last reference ends the object later, on a thread of the driver, as CU_USER_OBJECT_NO_DESTRUCTOR_SYNC permits and a driver has been seen to do.
void release(CUuserObject object, long count) {
  bool last;
  {
    const std::lock_guard<std::mutex> lock(world);
    object->references -= count;
    last = object->references == 0;
  }
  if (!last) return;
  std::thread([object] {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    runCallback(object->destroy, object->data);
    delete object;
    const std::lock_guard<std::mutex> lock(world);
    account.user_objects--;
  }).detach();
}

}  // namespace

Body::~Body() {
  for (const auto& [object, count] : kept) release(object, count);
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  static uint64_t given = 0;
  const std::lock_guard<std::mutex> lock(world);
  CUstream s = findStream(handle);
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
  bool unjoined = false;
  {
    const std::lock_guard<std::mutex> lock(world);
    CUstream s = findStream(handle);
    if (s == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    if (s->capture->origin != s) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (s->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && s->capture->thread != std::this_thread::get_id()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    ended = s->capture;
    unjoined = !ended->invalidated && !ended->apart.empty();
    ended->invalidated = ended->invalidated || unjoined;
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
  return unjoined ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
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

}  // namespace railhead::fake
