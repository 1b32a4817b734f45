#include "device/cuda/context.h"

#include <time.h>

#include "host/futex.h"

namespace railhead::client::cuda {

bool openContext(const Driver* driver, CUdevice device, Context* out, Failure* why) {
  *out = Context();
  CUcontext handle = nullptr;
  if (!driver->cuDevicePrimaryCtxRetain(why, &handle, device)) return prefix(why, "device %d: ", device);
  out->driver = driver;
  out->device = device;
  out->handle = handle;
  bool made;
  {
    const Current current(*out, why);
    made = current && driver->cuStreamCreate(why, &out->stream, CU_STREAM_NON_BLOCKING);
  }
  if (made) return true;
  out->stream = nullptr;
  closeContext(out, why);
  return prefix(why, "device %d: ", device);
}

bool closeContext(Context* context, Failure* why) {
  if (context->handle == nullptr) return true;
  bool ended = true;
  if (context->stream != nullptr) {
    const Current current(*context);
    ended = context->driver->cuStreamDestroy(why, context->stream);
  }
  ended = context->driver->cuDevicePrimaryCtxRelease(why, context->device) && ended;
  *context = Context();
  return ended;
}

Current::Current(const Context& context, Failure* why) : driver_(*context.driver) { enter(context, why); }

Current::Current(const Context& context) : driver_(*context.driver) {
  Failure ignored;
  enter(context, &ignored);
}

void Current::enter(const Context& context, Failure* why) {
  if (!driver_.cuCtxPushCurrent(why, context.handle)) return;
  entered_ = driver_.cuThreadExchangeStreamCaptureMode(why, &mode_);
  CUcontext popped;
  if (!entered_) driver_.cuCtxPopCurrent.call(&popped);
}

Current::~Current() {
  if (!entered_) return;
  driver_.cuThreadExchangeStreamCaptureMode.call(&mode_);
  CUcontext popped;
  driver_.cuCtxPopCurrent.call(&popped);
}

bool finish(const Context& context, CUstream stream, int64_t deadlineNs, Failure* why) {
  int64_t pauseNs = 2000;
  for (;;) {
    const CUresult code = context.driver->cuStreamQuery.call(stream);
    if (code == CUDA_SUCCESS) return true;
    if (code != CUDA_ERROR_NOT_READY) return driverFailed(context.driver, "cuStreamQuery", code, why);
    if (host::nowNs() >= deadlineNs) {
      return because(why, RH_ERR_TIMEOUT, "device %d: queued work has not run in time: do kernels that wait hold all of the GPU's multiprocessors?", context.device);
    }
    const timespec pause = {0, pauseNs};
    nanosleep(&pause, nullptr);
    if (pauseNs < 1000000) pauseNs *= 2;
  }
}

}  // namespace railhead::client::cuda
