// Events. In a capture they only say which streams belong to it.
#include <algorithm>

#include "device/cuda/fake/c/streams.h"

namespace railhead::fake {

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
  CUstream s = findStream(handle);
  if (const CUresult code = unusable(handle, s); code != CUDA_SUCCESS) return code;
  event->capture = s->capture;
  event->of = s;
  event->captured = s->captured;
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
  CUstream s = findStream(handle);
  if (const CUresult code = unusable(handle, s); code != CUDA_SUCCESS) return code;
  if (const auto capture = event->capture.lock(); capture != nullptr && captures.count(capture.get()) != 0) {
    if (s->capture != nullptr && s->capture != capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    s->capture = capture;  // the stream joins the capture
    noteCaptured(s);
    // The other stream is apart no longer if this one waits for all that it has captured.
    if (event->of != s && streams.count(event->of) != 0 && event->of->captured == event->captured) capture->apart.erase(event->of);
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

}  // namespace railhead::fake
