// The processor's time stamp. Reading it takes a few nanoseconds, reading the clock about twenty.
#ifndef RAILHEAD_KERNELS_HOST_TICKS_H_
#define RAILHEAD_KERNELS_HOST_TICKS_H_

#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace railhead::host {

static inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t t;
  asm volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#else
  return 0;
#endif
}

// Whether the processor guarantees that its time stamp runs at one constant rate on all cores, in every frequency and sleep state.
static inline bool ticksAreSteady() {
#if defined(__x86_64__)
  constexpr unsigned kLeaf = 0x80000007u, kInvariantTsc = 1u << 8;
  unsigned a, b, c, d;
  return __get_cpuid(kLeaf, &a, &b, &c, &d) != 0 && (d & kInvariantTsc) != 0;
#elif defined(__aarch64__)
  return true;  // the architecture's generic timer
#else
  return false;
#endif
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_TICKS_H_
