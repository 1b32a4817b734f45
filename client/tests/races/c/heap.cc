// What the library allocates, in the build with hooks: nothing is used or freed after it was freed, nothing beyond its end is used, and
// at the end nothing is left. Memory is never given twice.
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "heap.h"
#include "real.h"
#include "world.h"

namespace world {

namespace {

constexpr size_t kArena = size_t{64} << 20, kUnit = 64, kUnits = kArena / kUnit;

// Of a unit. What is not allocated lies between two blocks, or behind the last.
enum : uint8_t { kNotAllocated, kLive, kFreed };
uint8_t states[kUnits];
uint32_t bytesAt[kUnits];  // of the block that begins there

char* arena = nullptr;
size_t used = 0;  // units

size_t unitOf(const volatile void* p) { return (reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(arena)) / kUnit; }
bool isInArena(const volatile void* p) { return arena != nullptr && reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(arena) < kArena; }

void* allocate(size_t bytes) {
  if (arena == nullptr) arena = static_cast<char*>(__real_mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  const size_t units = (bytes + kUnit - 1) / kUnit + (bytes == 0);
  if (bytes > kArena || used + units + 1 > kUnits) fail("the library allocates more than %zu bytes", kArena);
  char* block = arena + used * kUnit;
  memset(states + used, kLive, units);
  bytesAt[used] = static_cast<uint32_t>(bytes);
  used += units + 1;  // a unit between two blocks
  return block;
}

}  // namespace

bool isFreed(const void* p) { return isInArena(p) && states[unitOf(p)] == kFreed; }

void checkAccess(const volatile void* p, size_t bytes) {
  if (!isInArena(p) || bytes == 0) return;
  for (size_t u = unitOf(p), last = unitOf(static_cast<const volatile char*>(p) + bytes - 1); u <= last; u++) {
    if (states[u] == kFreed) fail("memory is used that was freed");
    if (states[u] == kNotAllocated) fail("memory is used beyond the end of what was allocated");
  }
}

void checkHeap() {
  for (size_t u = 0; u < used; u++) {
    if (states[u] == kLive) fail("%u bytes at %p are never freed", bytesAt[u], static_cast<void*>(arena + u * kUnit));
  }
}

}  // namespace world

using namespace world;

extern "C" {

void* __wrap_malloc(size_t bytes) { return memset(allocate(bytes), 0xa5, bytes); }

void* __wrap_calloc(size_t n, size_t bytes) { return allocate(n * bytes); }

void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  if (alignment > kUnit) fail("aligned_alloc: %zu", alignment);
  return memset(allocate(bytes), 0xa5, bytes);
}

void __wrap_free(void* p) {
  if (p == nullptr) return;
  if (!isInArena(p)) return __real_free(p);  // the C library has allocated it
  const size_t u = unitOf(p);
  if (states[u] == kFreed) fail("memory is freed twice");
  if (states[u] != kLive || (u > 0 && states[u - 1] != kNotAllocated) || p != arena + u * kUnit) fail("free of what is no block");
  memset(p, 0xdd, bytesAt[u]);
  for (size_t i = u; states[i] == kLive; i++) states[i] = kFreed;
}

void* __wrap_realloc(void* p, size_t bytes) {
  void* to = __wrap_malloc(bytes);
  if (p == nullptr) return to;
  const size_t before = bytesAt[unitOf(p)];
  memcpy(to, p, before < bytes ? before : bytes);
  __wrap_free(p);
  return to;
}

}  // extern "C"
