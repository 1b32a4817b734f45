// Pipe: chunks from one rank to another, or from the root to all, for operations in which not all ranks take part.
#ifndef RAILHEAD_KERNELS_HOST_PIPE_H_
#define RAILHEAD_KERNELS_HOST_PIPE_H_

#include "host/run_kernel.h"
#include "railhead/collectives/broadcast.h"
#include "railhead/collectives/reduce.h"
#include "railhead/collectives/transfers.h"

namespace railhead::host::pipe {

template <class Isa>
Outcome broadcast(const KernelCall& c) {
  return broadcastOverFlags<Isa>(
      c, [&](auto& mem, auto& flags, char* buffer) { railhead::broadcast(mem, c.team, flags, c.root, buffer, c.bytes); });
}

template <class T, class Isa>
Outcome reduce(const KernelCall& c) {
  return overFlags<Isa>(c.team, [&](auto& mem, auto& flags) {
    railhead::reduce(mem, c.team, flags, Elements<T, Isa>(c.reduce, c.team.worldSize), c.root, in(c), out(c), c.count);
  });
}

// Sends and receives, of one rank with any others.
template <class Isa>
Outcome transfers(const FlagTeam& team, Transfer* list, int n) {
  return overFlags<Isa>(team, [&](auto& mem, auto& flags) { Transfers<Mem<Isa>>(mem, team, flags, list, n).run(); });
}

// Gather and scatter are transfers between the root and all other ranks, under the signature of the collective. `all` is the root's
// buffer with a part for each rank, `own` a rank's part.
template <class Isa>
Outcome betweenRootAndAll(const KernelCall& c, bool scatters, char* all, char* own) {
  const FlagTeam& team = c.team;
  if (team.rank != c.root) {
    Transfer transfer = {c.root, !scatters, own, c.bytes, team.call, 0, false};
    return transfers<Isa>(team, &transfer, 1);
  }
  Transfer list[kMaxWorldSize];
  for (int k = 1; k < team.worldSize; k++) {
    const int peer = (team.rank + k) % team.worldSize;
    list[k - 1] = {peer, scatters, all + static_cast<size_t>(peer) * c.bytes, c.bytes, team.call, 0, false};
  }
  char* mine = all + static_cast<size_t>(team.rank) * c.bytes;
  if (mine != own && c.bytes > 0) memcpy(scatters ? own : mine, scatters ? mine : own, c.bytes);
  return transfers<Isa>(team, list, team.worldSize - 1);
}

template <class Isa>
Outcome gather(const KernelCall& c) {
  return betweenRootAndAll<Isa>(c, false, out(c), const_cast<char*>(in(c)));
}

template <class Isa>
Outcome scatter(const KernelCall& c) {
  return betweenRootAndAll<Isa>(c, true, const_cast<char*>(in(c)), out(c));
}

}  // namespace railhead::host::pipe

#endif  // RAILHEAD_KERNELS_HOST_PIPE_H_
