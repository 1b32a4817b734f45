// Waiting for ranks in dispatch and combine, where a rank may be given up and the others go on.
#ifndef RAILHEAD_KERNELS_EP_LINKS_H_
#define RAILHEAD_KERNELS_EP_LINKS_H_

#include "railhead/ep.h"
#include "railhead/flag_waits.h"

namespace railhead {

// The kernel's mark in the lease word of a rank that has died (linux/futex.h), and the code of a death in the abort word.
constexpr uint32_t kLeaseOwnerDied = 0x40000000;
constexpr uint32_t kAbortRankDead = 17;

// Where a rank may be given up, waits are cut into pieces this long, and deaths are looked for between them.
constexpr int64_t kEpLookForDeathsNs = 5 * 1000 * 1000;

// The flags' team for a buffer: another abort word and deadline than the comm's where deaths are survived. quiet is a word that
// stays 0.
inline void epPrepareFlags(const EpTeam& ep, const uint32_t* quiet, FlagTeam* team) {
  team->call = {};
  if (!ep.dropsDead) return;
  team->abortWord = quiet;
  if (team->timeoutNs > kEpLookForDeathsNs) team->timeoutNs = kEpLookForDeathsNs;
}

template <class Mem>
class EpLinks {
 public:
  EpLinks(Mem& mem, const FlagTeam& flagTeam, const EpTeam& team) : mem_(mem), team_(team), flags_(mem, flagTeam), waits_(mem, flagTeam, flags_) {}

  bool isMasked(int r) const { return (team_.state()->masked >> r & 1) != 0 && !mutated(Mutant::kEpMaskedStillAwaited); }
  uint64_t masked() const { return team_.state()->masked; }

  static uint32_t next(uint32_t n, uint32_t by = 1) { return (n + by) & Mem::kGenerationMask; }
  // What the reader's head must have come to before the writer may fill chunk n of a pipe.
  uint32_t credit(uint32_t n) const {
    return (n + 1 - team_.layout.slots - (mutated(Mutant::kEpOneMoreSlot) ? 1 : 0)) & Mem::kGenerationMask;
  }

  void publish(Flag& flag, uint32_t value) { flags_.publish(flag, value); }
  bool hasCome(const Flag& flag, uint32_t value) {
    return Flags<Mem>::reached(mutated(Mutant::kEpLookRelaxed) ? mem_.loadRelaxed(&flag.value) : mem_.loadAcquire(&flag.value), value);
  }

  // What has not come in a turn in which this rank looked at everything; then wait() sleeps until any of it has.
  void clear() {
    waits_.clear();
    pending_ = 0;
  }
  void add(Flag& flag, uint32_t value, int peer) {
    waits_.add(flag, value, peer);
    pending_ |= uint64_t{1} << peer;
  }
  bool isWaiting() const { return pending_ != 0; }

  // True: something of it has come, or a rank was masked: look again. False: the group is broken.
  bool wait() {
    const int64_t start = mem_.nowNs();
    for (;;) {
      if (waits_.wait()) {
        note(waits_.whoCame(), mem_.nowNs() - start);
        return true;
      }
      if (!team_.dropsDead || flags_.stop() != Stop::kTimeout) return false;
      if (isBrokenOtherwise()) {
        flags_.stopBecause(Stop::kAborted, pending_);
        return false;
      }
      const uint64_t gone = mem_.nowNs() - start >= team_.timeoutNs ? pending_ : dead() & pending_;
      if (gone != 0) {
        mask(gone);
        return true;
      }
      if (mutated(Mutant::kEpPieceForgets)) waits_.clear();
    }
  }

  void mask(uint64_t ranks) { team_.state()->masked |= ranks; }

  Stop stop() const { return flags_.stop(); }
  uint64_t missing() const { return flags_.missing(); }

 private:
  // Relaxed: nothing that a dead rank has written is read because of it.
  uint64_t dead() {
    uint64_t mask = 0;
    if (mutated(Mutant::kEpNoLookForDeaths)) return 0;
    const uint32_t abort = mem_.loadRelaxed(team_.abortWord);
    if ((abort & 0xff) == kAbortRankDead && abort >> 16 < static_cast<uint32_t>(team_.worldSize)) mask |= uint64_t{1} << (abort >> 16);
    for (int r = 0; r < team_.worldSize; r++) {
      if (r != team_.rank && (mem_.loadRelaxed(team_.leases[r]) & kLeaseOwnerDied) != 0) mask |= uint64_t{1} << r;
    }
    return mask;
  }
  // By an abort, or because the ranks called different collectives: not by a death.
  bool isBrokenOtherwise() {
    const uint32_t abort = mem_.loadRelaxed(team_.abortWord);
    return abort != 0 && (abort & 0xff) != kAbortRankDead && !mutated(Mutant::kEpDropIgnoresAbort);
  }
  void note(int peer, int64_t ns) {
    uint64_t* waited = &team_.counters->waitNs[peer];
    mem_.storeWord(waited, mem_.loadWord(waited) + static_cast<uint64_t>(ns));
  }

  Mem& mem_;
  const EpTeam& team_;
  Flags<Mem> flags_;
  FlagWaits<Mem> waits_;
  uint64_t pending_ = 0;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_EP_LINKS_H_
