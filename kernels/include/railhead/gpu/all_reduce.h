// The all-reduce kernels of a GPU: which exchange, elements and control they combine. A target makes an entry point of each (entries.h).
#ifndef RAILHEAD_KERNELS_GPU_ALL_REDUCE_H_
#define RAILHEAD_KERNELS_GPU_ALL_REDUCE_H_

#include <type_traits>

#include "railhead/base/target.h"
#include "railhead/collectives/allreduce_oneshot.h"
#include "railhead/collectives/allreduce_twoshot.h"
#include "railhead/exchange/cells.h"
#include "railhead/exchange/inbox_exchange.h"
#include "railhead/exchange/packets.h"
#include "railhead/gpu/context.h"
#include "railhead/gpu/control.h"
#include "railhead/gpu/elements.h"
#include "railhead/gpu/pull.h"

namespace railhead::gpu {

// By rhw_algo.
enum class Algorithm : uint32_t { kNone = 0, kOneshot = 1, kTwoshot = 2, kPull = 3, kPipe = 4 };

template <class Context>
RH_FN Inbox inboxOf(const Context& c, bool cells) {
  const Team& team = c.call().team;
  const Layout layout = layoutOf(team.worldSize, team.slotBytes);
  return {c.once(team.base + (cells ? layout.inboxOffset : layout.packetsOffset)), team.stride, static_cast<uint32_t>(team.slotBytes),
          team.rank, team.worldSize, team.reduceGroup};
}
template <class Context>
RH_FN Way wayOf(const Context& c, Algorithm algorithm) {
  const uint64_t detail = c.call().detail ^ static_cast<uint64_t>(static_cast<uint32_t>(c.call().team.reduceGroup)) << 56;
  return static_cast<uint64_t>(algorithm) | uint64_t{c.launchedBlocks() & 0xfffu} << 8 | uint64_t{c.launchedThreads() & 0xfffu} << 20 |
         (detail * 0x9e3779b97f4a7c15u >> 32) << 32;
}

// kWorld: as in cells.h. T is a type of types.h.
template <Algorithm kAlgorithm, class T, int kWorld, class E, class Context>
RH_FN void allReduceWith(Context& c, const E& e) {
  const Call& call = c.call();
  using Slots = std::conditional_t<IsFloating<T>::value, Cells<Context, kWorld>, Packets<Context>>;
  const Inbox inbox = inboxOf(c, Slots::kIsCells);
  const uint64_t slices = kAlgorithm == Algorithm::kTwoshot ? static_cast<uint32_t>(call.team.worldSize) : 1;
  const Used used = {call.count, inbox.slotBytes / Slots::kTileBytes * slices * E::kElements, Slots::kIsCells};
  runKernel<Cells<Context>, Packets<Context>>(c, used, [&](Context& thread) {
    InboxExchange<Context, Slots> exchange(thread, inbox);
    bool good;
    if constexpr (kAlgorithm == Algorithm::kTwoshot) {
      good = allReduceTwoshot(exchange, e, call.send, call.recv, call.count);
    } else {
      good = allReduceOneshot(exchange, e, call.send, call.recv, call.count);
    }
    if (good) exchange.finish();
    return good;
  });
}

// Between windows.
template <int kWorld, class E, class Context>
RH_FN void allReducePullWith(Context& c, const Windows& windows, const E& e) {
  constexpr int kTiles = kWorld == 0 ? 1 : kWorld == 8 ? 3 : 4;  // what fits in registers: 4 of 8 ranks do not
  runKernel<Cells<Context>, Packets<Context>>(c, Used{0, 0, false, 1}, [&](Context& thread) { return allReducePull<kWorld, kTiles>(thread, windows, e); });
}

RH_FN bool isAligned(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

// Any call. Out of line in the kernels for a world size, whose own way is then short to fetch. By value: a copy in the block's cache, where a reference
// to a kernel's parameter is one to memory, each of whose sectors is fetched first.
template <Algorithm kAlgorithm, class T, class Context>
RH_COLD void allReduceAnyCall(typename Context::TargetType target, Call call) {
  Context c(call, target);
  c.setWay(wayOf(c, kAlgorithm));
  allReduceWith<kAlgorithm, T, 0>(c, Elements<T, false>(call));
}

// By reference: the windows are too large for a copy in each thread.
template <class T, class Context>
RH_COLD void allReducePullAnyCall(typename Context::TargetType target, Call call, const Windows& windows) {
  Context c(call, target);
  c.setWay(wayOf(c, Algorithm::kPull));
  allReducePullWith<0>(c, windows, Elements<T, false>(call));
}

// An entry point of one-shot or two-shot. The kernels for a world size are fast for sums of all ranks in one group, in whole tiles. Other calls take the general way,
// on this rank alone if only its buffers are not aligned: what ranks send each other is the same.
template <Algorithm kAlgorithm, class T, int kWorld, class Context>
RH_FN void allReduce(typename Context::TargetType target, const Call& call) {
  if constexpr (kWorld != 0) {
    using Fast = Elements<T, true>;
    if (call.count % Fast::kElements != 0 || !isAligned(call.send) || !isAligned(call.recv) || call.reduction != static_cast<uint32_t>(Reduction::kSum) || call.team.reduceGroup != kWorld) {
      return allReduceAnyCall<kAlgorithm, T, Context>(target, call);
    }
    Context c(call, target);
    c.setWay(wayOf(c, kAlgorithm));
    allReduceWith<kAlgorithm, T, kWorld>(c, Fast(call));
  } else {
    Context c(call, target);
    c.setWay(wayOf(c, kAlgorithm));
    allReduceWith<kAlgorithm, T, 0>(c, Elements<T, false>(call));
  }
}

// An entry point of pull, likewise.
template <class T, int kWorld, class Context>
RH_FN void allReduceOfWindows(typename Context::TargetType target, const WindowCall& w) {
  const Call& call = w.call;
  if constexpr (kWorld != 0) {
    using Fast = Elements<T, true>;
    const int self = call.team.rank;
    if (call.count % Fast::kElements != 0 || !isAligned(w.windows.send[self]) || !isAligned(w.windows.recv[self]) ||
        call.reduction != static_cast<uint32_t>(Reduction::kSum) || call.team.reduceGroup != kWorld) {
      return allReducePullAnyCall<T, Context>(target, call, w.windows);
    }
    Context c(call, target);
    c.setWay(wayOf(c, Algorithm::kPull));
    allReducePullWith<kWorld>(c, w.windows, Fast(call));
  } else {
    Context c(call, target);
    c.setWay(wayOf(c, Algorithm::kPull));
    allReducePullWith<0>(c, w.windows, Elements<T, false>(call));
  }
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_ALL_REDUCE_H_
