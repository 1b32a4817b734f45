// Objects whose operator new calls malloc. The library then needs no C++ run-time library: a C compiler can link it into a C
// program, and a Python process with another libstdc++ can load it.
#ifndef RAILHEAD_CLIENT_BASE_MALLOCED_H_
#define RAILHEAD_CLIENT_BASE_MALLOCED_H_

#include <stddef.h>
#include <stdlib.h>

namespace railhead::client {

// Base of every class that the library allocates with new. new returns nullptr when memory is exhausted.
struct Malloced {
  static void* operator new(size_t bytes) noexcept { return malloc(bytes); }
  static void operator delete(void* object) { free(object); }
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_MALLOCED_H_
