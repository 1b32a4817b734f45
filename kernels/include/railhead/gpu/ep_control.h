// What kernels of dispatch and combine do besides their data: which flight a call uses, in which order calls may come, and the end of a kernel, at
// which control publishes what all blocks have done. Every block decides about the call from the same words, which only control changes, after all
// blocks have ended. So blocks agree without waiting for each other.
#ifndef RAILHEAD_KERNELS_GPU_EP_CONTROL_H_
#define RAILHEAD_KERNELS_GPU_EP_CONTROL_H_

#include "railhead/exchange/cells.h"
#include "railhead/exchange/packets.h"
#include "railhead/gpu/all_reduce.h"
#include "railhead/gpu/control.h"
#include "railhead/gpu/ep_send.h"
#include "railhead/gpu/ep_waits.h"

namespace railhead::gpu {

// The flights of a rank as its kernels see them at their start (ep_calls.h has the same rules for the CPU). All of it stays in registers: no array has an
// index that is computed, and no reference to the thread's context is kept, which would else be in memory too.
template <class C>
class EpFlights {
 public:
  RH_FN EpFlights(C& c, const EpCommonCall& call) {
    RH_UNROLL
    for (int i = 0; i < kEpInFlight; i++) {
      phase_[i] = static_cast<EpPhase>(c.loadOwn(&call.state->flights[i].phase));
      number_[i] = static_cast<uint32_t>(c.loadOwn(&call.state->flights[i].number));
    }
    bound_ = static_cast<int>(c.loadOwn(reinterpret_cast<const uint32_t*>(call.flight)));
  }

  RH_FN EpError take(uint32_t* flight) const {
    if (bound_ >= 0) return EpError::kStillInFlight;
    *flight = phase_[0] == EpPhase::kFree ? 0 : 1;
    return phaseOf(static_cast<int>(*flight)) == EpPhase::kFree ? EpError::kNone : EpError::kTooManyInFlight;
  }
  // A dispatch that is received by the kernel that sends it. Of two dispatches the earlier one is received first.
  RH_FN bool isAnyToReceive() const { return phase_[0] == EpPhase::kSent || phase_[1] == EpPhase::kSent; }
  RH_FN EpError mayReceive(uint32_t* flight) const {
    if (bound_ < 0) return EpError::kNotInFlight;
    *flight = static_cast<uint32_t>(bound_);
    if (phaseOf(bound_) != EpPhase::kSent) return EpError::kReceivedBefore;
    return phaseOf(1 - bound_) == EpPhase::kSent && isBehindOther() ? EpError::kEarlierToReceive : EpError::kNone;
  }
  // A combine that one kernel begins and ends, which waits for none that has begun.
  RH_FN EpError mayCombineAtOnce(uint32_t* flight) const {
    if (bound_ >= 0 && phaseOf(1 - bound_) == EpPhase::kAdding && isBehindOther()) return EpError::kEarlierToCombine;
    if (bound_ >= 0 && phaseOf(1 - bound_) == EpPhase::kSent && isBehindOther()) return EpError::kEarlierToCombine;
    return mayCombine(EpPhase::kReceived, flight);
  }
  // wanted: kReceived to begin a combine, kAdding to end it.
  RH_FN EpError mayCombine(EpPhase wanted, uint32_t* flight) const {
    if (bound_ < 0) return EpError::kNotInFlight;
    *flight = static_cast<uint32_t>(bound_);
    const EpPhase own = phaseOf(bound_), other = phaseOf(1 - bound_);
    if (own == wanted) return isBehindOther() && (other == wanted || other == EpPhase::kSent) ? EpError::kEarlierToCombine : EpError::kNone;
    if (own == EpPhase::kSent) return EpError::kNotReceived;
    return wanted == EpPhase::kAdding ? EpError::kNoCombine : EpError::kBeingCombined;
  }
  RH_FN EpError mayRelease(uint32_t* flight) const {
    if (bound_ < 0) return EpError::kNotInFlight;
    *flight = static_cast<uint32_t>(bound_);
    if (phaseOf(bound_) == EpPhase::kReceived) return EpError::kNone;
    return phaseOf(bound_) == EpPhase::kSent ? EpError::kNotReceived : EpError::kBeingCombined;
  }
  RH_FN uint32_t numberOf(uint32_t flight) const { return flight == 0 ? number_[0] : number_[1]; }

 private:
  RH_FN EpPhase phaseOf(int flight) const { return flight == 0 ? phase_[0] : phase_[1]; }
  RH_FN bool isBehindOther() const {
    const uint32_t ahead = (numberOf(static_cast<uint32_t>(bound_)) - numberOf(static_cast<uint32_t>(1 - bound_))) & C::kMeetingMask;
    return phaseOf(1 - bound_) != EpPhase::kFree && ahead != 0 && ahead <= C::kMeetingMask / 2;
  }

