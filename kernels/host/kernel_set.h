// The arithmetic of the CPU target, compiled once for each instruction set. The kernels that call it: kernels.h.
#ifndef RAILHEAD_KERNELS_HOST_KERNEL_SET_H_
#define RAILHEAD_KERNELS_HOST_KERNEL_SET_H_

#include "host/ep_row_kernels.h"
#include "host/run_fold.h"
#include "host/types.h"

namespace railhead::host {

// The arithmetic of an instruction set.
struct KernelSet {
  const char* isa;             // "portable", "avx2", "avx512"
  RunKernels elements[kTypes];  // by Type
  EpRowKernels rows;
};

// The set that every processor has.
extern const KernelSet kPortableKernels;

// The best set for this processor; RAILHEAD_ISA names a lesser one (for tests and comparisons). Each call reads the variable again: each
// comm of a process may have another set.
const KernelSet& kernels();

// A set by name, nullptr if this build or processor does not have it.
const KernelSet* kernelsFor(const char* isa);

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_KERNEL_SET_H_
