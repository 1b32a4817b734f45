// Objects that new takes from malloc: the library then needs no C++ run-time library, so that C programs link it with a C
// compiler, and a Python process with another libstdc++ loads it.
#ifndef RAILHEAD_CLIENT_BASE_MALLOCED_H_
#define RAILHEAD_CLIENT_BASE_MALLOCED_H_

#include <stddef.h>
#include <stdlib.h>

namespace railhead::client {

// A base of every class that the library makes with new, which gives nullptr where there is no memory.
struct Malloced {
  static void* operator new(size_t bytes) noexcept { return malloc(bytes); }
  static void operator delete(void* object) { free(object); }
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_MALLOCED_H_
