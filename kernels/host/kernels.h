// What the client calls: the kernels of the CPU target. They are compiled once; what depends on the element type and the instruction set is
// in the KernelSet.
#ifndef RAILHEAD_KERNELS_HOST_KERNELS_H_
#define RAILHEAD_KERNELS_HOST_KERNELS_H_

#include <stddef.h>

#include "host/algorithms.h"
#include "host/kernel.h"
#include "railhead/collectives/transfers.h"

namespace railhead::host {

// By Algorithm and Collective; nullptr where an algorithm does not have the operation.
struct Kernels {
  Kernel of[kAlgorithms][kCollectives];
};
extern const Kernels kKernels;

Outcome barrier(const FlagTeam& team);

// Sends and receives with other ranks, all at the same time.
Outcome transfers(const FlagTeam& team, Transfer* list, int n);

// The reduction of a single rank's elements.
void reduceAlone(const RunKernels& elements, const ReduceOp& op, const void* send, void* recv, size_t count);

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_KERNELS_H_
