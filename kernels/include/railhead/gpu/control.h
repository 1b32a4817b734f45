// What a kernel does besides its data: it takes the stream, exchanges signatures with all other ranks, and counts. The control threads do
// this while the others exchange data, so it adds nothing to the time of a kernel but what it takes alone: one message and its answer.
#ifndef RAILHEAD_KERNELS_GPU_CONTROL_H_
#define RAILHEAD_KERNELS_GPU_CONTROL_H_

#include "railhead/base/mutant.h"
#include "railhead/base/signature.h"
#include "railhead/base/target.h"
#include "railhead/gpu/context.h"

namespace railhead::gpu {

// How many epochs or meetings a kernel uses.
struct Used {
  uint64_t cells, packets, flags;
  bool lines = true;       // all ranks exchange their calls
  bool collective = true;  // it counts as a collective
};

// The control thread that counts: the last one, which has the fewest calls to compare.
template <class Context>
RH_FN bool isAccountant(const Context& c) {
  return c.controlThread() + 1 == c.controlThreads();
}

// Sends the call to every other rank. After join(). A rank's call is known to the others before they can wait for its data in vain.
template <class Context>
RH_FN void publish(Context& c) {
  const SignedWay ours = c.ours();
  const uint64_t tag = uint64_t{c.mark()} << 32;
  const uint64_t words[4] = {ours.signature.call, ours.signature.count, ours.signature.detail, ours.way};
  RH_ROLLED
  for (int r = static_cast<int>(c.controlThread()); r < c.worldSize(); r += static_cast<int>(c.controlThreads())) {
    if (r == c.call().team.rank) continue;
    Line* to = c.line(r, c.call().team.rank);
    RH_UNROLL
    for (int i = 0; i < 4; i++) c.storePacket(&to->p[i], {{tag | (words[i] & 0xffffffffu), tag | words[i] >> 32}});
  }
  if (isAccountant(c)) c.storeState(&c.state()->published, c.mark());
}

template <class Context>
RH_FN bool awaitCall(Context& c, int r) {
  SignedWay theirs;
  RH_ROLLED
  while (!c.hasLine(r, &theirs)) {
    if (c.keepWaiting()) continue;
    c.giveUp(uint64_t{1} << r);
    return false;
  }
  c.endWait();
  if (isEqual(theirs, c.ours()) || mutated(Mutant::kCallsNotCompared)) return true;
  c.mismatch(r);
  return false;
}

// Two kernels of a comm at the same time, on two streams, would use the same memory. The second one finds the word taken, and stops both. Returns
// the stream that had it, 0 = none; asked for by one thread, whose answer nobody waits for yet.
template <class Context>
RH_FN uint32_t takeStream(Context& c) {
  return isAccountant(c) ? c.compareSwap(&c.state()->device.holder, 0, c.call().stream) : 0;
}
// Receives every other rank's call, and compares. After it every rank has begun this kernel, and has ended the one before. And waits until all blocks
// of this rank have read where they begin. Everything is loaded in one turn: each load takes as long as all of them together.
template <class Context>
RH_FN bool awaitAll(Context& c, uint32_t holder) {
  const auto self = static_cast<uint32_t>(c.call().team.rank), ranks = c.hasLines() ? static_cast<uint32_t>(c.worldSize()) : 0;
  const SignedWay ours = c.ours();
  const bool counts = isAccountant(c) && !mutated(Mutant::kCountsBeforeAllHaveRead);
  bool blocksRead = !counts;
  uint32_t r = c.controlThread();
  RH_ROLLED
  while (r < ranks || !blocksRead) {
    SignedWay theirs = ours;
    const bool has = r >= ranks || r == self || c.hasLine(static_cast<int>(r), &theirs);
    if (!blocksRead) blocksRead = c.loadOwn(&c.state()->arrived) == c.blocks();
    if (has && r < ranks) {
      if (r != self && !isEqual(theirs, ours) && !mutated(Mutant::kCallsNotCompared)) {
        c.mismatch(static_cast<int>(r));
        return false;
      }
      r += c.controlThreads();
      c.endWait();
    } else if (!blocksRead || r < ranks) {
      if (holder != 0) return false;
      if (c.keepWaiting()) continue;
      c.giveUp(r < ranks ? uint64_t{1} << r : 0);
      return false;
    }
  }
  return true;
}

// Where the next kernel begins. Computed before the wait.
struct End {
  uint32_t cells, packets, flags, lines, history;
  uint64_t collectives;
};
template <class CellSlots, class PacketSlots, class Context>
RH_FN End endOf(Context& c, const Used& used) {
  const GpuState::Start& start = c.started().start;
  const Begin& b = c.started();
  End end = {start.cellEpoch, start.packetEpoch, start.flagEpoch + static_cast<uint32_t>(used.flags), b.lines + (used.lines ? 1 : 0),
             used.collective ? historyAfter(c.ours().signature) : b.history, b.collectives + (used.collective ? 1 : 0)};
  RH_ROLLED
  for (uint64_t i = 0; i < used.cells; i++) end.cells = CellSlots::next(end.cells);
  RH_ROLLED
  for (uint64_t i = 0; i < used.packets; i++) end.packets = PacketSlots::next(end.packets);
  return end;
}
// By one thread.
template <class Context>
RH_FN void count(Context& c, const End& end) {
  GpuState* s = c.state();
  c.storeState(&s->arrived, uint32_t{0});
  if (!mutated(Mutant::kEpochNotKept)) {
    c.storeState(&s->start.cellEpoch, end.cells);
    c.storeState(&s->start.packetEpoch, end.packets);
  }
  c.storeState(&s->start.flagEpoch, end.flags);
  c.storeState(&s->lines, end.lines);
  c.storeState(&s->device.begun, c.started().begun + 1);
  c.storeState(&s->device.collectives, end.collectives);
  c.storeState(&s->device.history, uint64_t{end.history});
  c.storeState(&s->device.holder, uint32_t{0});
}

// The parts of control, out of line: most threads do not run them.
template <class Context>
RH_COLD void publishCall(typename Context::TargetType target, const Call& call, Way way) {
  Context c(target, call, way);
  publish(c);
}
template <class CellSlots, class PacketSlots, class Context>
RH_COLD void endControl(typename Context::TargetType target, const Call& call, Way way, Used used) {
  Context c(target, call, way);
  const uint32_t holder = takeStream(c);
  const End end = endOf<CellSlots, PacketSlots>(c, used);
  bool good = awaitAll(c, holder);
  if (holder != 0) {
    const uint64_t clash = uint64_t{call.stream} << 32 | holder;
    c.storeState(&c.state()->device.clash, clash);
    c.clash(clash);
    good = false;
  }
  // Only if all control threads have heard from their ranks.
  if (c.controlAll(good) && isAccountant(c)) count(c, end);
}

// Runs a kernel. data(context) is a data thread's part; it joins (Context::join, or an exchange's first epoch does), and returns false if the
// comm has stopped. Only a kernel of at most kControlThreads threads runs control in the threads that handle data.
template <class CellSlots, class PacketSlots, class Context, class Data>
RH_FN void runKernel(Context& c, const Used& used, Data data) {
  if (c.isData()) {
    const bool good = data(c);
    if (!c.isCombined() || !c.controlAll(good)) return;
  } else {
    const bool joined = c.join();
    if (c.hasLines() && (joined || c.mustStillPublish())) publishCall<Context>(c, c.call(), c.way());
    if (!joined) return;
  }
  endControl<CellSlots, PacketSlots, Context>(c, c.call(), c.way(), used);
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_CONTROL_H_
