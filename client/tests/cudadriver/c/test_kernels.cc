// The library of kernels that RAILHEAD_FAKE_CUDA_KERNELS names.
#include "test_kernels.h"

#include <stddef.h>
#include <time.h>

#include "device/cuda/fake/c/hooks.h"

#define KERNEL extern "C" __attribute__((visibility("default")))

// Adds value for each thread of the grid.
KERNEL void test_add(const void* parameter, const fake_cuda_launch* launch) {
  const auto* p = static_cast<const TestParameter*>(parameter);
  __atomic_fetch_add(p->word, p->value * launch->grid[0] * launch->block[0], __ATOMIC_RELAXED);
}

// Waits until the word is the value.
KERNEL void test_hold(const void* parameter, const fake_cuda_launch*) {
  const auto* p = static_cast<const TestParameter*>(parameter);
  while (__atomic_load_n(p->word, __ATOMIC_ACQUIRE) != p->value) {
    const timespec pause = {0, 100000};
    nanosleep(&pause, nullptr);
  }
}

KERNEL size_t fake_cuda_kernel_parameter_bytes(const char*) { return sizeof(TestParameter); }
