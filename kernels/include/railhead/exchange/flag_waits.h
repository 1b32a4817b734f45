// Waits for any of several flags at the same time, for a rank that drives several pipes (transfers.h, ring_run.h, ep_links.h).
#ifndef RAILHEAD_KERNELS_FLAG_WAITS_H_
#define RAILHEAD_KERNELS_FLAG_WAITS_H_

#include "railhead/exchange/flags.h"

namespace railhead {

// Two flags a peer (one for sending, one for receiving) and the abort word.
constexpr int kMaxWaitWords = 2 * (kMaxWorldSize - 1) + 1;

// The flags that this rank waits for. They are collected anew in each turn in which nothing could proceed. Mem has, besides what flags.h
// lists, futexWaitAny(words, values, n, deadline).
template <class Mem>
class FlagWaits {
 public:
  FlagWaits(Mem& mem, const FlagTeam& team, Flags<Mem>& flags) : mem_(mem), team_(team), flags_(flags) {}

  void clear() { n_ = 0; }
  // Adds a flag, which rank peer writes and which is to reach the value.
  void add(Flag& flag, uint32_t value, int peer) { addWord(flag, value, peer, nullptr, 0); }
  // The same for a flag whose writer first writes a word with the mark in its upper half. While it spins, this rank polls the word only,
  // so that the flag's cache line stays with its writer. It sleeps on the flag.
  void addWord(Flag& flag, uint32_t value, int peer, const uint64_t* word, uint32_t mark) {
    noted_[n_++] = {&flag, value, peer, word, mark};
  }

  // Waits until one of them is reached. False: the group is broken, the deadline has passed, or another rank is in a different operation.
  bool wait() {
    const int64_t start = mem_.nowNs();
    const int64_t deadline = flags_.deadlineFrom(start);
    // A rank can write its flags to and fro, so that each wait ends and nothing proceeds.
    if (start >= deadline) {
      flags_.stopBecause(Stop::kTimeout, peers());
      mem_.report(team_.waitingFor, flags_.missing());
      return false;
    }
    const typename Flags<Mem>::Spin spin = flags_.spinFrom(start, deadline);
    int64_t now = start;
    for (;;) {
      for (int i = team_.pollsPerTurn; i > 0; i--) {
        if (anyArrived()) {
          if (now != start) flags_.arrivedInTurn(arrivedRank_, now);
          return true;
        }
        mem_.relax();
      }
      const int64_t began = now;
      now = mem_.nowNs();
      if (flags_.isBusy(began, now) || now >= spin.end || flags_.aborted()) break;
      if (now >= spin.yieldFrom) mem_.yield();
    }
    mem_.report(team_.asleepSince, static_cast<uint64_t>(now));
    mem_.report(team_.waitingFor, peers());
    const bool arrived = sleep(deadline);
    if (arrived) flags_.recordArrival(arrivedRank_, mem_.nowNs());
    mem_.report(team_.waitingFor, arrived ? 0 : flags_.missing());
    return arrived;
  }
  // After a successful wait: the rank whose flag was reached; of several, the first one added.
  int arrivedRank() const { return arrivedRank_; }

 private:
  struct Noted {
    Flag* flag;
    uint32_t value;
    int peer;
    const uint64_t* word;  // nullptr: poll the flag
    uint32_t mark;
  };

  bool anyArrived() {
    for (int i = 0; i < n_; i++) {
      const Noted& w = noted_[i];
      if (w.word != nullptr ? mem_.loadWord(w.word) >> 32 != w.mark : !hasReached(w)) continue;
      arrivedRank_ = w.peer;
      return true;
    }
    return false;
  }
  bool hasReached(const Noted& w) { return Flags<Mem>::reached(mem_.loadAcquire(&w.flag->value), w.value); }

  // Whether any flag is reached. If not, seen has the values of all.
  bool anyReached(uint32_t* seen) {
    for (int i = 0; i < n_; i++) {
      seen[i] = mem_.loadAcquire(&noted_[i].flag->value);
      if (!Flags<Mem>::reached(seen[i], noted_[i].value)) continue;
      arrivedRank_ = noted_[i].peer;
      return true;
    }
    return false;
  }
  // Whether a rank is in a later collective although its flag has not moved (Flags::findLaterCall).
  bool findAnyLaterCall() {
    for (int i = 0; i < n_; i++) {
      if (flags_.findLaterCall(noted_[i].peer, [&] { return hasReached(noted_[i]); })) return true;
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
    const int announced = mutated(Mutant::kTransferAnnouncesOneFlag) ? 1 : n_;
    for (int i = 0; i < announced; i++) mem_.add(&noted_[i].flag->sleepers, 1);
    const uint32_t* words[kMaxWaitWords];
    uint32_t values[kMaxWaitWords];
    bool arrived = false;
    for (;;) {
      if (!mutated(Mutant::kTransferSleepWithoutFence)) mem_.fence();
      arrived = anyReached(values);
      if (arrived) break;
      if (flags_.aborted()) {
        flags_.stopBecause(Stop::kAborted, peers());
        break;
      }
      if (flags_.findMismatch() || findAnyLaterCall()) break;
      if (mem_.nowNs() >= deadlineNs) {
        flags_.stopBecause(Stop::kTimeout, peers());
        break;
      }
      for (int i = 0; i < n_; i++) words[i] = &noted_[i].flag->value;
      words[n_] = team_.abortWord;
      values[n_] = 0;
      mem_.futexWaitAny(words, values, n_ + (mutated(Mutant::kTransferSleepIgnoresAbort) ? 0 : 1), flags_.sleepUntil(deadlineNs));
    }
    for (int i = 0; i < announced; i++) mem_.add(&noted_[i].flag->sleepers, static_cast<uint32_t>(-1));
    return arrived;
  }

  Mem& mem_;
  const FlagTeam& team_;
  Flags<Mem>& flags_;
  int arrivedRank_ = 0;
  int n_ = 0;
  Noted noted_[kMaxWaitWords - 1];
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FLAG_WAITS_H_
