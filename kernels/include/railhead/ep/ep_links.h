// Waits of dispatch and combine, in which a rank may be masked while the others continue.
#ifndef RAILHEAD_KERNELS_EP_LINKS_H_
#define RAILHEAD_KERNELS_EP_LINKS_H_

#include "railhead/ep/ep.h"
#include "railhead/exchange/flag_waits.h"

namespace railhead {

// The kernel's mark in the lease word of a rank that has died (linux/futex.h). A rank that has left has stored 0 there.
constexpr uint32_t kLeaseOwnerDied = 0x40000000;
// The low half of the abort word (internal/wire/segment.h): bits 0..7 the code, here that of a death; bits 8..31 the culprit, a world rank.
// Today a team is the whole world, so that is also its rank in the team.
constexpr uint32_t kAbortCode = 0xff, kAbortRankDead = 17;
constexpr int kAbortCulpritShift = 8;

// Changes the comm's FlagTeam for the waits of a buffer: no signatures and, with dropsDead, another abort word and a deadline for each
// piece of a wait. `quiet` is a word that stays 0.
inline void epPrepareFlags(const EpTeam& ep, const uint32_t* quiet, FlagTeam* team) {
  team->call = {};
  if (!ep.dropsDead) return;
  team->abortWord = quiet;
  team->limitNs = 0;  // a piece that ends is no failure; EpLinks counts the limit
  if (team->timeoutNs > ep.deathCheckNs) team->timeoutNs = ep.deathCheckNs;
}

template <class Mem>
class EpLinks {
 public:
  EpLinks(Mem& mem, const FlagTeam& flagTeam, const EpTeam& team) : mem_(mem), team_(team), flags_(mem, flagTeam), waits_(mem, flagTeam, flags_) {}

  bool isMasked(int r) const { return (team_.state()->masked >> r & 1) != 0 && !mutated(Mutant::kEpMaskedStillAwaited); }
  uint64_t masked() const { return team_.state()->masked; }

  static uint32_t next(uint32_t n, uint32_t by = 1) { return (n + by) & Mem::kGenerationMask; }
  // The value that the reader's head must reach before the writer may fill chunk n of a pipe.
  uint32_t credit(uint32_t n) const {
    return (n + 1 - team_.layout.slots - (mutated(Mutant::kEpOneMoreSlot) ? 1 : 0)) & Mem::kGenerationMask;
  }

  void publish(Flag& flag, uint32_t value) { flags_.publish(flag, value); }
  bool hasReached(const Flag& flag, uint32_t value) {
    return Flags<Mem>::reached(mutated(Mutant::kEpLookRelaxed) ? mem_.loadRelaxed(&flag.value) : mem_.loadAcquire(&flag.value), value);
  }

  // The flags that were not reached in a turn in which nothing could proceed. wait() sleeps until one of them is.
  void clear() {
    waits_.clear();
    pending_ = 0;
  }
  void add(Flag& flag, uint32_t value, int peer) {
    waits_.add(flag, value, peer);
    pending_ |= uint64_t{1} << peer;
  }
  bool isWaiting() const { return pending_ != 0; }

  // True: one of the flags was reached, or a rank was masked; the caller checks all again. False: the group is broken.
  bool wait() {
    const int64_t start = mem_.nowNs();
    if (!hasWaited_) firstWait_ = start;
    hasWaited_ = true;
    watched_ = 0;
    if (!mutated(Mutant::kEpFollowsEarlier)) masking_ = 0;
    for (;;) {
      if (mutated(Mutant::kEpFollowsFirst) && followAtOnce()) return true;
      if (waits_.wait()) {
        addWaitTime(waits_.arrivedRank(), mem_.nowNs() - start);
        return true;
      }
      if (!team_.dropsDead || flags_.stop() != Stop::kTimeout) return false;
      if (isAborted()) {
        flags_.stopBecause(Stop::kAborted, pending_);
        return false;
      }
      const uint64_t gone = (dead() | maskingRanks() | late(start)) & pending_;
      if (gone != 0) {
        mask(gone, mem_.nowNs() - start);
        return true;
      }
      if (mutated(Mutant::kEpPieceForgets)) waits_.clear();
      mem_.storeWord(&team_.counters->waitTurns, mem_.loadWord(&team_.counters->waitTurns) + 1);
    }
  }

