// A device's primary context, which the CUDA runtime, and so PyTorch, uses too.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_CONTEXT_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_CONTEXT_H_

#include <stdint.h>

#include "device/cuda/driver.h"

namespace railhead::client::cuda {

struct Context {
  const Driver* driver = nullptr;
  CUdevice device = -1;
  CUcontext handle = nullptr;  // nullptr = not open
  // For copies and fills of set-up calls. It waits for no other stream.
  CUstream stream = nullptr;
};

// Retains the context. On failure nothing is held.
bool openContext(const Driver* driver, CUdevice device, Context* out, Failure* why);
// Releases it; its stream must be idle. It continues after a failure, which *why describes.
bool closeContext(Context* context, Failure* why);

// Makes the context current in this thread while it lives, and permits this thread set-up calls of the driver while any thread captures a
// stream: they touch no captured stream.
class Current {
 public:
  Current(const Context& context, Failure* why);
  // For undoing, which goes on if this fails, and then reports its own failure.
  explicit Current(const Context& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  void enter(const Context& context, Failure* why);

  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's own mode, while this lives
  bool entered_ = false;
};

// Waits until the work of the stream has run. False: the deadline (monotonic) has passed, or the work has failed.
bool finish(const Context& context, CUstream stream, int64_t deadlineNs, Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_CONTEXT_H_
