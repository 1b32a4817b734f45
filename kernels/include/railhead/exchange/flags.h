// Flags: how a CPU exchanges. A rank writes its tiles into a buffer of its own and publishes a generation; the
// others wait for the generation and read the buffer. On coherent memory one store serves all readers.
//
// A generation is twice an epoch, plus the phase: an epoch has two exchanges. Epoch e uses buffer e & 1.
//
// Why two buffers are enough: a rank writes buffer e & 1 again at e + 2, after it has seen e + 1 of everyone, and a rank
// publishes e + 1 only after its last read of epoch e.
#ifndef RAILHEAD_KERNELS_FLAGS_H_
#define RAILHEAD_KERNELS_FLAGS_H_

#include "railhead/base/device_state.h"
#include "railhead/base/flight_record.h"
#include "railhead/base/mutant.h"
#include "railhead/base/signature.h"
#include "railhead/base/target.h"

namespace railhead {

// A word that others wait for and the count of those who sleep on it.
struct Flag {
  // It only grows, and compares by difference, so a wrap needs no care. Written with release, read with acquire.
  uint32_t value;
  // Ranks asleep on value. Writers: the sleepers (atomic add, then a full fence, then they look at value once more). Reader:
  // the rank that writes value (after a full fence behind its store): one of the two sees the other.
  uint32_t sleepers;
};

// What a rank says to all. It has a cache line of its own.
struct alignas(64) PublishedLine {
  // value: the newest generation that this rank has published. Writer: its rank, after its tiles. Readers: all ranks. It
  // publishes the buffer's tiles and the signature, and says that its rank has finished reading every buffer of the epoch
  // before.
  Flag generation;
  // Of the operation that began in the epoch of this parity. Writer: its rank, before it publishes the epoch's first
  // generation. Readers: all ranks, after they have seen that and before they publish the next epoch: a rank writes here
  // again two epochs later, as with the buffers.
  Signature signature[2];
  uint64_t pad;
};

// Byte 0 of a heap. The two buffers follow at kScratchHeaderBytes.
struct ScratchHeader {
  // The generation used last. It lives here and not in the caller's state so that a replayed operation goes on counting.
  // Reader and writer: its own rank.
  alignas(64) uint32_t generation;
  // The same for what else operations count (device_state.h).
  DeviceState device;
  PublishedLine published;
  // Pull: where this rank's buffers lie, kNoOffset = nowhere that the others can see. The upper 16 bits name a region (0 =
  // the heap, else memory that the ranks have registered), the rest is the offset in it. Writer: its rank, before it publishes
  // the generation that offers them. Readers: all ranks, once, until they publish the next.
  alignas(64) uint64_t sendOffset;
  uint64_t recvOffset;
  // Chunks that this rank has broadcast (pipes.h).
  alignas(64) Flag broadcastTail;
};

static_assert(sizeof(PublishedLine) == 64 && sizeof(ScratchHeader) == 256, "scratch layout");

// The header and the flags of pipes, which are in pipes.h.
constexpr uint64_t kScratchHeaderBytes = 24576;

constexpr int kMaxRegions = 256;
constexpr int kOfferRegionShift = 48;

// Memory that the ranks have registered.
struct FlagRegion {
  uint64_t bytes;      // of each rank's part
  char* const* parts;  // [worldSize], where this rank sees them; nullptr = there is no such region
};

// What a rank needs to know of its group. Filled by the host. What every rank has lies at equal distances, rank 0's first.
struct FlagTeam {
  int rank;
  int worldSize;
  int reduceGroup;
  uint32_t blockBytes;        // of a buffer
  uint32_t pipeSlotBytes;     // of a slot of the pipes between two ranks; a multiple of 128, like the next
  uint32_t broadcastSlotBytes;
  uint32_t llSlotBytes;       // of a slot of an LL pipe (ll_pipes.h); a multiple of 64
  int64_t spinNs;             // a wait looks that long before it sleeps
  int64_t yieldNs;            // and from then on yields the processor between turns of polls
  int pollsPerTurn;           // polls of the flag between two looks at the clock and the abort word; at least 1
  int64_t recheckNs;          // a sleep reads the ranks' signatures again after so long
  int64_t timeoutNs;          // of every single wait
  char* heaps;                // each begins with a ScratchHeader
  uint64_t heapStride;
  uint64_t heapBytes;
  uint64_t scratchBytes;      // windows lie behind them, up to the heap's end
  const FlagRegion* regions;  // [kMaxRegions] by number, 0 is not used; nullptr = there are none
  char* calls;                // CallWords: what every rank is in
  uint64_t callStride;
  const uint32_t* abortWord;  // low half of the group's abort word: 0 = the group works
  uint64_t* waitingFor;       // this rank's report of whom it waits for; relaxed
  Arrivals* arrivals;         // of the operation that runs; nullptr = nobody wants to know
  Signature call;             // of the operation that runs; call 0 = none that all ranks take part in

