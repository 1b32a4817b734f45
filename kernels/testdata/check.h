// CHECK prints where it failed and ends the process.
#ifndef RAILHEAD_KERNELS_TESTDATA_CHECK_H_
#define RAILHEAD_KERNELS_TESTDATA_CHECK_H_

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                \
    }                                                                         \
  } while (0)

#endif  // RAILHEAD_KERNELS_TESTDATA_CHECK_H_
