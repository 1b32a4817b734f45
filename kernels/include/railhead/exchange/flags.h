// Flags: how ranks on a CPU exchange data. A rank writes its tiles to its own buffer and publishes a generation (release). The other
// ranks wait for the generation (acquire) and read the buffer. Memory is coherent, so one store serves all readers.
//
// A generation is 2 * epoch + phase: an epoch has at most two exchanges. Epoch e uses buffer e & 1. Two ranks swap
// theirs in every second pair of epochs (flag_exchange.h).
//
// Two buffers suffice. A rank overwrites buffer e & 1 of any rank in epoch e + 2, after it has acquired e + 1 from every rank. Every rank
// publishes e + 1 after its last access to the buffers of epoch e.
#ifndef RAILHEAD_KERNELS_FLAGS_H_
#define RAILHEAD_KERNELS_FLAGS_H_

#include "railhead/base/device_state.h"
#include "railhead/base/flight_record.h"
#include "railhead/base/mutant.h"
#include "railhead/base/signature.h"
#include "railhead/base/target.h"

namespace railhead {

// A word that ranks wait for, and the number of ranks asleep on it.
struct Flag {
  // It only grows, and is compared by difference, so it may wrap. Written with release, read with acquire.
  uint32_t value;
  // Ranks asleep on value. Writers: the sleepers (atomic add, full fence, then a load of value). Reader: the rank that writes value
  // (store of value, full fence, then a load of sleepers). So the sleeper sees the new value, or the writer sees the sleeper.
  uint32_t sleepers;
};

// What a rank publishes to all ranks, in a cache line of its own.
struct alignas(64) PublishedLine {
  // value: the newest generation that this rank has published. Writer: its rank, after its tiles (release). Readers: all ranks (acquire).
  // It publishes the buffer's tiles, the signature, and that its rank has read all buffers of the previous epoch.
  Flag generation;
  // Signature of the operation that began in the epoch of this parity. Writer: its rank, before it publishes the epoch's first
  // generation. Readers: all ranks, after they have acquired that generation and before they publish the next epoch. Like a buffer, it is
  // overwritten two epochs later.
  Signature signature[2];
  uint64_t pad;
};

// Offset 0 of a heap. The two buffers follow at kScratchHeaderBytes.
struct ScratchHeader {
  // The last generation used. It lies here and not in the host's state, so that a replayed operation continues to count. Reader and
  // writer: its own rank.
  alignas(64) uint32_t generation;
  // The other counters of operations (device_state.h).
  DeviceState device;
  PublishedLine published;
  // Pull: where this rank's buffers lie; kNoOffset = in no memory that the other ranks map. Bits 48..63 name a region (0 = the heap, else
  // registered memory), bits 0..47 are the offset in it. Writer: its rank, before it publishes the exchange's generation. Readers: all
  // ranks, once, before they publish their next generation.
  alignas(64) uint64_t sendOffset;
  uint64_t recvOffset;
  // Chunks that this rank has broadcast (pipes.h).
  alignas(64) Flag broadcastTail;
};

static_assert(sizeof(PublishedLine) == 64 && sizeof(ScratchHeader) == 256, "scratch layout");

// The header, and the flags of pipes (pipes.h).
constexpr uint64_t kScratchHeaderBytes = 24576;

constexpr int kMaxRegions = 256;
constexpr int kOfferRegionShift = 48;

// A region of registered memory.
struct FlagRegion {
  uint64_t bytes;      // of each rank's part
  char* const* parts;  // [worldSize], addresses in this process; nullptr = no such region
};

// The last time at which a rank saw that its processor is busy: that other processes than the ranks use it. Begins as zeros. Only the rank's
// operations read and write it, one at a time.
struct Busy {
  int64_t untilNs;  // until then the rank's waits do not yield
  int64_t forNs;    // how long that is from when it was seen
};

// A rank's view of its team. Filled in by the host. Memory of the ranks is given by a base and a stride, in rank order.
struct FlagTeam {
  int rank;
  int worldSize;
  int reduceGroup;
  uint32_t blockBytes;        // a buffer
  uint32_t pipeSlotBytes;     // a slot of the pipes between two ranks; like the next, a multiple of 128
  uint32_t broadcastSlotBytes;
  uint32_t llSlotBytes;       // a slot of an LL pipe (ll_pipes.h); a multiple of 64
  int64_t spinNs;             // how long a wait polls before it sleeps
  int64_t yieldNs;            // after so long, a wait yields the processor between two turns of polls
  int pollsPerTurn;           // polls of the flag between two checks of the clock and the abort word; at least 1
  int64_t longTurnNs;         // a turn that took longer, with its yield, shows that the processor is busy
  int64_t busySpinNs;         // how long a wait polls on a busy processor; it does not yield
  int64_t busyNs;             // Busy::forNs the first time,
  int64_t busyMostNs;         // and at most, if the processor stays busy
  int64_t recheckNs;          // how often a sleeping wait compares the ranks' signatures
  int64_t timeoutNs;          // deadline of each wait
  int64_t limitNs;            // deadline of all waits of an operation together, counted from the first; 0 = none
  char* heaps;                // each begins with a ScratchHeader
  uint64_t heapStride;
  uint64_t heapBytes;
  uint64_t scratchBytes;      // windows lie behind it, up to heapBytes
  const FlagRegion* regions;  // [kMaxRegions] by number, 0 is not used; nullptr = none
  char* calls;                // CallWords: the signature of each rank's current collective
  uint64_t callStride;
  const uint32_t* abortWord;  // low half of the group's abort word: 0 = no abort
  uint64_t* waitingFor;       // mask of the ranks that this rank waits for, which others may read; relaxed
  uint64_t* asleepSince;      // when it last went to sleep (ns), stored before waitingFor; relaxed
  Busy* busy;
  Arrivals* arrivals;         // of the running operation; nullptr = not recorded
  Signature call;             // of the running operation; call 0 = not all ranks take part in it