  char* heap(int r) const { return heaps + static_cast<uint64_t>(r) * heapStride; }
  CallWords* callOf(int r) const { return reinterpret_cast<CallWords*>(calls + static_cast<uint64_t>(r) * callStride); }
};

// One rank's flags. Mem is the target's memory:
//   loadAcquire, loadRelaxed, storeRelease, storeRelaxed, add (relaxed)   32-bit words that others write or read
//   loadWord, storeWord (relaxed), loadWordAcquire, storeWordRelease      64-bit words that others write or read
//   fence()                                                               sequentially consistent
//   futexWait2(a, va, b, vb, deadline), futexWakeAll(word)                sleep while both words have these values
//   nowNs(), relax(), yield()
template <class Mem>
class Flags {
 public:
  Flags(Mem& mem, const FlagTeam& team) : mem_(mem), team_(team) {}

  // At the begin of every operation that all ranks take part in: says what this rank is in to ranks that wait for long.
  void announce() {
    if (team_.call.call == 0) return;
    CallWords* own = team_.callOf(team_.rank);
    mem_.storeWord(&own->call, 0);
    mem_.fenceRelease();
    mem_.storeWord(&own->count, team_.call.count);
    mem_.storeWord(&own->detail, team_.call.detail);
    mem_.storeWordRelease(&own->call, team_.call.call);
  }

  // Release: everything written before becomes visible with the value. The full fence keeps the look at sleepers behind the
  // store (store-load order, which no release gives): without it a rank could fall asleep unseen.
  void publish(Flag& flag, uint32_t value) {
    if (mutated(Mutant::kPublishRelaxed)) {
      mem_.storeRelaxed(&flag.value, value);
    } else {
      mem_.storeRelease(&flag.value, value);
    }
    if (!mutated(Mutant::kPublishWithoutFence)) mem_.fence();
    if (mem_.loadRelaxed(&flag.sleepers) != 0 && !mutated(Mutant::kPublishWithoutWake)) mem_.futexWakeAll(&flag.value);
  }

  // Acquire: rank peer has written the value to its flag. False: the group is broken, the deadline has passed, or another
  // rank is in another operation.
  bool await(Flag& flag, uint32_t value, int peer) {
    return reached(look(&flag.value, Mutant::kAwaitRelaxed), value) || awaitSlowly(flag, value, peer);
  }

  // True once a flag that shows `seen` has come to `value`; the two are never half the range apart.
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