  EpPhase phase_[kEpInFlight];
  uint32_t number_[kEpInFlight];
  int bound_;
};

// Waits until all blocks have ended their part. Blocks have a deadline and say whom they wait for, so control gives up only at the second one: then
// some block has ended without a word, as it does if the comm is left between the looks of two blocks. *outcome: EpRankState::done.
template <class C>
RH_FN bool epAwaitBlocks(C& c, const EpCommonCall& call, uint32_t* outcome) {
  const uint32_t blocks = c.dataBlocks();
  bool again = false;
  RH_ROLLED
  for (;;) {
    *outcome = c.loadOwn(&call.state->done);
    const uint32_t stop = c.loadOwn(&c.state()->start.stop);  // both loads are in flight together
    if (epBlocks(*outcome) == blocks) break;
    if (stop != 0) return false;
    if (c.keepWaiting() || c.survives()) continue;
    if (again) {
      c.giveUp(0);
      return false;
    }
    again = true;
    c.endWait();
  }
  c.endWait();
  return true;
}

// Tells the other ranks that this one has received dispatch `number`: they may fill its slots again. By all control threads of a kernel behind the one that
// has received it, whose end orders its blocks' reads before the stores.
template <class C>
RH_FN void epStoreHeads(C& c, const EpTeam& team, uint32_t number, uint64_t masked) {
  c.fence();  // in PTX only a thread's own fence makes its store a release
  RH_ROLLED
  for (int s = static_cast<int>(c.controlThread()); s < team.worldSize; s += static_cast<int>(c.controlThreads())) {
    if (s != team.rank && (masked >> s & 1) == 0) c.storeFlag(EpSlots{team, number}.head(s, team.rank), number);
  }
}

// Control's part, by all control threads. kernel.look(): reads what blocks do not change. kernel.settles(masked): whether kernel.last() reads what blocks
// of this kernel have stored, or other ranks read what it stores. If not, the kernel ends without a fence: whatever else blocks have stored is for later
// kernels. kernel.last(outcome, gone): what one thread does to the rank's words once all blocks have ended. gone: ranks that the kernel has given up.
template <class C, class Kernel>
RH_FN void epEnd(C& c, const EpCommonCall& call, Kernel& kernel) {
  Used used = {};
  used.lines = false;
  used.collective = false;  // a dispatch counts itself, once it is not refused
  const uint32_t holder = takeStream(c);
  const End end = endOf<Cells<C>, Packets<C>>(c, used);
  kernel.look();
  const uint64_t masked = c.loadState(&call.team.state()->masked);
  const bool owesHeads = c.loadState(&call.state->owesHeads) != 0;
  if (owesHeads) epStoreHeads(c, call.team, c.loadState(&call.state->received), masked);
  bool good = awaitAll(c, holder, end);
  if (holder != 0) {
    const uint64_t clash = uint64_t{call.call.stream} << 32 | holder;
    c.storeState(&c.state()->device.clash, clash);
    c.clash(clash);
    good = false;
  }
  uint32_t outcome = 0;
  good = good && epAwaitBlocks(c, call, &outcome);
  if (kernel.settles(masked)) c.fence();
  if (!c.controlAll(good) || !isAccountant(c)) return;
  const uint64_t gone = epDropsDead<C>(call.team) ? epGoneRanks(c, call) : 0;
  if (owesHeads) c.storeState(&call.state->owesHeads, uint32_t{0});
  kernel.last(outcome, gone);
  if (gone != 0) epMask<C>(c, call, c.way(), gone);
  if (epDropsDead<C>(call.team)) epClearVerdicts(c, call);
  c.storeFlag(&call.state->done, 0);
  c.storeFlag(&call.state->dropped, 0);
  leave(c, end);
}

// By one thread: the dispatch of the call's cell has ended.
template <class C>
RH_FN void epEnded(C& c, const EpCommonCall& call) {
  c.storeState(&call.state->ended, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(call.cell)));
  c.storeOwn(reinterpret_cast<uint32_t*>(call.flight), ~0u);
}

// Whether this block is the last one of the kernel to end. By all of its threads, after a barrier; a barrier is behind. Then it sees what all have stored.
template <class C>
RH_FN bool epIsLastToEnd(C& c, const EpCommonCall& call) {
  if (c.threadInBlock() == 0) {
    c.fenceDevice();
    c.epShared().isLast = c.fetchAdd(&call.state->endedBlocks, 1) + 1 == c.dataBlocks();
    c.fenceDevice();
  }
  c.dataAll(true);
  return c.epShared().isLast != 0;
}

// Runs a kernel. kernel.prepare(): what data threads do before they join; kernel.data(): a data thread's part, false if the comm has stopped;
// kernel.repair(): what the last block to end does, if ranks may be given up.
template <class C, class Kernel>
RH_FN void epRun(C& c, const EpCommonCall& call, Kernel& kernel) {
  c.setWay(wayOf(c, Algorithm::kNone) | kWithoutLines | (epDropsDead<C>(call.team) ? kDropsDead : 0));
  if (!c.isData()) {
    if (!c.joinControl()) return;
  } else {
    if (c.threadInBlock() == 0) c.epShared().outcome = 0;
    kernel.prepare();
    if (!c.join()) return;
    const bool good = c.dataAll(kernel.data());  // also a barrier: after it the block has ended
    if (good && epDropsDead<C>(call.team) && epIsLastToEnd(c, call)) {
      kernel.repair();
      c.dataAll(true);
    }
    if (good && c.threadInBlock() == 0) {
      if (kernel.settles(c.epShared().masked) && !mutated(Mutant::kGpuEpEndsWithoutFence)) c.fenceDevice();
      c.add(&call.state->done, 1 + c.epShared().outcome);
    }
    if (!c.isCombined() || !c.controlAll(good)) return;
  }
  epEnd(c, call, kernel);
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_CONTROL_H_
