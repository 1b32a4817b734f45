// Broadcast: the root writes chunks once, and all other ranks read them. The root is at most kPipeSlots chunks ahead of its slowest
// reader.
#ifndef RAILHEAD_KERNELS_BROADCAST_H_
#define RAILHEAD_KERNELS_BROADCAST_H_

#include "railhead/exchange/pipes.h"

namespace railhead {

// Copies the root's buffer of `bytes` bytes to the buffers of all other ranks. A broadcast of 0 bytes is an empty chunk, which carries
// the signature. Returns false when the group broke.
template <class Mem>
bool broadcast(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, int root, char* buffer, uint64_t bytes) {
  Pipes<Mem> pipes(mem, team, flags);
  flags.announce();
  Flag& tail = flags.header(root)->broadcastTail;
  const uint64_t perChunk = pipes.broadcastChunkBytes();
  for (uint64_t at = 0; at == 0 || at < bytes; at += perChunk) {
    const uint64_t n = bytes - at < perChunk ? bytes - at : perChunk;
    if (team.rank == root) {
      const uint32_t t = mem.loadRelaxed(&tail.value);
      for (int r = 0; r < team.worldSize; r++) {
        if (r == root || (mutated(Mutant::kBroadcastAwaitsOneReader) && r != (root == 0 ? 1 : 0))) continue;
        if (!flags.await(pipes.broadcastHead(root, r), Pipes<Mem>::credit(t), r)) return false;
      }
      char* slot = pipes.broadcastSlot(root, t);
      pipes.writeHeader(slot, team.call, n);
      mem.copyToSlot(slot + kSlotHeaderBytes, buffer + at, n);
      flags.publish(tail, Pipes<Mem>::next(t));
    } else {
      Flag& head = pipes.broadcastHead(root, team.rank);
      const uint32_t h = mem.loadRelaxed(&head.value);
      if (!flags.await(tail, Pipes<Mem>::next(h), root)) return false;
      const char* slot = pipes.broadcastSlot(root, h);
      if (!pipes.agrees(slot, team.call, root)) return false;
      mem.copyFromSlot(buffer + at, slot + kSlotHeaderBytes, n);
      flags.publish(head, Pipes<Mem>::next(h));
    }
  }
  return true;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_BROADCAST_H_
