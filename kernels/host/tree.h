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
inline Outcome allReduceOver(Tree tree, const KernelCall& c) {
  return reduceOverFlags(c, [&](auto& mem, auto& flags, const auto& e) {
    TreeReduction<Runs, RunMem>(mem, c.team, flags, e, tree, in(c), out(c), c.count).run();
  });
}
inline Outcome reduceScatterOver(Tree tree, const KernelCall& c) {
  return reduceOverFlags(c, [&](auto& mem, auto& flags, const auto& e) {
    ReduceScatterTree<Runs, RunMem>(mem, c.team, flags, e, tree, in(c), out(c), c.count).run();
  });
}
inline Outcome broadcastOver(Tree tree, const KernelCall& c) {
  return broadcastOverFlags(
      c, [&](auto& mem, auto& flags, char* buffer) { broadcastTree(mem, c.team, flags, tree, c.ring, c.root, buffer, c.bytes); });
}

inline Outcome allReduce(const KernelCall& c) {
  return allReduceOver(Tree::kDouble, c);
}

inline Outcome reduceScatter(const KernelCall& c) {
  return reduceScatterOver(Tree::kDouble, c);
}

inline Outcome allGather(const KernelCall& c) {
  return copyOverFlags(
      c.team, [&](auto& mem, auto& flags, const auto&) { allGatherTree(mem, c.team, flags, c.ring, in(c), out(c), c.bytes); });
}

inline Outcome broadcast(const KernelCall& c) {
  return broadcastOver(Tree::kDouble, c);
}

}  // namespace railhead::host::tree

#endif  // RAILHEAD_KERNELS_HOST_TREE_H_
