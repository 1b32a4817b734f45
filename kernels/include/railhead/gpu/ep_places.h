// Where received rows begin in the caller's layout. Every block computes all of it from the counts of all ranks.
#ifndef RAILHEAD_KERNELS_GPU_EP_PLACES_H_
#define RAILHEAD_KERNELS_GPU_EP_PLACES_H_

#include "railhead/gpu/ep_counters.h"
#include "railhead/gpu/ep_slots.h"
#include "railhead/gpu/ep_waits.h"

namespace railhead::gpu {

// A copy of a token that is received.
struct Copy {
  int source;
  uint32_t number, token;
};

// What a receive phase needs and has of the caller's rows: words of an EpReport.
struct EpRoom {
  uint64_t wanted, capacity, rows, tokens, overCapacity;
  uint16_t wantedBy;
};

template <class C>
class EpPlaces {
 public:
  RH_FN EpPlaces(C& c, const EpDispatchCall& call)
      : c_(c), call_(call), team_(call.team), to_(call.receive), shared_(c.epShared()), local_(team_.localExperts[team_.rank]),
        isTabled_((static_cast<uint32_t>(team_.worldSize) + 1) * local_ <= kEpCountWords) {}

  RH_FN bool isPeer(int r) const { return r != team_.rank && !isMasked(r); }

  // Where this kernel has not sent the dispatch. A barrier follows.
  RH_FN void loadOwnCounts() {
    const uint32_t* own = call_.flights[shared_.flight].own;
    RH_ROLLED
    for (uint32_t e = c_.threadInBlock(); e < local_; e += c_.dataThreadsInBlock()) shared_.totals[team_.ownExperts[e]] = c_.loadState(own + 1 + e);
    if (c_.threadInBlock() == 0) {
      shared_.totals[team_.physical + static_cast<uint32_t>(team_.rank)] = c_.loadState(own);
      shared_.held = ~0u;
    }
  }

  // Waits for the counts of all ranks, and tables them. False: the comm has stopped. A barrier is before and behind. Next is place() or
  // describeCounts().
  RH_FN bool awaitCounts() {
    const uint32_t each = 1 + local_, n = each * static_cast<uint32_t>(team_.worldSize);
    if (c_.threadInBlock() == 0) {
      shared_.over = ~0u;
      shared_.overRows = 0;
    }
    bool good = true;
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n && good; i += c_.dataThreadsInBlock()) {
      const uint32_t s = i / each, at = i - s * each;
      uint32_t count = 0;
      if (isPeer(static_cast<int>(s))) {
        good = awaitCount(static_cast<int>(s), at, &count);
      } else {
        count = loadCount(c_, call_, static_cast<int>(s), at);
      }
      if (at == 0) {
        shared_.received[s] = atMost(count, team_.maxTokens);
      } else if (isTabled_) {
        shared_.before[(s + 1) * local_ + at - 1] = count;
      }
    }
    if (!c_.dataAll(good)) return false;
    if (epDropsDead<C>(team_)) {
      settle(c_, call_);
      c_.dataAll(true);
    }
    return true;
  }

  // After awaitCounts(). Computes where rows begin, and whether they have room. A barrier is behind.
  RH_FN EpError place(EpRoom* room) {
    const bool isPadded = to_.layout == EpRowLayout::kPadded;
    placeExperts(isPadded);
    room->capacity = to_.capacity;
    room->tokens = tokensBefore(team_.worldSize);
    if (isPadded && shared_.over != ~0u) {
      room->wantedBy = static_cast<uint16_t>(shared_.over);
      room->wanted = rowsOf(shared_.over);
      if (!call_.dropsInvalid) return EpError::kNoRoom;
      if (!epDropsDead<C>(team_)) room->overCapacity = shared_.overRows;  // else some of them may not come
    }
    room->rows = to_.layout == EpRowLayout::kTokens ? room->tokens : shared_.begin[local_];
    if (isPadded || room->rows <= to_.capacity) return EpError::kNone;
    room->wantedBy = kNoExpert;
    room->wanted = room->rows;
    return EpError::kNoRoom;
  }

