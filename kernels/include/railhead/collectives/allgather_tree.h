// All-gather over binary trees ("tree"): each rank's part goes down a tree rooted at that rank, one part after the other. A rank
// continues with the next part as soon as it has forwarded one, so several parts are in flight.
#ifndef RAILHEAD_KERNELS_ALLGATHER_TREE_H_
#define RAILHEAD_KERNELS_ALLGATHER_TREE_H_

#include "railhead/collectives/broadcast_tree.h"

namespace railhead {

// As allGather. bytes: of a part. Returns false when the group broke.
template <class Mem>
bool allGatherTree(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const RingPlan& plan, const char* send, char* recv, uint64_t bytes) {
  char* own = recv + static_cast<uint64_t>(team.rank) * bytes;
  if (own != send) mem.copyLocal(own, send, bytes);
  for (int root = 0; root < team.worldSize; root++) {
    if (!broadcastTree(mem, team, flags, Tree::kDouble, plan, root, recv + static_cast<uint64_t>(root) * bytes, bytes)) return false;
  }
  return true;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLGATHER_TREE_H_
