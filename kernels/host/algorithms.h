// Made from internal/wire/algorithms.txt by `go generate ./internal/wire`. Do not edit.
#ifndef RAILHEAD_KERNELS_HOST_ALGORITHMS_H_
#define RAILHEAD_KERNELS_HOST_ALGORITHMS_H_

#include <stdint.h>

namespace railhead::host {

// Algorithms that run on a CPU, by the numbers of segment.h's rhw_algo.
enum Algorithm : uint32_t {
  kOneshot = 1,
  kTwoshot = 2,
  kPull = 3,
  kPipe = 4,
  kRing = 5,
  kTree = 6,
  kAlgorithms = 7,
};

// Operations that have algorithms, by the numbers of segment.h's rhw_op.
enum Collective : uint32_t {
  kAllReduce = 2,
  kAllGather = 7,
  kReduceScatter = 8,
  kAllToAll = 9,
  kBroadcast = 10,
  kReduce = 11,
  kGather = 12,
  kScatter = 13,
  kCollectives = 14,
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_ALGORITHMS_H_
