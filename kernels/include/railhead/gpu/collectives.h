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
RH_FN void allGatherPull(Context& c, const Windows& windows) {
  runBetweenWindows(c, 1, [&](Context& thread) { return allGatherToWindows(thread, windows); });
}

template <class Context>
RH_FN void allToAllOneshot(Context& c) {
  const Call& call = c.call();
  c.setWay(wayOf(c, Algorithm::kOneshot));
  exchangeParts<Packets<Context>>(c, call.count, [&](auto& exchange) { return allToAll(exchange, call.send, call.recv, call.count); });
}
template <class Context>
RH_FN void allToAllPull(Context& c, const Windows& windows) {
  runBetweenWindows(c, 1, [&](Context& thread) { return allToAllToWindows(thread, windows); });
}

template <class Context>
RH_FN void broadcastOneshot(Context& c) {
  const Call& call = c.call();
  c.setWay(wayOf(c, Algorithm::kOneshot));
  exchangeParts<Packets<Context>>(c, call.count, [&](auto& exchange) { return broadcast(exchange, call.root, call.send, call.recv, call.count); });
}
template <class Context>
RH_FN void broadcastPull(Context& c, const Windows& windows) {
  runBetweenWindows(c, 1, [&](Context& thread) { return broadcastToWindows(thread, windows); });
}

// No data. A warp that waits, beside control's, is enough.
template <class Context>
RH_FN void barrierOfRanks(Context& c) {
  c.setWay(wayOf(c, Algorithm::kNone));
  runKernel<Cells<Context>, Packets<Context>>(c, Used{}, [](Context& thread) { return barrier(thread); });
}

template <class T, class Context>
RH_FN void reduceScatterPull(Context& c, const Windows& windows) {
  const Elements<T, false> e(c.call());
  runBetweenWindows(c, 1, [&](Context& thread) { return reduceScatterFromWindows(thread, windows, e); });
}

template <class T, int kWorld, class E, class Context>
RH_FN void reduceScatterWith(Context& c, const E& e) {
  const Call& call = c.call();
  using Slots = std::conditional_t<IsFloating<T>::value, Cells<Context, kWorld>, Packets<Context>>;
  c.setWay(wayOf(c, Algorithm::kOneshot));
  exchangeParts<Slots>(c, call.count * E::kBytes, [&](auto& exchange) { return reduceScatter(exchange, e, call.send, call.recv, call.count); });
}

// Any call. Out of line in the kernels for a world size, as an all-reduce's.
template <class T, class Context>
RH_COLD void reduceScatterAnyCall(typename Context::TargetType target, Call call) {
  Context c(call, target);
  reduceScatterWith<T, 0>(c, Elements<T, false>(call));
}

// An entry point of one-shot, as allReduce. Every part must be whole tiles.
template <class T, int kWorld, class Context>
RH_FN void reduceScatterOneshot(typename Context::TargetType target, const Call& call) {
  if constexpr (kWorld != 0) {
    const bool whole = call.count % Elements<T, true>::kElements == 0 && isAligned(call.recv) && isAligned(call.send);
    if (!whole || call.reduction != static_cast<uint32_t>(Reduction::kSum) || call.team.reduceGroup != kWorld) {
      return reduceScatterAnyCall<T, Context>(target, call);
    }
    Context c(call, target);
    reduceScatterWith<T, kWorld>(c, Elements<T, true>(call));
  } else {
    Context c(call, target);
    reduceScatterWith<T, 0>(c, Elements<T, false>(call));
  }
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_COLLECTIVES_H_