  // Counts, offsets and totals, in the caller's arrays, and what the combine needs of the ranks. By one block, after place().
  RH_FN void describe(const EpRoom& room) {
    RH_ROLLED
    for (uint32_t e = c_.threadInBlock(); e <= local_; e += c_.dataThreadsInBlock()) {
      if (e < local_ && (to_.counts != nullptr || team_.counters != nullptr)) {
        const uint64_t n = rowsOf(e);
        if (to_.counts != nullptr) to_.counts[e] = static_cast<int32_t>(to_.layout == EpRowLayout::kPadded && n > to_.capacity ? to_.capacity : n);
        EpCounting<C>(c_, team_).rows(e, n);
      }
      if (to_.offsets != nullptr && to_.layout != EpRowLayout::kTokens) to_.offsets[e] = static_cast<int64_t>(shared_.begin[e]);
    }
    uint32_t* received = call_.flights[shared_.flight].received;
    RH_ROLLED
    for (int s = static_cast<int>(c_.threadInBlock()); s < team_.worldSize; s += static_cast<int>(c_.dataThreadsInBlock())) {
      c_.storeState(received + s, shared_.received[s]);
    }
    if (c_.threadInBlock() != 0) return;
    if (to_.rows != nullptr) *to_.rows = room.rows;
    if (to_.tokens != nullptr) *to_.tokens = room.tokens;
  }
  // Only the counts: for a look at them. After awaitCounts().
  RH_FN void describeCounts() {
    RH_ROLLED
    for (uint32_t e = c_.threadInBlock(); e < local_ && to_.counts != nullptr; e += c_.dataThreadsInBlock()) {
      sumRanks(e);
      to_.counts[e] = static_cast<int32_t>(rowsOf(e));
    }
    if (c_.threadInBlock() == 0 && to_.tokens != nullptr) *to_.tokens = tokensBefore(team_.worldSize);
  }

  RH_FN uint64_t tokensBefore(int behind) const {
    uint64_t n = 0;
    RH_ROLLED
    for (int s = 0; s < behind; s++) n += shared_.received[s];
    return n;
  }
  // Rows of a local expert from a rank, and the first of them. After place().
  RH_FN uint32_t rowsFrom(int source, uint32_t local) { return static_cast<uint32_t>(rowsBefore(source + 1, local) - rowsBefore(source, local)); }
  RH_FN uint64_t firstRowFrom(int source, uint32_t local) { return shared_.begin[local] + rowsBefore(source, local); }
  // The row of a copy for a local expert. kEpNoRow: more than the rank has counted, which is another rank's row, or beyond the expert's room.
  RH_FN uint64_t rowOf(int source, uint32_t local, uint32_t place) {
    const uint64_t before = rowsBefore(source, local), inExpert = before + place;
    if (inExpert >= rowsBefore(source + 1, local)) return kEpNoRow;
    if (to_.layout == EpRowLayout::kPadded && inExpert >= to_.capacity) {
      if (epDropsDead<C>(team_)) c_.addOne(&call_.state->dropped);
      return kEpNoRow;
    }
    // Counts that are not tabled lie where other ranks write. One that has grown since place() must not lead into the next expert's rows.
    const uint64_t row = shared_.begin[local] + inExpert;
    return row < shared_.begin[local + 1] ? row : kEpNoRow;
  }

 private:
  RH_FN bool isMasked(int r) const { return (shared_.masked >> r & 1) != 0; }
  RH_FN EpSlots slots() const { return {team_, shared_.number}; }

  // ---- Counts: of other ranks, clamped, so that none leads outside of this rank's memory ----

