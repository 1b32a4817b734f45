// What the client calls: the kernels of the CPU target, compiled once for each instruction set.
#ifndef RAILHEAD_KERNELS_HOST_KERNEL_SET_H_
#define RAILHEAD_KERNELS_HOST_KERNEL_SET_H_

#include <stddef.h>
#include <stdint.h>

#include "host/algorithms.h"
#include "host/ep_row_kernels.h"
#include "host/kernel.h"
#include "host/types.h"
#include "railhead/collectives/transfers.h"

namespace railhead::host {

// By Algorithm, Collective and Type; nullptr where an algorithm does not have the operation.
using KernelTable = Kernel[kAlgorithms][kCollectives][kTypes];

struct KernelSet {
  const char* isa;  // "portable", "avx2", "avx512"
  KernelTable collectives;
  Outcome (*barrier)(const FlagTeam&);
  // Sends and receives with other ranks, all at the same time.
  Outcome (*transfers)(const FlagTeam&, Transfer* list, int n);
  // The reduction of a single rank's elements, by Type.
  void (*alone[kTypes])(const ReduceOp&, const void* send, void* recv, size_t count);
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
