// Waits for any of several flags at the same time: of a rank that has more than one thing to do (transfers.h, ring_run.h).
#ifndef RAILHEAD_KERNELS_FLAG_WAITS_H_
#define RAILHEAD_KERNELS_FLAG_WAITS_H_

#include "railhead/exchange/flags.h"

namespace railhead {

// Two flags a peer (the one this rank sends to, the one it receives from) and the abort word are slept on together.
constexpr int kMaxWaitWords = 2 * (kMaxWorldSize - 1) + 1;

// What this rank waits for, noted anew in each turn in which nothing moved. Mem has, besides what flags.h needs,
// futexWaitAny(words, values, n, deadline).
template <class Mem>
class FlagWaits {
 public:
  FlagWaits(Mem& mem, const FlagTeam& team, Flags<Mem>& flags) : mem_(mem), team_(team), flags_(flags) {}

  void clear() { n_ = 0; }
  // Until the flag, which rank peer writes, has come to the value.
  void add(Flag& flag, uint32_t value, int peer) { addWord(flag, value, peer, nullptr, 0); }
  // The same where the peer writes, before that, a word whose upper half becomes the mark. While it spins this rank looks at the
  // word only, so that the flag's line stays with its writer; it sleeps on the flag.
  void addWord(Flag& flag, uint32_t value, int peer, const uint64_t* word, uint32_t mark) {
    noted_[n_++] = {&flag, value, peer, word, mark};
  }

  // Waits until any of what was noted has come. False: the group is broken, the deadline has passed, or another rank is in
  // another operation.
  bool wait() {
    const int64_t start = mem_.nowNs();
    const int64_t deadline = start + team_.timeoutNs;
    const int64_t spinUntil = start + team_.spinNs < deadline ? start + team_.spinNs : deadline;
    int64_t now = start;
    do {
      for (int i = team_.pollsPerTurn; i > 0; i--) {
        if (hasAnyCome()) {
          if (now != start) flags_.arrived(whoCame_);
          return true;
        }
        mem_.relax();
      }
      now = mem_.nowNs();
      if (now - start >= team_.yieldNs) mem_.yield();
    } while (now < spinUntil && !flags_.aborted());
    mem_.report(team_.waitingFor, peers());
    const bool come = sleep(deadline);
    if (come) flags_.arrived(whoCame_);
    mem_.report(team_.waitingFor, come ? 0 : flags_.missing());
    return come;
  }
  // After a wait that was not in vain: the rank whose flag came, of several the first one noted.
  int whoCame() const { return whoCame_; }

 private:
  struct Noted {
    Flag* flag;
    uint32_t value;
    int peer;
    const uint64_t* word;  // nullptr: look at the flag
    uint32_t mark;
  };

  bool hasAnyCome() {
    for (int i = 0; i < n_; i++) {
      const Noted& w = noted_[i];
      if (w.word != nullptr ? mem_.loadWord(w.word) >> 32 != w.mark : !hasCome(w)) continue;
      whoCame_ = w.peer;
      return true;
    }
    return false;
  }
  bool hasCome(const Noted& w) { return Flags<Mem>::reached(mem_.loadAcquire(&w.flag->value), w.value); }

  // Whether any flag has come; if not, seen has what they were.
  bool look(uint32_t* seen) {
    for (int i = 0; i < n_; i++) {
      seen[i] = mem_.loadAcquire(&noted_[i].flag->value);
      if (!Flags<Mem>::reached(seen[i], noted_[i].value)) continue;
      whoCame_ = noted_[i].peer;
      return true;
    }
    return false;
  }
  // Whether a rank is in a later collective without having moved what this one waits for.
  bool isOnePast() {
    for (int i = 0; i < n_; i++) {
      if (flags_.isPast(noted_[i].peer, [&] { return hasCome(noted_[i]); })) return true;
    }
    return false;
  }
  uint64_t peers() const {
    uint64_t mask = 0;
    for (int i = 0; i < n_; i++) mask |= uint64_t{1} << noted_[i].peer;
    return mask;
  }

  // As Flags::sleepOn, for several flags.
  bool sleep(int64_t deadlineNs) {
    for (int i = 0; i < n_; i++) mem_.add(&noted_[i].flag->sleepers, 1);
    const uint32_t* words[kMaxWaitWords];
    uint32_t values[kMaxWaitWords];
    bool come = false;
    for (;;) {
      if (!mutated(Mutant::kTransferSleepWithoutFence)) mem_.fence();
      come = look(values);
      if (come) break;
      if (flags_.aborted()) {
        flags_.stopBecause(Stop::kAborted, peers());
        break;
      }
      if (flags_.isAnyElsewhere() || isOnePast()) break;
      if (mem_.nowNs() >= deadlineNs) {
        flags_.stopBecause(Stop::kTimeout, peers());
        break;
      }
      for (int i = 0; i < n_; i++) words[i] = &noted_[i].flag->value;
      words[n_] = team_.abortWord;
      values[n_] = 0;
      mem_.futexWaitAny(words, values, n_ + (mutated(Mutant::kTransferSleepIgnoresAbort) ? 0 : 1), flags_.sleepUntil(deadlineNs));
    }
    for (int i = 0; i < n_; i++) mem_.add(&noted_[i].flag->sleepers, static_cast<uint32_t>(-1));
    return come;
  }

  Mem& mem_;
  const FlagTeam& team_;
  Flags<Mem>& flags_;
  int whoCame_ = 0;
  int n_ = 0;
  Noted noted_[kMaxWaitWords - 1];
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FLAG_WAITS_H_
