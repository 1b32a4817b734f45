// How a comm finds out that none of its calls runs any more (device/cuda/idle.cc).
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include "check.h"
#include "comm/comm.h"
#include "device/cuda/cuda_comm.h"

using namespace railhead::client;
using namespace railhead::client::cuda;

namespace {

constexpr int64_t kMs = 1000 * 1000, kSoonNs = 10000 * kMs;

Fake* fake;
const Driver* driver;

void ok(CUresult code) { CHECK(code == CUDA_SUCCESS); }

template <class F>
void await(F ready) {
  const int64_t deadline = soon();
  while (!ready()) {
    CHECK(railhead::host::nowNs() < deadline);
    const timespec t = {0, 100000};
    nanosleep(&t, nullptr);
  }
}

void awaitWord(const int* word) {
  await([word] { return __atomic_load_n(word, __ATOMIC_ACQUIRE) != 0; });
}

// Each thread that waits for the context has a reference to it.
void awaitReferences(int n) {
  await([n] { return fake->account().contexts == n; });
}

// ---- The next thread that the library makes, which can be kept from its first step ----

struct {
  int holds, released, ended;  // atomic, but for holds
  void* (*run)(void*);
  void* argument;
} next;

void* held(void*) {
  awaitWord(&next.released);
  void* result = next.run(next.argument);
  __atomic_store_n(&next.ended, 1, __ATOMIC_RELEASE);
  return result;
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (next.holds == 0) return real(thread, attributes, run, argument);
  next.holds = 0;
  next.run = run;
  next.argument = argument;
  return real(thread, attributes, held, nullptr);
}

namespace {

// Work that keeps a stream, and so the context, busy while it lives.
class Busy {
 public:
  explicit Busy(CUstream stream) : stream_(stream) {
    ok(driver->cuLaunchHostFunc.call(stream, [](void* end) { awaitWord(static_cast<int*>(end)); }, &end_));
  }
  ~Busy() {
    __atomic_store_n(&end_, 1, __ATOMIC_RELEASE);
    ok(driver->cuStreamSynchronize.call(stream_));  // it reads end_
  }

 private:
  CUstream stream_;
  int end_ = 0;
};

bool idle(Comm* comm, int64_t ns) { return awaitIdle(comm, railhead::host::nowNs() + ns); }

// Another stream of the context is busy, so only the comm's own streams can tell.
void ownStreams(Comm* comm, CUstream own, CUstream second, CUstream other) {
  CudaComm* of = onCuda(comm);
  {
    const Busy busy(other);
    CHECK(queues(of, own) == 1 && of->streams.busy == 1);
    CHECK(idle(comm, kSoonNs) && of->streams.busy == 0);
    // A later stream has the address of a stream that the comm has used: what it says is not of the comm's calls.
    queues(of, own);
    of->streams.streams[0] = second;
    CHECK(!idle(comm, 50 * kMs) && of->streams.busy == 1);
    // Another call on that later stream does not make the earlier calls known to be idle.
    CHECK(queues(of, second) == 1 && !idle(comm, 50 * kMs));
  }
  CHECK(idle(comm, kSoonNs) && of->streams.busy == 0);
  const Busy busy(other);
  CHECK(queues(of, second) == 1 && idle(comm, kSoonNs));  // now it counts as the comm's
  // The driver has one handle for the streams of all threads: it cannot be asked about another thread's.
  queues(of, reinterpret_cast<void*>(2));
  CHECK(!idle(comm, 50 * kMs));
}

// The thread that waits for the context begins when its caller has given up. It must leave alone what the application captures by then.
void lateThread(Comm* comm, CUstream stream) {
  onCuda(comm)->streams.busy = 1;
  next.holds = 1;
  CHECK(!idle(comm, 0));
  CUgraph graph;
  ok(fake->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  __atomic_store_n(&next.released, 1, __ATOMIC_RELEASE);
  awaitWord(&next.ended);
  ok(fake->cuStreamEndCapture(stream, &graph));  // had the thread waited for the context, the capture would have failed
  ok(fake->cuGraphDestroy(graph));
}

}  // namespace

int main() {
  static Fake hooks;
  fake = &hooks;
  driver = driverForTests();
  static Comm comm = {};
  static CudaComm of;
  SUCCEEDS(openContext(driver, 0, &of.context, &why));
  comm.onDevice = &of;
  comm.references = 1;
  {
    Failure why;
    const Current current(of.context, &why);
    CUstream streams[3];
    for (CUstream& s : streams) ok(driver->cuStreamCreate.call(&s, CU_STREAM_NON_BLOCKING));
    ownStreams(&comm, streams[0], streams[1], streams[2]);
    awaitReferences(1);
    lateThread(&comm, streams[0]);
    for (CUstream s : streams) ok(driver->cuStreamDestroy.call(s));
  }
  SUCCEEDS(closeContext(&of.context, &why));
  awaitReferences(0);
  return 0;
}
