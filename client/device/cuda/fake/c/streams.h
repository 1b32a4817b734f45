// What the files of the fake's streams, events and graphs share.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_STREAMS_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_STREAMS_H_

#include <time.h>

#include <set>

#include "device/cuda/fake/c/fake.h"

namespace railhead::fake {

// Captured work, of a graph, its execs and their launches.
struct Body {
  std::vector<std::function<void()>> nodes;
  std::vector<std::pair<CUuserObject, long>> kept;
  Body() = default;
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;
  ~Body();
};

// A capture in progress. Guarded by world.
struct Capture {
  uint64_t id;
  std::shared_ptr<Body> body;
  CUgraph graph = nullptr;
  CUstream origin;
  CUstreamCaptureMode mode;
  std::thread::id thread;
  bool invalidated = false;
  // Streams that joined the capture and have work for which the origin does not wait yet.
  std::set<CUstream> apart = {};
};

extern std::set<Capture*>& captures;  // in progress; guarded by world

}  // namespace railhead::fake

namespace railhead::client::cuda {

struct CUstream_st {
  uint64_t id;
  CUcontext context;
  std::shared_ptr<fake::Capture> capture;  // guarded by world
  uint64_t captured = 0;                   // work and waits of captures so far; guarded by world
  std::thread thread;
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  uint64_t queued = 0, done = 0;
  bool ending = false;
};

struct CUevent_st {
  // Guarded by world: the capture that the newest record belongs to, where it was recorded, and what the stream had captured by then.
  std::weak_ptr<fake::Capture> capture;
  CUstream of = nullptr;
  uint64_t captured = 0;
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

extern std::set<CUstream>& streams;  // live; guarded by world

// The stream of a handle; the default streams' are 0, 1 and 2. nullptr: it is not live. The caller holds world.
CUstream findStream(CUstream handle);
// Why work cannot go to the stream; CUDA_SUCCESS: it can. The caller holds world.
CUresult unusable(CUstream handle, CUstream s);
// The stream has captured something, or has joined a capture. The caller holds world.
void noteCaptured(CUstream s);
// Adds work to the queue, whatever is captured.
void queue(CUstream s, std::function<void()> work);

}  // namespace railhead::fake

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_STREAMS_H_
