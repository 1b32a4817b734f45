// Operations of all ranks between windows, which every rank has mapped: nothing is copied twice. A rank stores
// its data to the others' recv windows (all-gather, all-to-all, broadcast), which a link carries faster than loads and which needs no window
// for send; or it loads from the others' send windows (reduce-scatter). pull.h has the all-reduce and both meetings.
#ifndef RAILHEAD_KERNELS_GPU_WINDOWS_H_
#define RAILHEAD_KERNELS_GPU_WINDOWS_H_

#include "railhead/base/fold.h"
#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/gpu/context.h"
#include "railhead/gpu/elements.h"
#include "railhead/gpu/pull.h"

namespace railhead::gpu {

// A thread's tiles in flight at the same time: 16 registers.
constexpr int kTilesInFlight = 4;

// Copies bytes from this rank's memory to offset `to` of the recv buffers of `ranks` ranks, from rank first on. skip: this rank has them.
template <class Context>
RH_FN void storeToWindows(Context& c, const Windows& windows, const char* from, uint64_t bytes, int first, int ranks, uint64_t to, bool skip) {
  const uint64_t tiles = (bytes + 15) / 16;
  const uint32_t step = c.threads();
  const auto tileOf = [&](uint64_t i, int q) { return i + static_cast<uint64_t>(step) * static_cast<uint32_t>(q); };
  RH_ROLLED
  for (uint64_t i = c.thread(); i < tiles; i = tileOf(i, kTilesInFlight)) {
    Raw16 raw[kTilesInFlight] = {};
    RH_UNROLL
    for (int q = 0; q < kTilesInFlight; q++) {
      if (tileOf(i, q) < tiles) raw[q] = Bytes::load(from, tileOf(i, q), bytes);
    }
    int r = first;
    RH_ROLLED
    for (int k = 0; k < ranks; k++) {
      RH_UNROLL
      for (int q = 0; q < kTilesInFlight; q++) {
        if (tileOf(i, q) < tiles && !(skip && r == c.call().team.rank)) {
          c.template storeElements<Bytes>(windows.recv[r] + to, tileOf(i, q), bytes, raw[q]);
        }
      }
      r = r + 1 == c.worldSize() ? 0 : r + 1;
    }
  }
}

// Between two meetings: after the first every rank has begun this kernel, so that no recv window is still read and every send window is complete;
// after the last every window is complete, and every rank has ended its loads.
template <class Context, class Move>
RH_FN bool betweenWindows(Context& c, Move move) {
  if (!c.join() || !meetCalls(c)) return false;
  move();
  return mutated(Mutant::kPullWithoutLastBarrier) || meetBlocksOf(c, 1);
}

template <class Context>
RH_FN bool allGatherToWindows(Context& c, const Windows& windows) {
  const Call& call = c.call();
  const uint64_t to = static_cast<uint32_t>(call.team.rank) * call.count;
  const bool inPlace = call.send == windows.recv[call.team.rank] + to;
  return betweenWindows(c, [&] { storeToWindows(c, windows, call.send, call.count, call.team.rank, c.worldSize(), to, inPlace); });
}

// Not in place.
template <class Context>
RH_FN bool allToAllToWindows(Context& c, const Windows& windows) {
  const Call& call = c.call();
  const uint64_t to = static_cast<uint32_t>(call.team.rank) * call.count;
  return betweenWindows(c, [&] {
    int r = call.team.rank;
    RH_ROLLED
    for (int k = 0; k < c.worldSize(); k++) {
      storeToWindows(c, windows, call.send + static_cast<uint32_t>(r) * call.count, call.count, r, 1, to, false);
      r = r + 1 == c.worldSize() ? 0 : r + 1;
    }
  });
}

template <class Context>
RH_FN bool broadcastToWindows(Context& c, const Windows& windows) {
  const Call& call = c.call();
  const bool inPlace = call.send == windows.recv[call.team.rank];
  return betweenWindows(c, [&] {
    if (call.root == call.team.rank) storeToWindows(c, windows, call.send, call.count, call.root, c.worldSize(), 0, inPlace);
  });
}

// recv is in any memory. In place: recv is this rank's part of send, which no other rank reads.
template <class Elements, class Context>
RH_FN bool reduceScatterFromWindows(Context& c, const Windows& windows, const Elements& e) {
  constexpr int kBatch = Context::kPullBatch;
  const Call& call = c.call();
  const size_t count = call.count;
  const uint64_t tiles = (call.count + Elements::kElements - 1) / Elements::kElements;
  const uint64_t from = static_cast<uint32_t>(call.team.rank) * call.count * Elements::kBytes;
  return betweenWindows(c, [&] {
    RH_ROLLED
    for (uint64_t i = c.thread(); i < tiles; i += c.threads()) {
      Raw16 sum;
      foldRanks<kBatch>(
          e, c.worldSize(), call.team.reduceGroup,
          [&](int first, int ranks, Raw16(&raw)[kBatch]) {
            RH_UNROLL
            for (int r = 0; r < kBatch; r++) {
              if (r < ranks) raw[r] = c.template loadElements<Elements>(e, windows.send[first + r] + from, i, count);
            }
            return true;
          },
          &sum);
      e.store(call.recv, i, count, sum);
    }
  });
}

// What a rank stored before the barrier is visible to every rank after it: the kernels that stored it have ended before the lines were sent, and
// the lines are acquired.
template <class Context>
RH_FN bool barrier(Context& c) {
  return c.join() && meetCalls(c);
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_WINDOWS_H_
