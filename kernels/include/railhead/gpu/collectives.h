// The kernels of the operations of all ranks but all-reduce: which exchange, elements and control they combine.
#ifndef RAILHEAD_KERNELS_GPU_COLLECTIVES_H_
#define RAILHEAD_KERNELS_GPU_COLLECTIVES_H_

#include <type_traits>

#include "railhead/base/target.h"
#include "railhead/exchange/cells.h"
#include "railhead/exchange/inbox_exchange.h"
#include "railhead/exchange/packets.h"
#include "railhead/gpu/all_reduce.h"
#include "railhead/gpu/context.h"
#include "railhead/gpu/control.h"
#include "railhead/gpu/elements.h"
#include "railhead/gpu/exchanged.h"
#include "railhead/gpu/windows.h"

namespace railhead::gpu {

// Data in inboxes. bytes: of a part. run(exchange) is a thread's part.
template <class Slots, class Context, class Run>
RH_FN void exchangeParts(Context& c, uint64_t bytes, Run run) {
  const Inbox inbox = inboxOf(c, Slots::kIsCells);
  const Used used = {bytes, inbox.slotBytes / Slots::kTileBytes * uint64_t{16}, Slots::kIsCells};
  runKernel<Cells<Context>, Packets<Context>>(c, used, [&](Context& thread) {
    InboxExchange<Context, Slots> exchange(thread, inbox);
    const bool good = run(exchange);
    if (good) exchange.finish();
    return good;
  });
}

// Data between windows. meetings: of blocks.
template <class Context, class Run>
RH_FN void runBetweenWindows(Context& c, uint32_t meetings, Run run) {
  c.setWay(wayOf(c, Algorithm::kPull));
  runKernel<Cells<Context>, Packets<Context>>(c, Used{0, 0, false, meetings}, run);
}

template <class Context>
RH_FN void allGatherOneshot(Context& c) {
  const Call& call = c.call();
  c.setWay(wayOf(c, Algorithm::kOneshot));
  exchangeParts<Packets<Context>>(c, call.count, [&](auto& exchange) { return allGather(exchange, call.send, call.recv, call.count); });
}
template <class Context>
RH_FN void allGatherPull(Context& c) {
  runBetweenWindows(c, 1, [](Context& thread) { return allGatherToWindows(thread); });
}

template <class Context>
RH_FN void allToAllOneshot(Context& c) {
  const Call& call = c.call();
  c.setWay(wayOf(c, Algorithm::kOneshot));
  exchangeParts<Packets<Context>>(c, call.count, [&](auto& exchange) { return allToAll(exchange, call.send, call.recv, call.count); });
}
template <class Context>
RH_FN void allToAllPull(Context& c) {
  runBetweenWindows(c, 1, [](Context& thread) { return allToAllToWindows(thread); });
}

template <class Context>
RH_FN void broadcastOneshot(Context& c) {
  const Call& call = c.call();
  c.setWay(wayOf(c, Algorithm::kOneshot));
  exchangeParts<Packets<Context>>(c, call.count, [&](auto& exchange) { return broadcast(exchange, call.root, call.send, call.recv, call.count); });
}
template <class Context>
RH_FN void broadcastPull(Context& c) {
  runBetweenWindows(c, 1, [](Context& thread) { return broadcastToWindows(thread); });
}

// No data. A warp that waits, beside control's, is enough.
template <class Context>
RH_FN void barrierOfRanks(Context& c) {
  c.setWay(wayOf(c, Algorithm::kNone));
  runKernel<Cells<Context>, Packets<Context>>(c, Used{}, [](Context& thread) { return barrier(thread); });
}

template <Algorithm kAlgorithm, class T, int kWorld, class E, class Context>
RH_FN void reduceScatterWith(Context& c, const E& e) {
  const Call& call = c.call();
  if constexpr (kAlgorithm == Algorithm::kPull) {
    runBetweenWindows(c, 1, [&](Context& thread) { return reduceScatterFromWindows(thread, e); });
  } else {
    using Slots = std::conditional_t<IsFloating<T>::value, Cells<Context, kWorld>, Packets<Context>>;
    exchangeParts<Slots>(c, call.count * E::kBytes, [&](auto& exchange) { return reduceScatter(exchange, e, call.send, call.recv, call.count); });
  }
}

// Any call. Out of line in the kernels for a world size, as an all-reduce's.
template <Algorithm kAlgorithm, class T, class Context>
RH_COLD void reduceScatterAnyCall(typename Context::TargetType target, Call call) {
  Context c(call, target);
  c.setWay(wayOf(c, kAlgorithm));
  reduceScatterWith<kAlgorithm, T, 0>(c, Elements<T, false>(call));
}

// As allReduce. Every part must be whole tiles.
template <Algorithm kAlgorithm, class T, int kWorld, class Context>
RH_FN void reduceScatterOf(typename Context::TargetType target, const Call& call) {
  if constexpr (kWorld != 0) {
    const bool whole = call.count % Elements<T, true>::kElements == 0 && isAligned(call.recv) && isAligned(call.send);
    if (!whole || call.reduction != static_cast<uint32_t>(Reduction::kSum) || call.team.reduceGroup != kWorld) {
      return reduceScatterAnyCall<kAlgorithm, T, Context>(target, call);
    }
    Context c(call, target);
    c.setWay(wayOf(c, kAlgorithm));
    reduceScatterWith<kAlgorithm, T, kWorld>(c, Elements<T, true>(call));
  } else {
    Context c(call, target);
    c.setWay(wayOf(c, kAlgorithm));
    reduceScatterWith<kAlgorithm, T, 0>(c, Elements<T, false>(call));
  }
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_COLLECTIVES_H_
