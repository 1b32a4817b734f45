// Ring all-gather: in each step every rank sends a block to the next rank and gets one from the one before; what it got it sends
// on in the next step.
#ifndef RAILHEAD_KERNELS_ALLGATHER_RING_H_
#define RAILHEAD_KERNELS_ALLGATHER_RING_H_

#include "railhead/pipes.h"

namespace railhead {

// As allGather, in bytes. A rank is at most one chunk ahead of what it has received, so four slots are enough and nobody waits
// in a circle. Returns false when the group broke.
template <class Mem>
bool allGatherRing(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const char* send, char* recv, uint64_t bytes) {
  Pipes<Mem> pipes(mem, team, flags);
  flags.announce();
  const int n = team.worldSize, next = (team.rank + 1) % n, before = (team.rank - 1 + n) % n;
  char* own = recv + static_cast<uint64_t>(team.rank) * bytes;
  if (own != send) mem.copyLocal(own, send, bytes);
  const uint64_t perChunk = pipes.chunkBytes();
  for (uint64_t done = 0; done == 0 || done < bytes; done += perChunk) {
    const uint64_t part = bytes - done < perChunk ? bytes - done : perChunk;
    for (int step = 0; step + 1 < n; step++) {
      char* out = pipes.reserve(next);
      if (out == nullptr) return false;
      pipes.writeHeader(out, team.call, part);
      mem.copyToSlot(out + kSlotHeaderBytes, recv + static_cast<uint64_t>((team.rank - step + n) % n) * bytes + done, part);
      pipes.send(next);
      const char* in = pipes.receive(before);
      if (in == nullptr || !pipes.agrees(in, team.call, before)) return false;
      mem.copyFromSlot(recv + static_cast<uint64_t>((team.rank - step - 1 + n) % n) * bytes + done, in + kSlotHeaderBytes, part);
      pipes.release(before);
    }
  }
  return true;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLGATHER_RING_H_