  char* heap(int r) const { return heaps + static_cast<uint64_t>(r) * heapStride; }
  CallWords* callOf(int r) const { return reinterpret_cast<CallWords*>(calls + static_cast<uint64_t>(r) * callStride); }
};

// A rank's access to the team's flags. Mem is the target's memory:
//   loadAcquire, loadRelaxed, storeRelease, storeRelaxed, add (relaxed)   32-bit shared words
//   swapAcquire(word, expected, v)                        compare-and-swap; returns what the word was
//   loadWord, storeWord (relaxed), loadWordAcquire, storeWordRelease      64-bit shared words
//   loadArrivedWord (relaxed)                                             a 64-bit word that has carried its own flag (ll_pipes.h)
//   fence()                                                               sequentially consistent
//   futexWait2(a, va, b, vb, deadline), futexWakeAll(word)                sleeps while both words have these values
//   nowNs(), relax(), yield()
template <class Mem>
class Flags {
 public:
  Flags(Mem& mem, const FlagTeam& team) : mem_(mem), team_(team) {}

  // Called at the start of an operation in which all ranks take part. Writes its signature for ranks whose wait takes long.
  RH_INLINE void announce() {
    if (team_.call.call == 0) return;
    CallWords* own = team_.callOf(team_.rank);
    mem_.storeWord(&own->call, 0);
    mem_.fenceRelease();
    mem_.storeWord(&own->count, team_.call.count);
    mem_.storeWord(&own->detail, team_.call.detail);
    mem_.storeWordRelease(&own->call, team_.call.call);
  }

  // Release: what was written before becomes visible with the value. The full fence orders the store before the load of sleepers
  // (store-load order, which a release does not give). Without it, this rank could miss a rank that falls asleep.
  RH_INLINE void publish(Flag& flag, uint32_t value) {
    if (mutated(Mutant::kPublishRelaxed)) {
      mem_.storeRelaxed(&flag.value, value);
    } else {
      mem_.storeRelease(&flag.value, value);
    }
    if (!mutated(Mutant::kPublishWithoutFence)) mem_.fence();
    if (mem_.loadRelaxed(&flag.sleepers) != 0 && !mutated(Mutant::kPublishWithoutWake)) mem_.futexWakeAll(&flag.value);
  }

  // Waits until the flag, which rank peer writes, has reached the value (acquire). False: the group is broken, the deadline has passed,
  // or another rank is in a different operation.
  bool await(Flag& flag, uint32_t value, int peer) {
    return reached(load(&flag.value, Mutant::kAwaitRelaxed), value) || awaitSlowly(flag, value, peer);
  }

  // Whether `seen` has reached `value`, modulo the range of generations. They are less than half the range apart.
  static bool reached(uint32_t seen, uint32_t value) {
    if (mutated(Mutant::kCompareWithoutWrap)) return seen >= value;
    return ((seen - value) & Mem::kGenerationMask) <= Mem::kGenerationMask / 2;
  }

  // Ends the operation because rank r has called something else.
  void mismatch(int r, const Signature& theirs, const Signature& ours) {
    stop_ = Stop::kMismatch;
    missing_ = uint64_t{1} << r;
    difference_ = {theirs, ours};
  }

