// Tree: partial sums go up a double binary tree, results come down. Copies go down a binary tree.
#ifndef RAILHEAD_KERNELS_HOST_TREE_H_
#define RAILHEAD_KERNELS_HOST_TREE_H_

#include "host/run_kernel.h"
#include "railhead/collectives/allgather_tree.h"
#include "railhead/collectives/allreduce_tree.h"
#include "railhead/collectives/broadcast_tree.h"
#include "railhead/collectives/reduce_scatter_tree.h"

namespace railhead::host::tree {

// Over a tree of the given kind. A chain adds in rank order.
template <class T, class Isa>
Outcome allReduceOver(Tree tree, const KernelCall& c) {
  return overFlags<Isa>(c.team, [&](auto& mem, auto& flags) {
    const Elements<T, Isa> e(c.reduce, c.team.worldSize);
    TreeReduction<Elements<T, Isa>, Mem<Isa>>(mem, c.team, flags, e, tree, in(c), out(c), c.count).run();
  });
}
template <class T, class Isa>
Outcome reduceScatterOver(Tree tree, const KernelCall& c) {
  return overFlags<Isa>(c.team, [&](auto& mem, auto& flags) {
    const Elements<T, Isa> e(c.reduce, c.team.worldSize);
    ReduceScatterTree<Elements<T, Isa>, Mem<Isa>>(mem, c.team, flags, e, tree, in(c), out(c), c.count).run();
  });
}
template <class Isa>
Outcome broadcastOver(Tree tree, const KernelCall& c) {
  return broadcastOverFlags<Isa>(
      c, [&](auto& mem, auto& flags, char* buffer) { broadcastTree(mem, c.team, flags, tree, c.ring, c.root, buffer, c.bytes); });
}

template <class T, class Isa>
Outcome allReduce(const KernelCall& c) {
  if constexpr (!own<T, Isa>) {
    return portableKernel<T>(kTree, kAllReduce)(c);
  } else {
    return allReduceOver<T, Isa>(Tree::kDouble, c);
  }
}

template <class T, class Isa>
Outcome reduceScatter(const KernelCall& c) {
  if constexpr (!own<T, Isa>) {
    return portableKernel<T>(kTree, kReduceScatter)(c);
  } else {
    return reduceScatterOver<T, Isa>(Tree::kDouble, c);
  }
}

template <class Isa>
Outcome allGather(const KernelCall& c) {
  return overFlags<Isa>(c.team, [&](auto& mem, auto& flags) { allGatherTree(mem, c.team, flags, c.ring, in(c), out(c), c.bytes); });
}

template <class Isa>
Outcome broadcast(const KernelCall& c) {
  return broadcastOver<Isa>(Tree::kDouble, c);
}

}  // namespace railhead::host::tree

#endif  // RAILHEAD_KERNELS_HOST_TREE_H_
