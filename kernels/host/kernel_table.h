// Made from internal/wire/algorithms.txt by `go generate ./internal/wire`. Do not edit. instantiate.h includes it.
#ifndef RAILHEAD_KERNELS_HOST_KERNEL_TABLE_H_
#define RAILHEAD_KERNELS_HOST_KERNEL_TABLE_H_

#include "host/kernel_set.h"
#include "host/oneshot.h"
#include "host/twoshot.h"
#include "host/pull.h"
#include "host/pipe.h"
#include "host/ring.h"
#include "host/tree.h"

namespace railhead::host {

// Sets the kernels of reductions of elements of type T.
template <class T, class Isa>
constexpr void setReductions(int type, KernelTable& table) {
  table[kOneshot][kAllReduce][type] = oneshot::allReduce<T, Isa>;
  table[kOneshot][kReduceScatter][type] = oneshot::reduceScatter<T, Isa>;
  table[kTwoshot][kAllReduce][type] = twoshot::allReduce<T, Isa>;
  table[kPull][kAllReduce][type] = pull::allReduce<T, Isa>;
  table[kPull][kReduceScatter][type] = pull::reduceScatter<T, Isa>;
  table[kPipe][kReduce][type] = pipe::reduce<T, Isa>;
  table[kRing][kAllReduce][type] = ring::allReduce<T, Isa>;
  table[kRing][kReduceScatter][type] = ring::reduceScatter<T, Isa>;
  table[kTree][kAllReduce][type] = tree::allReduce<T, Isa>;
  table[kTree][kReduceScatter][type] = tree::reduceScatter<T, Isa>;
}

// Sets the kernels of operations that only copy.
template <class Isa>
constexpr void setCopies(int type, KernelTable& table) {
  table[kOneshot][kAllGather][type] = oneshot::allGather<Isa>;
  table[kOneshot][kAllToAll][type] = oneshot::allToAll<Isa>;
  table[kPull][kAllGather][type] = pull::allGather<Isa>;
  table[kPull][kAllToAll][type] = pull::allToAll<Isa>;
  table[kPipe][kBroadcast][type] = pipe::broadcast<Isa>;
  table[kPipe][kGather][type] = pipe::gather<Isa>;
  table[kPipe][kScatter][type] = pipe::scatter<Isa>;
  table[kRing][kAllGather][type] = ring::allGather<Isa>;
  table[kRing][kBroadcast][type] = ring::broadcast<Isa>;
  table[kTree][kAllGather][type] = tree::allGather<Isa>;
  table[kTree][kBroadcast][type] = tree::broadcast<Isa>;
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_KERNEL_TABLE_H_
