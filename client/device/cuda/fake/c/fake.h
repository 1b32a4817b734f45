// A driver of CUDA for tests: devices whose memory is the host's, and whose streams are threads. What it models is what the library and its
// tests rely on, with the driver's errors.
//
// The environment describes the machine (fake.go lists the variables). CUDA_VISIBLE_DEVICES selects devices as with the real driver.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_FAKE_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_FAKE_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/driver_functions.h"
#include "device/cuda/driver_types.h"
#include "device/cuda/fake/c/hooks.h"
#include "device/cuda/fake/c/test_functions.h"

namespace railhead::client::cuda {

struct CUctx_st {
  int device;  // ordinal in this process
  long retained = 0;
  CUstream defaultStream = nullptr;
};

}  // namespace railhead::client::cuda

namespace railhead::fake {

using namespace railhead::client::cuda;

// Every function that the fake has.
#define RAILHEAD_FAKE_FUNCTIONS(X) \
  RAILHEAD_CUDA_FUNCTIONS(X)       \
  RAILHEAD_CUDA_TEST_FUNCTIONS(X)

#define RAILHEAD_FAKE_DECLARE(name, release, parameters) CUresult name parameters;
RAILHEAD_FAKE_FUNCTIONS(RAILHEAD_FAKE_DECLARE)
#undef RAILHEAD_FAKE_DECLARE

// Guards all bookkeeping but the queues of streams. A thread that holds it runs no work.
extern std::mutex world;
extern fake_cuda_account account;  // guarded by world

const char* environment(const char* name, const char* otherwise);
long environmentNumber(const char* name, long otherwise);

// Devices.

int deviceCount();
int machineOrdinal(CUdevice device);            // which device of the machine it is
bool reaches(int machineDevice, int machinePeer);  // may the one use the memory of the other
// The context that is current in this thread; nullptr = none.
CUcontext current();
bool isDevice(CUdevice device);

// Streams.

// The thread is running a callback of the driver, in which no function of the driver may be called.
extern thread_local bool inCallback;
void runCallback(CUhostFn function, void* data);

// Adds work to the stream's queue or to the capture in progress there.
CUresult enqueue(CUstream stream, std::function<void()> work);
// Why this thread, with its current context, cannot use the stream; CUDA_SUCCESS: it can, or the stream is not live. The driver is not that strict
// everywhere, but nobody may count on it.
CUresult unusableHere(CUstream stream);
// Waits until the work that is queued has run.
CUresult drain(CUstream stream);
// The same for all streams of the current context. Captures in progress are not touched.
CUresult drainAll();
// Whether a capture in progress forbids this thread a call that is not part of it. The capture fails then, as with the real driver.
bool forbiddenByCapture();

}  // namespace railhead::fake

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_FAKE_H_
