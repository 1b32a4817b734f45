// Pipe: chunks from one rank to another, or from the root to all, for operations in which not all ranks take part.
#ifndef RAILHEAD_KERNELS_HOST_PIPE_H_
#define RAILHEAD_KERNELS_HOST_PIPE_H_

#include "host/run_kernel.h"
#include "railhead/collectives/broadcast.h"
#include "railhead/collectives/reduce.h"
#include "railhead/collectives/transfers.h"

namespace railhead::host::pipe {

inline Outcome broadcast(const KernelCall& c) {
  return broadcastOverFlags(
      c, [&](auto& mem, auto& flags, char* buffer) { railhead::broadcast(mem, c.team, flags, c.root, buffer, c.bytes); });
}

inline Outcome reduce(const KernelCall& c) {
  return reduceOverFlags(
      c, [&](auto& mem, auto& flags, const auto& e) { railhead::reduce(mem, c.team, flags, e, c.root, in(c), out(c), c.count); });
}

// Sends and receives, of one rank with any others.
inline Outcome transfers(const FlagTeam& team, Transfer* list, int n) {
  return copyOverFlags(team, [&](auto& mem, auto& flags, const auto&) { Transfers<RunMem>(mem, team, flags, list, n).run(); });
}

// Gather and scatter are transfers between the root and all other ranks, under the signature of the collective. `all` is the root's
// buffer with a part for each rank, `own` a rank's part.
inline Outcome betweenRootAndAll(const KernelCall& c, bool scatters, char* all, char* own) {
  const FlagTeam& team = c.team;
  if (team.rank != c.root) {
    Transfer transfer = {c.root, !scatters, own, c.bytes, team.call, 0, false};
    return transfers(team, &transfer, 1);
  }
  Transfer list[kMaxWorldSize];
  for (int k = 1; k < team.worldSize; k++) {
    const int peer = (team.rank + k) % team.worldSize;
    list[k - 1] = {peer, scatters, all + static_cast<size_t>(peer) * c.bytes, c.bytes, team.call, 0, false};
  }
  char* mine = all + static_cast<size_t>(team.rank) * c.bytes;
  if (mine != own && c.bytes > 0) memcpy(scatters ? own : mine, scatters ? mine : own, c.bytes);
  return transfers(team, list, team.worldSize - 1);
}

inline Outcome gather(const KernelCall& c) {
  return betweenRootAndAll(c, false, out(c), const_cast<char*>(in(c)));
}

inline Outcome scatter(const KernelCall& c) {
  return betweenRootAndAll(c, true, const_cast<char*>(in(c)), out(c));
}

}  // namespace railhead::host::pipe

#endif  // RAILHEAD_KERNELS_HOST_PIPE_H_
