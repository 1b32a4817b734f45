// The build with hooks compiles the library with -fsanitize=thread, but does not link ThreadSanitizer. The compiler then calls the
// functions below at each access of memory and at each atomic operation. At an atomic operation another thread may run; before a store
// the world checks its invariant, so that it holds between any two stores. What was freed is not accessed.
#include <stdint.h>
#include <string.h>

#include "heap.h"
#include "world.h"

using world::checkAccess;
using world::checkInvariant;

namespace {

// Words that an atomic operation has written, a hash table. A load of another word is no point at which threads switch: the library looks
// through tables whose entries were never used.
constexpr uint64_t kMaxWritten = 1 << 14;
const volatile void* written[kMaxWritten];
uint64_t count = 0;

// The entry of the word, or the free entry for it.
const volatile void** entryOf(const volatile void* p) {
  uint64_t i = (reinterpret_cast<uintptr_t>(p) >> 2) * 0x9e3779b97f4a7c15 >> 50;
  while (written[i] != nullptr && written[i] != p) i = (i + 1) % kMaxWritten;
  return &written[i];
}

void readStep(const volatile void* p) {
  if (*entryOf(p) != nullptr) world::step("atomic load");
  checkAccess(p, 1);
}

void writeStep(const volatile void* p, const char* what) {
  const volatile void** entry = entryOf(p);
  if (*entry == nullptr && ++count > kMaxWritten / 2) world::fail("more than %d words are written", static_cast<int>(kMaxWritten / 2));
  *entry = p;
  world::step(what);
  checkAccess(p, 1);
}

void writes(const void* p, size_t bytes) {
  checkAccess(p, bytes);
  checkInvariant();
}

}  // namespace

// The compiler gives the memory order; one thread runs at a time, so all orders are the same here.
#define ATOMIC(bits, type)                                                                                                   \
  type __tsan_atomic##bits##_load(const volatile type* p, int) {                                                             \
    readStep(p);                                                                                                             \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                             \
  }                                                                                                                          \
  void __tsan_atomic##bits##_store(volatile type* p, type v, int) {                                                          \
    writeStep(p, "atomic store");                                                                                        \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                                                \
  }                                                                                                                          \
  type __tsan_atomic##bits##_exchange(volatile type* p, type v, int) {                                                       \
    writeStep(p, "atomic exchange");                                                                                     \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                                      \
  }                                                                                                                          \
  type __tsan_atomic##bits##_fetch_add(volatile type* p, type v, int) {                                                      \
    writeStep(p, "atomic add");                                                                                          \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                                                       \
  }                                                                                                                          \
  type __tsan_atomic##bits##_fetch_sub(volatile type* p, type v, int) {                                                      \
    writeStep(p, "atomic sub");                                                                                          \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                                                       \
  }                                                                                                                          \
  type __tsan_atomic##bits##_fetch_or(volatile type* p, type v, int) {                                                       \
    writeStep(p, "atomic or");                                                                                           \
    return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);                                                                        \
  }                                                                                                                          \
  type __tsan_atomic##bits##_fetch_and(volatile type* p, type v, int) {                                                      \
    writeStep(p, "atomic and");                                                                                          \
    return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);                                                                       \
  }                                                                                                                          \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* expected, type v, int, int) {                    \
    writeStep(p, "atomic compare and exchange");                                                                         \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
  }                                                                                                                          \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* p, type* expected, type v, int, int) {                      \
    writeStep(p, "atomic compare and exchange");                                                                         \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
  }                                                                                                                          \
  type __tsan_atomic##bits##_compare_exchange_val(volatile type* p, type expected, type v, int, int) {                       \
    writeStep(p, "atomic compare and exchange");                                                                         \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                 \
    return expected;                                                                                                         \
  }

#define PLAIN(bytes)                                                       \
  void __tsan_read##bytes(void* p) { checkAccess(p, bytes); }              \
  void __tsan_unaligned_read##bytes(void* p) { checkAccess(p, bytes); }    \
  void __tsan_write##bytes(void* p) { writes(p, bytes); }                  \
  void __tsan_unaligned_write##bytes(void* p) { writes(p, bytes); }

extern "C" {
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* p, size_t bytes) { checkAccess(p, bytes); }
void __tsan_write_range(void* p, size_t bytes) { writes(p, bytes); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) { world::step("fence"); }
void __tsan_atomic_signal_fence(int) {}
}
