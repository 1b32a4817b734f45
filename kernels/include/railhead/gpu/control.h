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
};

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

// Receives every other rank's call, and compares. True in all control threads or in none. After it every rank has begun this kernel, and has
// ended the one before.
template <class Context>
RH_FN bool awaitCalls(Context& c) {
  bool good = true;
  RH_ROLLED
  for (int r = static_cast<int>(c.controlThread()); r < c.worldSize() && good; r += static_cast<int>(c.controlThreads())) {
    if (r != c.call().team.rank) good = awaitCall(c, r);
  }
  return c.controlAll(good);
}

// Two kernels of a comm at the same time, on two streams, would use the same memory. The second one finds the word taken, and stops both.
template <class Context>
RH_FN bool takeStream(Context& c) {
  if (c.controlThread() != 0) return true;
  DeviceState* d = &c.state()->device;
  const uint32_t holder = c.compareSwap(&d->holder, 0, c.call().stream);
  if (holder == 0) return true;
  const uint64_t clash = uint64_t{c.call().stream} << 32 | holder;
  c.storeState(&d->clash, clash);
  c.clash(clash);
  return false;
}

// Waits until all blocks have read where they begin, then writes where the next kernel begins.
template <class Slots, class OtherSlots, class Context>
RH_FN bool count(Context& c, const Used& used) {
  if (c.controlThread() != 0) return true;
  GpuState* s = c.state();
  RH_ROLLED
  while (c.loadOwnAcquire(&s->arrived) != c.blocks() && !mutated(Mutant::kCountsBeforeAllHaveRead)) {
    if (c.keepWaiting()) continue;
    c.giveUp(0);
    return false;
  }
  c.endWait();
  const Begin& b = c.started();
  uint32_t cells = b.start.cellEpoch, packets = b.start.packetEpoch;
  RH_ROLLED
  for (uint64_t i = 0; i < used.cells; i++) cells = Slots::next(cells);
  RH_ROLLED
  for (uint64_t i = 0; i < used.packets; i++) packets = OtherSlots::next(packets);
  c.storeState(&s->arrived, uint32_t{0});
  if (!mutated(Mutant::kEpochNotKept)) {
    c.storeState(&s->start.cellEpoch, cells);
    c.storeState(&s->start.packetEpoch, packets);
  }
  c.storeState(&s->start.flagEpoch, b.start.flagEpoch + static_cast<uint32_t>(used.flags));
  c.storeState(&s->device.begun, b.begun + 1);
  c.storeState(&s->device.collectives, b.collectives + 1);
  c.storeState(&s->device.history, uint64_t{historyAfter(c.ours().signature)});
  c.storeState(&s->device.holder, uint32_t{0});
  return true;
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
  if (c.controlAll(takeStream(c)) && awaitCalls(c)) count<CellSlots, PacketSlots>(c, used);
}

// Runs a kernel. data(context) is a data thread's part; it joins (Context::join, or an exchange's first epoch does), and returns false if the
// comm has stopped. Only a kernel of at most kControlThreads threads runs control in the threads that handle data.
template <class CellSlots, class PacketSlots, class Context, class Data>
RH_FN void runKernel(Context& c, const Used& used, Data data) {
  if (c.isData()) {
    const bool good = data(c);
    if (!c.isCombined() || !c.controlAll(good)) return;
  } else {
    if (!c.join()) return;
    publishCall<Context>(c, c.call(), c.way());
  }
  endControl<CellSlots, PacketSlots, Context>(c, c.call(), c.way(), used);
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_CONTROL_H_
