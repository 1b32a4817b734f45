/* What the fake driver has besides the driver's functions: tests look these up in the library with dlsym. */
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_HOOKS_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_HOOKS_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this process holds. All are 0 if nothing leaks. */
struct fake_cuda_account {
  long contexts;     /* retained primary contexts */
  long streams, events, graphs, execs, user_objects;
  long modules;
  long reservations; /* ranges of addresses */
  long handles;      /* references to physical memory */
  long mappings;
  long allocations;  /* of cuMemAlloc */
  long opened;       /* handles of other processes */
  long pinned;       /* allocated or registered */
};
void fake_cuda_read_account(struct fake_cuda_account *account);

/* Fails the nth call from now on (1 = the next) of the function, "*" = of any function that the code under test calls, with that CUresult. The
   call does nothing. Replaces the last order; nth 0 = none. */
void fake_cuda_fail(const char *function, long nth, unsigned int code);
/* The number of calls of the function so far, "*" = of any. Calls for names and texts of errors do not count. */
long fake_cuda_calls(const char *function);
/* Each call of the function waits so long before it does anything. Replaces the last order; 0 = none. */
void fake_cuda_delay(const char *function, unsigned int milliseconds);

/* Runs on a stream's thread, with a copy of the kernel's one parameter. */
struct fake_cuda_launch {
  unsigned int grid[3], block[3];
};
typedef void (*fake_cuda_kernel)(const void *parameter, const struct fake_cuda_launch *launch);

/* The library that RAILHEAD_FAKE_CUDA_KERNELS names exports each kernel under the name of its entry point, and this function: the size of
   that kernel's parameter. */
typedef size_t (*fake_cuda_parameter_bytes)(const char *kernel);
#define FAKE_CUDA_PARAMETER_BYTES "fake_cuda_kernel_parameter_bytes"

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_HOOKS_H_ */
