// Checks that print where they failed and end the process, and what the programs share.
#ifndef RAILHEAD_TESTS_CUDA_CHECK_H_
#define RAILHEAD_TESTS_CUDA_CHECK_H_

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/driver.h"
#include "device/cuda/fake/c/hooks.h"
#include "device/cuda/fake/c/test_functions.h"
#include "host/futex.h"

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                      \
    }                                                                               \
  } while (0)

// The call, whose last argument is &why, succeeds; or it fails with the result, and a text that contains the word.
#define SUCCEEDS(call)                                                                        \
  do {                                                                                        \
    Failure why;                                                                              \
    if (!(call)) {                                                                            \
      fprintf(stderr, "%s:%d: %s failed: %s\n", __FILE__, __LINE__, #call, why.text);         \
      abort();                                                                                \
    }                                                                                         \
    CHECK(why.result == RH_OK);                                                               \
  } while (0)
#define FAILS(call, wanted, word)                                                                                                    \
  do {                                                                                                                               \
    Failure why;                                                                                                                     \
    const bool succeeded = static_cast<bool>(call);                                                                                  \
    if (succeeded || why.result != (wanted) || strstr(why.text, word) == nullptr) {                                                  \
      fprintf(stderr, "%s:%d: %s: succeeded %d, result %d, text \"%s\", want %d with \"%s\"\n", __FILE__, __LINE__, #call, succeeded, \
              why.result, why.text, wanted, word);                                                                                   \
      abort();                                                                                                                       \
    }                                                                                                                                \
  } while (0)

namespace railhead::client::cuda {

// The fake driver's hooks, and the functions that an engine calls.
struct Fake {
  decltype(&fake_cuda_read_account) readAccount;
  decltype(&fake_cuda_fail) fail;
  decltype(&fake_cuda_calls) calls;
#define MEMBER(name, release, parameters) CUresult(*name) parameters;
  RAILHEAD_CUDA_TEST_FUNCTIONS(MEMBER)
#undef MEMBER

  Fake() {
    void* library = dlopen(getenv("RAILHEAD_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    readAccount = reinterpret_cast<decltype(readAccount)>(dlsym(library, "fake_cuda_read_account"));
    fail = reinterpret_cast<decltype(fail)>(dlsym(library, "fake_cuda_fail"));
    calls = reinterpret_cast<decltype(calls)>(dlsym(library, "fake_cuda_calls"));
    CHECK(readAccount != nullptr && fail != nullptr && calls != nullptr);
    using GetProcAddress = CUresult (*)(const char*, void**, int, uint64_t, CUdriverProcAddressQueryResult*);
    const auto get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    CUdriverProcAddressQueryResult found;
    void* address;
#define LOOK_UP(name, release, parameters)                                               \
  CHECK(get(#name, &address, release, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) == CUDA_SUCCESS); \
  name = reinterpret_cast<CUresult(*) parameters>(address);
    RAILHEAD_CUDA_TEST_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
  }

  fake_cuda_account account() const {
    fake_cuda_account a;
    readAccount(&a);
    return a;
  }
};

// The driver as the library loads it: the fake one.
inline const Driver* driverForTests() {
  Failure why;
  const Driver* driver = loadDriver(&why);
  CHECK(driver != nullptr);
  return driver;
}

inline bool same(const fake_cuda_account& a, const fake_cuda_account& b) { return memcmp(&a, &b, sizeof a) == 0; }

inline int openDescriptors() {
  DIR* all = opendir("/proc/self/fd");
  CHECK(all != nullptr);
  int n = 0;
  while (readdir(all) != nullptr) n++;
  closedir(all);
  return n;
}

constexpr int64_t kPatienceNs = int64_t{60} * 1000000000;
inline int64_t soon() { return host::nowNs() + kPatienceNs; }

constexpr uint64_t kGranule = uint64_t{2} << 20;

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_TESTS_CUDA_CHECK_H_
