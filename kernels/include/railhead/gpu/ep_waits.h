// Waits of dispatch and combine for other ranks. With RH_EP_DEAD_DROP a wait gives up the rank that it waits for, and the kernel goes on; else it
// stops the comm. The rules are those of railhead/ep/ep_links.h.
//
// Blocks of a kernel need not give up a rank at the same place. They must agree only on whether its counts have come, since places of rows are computed
// from them. A word for each rank says that (EpRankState::verdicts): it becomes kEpTaken or kEpGone by a compare-and-swap, whichever comes first.
#ifndef RAILHEAD_KERNELS_GPU_EP_WAITS_H_
#define RAILHEAD_KERNELS_GPU_EP_WAITS_H_

#include "railhead/gpu/ep_call.h"

namespace railhead::gpu {

// Bits of a verdict. kEpTaken: a block has all counts of the rank. kEpGone: the rank was given up; without kEpTaken its counts are none.
constexpr uint32_t kEpTaken = 1, kEpGone = 2;

// What a thread has seen of a rank in a wait of several pieces.
struct EpPatience {
  bool began = false;
  uint32_t turns = 0;   // EpState::waitTurns of the rank
  uint64_t since = 0, aliveAt = 0;
};

// Counts the time from `began` until now as waited for a rank, but for what another thread has counted: blocks wait at the same time. Only a wait that has
// looked at the clock is counted, from that look on, so a short one costs nothing.
template <class C>
RH_COLD void epCountWait(typename C::TargetType target, const EpCommonCall& call, int rank, uint64_t began) {
  if (call.team.counters == nullptr) return;
  constexpr int kUnit = 10;  // 1,024 ns, so that 32 bits hold 73 minutes
  constexpr uint32_t kApart = 1 << 16;  // units: threads that end a wait are less apart
  const auto now = static_cast<uint32_t>(target.nowNs() >> kUnit), since = static_cast<uint32_t>(began >> kUnit);
  uint32_t* word = &call.state->waitedUntil[rank];
  uint32_t until;
  RH_ROLLED
  do {
    until = target.loadOwn(word);
    if (until - now < kApart) return;  // a thread that came later has counted more
  } while (target.compareSwap(word, until, now) != until);
  const uint32_t waited = now - since, uncounted = now - until;
  target.add(&call.team.counters->waitNs[rank], uint64_t{waited < uncounted ? waited : uncounted} << kUnit);
}

// A thread's wait for a word of a rank.
template <class C>
class EpWait {
 public:
  RH_FN EpWait(C& c, const EpCommonCall& call, int rank, bool forCounts = false) : c_(c), call_(call), rank_(rank), forCounts_(forCounts) {}

  // Between two polls. False: the rank is given up (isGone()), or the comm has stopped.
  RH_FN bool goesOn() {
    if (!isLast_) {
      const uint64_t began = c_.waitBegan();
      if (c_.keepWaiting()) return true;
      if (began_ == 0) began_ = began;
      if (!c_.survives()) {
        c_.giveUp(uint64_t{1} << rank_);
        return false;
      }
    }
    const Look at = look(c_, call_, c_.way(), rank_, forCounts_, isLast_, c_.beganWaiting(), patience_);
    patience_ = at.patience;
    isLast_ = at.seen == Seen::kEnd;
    isGone_ = at.seen == Seen::kGone;
    return !isGone_;
  }
  RH_FN bool isGone() const { return isGone_; }
  // Behind the wait. counts: whether the time is counted, since one thread of a block is enough.
  RH_FN void end(bool counts) {
    const uint64_t began = began_ != 0 ? began_ : c_.waitBegan();
    if (began != 0 && counts) epCountWait<C>(c_, call_, rank_, began);
    c_.endWait();
  }

  // kEnd: the rank has died, or has masked this one. What it has sent has arrived before the next poll.
  enum class Seen { kNothing, kEnd, kGone };
  struct Look {
    Seen seen;
    EpPatience patience;
  };
  // After a piece, or, with isLast, the poll behind the end. The patience is passed and returned as a value: its address would keep the wait, and the
  // context that it refers to, out of registers.
  RH_COLD static Look look(typename C::TargetType target, const EpCommonCall& call, Way way, int rank, bool forCounts, bool isLast, uint64_t began,
                           EpPatience patience) {
    const Seen seen = lookAt(target, call, way, rank, forCounts, isLast, began, &patience);
    return {seen, patience};
  }

