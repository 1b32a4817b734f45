// Kernels for tests of the fake driver itself.
#ifndef RAILHEAD_TESTS_CUDA_TEST_KERNELS_H_
#define RAILHEAD_TESTS_CUDA_TEST_KERNELS_H_

struct TestParameter {
  long long* word;
  long long value;
};

#endif  // RAILHEAD_TESTS_CUDA_TEST_KERNELS_H_
