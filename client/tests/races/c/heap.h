// What the library allocates (heap.cc). Only the build with hooks has it; in the others the functions are null.
#ifndef RAILHEAD_RACES_HEAP_H_
#define RAILHEAD_RACES_HEAP_H_

#include <stddef.h>

namespace world {

__attribute__((weak)) bool isFreed(const void* p);
// Fails if the bytes were freed, or never allocated.
__attribute__((weak)) void checkAccess(const volatile void* p, size_t bytes);
// Fails if something is not freed.
__attribute__((weak)) void checkHeap();

}  // namespace world

#endif  // RAILHEAD_RACES_HEAP_H_
