// Flags: how a CPU exchanges. A rank writes its tiles into a buffer of its own and publishes a generation; the
// others wait for the generation and read the buffer. On coherent memory one store serves all readers.
//
// A generation is twice an epoch, plus the phase: an epoch has two exchanges. Epoch e uses buffer e & 1.
//
// Why two buffers are enough: a rank writes buffer e & 1 again at e + 2, after it has seen e + 1 of everyone, and a rank
// publishes e + 1 only after its last read of epoch e.
#ifndef RAILHEAD_KERNELS_FLAGS_H_
#define RAILHEAD_KERNELS_FLAGS_H_

#include "railhead/mutant.h"
#include "railhead/target.h"

namespace railhead {

constexpr uint64_t kScratchHeaderBytes = 4096;

// A flag and the count of those who sleep on it. It has a cache line of its own.
struct alignas(64) PublishedLine {
  // The newest generation that this rank has published. Writer: its rank (store release, after its tiles). Readers: all
  // ranks (load acquire). It publishes the buffer's tiles, and says that its rank has finished reading every buffer of
  // the epoch before. It only grows, and compares by difference, so a wrap needs no care.
  uint32_t generation;
  // Ranks asleep on generation. Writers: the sleepers (atomic add, then a full fence, then they look at generation once
  // more). Reader: the publishing rank (after a full fence behind its store): one of the two sees the other.
  uint32_t sleepers;
  uint8_t pad[56];
};

// Byte 0 of a heap. The two buffers follow at kScratchHeaderBytes.
struct ScratchHeader {
  // The generation used last. It lives here and not in the caller's state so that a replayed operation goes on counting.
  // Reader and writer: its own rank.
  alignas(64) uint32_t generation;
  PublishedLine published;
  // Pull: where this rank's buffers lie in its heap, kNoOffset = not in it. Writer: its rank, before it publishes the
  // generation that offers them. Readers: all ranks, until they publish the next.
  alignas(64) uint64_t sendOffset;
  uint64_t recvOffset;
};

static_assert(sizeof(PublishedLine) == 64 && sizeof(ScratchHeader) == 192, "scratch layout");

// What a rank needs to know of its group. Filled by the host.
struct FlagTeam {
  int rank;
  int worldSize;
  int reduceGroup;
  uint32_t blockBytes;        // of a buffer
  int64_t spinNs;             // a wait looks that long before it sleeps
  int64_t timeoutNs;          // of every single wait
  char* heap[kMaxWorldSize];  // each begins with a ScratchHeader
  const uint32_t* abortWord;  // low half of the group's abort word: 0 = the group works
  uint64_t* waitingFor;       // this rank's report of whom it waits for; relaxed
};

// One rank's flags. Mem is the target's memory:
//   loadAcquire, loadRelaxed, storeRelease, storeRelaxed, add (relaxed)   32-bit words that others write or read
//   fence()                                                               sequentially consistent
//   futexWait2(a, va, b, vb, deadline), futexWakeAll(word)                sleep while both words have these values
//   nowNs(), relax(), yield()
template <class Mem>
class Flags {
 public:
  Flags(Mem& mem, const FlagTeam& team) : mem_(mem), team_(team) {}

  // Release: everything written to the buffer becomes visible with the generation. The full fence keeps the look at
  // sleepers behind the store (store-load order, which no release gives): without it a rank could fall asleep unseen.
  void publish(uint32_t generation) {
    PublishedLine& line = header(team_.rank)->published;
    if (mutated(Mutant::kPublishRelaxed)) {
      mem_.storeRelaxed(&line.generation, generation);
    } else {
      mem_.storeRelease(&line.generation, generation);
    }
    if (!mutated(Mutant::kPublishWithoutFence)) mem_.fence();
    if (mem_.loadRelaxed(&line.sleepers) != 0 && !mutated(Mutant::kPublishWithoutWake)) mem_.futexWakeAll(&line.generation);
  }

  // Acquire: rank peer has published the generation. False: the group is broken or the deadline has passed.
  bool await(int peer, uint32_t generation) {
    return reached(look(&header(peer)->published.generation, Mutant::kAwaitRelaxed), generation) || awaitSlowly(peer, generation);
  }