  // Whether a rank is in a different collective with the same sequence number as this rank's. If so, the operation ends.
  bool findMismatch() {
    if (team_.call.call == 0 || mutated(Mutant::kNoLookAtCalls)) return false;
    for (int r = 0; r < team_.worldSize; r++) {
      const CallWords* words = team_.callOf(r);
      const uint64_t call = mem_.loadWordAcquire(&words->call);
      if (call == 0 || ((call ^ team_.call.call) & kSequenceMask) != 0) continue;
      const Signature theirs = {call, mem_.loadWord(&words->count), mem_.loadWord(&words->detail)};
      mem_.fenceAcquire();
      if (mem_.loadWord(&words->call) != call || theirs == team_.call) continue;
      mismatch(r, theirs, team_.call);
      return true;
    }
    return false;
  }
  // Whether rank r has begun a later collective although the flag that this rank waits for has not moved. If so, the operation ends.
  // Acquire: what rank r wrote to flags in earlier operations is visible with the later call, so the flag will never reach the value.
  template <class Reached>
  bool findLaterCall(int r, Reached flagHasMoved) {
    if (team_.call.call == 0 || mutated(Mutant::kNoLookAtLaterCalls)) return false;
    const CallWords* words = team_.callOf(r);
    const Signature theirs = {mem_.loadWordAcquire(&words->call), mem_.loadWord(&words->count), mem_.loadWord(&words->detail)};
    const auto ahead = static_cast<int32_t>(theirs.sequence() - team_.call.sequence());
    if (theirs.call == 0 || ahead <= 0 || flagHasMoved()) return false;
    mismatch(r, theirs, team_.call);
    return true;
  }
  // How a wait that begins at `start` spins. On a busy processor it does not yield: each of the other processes would then run for a time
  // slice. A rank that sleeps is woken before they have all run.
  struct Spin {
    int64_t yieldFrom, end;
  };
  Spin spinFrom(int64_t start, int64_t deadline) {
    const bool busy = start < team_.busy->untilNs;
    const int64_t end = start + (busy ? team_.busySpinNs : team_.spinNs);
    return {busy ? INT64_MAX : start + team_.yieldNs, end < deadline ? end : deadline};
  }
  // Whether a turn of polls, with the yield before it, shows that the processor is busy. If so, the next waits know it; for twice as long
  // as the last time if that has ended a short time ago.
  bool isBusy(int64_t turnBegan, int64_t now) {
    if (now - turnBegan <= team_.longTurnNs) return false;
    Busy* busy = team_.busy;
    const int64_t twice = turnBegan - busy->untilNs < 4 * busy->forNs ? 2 * busy->forNs : team_.busyNs;
    busy->forNs = twice < team_.busyMostNs ? twice : team_.busyMostNs;
    busy->untilNs = now + busy->forNs;
    return true;
  }

  // Records that a rank has arrived that this one had to wait for. Not called if it arrived within the first turn of polls (about a
  // microsecond): reading the clock would take longer than the wait.
  void recordArrival(int r, int64_t now) {
    Arrivals* noted = team_.arrivals;
    if (noted == nullptr) return;
    noted->last = now;
    noted->lastRank = r;
    if (noted->first == 0) noted->first = noted->last;
  }

  // The same for a rank that arrived in a later turn. The processor may have been busy in that turn.
  void arrivedInTurn(int r, int64_t turnBegan) {
    const int64_t now = mem_.nowNs();
    isBusy(turnBegan, now);
    recordArrival(r, now);
  }

  // When the next sleep ends: at the deadline, or after recheckNs. No rank wakes this one when it begins a different operation, so the
  // signatures must be compared again.
  int64_t sleepUntil(int64_t deadlineNs) {
    const int64_t again = mem_.nowNs() + team_.recheckNs;
    return team_.call.call == 0 || deadlineNs < again ? deadlineNs : again;
  }

  // The deadline of a wait that begins now: timeoutNs later, but at most limitNs after the operation's first wait. Without the second
  // bound, a rank that progresses a little before each deadline could keep the others in an operation of n blocks for n deadlines.
  int64_t deadlineFrom(int64_t now) {
    const int64_t own = now + team_.timeoutNs;
    if (team_.limitNs == 0) return own;
    if (!hasWaited_) firstWait_ = now;
    hasWaited_ = true;
    const int64_t last = firstWait_ + team_.limitNs;
    return last < own ? last : own;
  }

  Stop stop() const { return stop_; }
  // After a failed wait: bit r = rank r had not reached the value, or was in a different operation.
  uint64_t missing() const { return missing_; }
  const Difference& difference() const { return difference_; }

  ScratchHeader* header(int r) const { return reinterpret_cast<ScratchHeader*>(team_.heap(r)); }

