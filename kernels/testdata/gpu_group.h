// Ranks of GPU kernels as threads of this process, each with a device heap in one range of memory.
#ifndef RAILHEAD_KERNELS_TESTDATA_GPU_GROUP_H_
#define RAILHEAD_KERNELS_TESTDATA_GPU_GROUP_H_

#include <stdint.h>
#include <string.h>

#include "check.h"
#include "gpu_runner.h"
#include "railhead/gpu/launch.h"

namespace {

using namespace railhead;
using namespace railhead::gpu;

constexpr uint64_t kSlotBytes = 1024, kWindowBytes = 64 << 10;

inline uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

struct Group {
  int world;
  Layout layout;
  uint64_t stride;
  char* base;
  struct Statuses {
    Status* first;
    size_t n;
    Status& operator[](size_t i) const { return first[i]; }
    Status* begin() const { return first; }
    Status* end() const { return first + n; }
  } status;

  explicit Group(int n, uint32_t first = 0) : world(n), layout(layoutOf(n, kSlotBytes)), status{allocateStatus(n), static_cast<size_t>(n)} {
    stride = (layout.bytes + 2 * kWindowBytes + 4095) / 4096 * 4096;
    base = allocateShared(stride * static_cast<uint64_t>(n));
    for (int r = 0; r < n; r++) {
      memset(heap(r) + layout.inboxOffset, 0xff, layout.inboxBytes);
      state(r)->start.packetEpoch = state(r)->start.flagEpoch = first;
      // Flags and lines as they would be at that epoch: behind it.
      for (uint64_t at = layout.flagsOffset; at + 32 <= layout.packetsOffset; at += 32) memcpy(heap(r) + at, &first, 4);
      for (uint64_t at = layout.laneFlagsOffset; at < layout.laneSlotsOffset; at += 4) memcpy(heap(r) + at, &first, 4);
    }
  }
  ~Group() {
    freeShared(base, stride * static_cast<uint64_t>(world));
    freeStatus(status.first, world);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  char* heap(int r) const { return base + stride * static_cast<uint64_t>(r); }
  char* window(int r, int which) const { return heap(r) + layout.bytes + static_cast<uint64_t>(which) * kWindowBytes; }
  GpuState* state(int r) const { return reinterpret_cast<GpuState*>(heap(r)); }
  Call call(int r, uint64_t timeoutNs = 30000000000) {
    Call c = {};
    c.team = {base, stride, r, world, world, 64, kSlotBytes, timeoutNs, 2 * timeoutNs, &status[static_cast<size_t>(r)]};
    c.call = {2, 0, 0, kNoRoot, 0, 0, 0, 0};
    c.root = -1;
    c.stream = 1;
    return c;
  }
  // The call with buffers at these offsets of every rank's device heap. Kernels other than pull's take only the call.
  WindowCall inWindows(const Call& c, uint64_t send, uint64_t recv) const {
    WindowCall w = {c, {}};
    for (int r = 0; r < world; r++) {
      w.windows.send[r] = heap(r) + send;
      w.windows.recv[r] = heap(r) + recv;
    }
    return w;
  }
};

}  // namespace

#endif  // RAILHEAD_KERNELS_TESTDATA_GPU_GROUP_H_
