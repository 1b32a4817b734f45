// Flags of blocks: how ranks on GPUs order plain accesses to each other's windows, for messages too large to be copied. Block b of a rank
// meets block b of every other rank, so all ranks launch the same grid.
#ifndef RAILHEAD_KERNELS_BLOCK_FLAGS_H_
#define RAILHEAD_KERNELS_BLOCK_FLAGS_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"

namespace railhead {

// What rank s publishes to block b of rank r: flag b * worldSize + s of rank r. A sector of the GPU's cache.
struct BlockFlag {
  // The newest meeting that the peer's block has come to; wraps. Writer: one thread of the peer's block (store release, system scope, after a
  // barrier of the block). Reader: one thread of this block (load acquire, before a barrier of the block). It publishes the stores of the
  // peer's block to windows, and that the block has ended its reads of windows.
  uint32_t meeting;
  uint32_t pad[7];
};
static_assert(sizeof(BlockFlag) == 32, "flags are addressed by peers");

// Filled in by the kernel.
struct BlockTeam {
  char* flags;  // those of rank r begin at flags + r * stride
  uint64_t stride;
  int rank;
  int worldSize;

  RH_FN BlockFlag* flag(int reader, uint32_t block, int writer) const {
    return reinterpret_cast<BlockFlag*>(flags + static_cast<uint64_t>(static_cast<uint32_t>(reader)) * stride) +
           block * static_cast<uint32_t>(worldSize) + static_cast<uint32_t>(writer);
  }
};

// Mem has:
//   loadFlagAcquire, storeFlagRelease   32-bit words, system scope
//   loadFlag, storeFlag                 the same, relaxed (for mutants)
//   dataAll(v)                          barrier of those of the block's threads that handle data; whether v was true in all of them
//   keepWaiting(), endWait(), giveUp()  as for cells
//   block(), threadInBlock(), dataThreadsInBlock()
// A peer may be one meeting ahead: it may come to the next one as soon as it has seen this rank's flag.
template <class Mem>
RH_FN bool awaitBlock(Mem& mem, const uint32_t* flag, int r, uint32_t meeting) {
  RH_ROLLED
  for (;;) {
    const uint32_t seen = mutated(Mutant::kBlockAwaitRelaxed) ? mem.loadFlag(flag) : mem.loadFlagAcquire(flag);
    const uint32_t ahead = (seen - meeting) & Mem::kMeetingMask;
    if (ahead <= Mem::kMeetingMask / 2) break;
    if (mem.keepWaiting()) continue;
    mem.giveUp(uint64_t{1} << r);
    return false;
  }
  mem.endWait();
  return true;
}

// Every data thread of the kernel calls it. The first barrier orders the other threads' accesses before the release, the last one orders the
// acquire before theirs.
template <class Mem>
RH_FN bool meetBlocks(Mem& mem, const BlockTeam& team, uint32_t meeting) {
  if (!mutated(Mutant::kBlockPublishesAlone)) mem.dataAll(true);
  const auto self = static_cast<uint32_t>(team.rank), worldSize = static_cast<uint32_t>(team.worldSize);
  RH_ROLLED
  for (uint32_t r = mem.threadInBlock(); r < worldSize; r += mem.dataThreadsInBlock()) {
    if (r == self) continue;
    uint32_t* flag = &team.flag(static_cast<int>(r), mem.block(), team.rank)->meeting;
    if (mutated(Mutant::kBlockPublishRelaxed)) {
      mem.storeFlag(flag, meeting);
    } else {
      mem.storeFlagRelease(flag, meeting);
    }
  }
  bool arrived = true;
  RH_ROLLED
  for (uint32_t r = mem.threadInBlock(); r < worldSize && arrived; r += mem.dataThreadsInBlock()) {
    if (r != self) arrived = awaitBlock(mem, &team.flag(team.rank, mem.block(), static_cast<int>(r))->meeting, static_cast<int>(r), meeting);
  }
  return mutated(Mutant::kBlockAwaitsAlone) ? arrived : mem.dataAll(arrived);
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_BLOCK_FLAGS_H_