  Stop stop() const { return flags_.stop(); }
  uint64_t missing() const { return flags_.missing(); }

 private:
  void mask(uint64_t ranks, int64_t waitedNs) {
    for (uint64_t left = ranks; left != 0; left &= left - 1) addWaitTime(lowestBit(left), waitedNs);
    EpState* own = team_.state();
    own->masked |= ranks;
    mem_.storeWordRelease(&own->gaveUp, own->masked);
  }

  // Ranks that have masked this one and send it nothing more. A rank is returned only if it was already seen in the previous piece, so
  // that what it sent before it masked this rank is received first.
  uint64_t maskingRanks() {
    const uint64_t before = masking_;
    masking_ = 0;
    for (uint64_t left = pending_; left != 0; left &= left - 1) {
      const int r = lowestBit(left);
      if ((mem_.loadWordAcquire(&team_.stateOf(r)->gaveUp) >> team_.rank & 1) != 0) masking_ |= uint64_t{1} << r;
    }
    return before & masking_;
  }

  // The mutant: masks ranks that have masked this one without a look at what they have sent.
  bool followAtOnce() {
    (void)maskingRanks();
    const uint64_t gone = maskingRanks();
    if (gone != 0) mask(gone, 0);
    return gone != 0;
  }

  // Ranks without a sign of life for a deadline. A rank that waits itself gives one with each piece of its wait: late is the rank that it
  // waits for. Once the call has waited for limitNs in all, every rank that it waits for is late.
  uint64_t late(int64_t start) {
    const int64_t now = mem_.nowNs();
    uint64_t mask = 0;
    for (uint64_t left = pending_; left != 0; left &= left - 1) {
      const int r = lowestBit(left);
      const uint64_t turns = mem_.loadWord(team_.waitTurnsOf(r));
      if ((watched_ >> r & 1) == 0) {
        aliveAt_[r] = start;
      } else if (turns != turns_[r] && !mutated(Mutant::kEpTurnsIgnored)) {
        aliveAt_[r] = now;
      }
      turns_[r] = turns;
      if (now - aliveAt_[r] >= team_.timeoutNs || now - start >= team_.waiterDeadlines * team_.timeoutNs) mask |= uint64_t{1} << r;
    }
    watched_ |= pending_;
    return team_.limitNs != 0 && now - firstWait_ >= team_.limitNs ? pending_ : mask;
  }

  // Ranks that have died or left. Relaxed: no data is read because of it.
  uint64_t dead() {
    uint64_t mask = 0;
    if (mutated(Mutant::kEpNoLookForDeaths)) return 0;
    const uint32_t abort = mem_.loadRelaxed(team_.abortWord);
    const uint32_t culprit = abort >> kAbortCulpritShift;
    if ((abort & kAbortCode) == kAbortRankDead && culprit < static_cast<uint32_t>(team_.worldSize)) mask |= uint64_t{1} << culprit;
    for (int r = 0; r < team_.worldSize; r++) {
      if (r == team_.rank) continue;
      const uint32_t lease = mem_.loadRelaxed(team_.leaseOf(r));
      if (lease == 0 || (lease & kLeaseOwnerDied) != 0) mask |= uint64_t{1} << r;
    }
    return mask;
  }
  // Whether the group is broken by something else than a death.
  bool isAborted() {
    const uint32_t abort = mem_.loadRelaxed(team_.abortWord);
    return abort != 0 && (abort & kAbortCode) != kAbortRankDead && !mutated(Mutant::kEpDropIgnoresAbort);
  }
  void addWaitTime(int peer, int64_t ns) {
    uint64_t* waited = &team_.counters->waitNs[peer];
    mem_.storeWord(waited, mem_.loadWord(waited) + static_cast<uint64_t>(ns));
  }

  Mem& mem_;
  const EpTeam& team_;
  Flags<Mem> flags_;
  FlagWaits<Mem> waits_;
  uint64_t pending_ = 0;
  bool hasWaited_ = false;
  int64_t firstWait_ = 0;  // when the call's first wait began
  // State of a wait of more than one piece: ranks that have masked this one; ranks whose signs of life are watched; for these, when the
  // last one was, and their waitTurns then.
  uint64_t masking_ = 0, watched_ = 0;
  int64_t aliveAt_[kMaxWorldSize];
  uint64_t turns_[kMaxWorldSize];
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_EP_LINKS_H_
