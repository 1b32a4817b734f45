// What the protocols call for arithmetic, once for a run of tiles: a table of functions for each element type and instruction set. So the
// protocols are compiled once, and only these functions for every type and set.
#ifndef RAILHEAD_KERNELS_HOST_RUN_FOLD_H_
#define RAILHEAD_KERNELS_HOST_RUN_FOLD_H_

#include <stddef.h>
#include <stdint.h>

#include "host/types.h"
#include "railhead/base/target.h"

namespace railhead::host {

// Runs of elements at any address, and how to reduce them: in the order of fold.h. A run has the type's elements or, between the ranks of a
// ring or tree, the accumulators of its elements. For a type that is added as it is the two are the same.
struct RunFold {
  const char* from[kMaxWorldSize];
  uint64_t sums;  // bit i: from[i] has accumulators
  int n;          // of from; at most 64
  int group;      // ranks of a reduce group
  Reduction kind;
  int worldSize;  // the divisor of an average
};

struct RunKernels {
  uint32_t elementBytes;
  uint32_t sumBytes;  // of an element's accumulator
  // Reduces `count` elements to `to`, which may be one of the runs. toSums: it gets the accumulators, and an average is not yet divided.
  // Accumulators are folded without groups.
  void (*fold)(const RunFold& f, bool toSums, char* to, size_t count);
  // A pre-mul-sum's contribution: count elements times op's scalar, rounded. from may be to.
  void (*scale)(const ReduceOp& op, const char* from, char* to, size_t count);
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_RUN_FOLD_H_