 private:
  RH_FN static Seen lookAt(const typename C::TargetType& target, const EpCommonCall& call, Way way, int rank, bool forCounts, bool isLast, uint64_t began,
                           EpPatience* p) {
    C c(target, call.call, way);
    const EpTeam& team = call.team;
    const uint32_t verdict = c.loadOwn(&call.state->verdicts[rank]);
    if (isSettled(verdict, forCounts)) return isGone(verdict, forCounts) ? Seen::kGone : Seen::kNothing;
    const uint64_t now = c.nowNs(), timeout = static_cast<uint64_t>(team.timeoutNs);
    const uint32_t turns = c.loadFlag(&team.stateOf(rank)->waitTurns);
    if (!p->began) p->since = p->aliveAt = now;
    if (p->began && turns != p->turns) p->aliveAt = now;
    p->began = true;
    p->turns = turns;
    const bool isLate = now >= p->aliveAt + timeout || now - p->since >= static_cast<uint32_t>(team.waiterDeadlines) * timeout ||
                        (team.limitNs != 0 && now - began >= static_cast<uint64_t>(team.limitNs));
    const bool ends = !isLast && sendsNoMore(c, call, rank);
    if (isLate || isLast || (ends && mutated(Mutant::kGpuEpFollowsFirst))) return giveUp(c, call, rank, forCounts) ? Seen::kGone : Seen::kNothing;
    c.addFlag(&team.state()->waitTurns);
    return ends ? Seen::kEnd : Seen::kNothing;
  }
  // Whether nothing is left to decide. A block that waits for counts which another block has seen will see them.
  RH_FN static bool isSettled(uint32_t verdict, bool forCounts) { return (verdict & kEpGone) != 0 || (forCounts && verdict != 0); }
  RH_FN static bool isGone(uint32_t verdict, bool forCounts) { return (verdict & kEpGone) != 0 && !(forCounts && (verdict & kEpTaken) != 0); }
  RH_FN static bool giveUp(C& c, const EpCommonCall& call, int rank, bool forCounts) {
    uint32_t* verdict = &call.state->verdicts[rank];
    RH_ROLLED
    for (;;) {  // another block changes it twice at most
      const uint32_t had = c.loadOwn(verdict);
      if (isSettled(had, forCounts)) return isGone(had, forCounts);
      if (c.compareSwap(verdict, had, had | kEpGone) == had) return true;
    }
  }
  // The acquire is of what the rank has sent before it gave up this one.
  RH_FN static bool sendsNoMore(C& c, const EpCommonCall& call, int rank) {
    const auto r = static_cast<uint32_t>(rank), own = static_cast<uint32_t>(call.team.rank);
    const bool isDead = (c.loadHost(&call.call.team.status->abort[c.block()].dead[r / 32]) >> r % 32 & 1) != 0;
    const uint32_t* gaveUp = reinterpret_cast<const uint32_t*>(&call.team.stateOf(rank)->gaveUp) + own / 32;
    return ((c.loadFlagAcquire(gaveUp) >> own % 32 & 1) != 0) | isDead;
  }

  C& c_;
  const EpCommonCall& call_;
  const int rank_;
  const bool forCounts_;
  bool isGone_ = false, isLast_ = false;
  uint64_t began_ = 0;  // Context::waitBegan() of the first piece, once that has ended
  EpPatience patience_;
};

// The ranks that this kernel has given up. By one thread, after all blocks have ended.
template <class C>
RH_FN uint64_t epGoneRanks(C& c, const EpCommonCall& call) {
  uint64_t gone = 0;
  RH_ROLLED
  for (int r = 0; r < call.team.worldSize; r++) {
    if ((c.loadOwn(&call.state->verdicts[r]) & kEpGone) != 0) gone |= uint64_t{1} << r;
  }
  return gone;
}

// Masks them for the calls that follow, and tells them so. By one control thread, whose fence behind the blocks' ends orders everything that this rank
// has sent to them before.
template <class C>
RH_COLD void epMask(typename C::TargetType target, const EpCommonCall& call, Way way, uint64_t gone) {
  C c(target, call.call, way);
  EpState* state = call.team.state();
  const uint64_t masked = c.loadState(&state->masked) | gone;
  c.storeState(&state->masked, masked);
  auto* gaveUp = reinterpret_cast<uint32_t*>(&state->gaveUp);
  c.storeFlag(gaveUp, static_cast<uint32_t>(masked));
  c.storeFlag(gaveUp + 1, static_cast<uint32_t>(masked >> 32));
}
template <class C>
RH_FN void epClearVerdicts(C& c, const EpCommonCall& call) {
  RH_ROLLED
  for (int r = 0; r < call.team.worldSize; r++) c.storeFlag(&call.state->verdicts[r], 0);
  c.storeFlag(&call.state->endedBlocks, 0);
  c.storeFlag(&call.state->missing, 0);
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_WAITS_H_
