// Chooses the kernels for this processor.
#include <stdlib.h>
#include <string.h>

#include "host/kernel_set.h"

namespace railhead::host {

#if defined(__x86_64__)
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;
#endif

const KernelSet* kernelsFor(const char* isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && strcmp(isa, kAvx512Kernels.isa) == 0) return &kAvx512Kernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && strcmp(isa, kAvx2Kernels.isa) == 0) return &kAvx2Kernels;
#endif
  return strcmp(isa, kPortableKernels.isa) == 0 ? &kPortableKernels : nullptr;
}

const KernelSet& kernels() {
  if (const char* forced = getenv("RAILHEAD_ISA")) {
    if (const KernelSet* set = kernelsFor(forced)) return *set;
  }
  const char* const best[] = {"avx512", "avx2"};
  for (const char* isa : best) {
    if (const KernelSet* set = kernelsFor(isa)) return *set;
  }
  return kPortableKernels;
}

}  // namespace railhead::host
