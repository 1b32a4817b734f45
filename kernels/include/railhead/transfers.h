// Transfers: any number of sends and receives of one rank at the same time, over pipes. Each goes on whenever its pipe has a
// credit or a chunk, so they may be given in any order without a deadlock between ranks. Gather and scatter are transfers too.
#ifndef RAILHEAD_KERNELS_TRANSFERS_H_
#define RAILHEAD_KERNELS_TRANSFERS_H_

#include "railhead/pipes.h"

namespace railhead {

struct Transfer {
  int peer;             // another rank
  bool sends;           // else receives
  char* buffer;
  uint64_t bytes;
  Signature signature;  // must be the peer's
  uint64_t done;        // bytes; set to 0 by the caller
  bool ended;           // set to false by the caller
};

// Two flags a peer (the one this rank sends to, the one it receives from) and the abort word are slept on together.
constexpr int kMaxWaitWords = 2 * (kMaxWorldSize - 1) + 1;

template <class Mem>
class Transfers {
 public:
  // Those to, and those from, one rank go in the order of the list.
  Transfers(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, Transfer* list, int n)
      : mem_(mem), team_(team), flags_(flags), pipes_(mem, team, flags), list_(list), n_(n) {}

  // Returns when all have ended; false when the group broke. Every wait for anything to move has the team's deadline.
  bool run() {
    flags_.announce();
    while (!allEnded()) {
      if (!moveAll() || (moved_ == 0 && !allEnded() && !wait())) return false;
    }
    return true;
  }

 private:
  bool allEnded() const {
    for (int i = 0; i < n_; i++) {
      if (!list_[i].ended) return false;
    }
    return true;
  }

  // Moves every transfer on as far as it goes. Of those of one pipe only the first that has not ended.
  bool moveAll() {
    moved_ = 0;
    waits_ = 0;
    uint64_t sending = 0, receiving = 0;  // bit r: an earlier transfer to, or from, rank r waits
    for (int i = 0; i < n_; i++) {
      Transfer& t = list_[i];
      uint64_t& busy = t.sends ? sending : receiving;
      const uint64_t bit = uint64_t{1} << t.peer;
      if (t.ended || (busy & bit) != 0) continue;
      if (!(t.sends ? push(t) : pull(t))) return false;
      if (!t.ended) busy |= bit;
    }
    return true;
  }

  bool push(Transfer& t) {
    Flag& tail = pipes_.tail(team_.rank, t.peer);
    Flag& head = pipes_.head(team_.rank, t.peer);
    while (!t.ended) {
      const uint32_t chunk = mem_.loadRelaxed(&tail.value);
      const uint32_t seen = mem_.loadAcquire(&head.value);
      if (!Flags<Mem>::reached(seen, Pipes<Mem>::credit(chunk))) return waitFor(head, seen, t.peer);
      const uint64_t n = chunkOf(t);
      char* slot = pipes_.slot(team_.rank, t.peer, chunk);
      pipes_.writeHeader(slot, t.signature, n);
      mem_.copyToSlot(slot + kSlotHeaderBytes, t.buffer + t.done, n);
      pipes_.send(t.peer);
      advance(t, n);
    }
    return true;
  }

  bool pull(Transfer& t) {
    Flag& tail = pipes_.tail(t.peer, team_.rank);
    Flag& head = pipes_.head(t.peer, team_.rank);
    while (!t.ended) {
      const uint32_t chunk = mem_.loadRelaxed(&head.value);
      const uint32_t seen = mem_.loadAcquire(&tail.value);
      if (!Flags<Mem>::reached(seen, Pipes<Mem>::next(chunk))) return waitFor(tail, seen, t.peer);
      const char* slot = pipes_.slot(t.peer, team_.rank, chunk);
      if (!pipes_.agrees(slot, t.signature, t.peer)) return false;
      const uint64_t n = chunkOf(t);
      mem_.copyFromSlot(t.buffer + t.done, slot + kSlotHeaderBytes, n);
      pipes_.release(t.peer);
      advance(t, n);
    }
    return true;
  }

