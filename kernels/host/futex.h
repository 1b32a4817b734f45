// Futex calls on memory shared between processes.
#ifndef RAILHEAD_KERNELS_HOST_FUTEX_H_
#define RAILHEAD_KERNELS_HOST_FUTEX_H_

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace railhead::host {

// Numbers and layout of the kernel's ABI (Linux 5.16), for C libraries with older headers.
constexpr long kSysFutexWaitv = 449;
constexpr uint32_t kFutex32 = 2;
struct FutexWaitv {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};

static inline int64_t nowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// Sleeps until one of the two words differs from its value, is woken, or deadlineNs (monotonic clock) passes. It may also return without
// a reason, so the caller checks again. Returns 0 or an errno.
static inline int futexWait2(const uint32_t* a, uint32_t valueA, const uint32_t* b, uint32_t valueB, int64_t deadlineNs) {
  const FutexWaitv words[2] = {
      {valueA, reinterpret_cast<uint64_t>(a), kFutex32, 0},
      {valueB, reinterpret_cast<uint64_t>(b), kFutex32, 0},
  };
  const timespec until = {static_cast<time_t>(deadlineNs / 1000000000), static_cast<long>(deadlineNs % 1000000000)};
  if (syscall(kSysFutexWaitv, words, 2, 0, &until, CLOCK_MONOTONIC) >= 0) return 0;
  return errno;
}

// The same for n words, at most 128.
static inline int futexWaitAny(const uint32_t* const* words, const uint32_t* values, int n, int64_t deadlineNs) {
  FutexWaitv list[128];
  for (int i = 0; i < n; i++) list[i] = {values[i], reinterpret_cast<uint64_t>(words[i]), kFutex32, 0};
  const timespec until = {static_cast<time_t>(deadlineNs / 1000000000), static_cast<long>(deadlineNs % 1000000000)};
  if (syscall(kSysFutexWaitv, list, static_cast<unsigned>(n), 0, &until, CLOCK_MONOTONIC) >= 0) return 0;
  return errno;
}

// Wakes all threads that sleep on the word, in every process.
static inline void futexWakeAll(const uint32_t* word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_FUTEX_H_