  // Whether one of the ranks that have begun a collective with this one's sequence number is in another; that ends the
  // operation.
  bool isAnyElsewhere() {
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
  // Whether rank r has begun a later collective without having moved the flag to what this rank waits for; that ends the
  // operation. Acquire: what rank r wrote to flags in its operations before is visible with the later call, so the flag will
  // never come to the value.
  template <class Reached>
  bool isPast(int r, Reached flagHasMoved) {
    if (team_.call.call == 0 || mutated(Mutant::kNoLookAtLaterCalls)) return false;
    const CallWords* words = team_.callOf(r);
    const Signature theirs = {mem_.loadWordAcquire(&words->call), mem_.loadWord(&words->count), mem_.loadWord(&words->detail)};
    const auto ahead = static_cast<int32_t>(theirs.sequence() - team_.call.sequence());
    if (theirs.call == 0 || ahead <= 0 || flagHasMoved()) return false;
    mismatch(r, theirs, team_.call);
    return true;
  }
  // Notes that a rank has come that this one had to wait for. Not called where it came within the first turn of looks (about a
  // microsecond): reading the clock would take longer than what there is to measure.
  void arrived(int r) {
    Arrivals* noted = team_.arrivals;
    if (noted == nullptr) return;
    noted->last = mem_.nowNs();
    noted->lastRank = r;
    if (noted->first == 0) noted->first = noted->last;
  }

  // How long to sleep at most before these are looked at again: nobody wakes this rank because another one has gone on in
  // another operation.
  int64_t sleepUntil(int64_t deadlineNs) {
    const int64_t again = mem_.nowNs() + team_.recheckNs;
    return team_.call.call == 0 || deadlineNs < again ? deadlineNs : again;
  }

  Stop stop() const { return stop_; }
  // After a wait that failed: bit r = rank r had not come to what was waited for, or was in another operation.
  uint64_t missing() const { return missing_; }
  const Difference& difference() const { return difference_; }

  ScratchHeader* header(int r) const { return reinterpret_cast<ScratchHeader*>(team_.heap(r)); }

  // For waits that are written elsewhere (transfers.h).
  bool aborted() { return mem_.loadAcquire(team_.abortWord) != 0; }
  void stopBecause(Stop why, uint64_t missing) {
    stop_ = why;
    missing_ = missing;
  }

 private:
  // The ranks that have not come to the value: of an exchange all of them, else the one that is waited for.
  uint64_t behind(const Flag& flag, uint32_t value, int peer) {
    if (&flag != &header(peer)->published.generation) return uint64_t{1} << peer;
    uint64_t mask = 0;
    for (int r = 0; r < team_.worldSize; r++) {
      if (!reached(mem_.loadRelaxed(&header(r)->published.generation.value), value)) mask |= uint64_t{1} << r;
    }
    return mask;
  }

  // An acquire load, unless the mutant makes it relaxed.
  uint32_t look(const uint32_t* word, Mutant relaxed) {
    return mutated(relaxed) ? mem_.loadRelaxed(word) : mem_.loadAcquire(word);
  }

  bool awaitSlowly(Flag& flag, uint32_t value, int peer) {
    const int64_t start = mem_.nowNs();
    const int64_t deadline = start + team_.timeoutNs;
    const int64_t spinUntil = start + team_.spinNs < deadline ? start + team_.spinNs : deadline;
    int64_t now = start;
    do {
      for (int i = team_.pollsPerTurn; i > 0; i--) {
        if (reached(look(&flag.value, Mutant::kSpinRelaxed), value)) {
          if (now != start) arrived(peer);
          return true;
        }
        mem_.relax();
      }
      if (aborted()) {
        stopBecause(Stop::kAborted, behind(flag, value, peer) | uint64_t{1} << peer);
        return false;
      }
      now = mem_.nowNs();
      // The rank that this one waits for may be waiting for this processor.
      if (now - start >= team_.yieldNs) mem_.yield();
    } while (now < spinUntil);

    const bool came = sleepOn(flag, value, peer, deadline);
    if (came) arrived(peer);
    // The peer was late even if it has come since: without its bit nobody might be named.
    if (!came && stop_ != Stop::kMismatch) missing_ = behind(flag, value, peer) | uint64_t{1} << peer;
    mem_.report(team_.waitingFor, missing_);
    return came;
  }

  bool sleepOn(Flag& flag, uint32_t value, int peer, int64_t deadlineNs) {
    if (!mutated(Mutant::kSleepWithoutAnnouncement)) mem_.add(&flag.sleepers, 1);
    bool came = false;
    for (;;) {
      // The full fence keeps the next looks at the flag, and at what others are in, behind the announcements of this sleep and
      // of this operation; it pairs with the one in publish(), and with this one of others: of two ranks that wait in different
      // operations, the second to come here sees the first.
      if (!mutated(Mutant::kSleepWithoutFence)) mem_.fence();
      uint32_t seen = look(&flag.value, Mutant::kSleepRelaxed);
      if (reached(seen, value)) {
        came = true;
        break;
      }
      if (aborted()) {
        stop_ = Stop::kAborted;
        break;
      }
      if (isAnyElsewhere() || isPast(peer, [&] { return reached(look(&flag.value, Mutant::kSleepRelaxed), value); })) break;
      if (mem_.nowNs() >= deadlineNs) {
        stop_ = Stop::kTimeout;
        break;
      }
      mem_.report(team_.waitingFor, behind(flag, value, peer));  // others may have come since the last sleep
      // The kernel compares both words again before it sleeps, so neither a publish nor an abort in between is missed.
      if (mutated(Mutant::kSleepComparesFreshWord)) seen = mem_.loadRelaxed(&flag.value);
      mem_.futexWait2(&flag.value, seen, mutated(Mutant::kSleepIgnoresAbort) ? &flag.value : team_.abortWord,
                      mutated(Mutant::kSleepIgnoresAbort) ? seen : 0, sleepUntil(deadlineNs));
    }
    if (!mutated(Mutant::kSleepWithoutAnnouncement)) mem_.add(&flag.sleepers, static_cast<uint32_t>(-1));
    return came;
  }

  Mem& mem_;
  const FlagTeam& team_;
  Stop stop_ = Stop::kNone;
  uint64_t missing_ = 0;
  Difference difference_ = {};
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FLAGS_H_