  // For the waits of flag_waits.h and ep_links.h, and for bad offers.
  bool aborted() { return mem_.loadAcquire(team_.abortWord) != 0; }
  void stopBecause(Stop why, uint64_t missing) {
    stop_ = why;
    missing_ = missing;
  }

 private:
  // Ranks that have not reached the value: of an exchange, all of them; else the peer alone.
  uint64_t behind(const Flag& flag, uint32_t value, int peer) {
    if (&flag != &header(peer)->published.generation) return uint64_t{1} << peer;
    uint64_t mask = 0;
    for (int r = 0; r < team_.worldSize; r++) {
      if (!reached(mem_.loadRelaxed(&header(r)->published.generation.value), value)) mask |= uint64_t{1} << r;
    }
    return mask;
  }

  // An acquire load. Relaxed in the given mutant.
  uint32_t load(const uint32_t* word, Mutant relaxed) {
    return mutated(relaxed) ? mem_.loadRelaxed(word) : mem_.loadAcquire(word);
  }

  bool awaitSlowly(Flag& flag, uint32_t value, int peer) {
    const int64_t start = mem_.nowNs();
    const int64_t deadline = deadlineFrom(start);
    const Spin spin = spinFrom(start, deadline);
    for (int64_t now = start;;) {
      for (int i = team_.pollsPerTurn; i > 0; i--) {
        if (reached(load(&flag.value, Mutant::kSpinRelaxed), value)) {
          if (now != start) arrivedInTurn(peer, now);
          return true;
        }
        mem_.relax();
      }
      if (aborted()) {
        stopBecause(Stop::kAborted, behind(flag, value, peer) | uint64_t{1} << peer);
        return false;
      }
      const int64_t began = now;
      now = mem_.nowNs();
      if (isBusy(began, now) || now >= spin.end) break;
      // The awaited rank may be waiting for this processor.
      if (now >= spin.yieldFrom) mem_.yield();
    }

    const bool arrived = sleepOn(flag, value, peer, deadline);
    if (arrived) recordArrival(peer, mem_.nowNs());
    // The peer is named even if it has arrived since; otherwise the mask could be empty.
    if (!arrived && stop_ != Stop::kMismatch) missing_ = behind(flag, value, peer) | uint64_t{1} << peer;
    mem_.report(team_.waitingFor, missing_);
    return arrived;
  }

  bool sleepOn(Flag& flag, uint32_t value, int peer, int64_t deadlineNs) {
    if (!mutated(Mutant::kSleepWithoutAnnouncement)) mem_.add(&flag.sleepers, 1);
    bool arrived = false;
    for (;;) {
      // The full fence orders this rank's announcements (sleepers, its signature) before its next loads of the flag and of other
      // signatures. It pairs with the fence in publish(). It also pairs with itself on other ranks: of two ranks that wait in different
      // operations, the second one to pass here sees the signature of the first.
      if (!mutated(Mutant::kSleepWithoutFence)) mem_.fence();
      uint32_t seen = load(&flag.value, Mutant::kSleepRelaxed);
      if (reached(seen, value)) {
        arrived = true;
        break;
      }
      if (aborted()) {
        stop_ = Stop::kAborted;
        break;
      }
      if (findMismatch() || findLaterCall(peer, [&] { return reached(load(&flag.value, Mutant::kSleepRelaxed), value); })) break;
      const int64_t now = mem_.nowNs();
      if (now >= deadlineNs) {
        stop_ = Stop::kTimeout;
        break;
      }
      mem_.report(team_.asleepSince, static_cast<uint64_t>(now));
      mem_.report(team_.waitingFor, behind(flag, value, peer));  // others may have arrived since the last sleep
      // The kernel compares both words with these values before it sleeps, so neither a publish nor an abort in between is missed.
      if (mutated(Mutant::kSleepComparesFreshWord)) seen = mem_.loadRelaxed(&flag.value);
      mem_.futexWait2(&flag.value, seen, mutated(Mutant::kSleepIgnoresAbort) ? &flag.value : team_.abortWord,
                      mutated(Mutant::kSleepIgnoresAbort) ? seen : 0, sleepUntil(deadlineNs));
    }
    if (!mutated(Mutant::kSleepWithoutAnnouncement)) mem_.add(&flag.sleepers, static_cast<uint32_t>(-1));
    return arrived;
  }

  Mem& mem_;
  const FlagTeam& team_;
  Stop stop_ = Stop::kNone;
  bool hasWaited_ = false;
  int64_t firstWait_ = 0;  // when the operation's first wait began
  uint64_t missing_ = 0;
  Difference difference_ = {};
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FLAGS_H_
