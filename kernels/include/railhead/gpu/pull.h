// Pull: zero copy between windows, which every rank has mapped. Each rank owns a slice. It loads the slice from
// every rank's send window, reduces it, and stores the result to every rank's recv window.
#ifndef RAILHEAD_KERNELS_GPU_PULL_H_
#define RAILHEAD_KERNELS_GPU_PULL_H_

#include "railhead/base/fold.h"
#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/block_flags.h"
#include "railhead/gpu/context.h"
#include "railhead/gpu/control.h"

namespace railhead::gpu {

// Waits until every rank has begun the same call, so that each send window is complete and no recv window is still read. The signatures'
// lines are the flags. They are stored relaxed: what a window holds was stored by kernels that had ended before. They are loaded with acquire,
// before any window is. No window is accessed if the calls differ.
template <class Context>
RH_FN bool meetCalls(Context& c) {
  bool good = true;
  const auto worldSize = static_cast<uint32_t>(c.worldSize());
  RH_ROLLED
  for (uint32_t r = c.threadInBlock(); r < worldSize && good; r += c.dataThreadsInBlock()) {
    if (static_cast<int>(r) == c.call().team.rank || mutated(Mutant::kPullWithoutFirstBarrier)) continue;
    good = awaitCall(c, static_cast<int>(r), !mutated(Mutant::kPullLooksRelaxed));
  }
  return mutated(Mutant::kPullAwaitsAlone) ? good : c.dataAll(good);
}

// Meets the same block of every rank: after it every rank's stores to windows are complete, and every rank has ended its loads. number: of
// the kernel's meetings, from 1.
template <class Context>
RH_FN bool meetBlocksOf(Context& c, uint32_t number) {
  const Layout layout = layoutOf(c.worldSize(), c.call().team.slotBytes);
  const BlockTeam team = {c.call().team.base + layout.flagsOffset, c.call().team.stride, c.call().team.rank, c.worldSize()};
  return meetBlocks(c, team, (c.started().start.flagEpoch + number) & Context::kMeetingMask);
}

// kWorld: the ranks, all of one reduce group; 0 = any number, and any group. kTiles tiles of every rank are in flight at the same time.
template <int kWorld, int kTiles, class Elements, class Context>
RH_FN bool allReducePull(Context& c, const Windows& windows, const Elements& e) {
  using Raw = typename Elements::Raw;
  constexpr int kBatch = kWorld != 0 ? kWorld : Context::kPullBatch;
  const Call& call = c.call();
  const int worldSize = kWorld != 0 ? kWorld : c.worldSize();
  const size_t count = call.count;
  const uint64_t tiles = (count + Elements::kElements - 1) / Elements::kElements;
  const uint64_t slice = (tiles + static_cast<uint32_t>(worldSize) - 1) / static_cast<uint32_t>(worldSize);
  const uint64_t begin = slice * static_cast<uint32_t>(call.team.rank);
  const uint64_t end = begin + slice < tiles ? begin + slice : tiles;
  const uint32_t step = c.threads();

  if (!c.join()) return false;
  if (!meetCalls(c)) return false;
  // Number q of a thread's tiles from i on.
  const auto tileOf = [&](uint64_t i, int q) { return i + static_cast<uint64_t>(step) * static_cast<uint32_t>(q); };
  RH_ROLLED
  for (uint64_t i = begin + c.thread(); i < end; i = tileOf(i, kTiles)) {
    Raw sums[kTiles];
    if constexpr (kWorld != 0) {
      Raw raw[kTiles][kBatch] = {};
      RH_UNROLL
      for (int q = 0; q < kTiles; q++) {
        RH_UNROLL
        for (int r = 0; r < kBatch; r++) {
          if (tileOf(i, q) < end) raw[q][r] = c.template loadElements<Elements>(e, windows.send[r], tileOf(i, q), count);
        }
      }
      RH_UNROLL
      for (int q = 0; q < kTiles; q++) {
        const auto gather = [&](int, int, Raw(&to)[kBatch]) {
          RH_UNROLL
          for (int r = 0; r < kBatch; r++) to[r] = raw[q][r];
          return true;
        };
        foldRanks<kBatch>(e, kWorld, kWorld, gather, &sums[q]);
      }
    } else {
      static_assert(kTiles == 1, "any number of ranks: batches of ranks are in flight, not of tiles");
      foldRanks<kBatch>(
          e, worldSize, call.team.reduceGroup,
          [&](int first, int ranks, Raw(&to)[kBatch]) {
            RH_UNROLL
            for (int r = 0; r < kBatch; r++) {
              if (r < ranks) to[r] = c.template loadElements<Elements>(e, windows.send[first + r], i, count);
            }
            return true;
          },
          &sums[0]);
    }
    int r = call.team.rank;
    RH_ROLLED
    for (int k = 0; k < worldSize; k++) {
      RH_UNROLL
      for (int q = 0; q < kTiles; q++) {
        if (tileOf(i, q) < end) c.template storeElements<Elements>(windows.recv[r], tileOf(i, q), count, sums[q]);
      }
      r = r + 1 == worldSize ? 0 : r + 1;
    }
  }
  return mutated(Mutant::kPullWithoutLastBarrier) || meetBlocksOf(c, 1);
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_PULL_H_
