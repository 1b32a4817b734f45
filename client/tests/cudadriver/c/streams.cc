// What the fake driver promises of streams, events, captures, graphs and kernels, which tests of the CUDA device rely on.
#include <time.h>
#include <unistd.h>
#include <sys/wait.h>

#include "check.h"
#include "device/cuda/context.h"
#include "device/cuda/memory.h"
#include "test_kernels.h"

using namespace railhead::client;
using namespace railhead::client::cuda;

namespace {

Fake* fake;
const Driver* driver;
Context context;

constexpr char kImage[] = "// PTX\n.version 9.0\n.target sm_80\n";

void ok(CUresult code) { CHECK(code == CUDA_SUCCESS); }

CUfunction function(CUmodule module, const char* name) {
  CUfunction f;
  ok(driver->cuModuleGetFunction.call(&f, module, name));
  ok(driver->cuFuncLoad.call(f));
  return f;
}

// Queues the kernel, whose parameter the driver copies.
void launch(CUfunction f, TestParameter parameter, CUstream stream) {
  CUlaunchConfig config = {};
  config.gridDimX = 3;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 256;
  config.hStream = stream;
  void* parameters[] = {&parameter};
  ok(driver->cuLaunchKernelEx.call(&config, f, parameters, nullptr));
  parameter = {};
}

void kernels(CUmodule module, CUstream stream) {
  CUfunction missing;
  CHECK(driver->cuModuleGetFunction.call(&missing, module, "rh_missing") == CUDA_ERROR_NOT_FOUND);
  CUmodule bad;
  CHECK(driver->cuModuleLoadDataEx.call(&bad, "no image", 0, nullptr, nullptr) == CUDA_ERROR_INVALID_IMAGE);
  long long sum = 0;
  const CUfunction add = function(module, "test_add");
  for (int i = 1; i <= 100; i++) launch(add, {&sum, i}, stream);
  ok(driver->cuStreamSynchronize.call(stream));
  CHECK(sum == 3 * 256 * 5050);
  CUlaunchConfig config = {};
  void* none[] = {&sum};
  CHECK(driver->cuLaunchKernelEx.call(&config, add, none, nullptr) == CUDA_ERROR_INVALID_VALUE);  // an empty grid
  CUfunction unloaded;
  ok(driver->cuModuleGetFunction.call(&unloaded, module, "test_hold"));
  config = {1, 1, 1, 1, 1, 1, 0, stream, nullptr, 0};
  CHECK(driver->cuLaunchKernelEx.call(&config, unloaded, none, nullptr) == CUDA_ERROR_ILLEGAL_STATE);
}

int released = 0;
void release(void* data) {
  CHECK(driver->cuStreamQuery.call(nullptr) == CUDA_ERROR_NOT_PERMITTED);  // no function of the driver may be called here
  ++*static_cast<int*>(data);
}

// A graph runs what was captured, any number of times; what it keeps is released after the graph, its execs and its launches.
void graphs(CUmodule module, CUstream stream, CUstream second) {
  long long sum = 0;
  const CUfunction add = function(module, "test_add");
  CUevent fork, join;
  ok(driver->cuEventCreate.call(&fork, CU_EVENT_DISABLE_TIMING));
  ok(driver->cuEventCreate.call(&join, CU_EVENT_DISABLE_TIMING));
  ok(fake->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUstreamCaptureStatus status;
  uint64_t id = 0;
  CUgraph capturing = nullptr;
  ok(driver->cuStreamGetCaptureInfo.call(stream, &status, &id, &capturing, nullptr, nullptr, nullptr));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && capturing != nullptr);
  CUuserObject object;
  ok(driver->cuUserObjectCreate.call(&object, &released, release, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  ok(driver->cuGraphRetainUserObject.call(capturing, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  launch(add, {&sum, 1}, stream);
  ok(driver->cuEventRecord.call(fork, stream));
  ok(driver->cuStreamWaitEvent.call(second, fork, 0));
  launch(add, {&sum, 10}, second);  // it joined the capture
  ok(driver->cuStreamIsCapturing.call(second, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ok(driver->cuEventRecord.call(join, second));
  ok(driver->cuStreamWaitEvent.call(stream, join, 0));
  CHECK(driver->cuEventQuery.call(join) == CUDA_ERROR_CAPTURED_EVENT);
  CUgraph graph;
  CHECK(fake->cuStreamEndCapture(second, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  ok(fake->cuStreamEndCapture(stream, &graph));
  size_t nodes;
  ok(fake->cuGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 2 && sum == 0);
  CUgraphExec exec;
  ok(fake->cuGraphInstantiateWithFlags(&exec, graph, 0));
  ok(fake->cuGraphDestroy(graph));
  for (int i = 0; i < 5; i++) ok(fake->cuGraphLaunch(exec, i % 2 == 0 ? stream : second));
  CHECK(released == 0);
  ok(fake->cuGraphExecDestroy(exec));
  ok(driver->cuStreamSynchronize.call(stream));
  ok(driver->cuStreamSynchronize.call(second));
  const int64_t deadline = soon();
  while (fake->account().user_objects != 0) CHECK(railhead::host::nowNs() < deadline);  // the driver releases it on a thread of its own
  CHECK(__atomic_load_n(&sum, __ATOMIC_RELAXED) == 5 * 11 * 3 * 256 && released == 1);
  ok(driver->cuEventDestroy.call(fork));
  ok(driver->cuEventDestroy.call(join));
}

void failedCaptures(CUstream stream, CUstream second) {
  CUgraph graph;
  ok(fake->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK(driver->cuStreamQuery.call(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUstreamCaptureStatus status;
  ok(driver->cuStreamIsCapturing.call(stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK(fake->cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ok(driver->cuStreamQuery.call(stream));
  // A capture that forbids this thread to allocate is not ended by the library's set-up calls (heaps.cc), but by others.
  CUdeviceptr pointer;
  ok(fake->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK(driver->cuMemAlloc.call(&pointer, 4096) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(fake->cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(fake->cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(fake->cuStreamEndCapture(second, &graph) == CUDA_ERROR_ILLEGAL_STATE);
  // A stream that joined has work behind the last event for which the origin waits.
  CUevent fork, join;
  ok(driver->cuEventCreate.call(&fork, CU_EVENT_DISABLE_TIMING));
  ok(driver->cuEventCreate.call(&join, CU_EVENT_DISABLE_TIMING));
  ok(fake->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ok(driver->cuEventRecord.call(fork, stream));
  ok(driver->cuStreamWaitEvent.call(second, fork, 0));
  ok(driver->cuEventRecord.call(join, second));
  ok(driver->cuLaunchHostFunc.call(second, [](void*) {}, nullptr));
  ok(driver->cuStreamWaitEvent.call(stream, join, 0));
  CHECK(fake->cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED && graph == nullptr);
  ok(driver->cuStreamQuery.call(second));
  ok(driver->cuEventDestroy.call(fork));
  ok(driver->cuEventDestroy.call(join));
}

// Streams run at the same time; an event orders them.
void order(CUmodule module, CUstream stream, CUstream second) {
  const CUfunction hold = function(module, "test_hold");
  long long word = 0, after = 0;
  launch(hold, {&word, 1}, stream);
  CUevent event, start;
  ok(driver->cuEventCreate.call(&event, 0));
  ok(driver->cuEventCreate.call(&start, 0));
  ok(driver->cuEventRecord.call(event, stream));
  ok(driver->cuStreamWaitEvent.call(second, event, 0));
  launch(function(module, "test_add"), {&after, 1}, second);
  CHECK(driver->cuStreamQuery.call(stream) == CUDA_ERROR_NOT_READY && driver->cuEventQuery.call(event) == CUDA_ERROR_NOT_READY);
  Failure why;
  CHECK(!finish(context, second, railhead::host::nowNs() + 5000000, &why) && why.result == RH_ERR_TIMEOUT && strstr(why.text, "multiprocessors") != nullptr);
  ok(driver->cuEventRecord.call(start, context.stream));
  ok(driver->cuEventSynchronize.call(start));  // another stream goes on
  CHECK(__atomic_load_n(&after, __ATOMIC_RELAXED) == 0);
  __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
  SUCCEEDS(finish(context, second, soon(), &why));
  CHECK(after == 3 * 256);
  float ms = -1;
  ok(driver->cuEventElapsedTime.call(&ms, start, event));
  CHECK(ms >= 0);
  ok(driver->cuEventDestroy.call(event));
  ok(driver->cuEventDestroy.call(start));
}

// A fill that has not run in time may run later. What it fills stays mapped until it has.
void lateFill(CUmodule module) {
  long long word = 0;
  launch(function(module, "test_hold"), {&word, 1}, context.stream);
  DeviceHeaps heaps;
  const HeapPart part = {0, 0, kGranule};
  SUCCEEDS(heaps.reserve(context, 1, 2 * kGranule, &why));
  FAILS(heaps.create(part, railhead::host::nowNs() + 20000000, &why), RH_ERR_TIMEOUT, "2097152 bytes of device memory: device 0: queued work has not run in time");
  CHECK(fake->account().mappings == 1);
  FAILS(heaps.unmap(part, &why), RH_ERR_BUSY, "while a fill is queued");
  FAILS(heaps.fill(0, 0, 4096, 1, railhead::host::nowNs() + 20000000, &why), RH_ERR_TIMEOUT, "queued work");
  __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
  SUCCEEDS(heaps.release(&why));  // waits for the fills
  CHECK(fake->account().mappings == 0 && fake->account().handles == 0 && fake->account().reservations == 0);
}

// A forked child has no CUDA, and the loader's functions say so.
void forkedChild() {
  const pid_t child = fork();
  if (child == 0) {
    Failure why;
    Context forked;
    const bool opened = openContext(driver, 0, &forked, &why);
    _exit(!opened && why.code == CUDA_ERROR_NOT_INITIALIZED && strstr(why.text, "spawn") != nullptr ? 0 : 1);
  }
  int status;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main(int count, char**) {
  static Fake hooks;
  fake = &hooks;
  driver = driverForTests();
  if (count == 1) forkedChild();
  CUstream none;
  CHECK(driver->cuStreamCreate.call(&none, 0) == CUDA_ERROR_INVALID_CONTEXT);
  SUCCEEDS(openContext(driver, 0, &context, &why));
  {
    Failure why;
    const Current current(context, &why);
    CUstream stream, second;
    ok(driver->cuStreamCreate.call(&stream, CU_STREAM_NON_BLOCKING));
    ok(driver->cuStreamCreate.call(&second, CU_STREAM_NON_BLOCKING));
    CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL;
    ok(driver->cuThreadExchangeStreamCaptureMode.call(&global));
    CUmodule module;
    ok(driver->cuModuleLoadDataEx.call(&module, kImage, 0, nullptr, nullptr));
    kernels(module, stream);
    graphs(module, stream, second);
    failedCaptures(stream, second);
    order(module, stream, second);
    lateFill(module);
    ok(driver->cuModuleUnload.call(module));
    ok(driver->cuStreamDestroy.call(stream));
    ok(driver->cuStreamDestroy.call(second));
    CHECK(driver->cuStreamQuery.call(stream) == CUDA_ERROR_INVALID_HANDLE);
  }
  SUCCEEDS(closeContext(&context, &why));
  const fake_cuda_account all = {};
  CHECK(same(all, fake->account()));
  return 0;
}
