// Made from internal/wire/algorithms.txt by `go generate ./internal/wire`. Do not edit. kernels.cc includes it.
#ifndef RAILHEAD_KERNELS_HOST_KERNEL_TABLE_H_
#define RAILHEAD_KERNELS_HOST_KERNEL_TABLE_H_

#include "host/kernels.h"
#include "host/oneshot.h"
#include "host/twoshot.h"
#include "host/pull.h"
#include "host/pipe.h"
#include "host/ring.h"
#include "host/tree.h"

namespace railhead::host {

constexpr Kernels makeKernels() {
  Kernels k{};
  k.of[kOneshot][kAllReduce] = oneshot::allReduce;
  k.of[kOneshot][kReduceScatter] = oneshot::reduceScatter;
  k.of[kOneshot][kAllGather] = oneshot::allGather;
  k.of[kOneshot][kAllToAll] = oneshot::allToAll;
  k.of[kTwoshot][kAllReduce] = twoshot::allReduce;
  k.of[kPull][kAllReduce] = pull::allReduce;
  k.of[kPull][kReduceScatter] = pull::reduceScatter;
  k.of[kPull][kAllGather] = pull::allGather;
  k.of[kPull][kAllToAll] = pull::allToAll;
  k.of[kPipe][kBroadcast] = pipe::broadcast;
  k.of[kPipe][kReduce] = pipe::reduce;
  k.of[kPipe][kGather] = pipe::gather;
  k.of[kPipe][kScatter] = pipe::scatter;
  k.of[kRing][kAllReduce] = ring::allReduce;
  k.of[kRing][kReduceScatter] = ring::reduceScatter;
  k.of[kRing][kAllGather] = ring::allGather;
  k.of[kRing][kBroadcast] = ring::broadcast;
  k.of[kTree][kAllReduce] = tree::allReduce;
  k.of[kTree][kReduceScatter] = tree::reduceScatter;
  k.of[kTree][kAllGather] = tree::allGather;
  k.of[kTree][kBroadcast] = tree::broadcast;
  return k;
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_KERNEL_TABLE_H_
