// What a kernel does besides its data: it takes the stream, exchanges signatures with all other ranks, and counts. The control threads do
// this while the others exchange data, and neither waits for the other: control reads the rank's state itself, sends the signatures at once, counts
// while those of the other ranks are on their way, and only then waits for them. So it ends no later than data that is exchanged. It is not out of
// line: there, a kernel's parameter is in global memory, and each of its words a load that takes as long as a message.
#ifndef RAILHEAD_KERNELS_GPU_CONTROL_H_
#define RAILHEAD_KERNELS_GPU_CONTROL_H_

#include "railhead/base/mutant.h"
#include "railhead/base/signature.h"
#include "railhead/base/target.h"
#include "railhead/gpu/context.h"

namespace railhead::gpu {

// What a kernel uses and control counts.
struct Used {
  // Data in inboxes: an epoch for each perEpoch of so many elements or bytes, at least one. perEpoch 0: none.
  uint64_t data = 0, perEpoch = 0;
  bool cells = false;      // else packets
  uint32_t meetings = 0;   // of blocks
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

// Waits for the call of rank r, and compares. acquires: as of hasLine.
template <class Context>
RH_FN bool awaitCall(Context& c, int r, bool acquires) {
  SignedWay theirs;
  RH_ROLLED
  while (!c.hasLine(r, &theirs, acquires)) {
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
// Where the next kernel begins. Computed before the wait.
struct End {
  uint32_t cells, packets, flags, lines, history;
  uint64_t collectives;
};
template <class CellSlots, class PacketSlots, class Context>
RH_FN End endOf(Context& c, const Used& used) {
  const GpuState::Start& start = c.started().start;
  const Begin& b = c.started();
  End end = {start.cellEpoch, start.packetEpoch, start.flagEpoch + used.meetings, b.lines + (used.lines ? 1 : 0),
             used.collective ? historyAfter(c.ours().signature) : b.history, b.collectives + (used.collective ? 1 : 0)};
  RH_ROLLED
  for (uint64_t at = 0; used.perEpoch != 0 && (at == 0 || at < used.data); at += used.perEpoch) {
    if (used.cells) {
      end.cells = CellSlots::next(end.cells);
    } else {
      end.packets = PacketSlots::next(end.packets);
    }
  }
  return end;
}
// By the accountant, after every block of this rank has read where it begins. Other ranks need not have been heard: if this kernel gives up, later
// ones do nothing.
template <class Context>
RH_FN void count(Context& c, const End& end) {
  GpuState* s = c.state();
  c.storeState(&s->arrived, uint32_t{0});
  if (!mutated(Mutant::kEpochNotKept)) {
    c.storeState(&s->start.cellEpoch, end.cells);
    c.storeState(&s->start.packetEpoch, end.packets);
  }
  c.storeState(&s->start.flagEpoch, end.flags);
  c.storeState(&s->device.begun, c.started().begun + 1);
  c.storeState(&s->device.collectives, end.collectives);
  c.storeState(&s->device.history, uint64_t{end.history});
}
// By the accountant, last. The stream is free for another one's kernel. Lines are counted only in a kernel that has not given up, so that a later one
// finds its mark used, and publishes nothing (mustStillPublish).
template <class Context>
RH_FN void leave(Context& c, const End& end) {
  c.storeState(&c.state()->lines, end.lines);
  c.storeState(&c.state()->device.holder, uint32_t{0});
}

// Counts, receives every other rank's call, and compares. After it every rank has begun this kernel, and has ended the one before. A turn of the loop
// loads all that is waited for, also for threads that no longer wait for it, so that all threads' loads are in flight together. holder: another stream
// that has the comm, 0 = none.
template <class Context>
RH_FN bool awaitAll(Context& c, uint32_t holder, const End& end) {
  const auto self = static_cast<uint32_t>(c.call().team.rank), ranks = c.hasLines() ? static_cast<uint32_t>(c.worldSize()) : 0;
  const SignedWay ours = c.ours();
  const uint32_t blocks = c.dataBlocks();
  bool mustCount = isAccountant(c);
  uint32_t r = mutated(Mutant::kEndsWithoutCalls) ? ranks : c.controlThread();
  RH_ROLLED
  while (r < ranks || mustCount) {
    SignedWay theirs;
    const bool has = c.hasLine(static_cast<int>(r < ranks ? r : self), &theirs);
    const bool allHaveRead = c.loadOwn(&c.state()->arrived) == blocks || mutated(Mutant::kCountsBeforeAllHaveRead);
    bool proceeds = false;
    if (mustCount && allHaveRead && holder == 0) {
      count(c, end);
      mustCount = false;
      proceeds = true;
    }
    if (r < ranks && (has || r == self)) {
      if (r != self && !isEqual(theirs, ours) && !mutated(Mutant::kCallsNotCompared)) {
        c.mismatch(static_cast<int>(r));
        return false;
      }
      r += c.controlThreads();
      proceeds = true;
    }
    if (proceeds) {
      c.endWait();
      continue;
    }
    if (holder != 0) return false;
    if (c.keepWaiting() || c.survives()) continue;
    c.giveUp(r < ranks ? uint64_t{1} << r : 0);
    return false;
  }
  return true;
}

// After publish().
template <class CellSlots, class PacketSlots, class Context>
RH_FN void endControl(Context& c, const Used& used) {
  const uint32_t holder = takeStream(c);
  const End end = endOf<CellSlots, PacketSlots>(c, used);
  bool good = awaitAll(c, holder, end);
  if (holder != 0) {
    const uint64_t clash = uint64_t{c.call().stream} << 32 | holder;
    c.storeState(&c.state()->device.clash, clash);
    c.clash(clash);
    good = false;
  }
  // Only if all control threads have heard from their ranks.
  if (c.controlAll(good) && isAccountant(c)) leave(c, end);
}

// Of the few kernels whose control threads handle data. Out of line: the others do not fetch its instructions.
template <class Context>
RH_COLD void publishCall(typename Context::TargetType target, const Call& call, Way way) {
  Context c(target, call, way);
  publish(c);
}

// Runs a kernel. data(context) is a data thread's part; it joins (Context::join, or an exchange's first epoch does), and returns false if the
// comm has stopped. Only a kernel of at most kControlThreads threads runs control in the threads that handle data.
template <class CellSlots, class PacketSlots, class Context, class Data>
RH_FN void runKernel(Context& c, const Used& used, Data data) {
  if (c.isData()) {
    const bool good = data(c);
    if (!c.isCombined() || !c.controlAll(good)) return;
  } else {
    const bool joined = c.joinControl();
    if (c.hasLines() && (joined || c.mustStillPublish())) publish(c);
    if (!joined) return;
  }
  endControl<CellSlots, PacketSlots>(c, used);
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_CONTROL_H_
