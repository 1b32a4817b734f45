// In place of host/isa_avx2.cc and isa_avx512.cc: a program that tests protocols need not be compiled for all of them.
#include "host/kernel_set.h"

namespace railhead::host {
extern const KernelSet kAvx2Kernels, kAvx512Kernels;
const KernelSet kAvx2Kernels = {"none", {}, {}, {}};
const KernelSet kAvx512Kernels = {"none", {}, {}, {}};
}  // namespace railhead::host