  Stop stop() const { return stop_; }
  // After a wait that failed: bit r = rank r had not published what was waited for.
  uint64_t missing() const { return missing_; }

  ScratchHeader* header(int r) const { return reinterpret_cast<ScratchHeader*>(team_.heap[r]); }

 private:
  // Looks at the clock and at the abort word come once every so many looks at the flag.
  static constexpr int kLooksPerClock = 64;
  // Spinning goes on with a yield in each turn after that time: longer than any wait for a rank that runs.
  static constexpr int64_t kYieldAfterNs = 4000;

  // True once a rank that shows `seen` has published `generation`; the two are never half the range apart.
  static bool reached(uint32_t seen, uint32_t generation) {
    if (mutated(Mutant::kCompareWithoutWrap)) return seen >= generation;
    return ((seen - generation) & Mem::kGenerationMask) <= Mem::kGenerationMask / 2;
  }

  uint64_t behind(uint32_t generation) {
    uint64_t mask = 0;
    for (int r = 0; r < team_.worldSize; r++) {
      if (!reached(mem_.loadRelaxed(&header(r)->published.generation), generation)) mask |= uint64_t{1} << r;
    }
    return mask;
  }

  // An acquire load, unless the mutant makes it relaxed.
  uint32_t look(const uint32_t* word, Mutant relaxed) {
    return mutated(relaxed) ? mem_.loadRelaxed(word) : mem_.loadAcquire(word);
  }

  bool aborted() { return mem_.loadAcquire(team_.abortWord) != 0; }

  bool awaitSlowly(int peer, uint32_t generation) {
    PublishedLine& line = header(peer)->published;
    const int64_t start = mem_.nowNs();
    const int64_t deadline = start + team_.timeoutNs;
    const int64_t spinUntil = start + team_.spinNs < deadline ? start + team_.spinNs : deadline;
    int64_t now;
    do {
      for (int i = 0; i < kLooksPerClock; i++) {
        if (reached(look(&line.generation, Mutant::kSpinRelaxed), generation)) return true;
        mem_.relax();
      }
      if (aborted()) {
        stop_ = Stop::kAborted;
        missing_ = behind(generation) | uint64_t{1} << peer;
        return false;
      }
      now = mem_.nowNs();
      // The rank that this one waits for may be waiting for this processor.
      if (now - start >= kYieldAfterNs) mem_.yield();
    } while (now < spinUntil);

    mem_.report(team_.waitingFor, behind(generation));
    const bool arrived = sleepOn(line, generation, deadline);
    // The peer was late even if it has come since: without its bit nobody might be named.
    if (!arrived) missing_ = behind(generation) | uint64_t{1} << peer;
    mem_.report(team_.waitingFor, missing_);
    return arrived;
  }

  bool sleepOn(PublishedLine& line, uint32_t generation, int64_t deadlineNs) {
    // The full fence keeps the next look at the flag behind the announcement; it pairs with the one in publish().
    if (!mutated(Mutant::kSleepWithoutAnnouncement)) mem_.add(&line.sleepers, 1);
    if (!mutated(Mutant::kSleepWithoutFence)) mem_.fence();
    bool arrived = false;
    for (;;) {
      uint32_t seen = look(&line.generation, Mutant::kSleepRelaxed);
      if (reached(seen, generation)) {
        arrived = true;
        break;
      }
      if (aborted()) {
        stop_ = Stop::kAborted;
        break;
      }
      if (mem_.nowNs() >= deadlineNs) {
        stop_ = Stop::kTimeout;
        break;
      }
      // The kernel compares both words again before it sleeps, so neither a publish nor an abort in between is missed.
      if (mutated(Mutant::kSleepComparesFreshWord)) seen = mem_.loadRelaxed(&line.generation);
      mem_.futexWait2(&line.generation, seen, mutated(Mutant::kSleepIgnoresAbort) ? &line.generation : team_.abortWord,
                      mutated(Mutant::kSleepIgnoresAbort) ? seen : 0, deadlineNs);
    }
    if (!mutated(Mutant::kSleepWithoutAnnouncement)) mem_.add(&line.sleepers, static_cast<uint32_t>(-1));
    return arrived;
  }

  Mem& mem_;
  const FlagTeam& team_;
  Stop stop_ = Stop::kNone;
  uint64_t missing_ = 0;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FLAGS_H_
