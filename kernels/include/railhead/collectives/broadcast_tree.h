// Broadcast over pipes between two ranks: along a chain from the root on ("ring"), or down a binary tree ("tree"). The root sends its
// buffer once, whatever the number of ranks. Both follow the order of a ring plan.
#ifndef RAILHEAD_KERNELS_BROADCAST_TREE_H_
#define RAILHEAD_KERNELS_BROADCAST_TREE_H_

#include "railhead/base/tree.h"
#include "railhead/exchange/ring.h"

namespace railhead {

// As broadcast(). Positions of the plan count from the root. Returns false when the group broke.
template <class Mem>
bool broadcastTree(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, Tree tree, const RingPlan& plan, int root, char* buffer, uint64_t bytes) {
  Pipes<Mem> pipes(mem, team, flags);
  flags.announce();
  const int n = team.worldSize, first = RingPlace(plan, 0, root, n).place;
  const RingPlace ring(plan, 0, team.rank, n);
  const int place = (ring.place - first + n) % n;
  TreePlace at = binaryTreePlace(place, n);
  if (tree == Tree::kChain) at = {place - 1, {place + 1, -1}, place + 1 < n ? 1 : 0};
  const auto rankOf = [&](int p) { return ring.at(p + first); };
  const uint64_t perChunk = pipes.chunkBytes();
  for (uint64_t done = 0; done == 0 || done < bytes; done += perChunk) {
    const uint64_t part = bytes - done < perChunk ? bytes - done : perChunk;
    if (at.parent >= 0) {
      const int from = rankOf(at.parent);
      const char* slot = pipes.receive(from);
      if (slot == nullptr || !pipes.agrees(slot, team.call, from)) return false;
      mem.copyFromSlot(buffer + done, slot + kSlotHeaderBytes, part);
      pipes.release(from);
    }
    for (int k = 0; k < at.n; k++) {
      const int to = rankOf(at.children[k]);
      char* slot = pipes.reserve(to);
      if (slot == nullptr) return false;
      pipes.writeHeader(slot, team.call, part);
      mem.copyToSlot(slot + kSlotHeaderBytes, buffer + done, part);
      pipes.send(to);
    }
  }
  return true;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_BROADCAST_TREE_H_