  RH_FN static uint32_t atMost(uint32_t n, uint32_t most) { return n < most ? n : most; }
  // at: 0 copies, 1 + e those for local expert e.
  RH_FN const uint32_t* countAt(int s, uint32_t at) const { return slots().counts(team_.rank, s) + at; }
  RH_FN bool awaitCount(int s, uint32_t at, uint32_t* count) {
    const uint32_t* from = countAt(s, at);
    uint32_t word;
    EpWait<C> wait(c_, call_, s, true);
    RH_ROLLED
    while (!EpCountWord::isHere(word = c_.loadFlag(from), shared_.number)) {
      if (wait.goesOn()) continue;
      if (wait.isGone()) c_.sharedOr(&shared_.uncounted[s / 32], 1u << s % 32);
      wait.end(at == 0);
      return wait.isGone();
    }
    wait.end(at == 0);
    *count = EpCountWord::count(word);
    return true;
  }
  // All blocks agree on whether the counts of a rank have come: they compute places from them. Barriers before and behind.
  RH_COLD static void settle(typename C::TargetType target, const EpDispatchCall& call) {
    const EpTeam& team = call.team;
    EpShared& shared = target.epShared();
    RH_ROLLED
    for (int s = static_cast<int>(target.threadInBlock()); s < team.worldSize; s += static_cast<int>(target.dataThreadsInBlock())) {
      if (s == team.rank || (shared.masked >> s & 1) != 0) continue;
      const bool hasCome = (shared.uncountedRanks() >> s & 1) == 0;
      const uint32_t verdict = hasCome ? target.compareSwap(&call.state->verdicts[s], 0, kEpTaken) : kEpGone;
      if (verdict != kEpGone || (hasCome && mutated(Mutant::kGpuEpBlocksCountAlone))) continue;
      target.sharedOr(&shared.uncounted[s / 32], 1u << s % 32);
      shared.received[s] = 0;
    }
    target.dataAll(true);
    // From here on such a rank is masked, one whose counts have come is not.
    if (target.threadInBlock() == 0) shared.masked |= shared.uncountedRanks();
  }
  RH_FN static uint32_t loadCount(typename C::TargetType& target, const EpDispatchCall& call, int s, uint32_t at) {
    const EpTeam& team = call.team;
    const EpShared& shared = target.epShared();
    if (s == team.rank) return shared.totals[at == 0 ? team.physical + static_cast<uint32_t>(s) : team.ownExperts[at - 1]];
    return (shared.masked >> s & 1) != 0 ? 0 : EpCountWord::count(target.loadFlag(EpSlots{team, shared.number}.counts(team.rank, s) + at));
  }
  // Makes sums of the tabled counts of a local expert. Its thread alone uses them before the next barrier.
  RH_FN void sumRanks(uint32_t e) {
    if (!isTabled_) return;
    uint32_t n = 0;
    shared_.before[e] = 0;
    RH_ROLLED
    for (uint32_t s = 0; s < static_cast<uint32_t>(team_.worldSize); s++) {
      n += atMost(shared_.before[(s + 1) * local_ + e], shared_.received[s]);
      shared_.before[(s + 1) * local_ + e] = n;
    }
  }
  // Rows of a local expert from the ranks below `behind`.
  RH_FN uint64_t rowsBefore(int behind, uint32_t e) {
    return isTabled_ ? shared_.before[static_cast<uint32_t>(behind) * local_ + e] : sumBefore(c_, call_, behind, e);
  }
  RH_COLD static uint64_t sumBefore(typename C::TargetType target, const EpDispatchCall& call, int behind, uint32_t e) {
    const EpShared& s = target.epShared();
    uint64_t n = 0;
    RH_ROLLED
    for (int r = 0; r < behind; r++) n += atMost(loadCount(target, call, r, 1 + e), s.received[r]);
    return n;
  }
  RH_FN uint64_t rowsOf(uint32_t e) { return rowsBefore(team_.worldSize, e); }

  // begin[e] becomes the number of rows before expert e: warps sum as many experts as the block has threads, then add the warps before. A barrier is
  // behind.
  RH_FN void placeExperts(bool isPadded) {
    const uint32_t step = c_.dataThreadsInBlock(), thread = c_.threadInBlock(), warp = thread / C::kLanes;
    uint64_t before = 0, begun = 0;  // rows of all experts up to this turn, and up to the one before
    if (thread == 0) shared_.begin[0] = 0;
    uint32_t first = 0;
    RH_ROLLED
    do {
      const uint32_t e = first + thread, here = local_ - first < step ? local_ - first : step;
      uint64_t sum = c_.laneSums(e < local_ ? roomOf(e, isPadded) : 0);
      if (thread % C::kLanes + 1 == C::kLanes) shared_.partial[warp] = sum;
      c_.dataAll(true);
      RH_ROLLED
      for (uint32_t w = 0; w * C::kLanes < here; w++) {
        const uint64_t part = shared_.partial[w];
        before += part;
        sum += w < warp ? part : 0;
      }
      if (e < local_) shared_.begin[e + 1] = begun + sum;
      begun = before;
      first += step;
      c_.dataAll(true);
    } while (first < local_);
  }
  // Of a local expert, by its thread: sums its counts. The rows that it has room for.
  RH_FN uint64_t roomOf(uint32_t e, bool isPadded) {
    sumRanks(e);
    const uint64_t n = rowsOf(e);
    if (!isPadded) return epRoundUp(n, to_.alignment);
    if (n > to_.capacity) {
      c_.sharedMin(&shared_.over, e);
      c_.sharedAdd(&shared_.overRows, static_cast<uint32_t>(n - to_.capacity));
    }
    return to_.capacity;
  }

  C& c_;
  const EpDispatchCall& call_;
  const EpTeam& team_;
  const EpReceive& to_;
  EpShared& shared_;
  const uint32_t local_;
  const bool isTabled_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_PLACES_H_
