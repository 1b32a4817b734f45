// Waits of dispatch and combine that check whom the rank gives up, and why.
#ifndef RAILHEAD_KERNELS_MODEL_EP_WATCH_H_
#define RAILHEAD_KERNELS_MODEL_EP_WATCH_H_

#include "model/ep_heaps.h"

namespace railhead::model {

// Is told at once when rank r has given up rank s.
class EpGiveUps {
 public:
  virtual void gaveUp(int r, int s) = 0;

 protected:
  ~EpGiveUps() = default;
};

// A rank that lives may be given up because it has given up this one, or because it is late: it has shown no sign of life for a deadline,
// or has waited itself for several, or all waits of the call have taken too long.
class WatchedLinks : public EpLinks<EpMem> {
 public:
  WatchedLinks(World& world, EpMem& mem, EpHeaps& heaps, int rank, EpGiveUps& giveUps)
      : EpLinks<EpMem>(mem, heaps.flags(rank), heaps.team(rank)), world_(world), mem_(mem), heaps_(heaps), rank_(rank), giveUps_(giveUps) {}

  void clear() {
    EpLinks<EpMem>::clear();
    awaiting_ = 0;
  }
  void add(Flag& flag, uint32_t value, int peer) {
    EpLinks<EpMem>::add(flag, value, peer);
    awaited_[awaiting_++] = {&flag, value, peer};
  }
  bool wait() {
    const uint64_t before = masked();
    const int64_t start = world_.now();
    if (firstWait_ < 0) firstWait_ = start;
    mem_.beginWatching();
    const bool good = EpLinks<EpMem>::wait();
    if (masked() != before && heaps_.newestGaveUp(rank_) != masked()) world_.fail("does not tell all ranks that it has given up");
    for (uint64_t left = masked() & ~before; left != 0; left &= left - 1) {
      const int s = lowestBit(left);
      check(s, world_.now() - start);
      giveUps_.gaveUp(rank_, s);
    }
    return good;
  }
  // Ranks that this one has given up within this call, only because they have given up this one.
  uint64_t followed() const { return followed_; }

 private:
  void check(int s, int64_t waited) {
    if (heaps_.isGone(s)) return;
    const EpTeam& team = heaps_.team(rank_);
    const int64_t deadline = team.timeoutNs;
    const bool limit = team.limitNs != 0 && world_.now() - firstWait_ >= team.limitNs;
    const EpMem::Seen& seen = mem_.seen(s);
    const bool alive = waited < team.waiterDeadlines * deadline && seen.turn > seen.first && seen.last - seen.turn < deadline;
    if ((heaps_.team(s).state()->masked >> rank_ & 1) != 0) {
      if (waited < deadline && !limit) followed_ |= uint64_t{1} << s;
      if ((waited < deadline || alive) && !limit) checkReceived(s);
      return;
    }
    if (limit) return;
    if (waited < deadline) world_.fail("gives up rank %d, which lives, %ld ns into a deadline of %ld", s, waited, deadline);
    if (alive) {
      world_.fail("gives up rank %d after %ld ns although it had counted a turn %ld ns before, within a deadline of %ld", s, waited,
                  seen.last - seen.turn, deadline);
    }
  }
  // Rank s has given this one up and sends it nothing more. What it sent before must be received first, so there is a piece between the
  // first look that shows it and the end of the wait.
  void checkReceived(int s) {
    if ((mem_.seenBefore(&heaps_.team(s).state()->gaveUp) >> rank_ & 1) == 0) {
      world_.fail("gives up rank %d in the piece of its wait in which it sees that it is given up", s);
    }
    for (int i = 0; i < awaiting_; i++) {
      const Awaited& a = awaited_[i];
      if (a.peer == s && heaps_.hasReached(*a.flag, a.value)) world_.fail("gives up rank %d before what that rank had sent is received", s);
    }
  }

  struct Awaited {
    const Flag* flag;
    uint32_t value;
    int peer;
  };

  World& world_;
  EpMem& mem_;
  EpHeaps& heaps_;
  const int rank_;
  EpGiveUps& giveUps_;
  Awaited awaited_[kMaxWaitWords];  // flags of the wait
  int awaiting_ = 0;
  uint64_t followed_ = 0;
  int64_t firstWait_ = -1;  // when the call's first wait began
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_EP_WATCH_H_