  uint64_t chunkOf(const Transfer& t) const {
    const uint64_t left = t.bytes - t.done;
    return left < pipes_.chunkBytes() ? left : pipes_.chunkBytes();
  }
  // Nothing is one chunk of nothing: it carries the signature.
  void advance(Transfer& t, uint64_t n) {
    t.done += n;
    t.ended = t.done == t.bytes;
    moved_++;
  }

  // Notes what the transfer waits for. Always true.
  bool waitFor(Flag& flag, uint32_t seen, int peer) {
    flag_[waits_] = &flag;
    seen_[waits_] = seen;
    peer_[waits_] = peer;
    waits_++;
    return true;
  }
  bool anyMoved() {
    for (int i = 0; i < waits_; i++) {
      if (mem_.loadAcquire(&flag_[i]->value) != seen_[i]) return true;
    }
    return false;
  }
  // Of several the first one of the list.
  void noteArrival() {
    for (int i = 0; i < waits_; i++) {
      if (mem_.loadRelaxed(&flag_[i]->value) != seen_[i]) return flags_.arrived(peer_[i]);
    }
  }
  // Whether a rank is in a later collective without having moved what this one waits for.
  bool isOnePast() {
    for (int i = 0; i < waits_; i++) {
      if (flags_.isPast(peer_[i], [&] { return mem_.loadAcquire(&flag_[i]->value) != seen_[i]; })) return true;
    }
    return false;
  }
  uint64_t peersWaitedFor() const {
    uint64_t mask = 0;
    for (int i = 0; i < waits_; i++) mask |= uint64_t{1} << peer_[i];
    return mask;
  }

  // Waits until any of the noted flags moves.
  bool wait() {
    const int64_t start = mem_.nowNs();
    const int64_t deadline = start + team_.timeoutNs;
    const int64_t spinUntil = start + team_.spinNs < deadline ? start + team_.spinNs : deadline;
    int64_t now = start;
    do {
      for (int i = Flags<Mem>::looksPerTurn(team_); i > 0; i--) {
        if (anyMoved()) {
          if (now != start) noteArrival();
          return true;
        }
        mem_.relax();
      }
      now = mem_.nowNs();
      if (now - start >= team_.yieldNs) mem_.yield();
    } while (now < spinUntil && !flags_.aborted());
    mem_.report(team_.waitingFor, peersWaitedFor());
    const bool moved = sleep(deadline);
    if (moved) noteArrival();
    mem_.report(team_.waitingFor, moved ? 0 : flags_.missing());
    return moved;
  }

  // As Flags::sleepOn, for several flags.
  bool sleep(int64_t deadlineNs) {
    for (int i = 0; i < waits_; i++) mem_.add(&flag_[i]->sleepers, 1);
    bool moved = false;
    for (;;) {
      if (!mutated(Mutant::kTransferSleepWithoutFence)) mem_.fence();
      moved = anyMoved();
      if (moved) break;
      if (flags_.aborted()) {
        flags_.stopBecause(Stop::kAborted, peersWaitedFor());
        break;
      }
      if (flags_.isAnyElsewhere() || isOnePast()) break;
      if (mem_.nowNs() >= deadlineNs) {
        flags_.stopBecause(Stop::kTimeout, peersWaitedFor());
        break;
      }
      const uint32_t* words[kMaxWaitWords];
      uint32_t values[kMaxWaitWords];
      for (int i = 0; i < waits_; i++) {
        words[i] = &flag_[i]->value;
        values[i] = seen_[i];
      }
      words[waits_] = team_.abortWord;
      values[waits_] = 0;
      mem_.futexWaitAny(words, values, waits_ + (mutated(Mutant::kTransferSleepIgnoresAbort) ? 0 : 1), flags_.sleepUntil(deadlineNs));
    }
    for (int i = 0; i < waits_; i++) mem_.add(&flag_[i]->sleepers, static_cast<uint32_t>(-1));
    return moved;
  }

  Mem& mem_;
  const FlagTeam& team_;
  Flags<Mem>& flags_;
  Pipes<Mem> pipes_;
  Transfer* list_;
  int n_;
  int moved_ = 0;  // chunks, in the last turn
  // What waits, after a turn in which nothing moved: at most one transfer of each pipe.
  int waits_ = 0;
  Flag* flag_[kMaxWaitWords];
  uint32_t seen_[kMaxWaitWords];
  int peer_[kMaxWaitWords];
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_TRANSFERS_H_
