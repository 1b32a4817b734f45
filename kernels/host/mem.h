// The CPU target's memory: GCC's atomics on plain integers (the daemon and other processes use the same words as plain integers too),
// futexes, the monotonic clock.
#ifndef RAILHEAD_KERNELS_HOST_MEM_H_
#define RAILHEAD_KERNELS_HOST_MEM_H_

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "host/futex.h"

namespace railhead::host {

// Requests the cache lines of these bytes with ownership: a store to them then needs no other transfer, and this rank's loads none either.
static inline void takeLines(const char* p, size_t bytes) {
  constexpr size_t kLine = 64;
  const char* end = p + bytes;
  for (p -= reinterpret_cast<uintptr_t>(p) % kLine; p < end; p += kLine) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*p));  // not __builtin_prefetch, which requests no ownership in code for the baseline
#else
    __builtin_prefetch(p, 1);
#endif
  }
}

// Loads and stores of tiles: runs.h. No host/isa_*.cc may include this: of an inline function that is compiled for two instruction sets, the
// linker keeps one.
struct Mem {
  static constexpr uint32_t kGenerationMask = 0xffffffffu;

  uint32_t loadAcquire(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
  uint32_t loadRelaxed(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
  void storeRelease(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
  void storeRelaxed(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
  void add(uint32_t* p, uint32_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
  uint32_t swapAcquire(uint32_t* p, uint32_t expected, uint32_t v) {
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
    return expected;
  }
  void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
  void fenceRelease() { __atomic_thread_fence(__ATOMIC_RELEASE); }
  void fenceAcquire() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
  uint64_t loadWord(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
  void storeWord(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
  uint64_t loadArrivedWord(const uint64_t* p) { return loadWord(p); }  // a word that has carried its own flag (ll_pipes.h)
  uint64_t loadWordAcquire(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
  void storeWordRelease(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
  void report(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }

  void futexWait2(const uint32_t* a, uint32_t va, const uint32_t* b, uint32_t vb, int64_t deadlineNs) {
    host::futexWait2(a, va, b, vb, deadlineNs);
  }
  void futexWaitAny(const uint32_t* const* words, const uint32_t* values, int n, int64_t deadlineNs) {
    host::futexWaitAny(words, values, n, deadlineNs);
  }
  void futexWakeAll(const uint32_t* p) { host::futexWakeAll(p); }
  int64_t nowNs() { return host::nowNs(); }
  void yield() { sched_yield(); }
  void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
  }

  uint64_t loadOffer(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
  void storeOffer(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
  // Chunks in the slots of pipes.
  void copyToSlot(char* slot, const char* from, uint64_t bytes) {
    if (bytes > 0) memcpy(slot, from, bytes);
  }
  void copyFromSlot(char* to, const char* slot, uint64_t bytes) {
    if (bytes > 0) memcpy(to, slot, bytes);
  }
  void copyLocal(char* to, const char* from, uint64_t bytes) { copyToSlot(to, from, bytes); }  // within this rank's memory
  void clearLocal(char* to, uint64_t bytes) {
    if (bytes > 0) memset(to, 0, bytes);
  }
  // Copies a row to several places; ep.cc has a faster version.
  void fanOutFromSlot(const char* slot, void* const* to, uint32_t n, uint32_t bytes, bool) {
    for (uint32_t i = 0; i < n; i++) memcpy(to[i], slot, bytes);
  }
  void fanOutLocal(const char* from, void* const* to, uint32_t n, uint32_t bytes, bool) { fanOutFromSlot(from, to, n, bytes, false); }
  // A rank is one thread, so it takes every row of a kernel that works on rows.
  uint32_t row() { return 0; }
  uint32_t rows() { return 1; }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_MEM_H_
