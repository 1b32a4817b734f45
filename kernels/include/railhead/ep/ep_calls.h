// The calls on a buffer, on the device's side: which flight a dispatch uses, in which order calls may come, where rows go, and what is
// reported. The host may have made a call long before it runs, or once for many runs (a captured graph). So the host decides nothing
// here; a call finds its flight by its cell.
#ifndef RAILHEAD_KERNELS_EP_CALLS_H_
#define RAILHEAD_KERNELS_EP_CALLS_H_

#include "railhead/ep/ep_dispatch.h"
#include "railhead/ep/ep_plan.h"

namespace railhead {

// Why a call failed. All but kStopped leave the buffer as it was.
enum class EpError : uint32_t {
  kNone,
  kStopped,            // the group is broken, or a deadline has passed
  kTooManyInFlight,
  kStillInFlight,      // the handle's dispatch, when the handle is used for another one
  kOtherNotReceived,   // dispatch and receive in one call, while an earlier dispatch is not received yet
  kInvalidInput,       // see EpReport.problems
  kNotInFlight,        // the handle's dispatch was refused, or has ended
  kReceivedBefore,
  kEarlierToReceive,
  kNoRoom,             // see EpReport.wanted
  kNotReceived,
  kNoCombine,          // no combine has begun
  kBeingCombined,
  kEarlierToCombine,
  kNoY, kNoOut,        // nullptr, although there are rows, or tokens
};

// The outcome of a call.
struct EpReport {
  EpError error;
  Stop stop;               // kStopped: the reason, and the ranks that were missing
  uint64_t missing;
  uint64_t lostRanks, lostCopies;
  uint64_t overCapacity;   // rows without room
  uint16_t wantedBy;       // the first local expert without room for all of its rows; kNoExpert: all experts together
  uint64_t wanted;         // its rows; 0 = everything had room
  uint64_t capacity;
  uint64_t rows, tokens;   // received
  uint32_t number;         // of the dispatch; 0 = none began
  EpProblems problems;
};

// A handle, on the device's side. Writer: the handle's calls. Readers: these calls, and the host after they have run.
struct EpCell {
  int flight;  // index of its dispatch's flight; -1 = not in flight
  EpReport dispatched, combined;
};

// The reports of a dispatch that has ended.
struct EpEnded {
  EpReport dispatched, combined;
};

// A dispatch that the caller wants to send.
struct EpSend {
  EpCell* cell;
  EpRouting routing;     // tokens: all tokens of the caller
  const EpPlan* cached;  // instead of a routing; nullptr = none
  const char *x, *scales;
};

// The values of railhead.h's RH_EP_PADDED, ...
enum class EpRowLayout : uint32_t { kPadded, kFlat, kTokens };

// Where the caller wants received rows.
struct EpReceive {
  EpCell* cell;
  EpRowLayout layout;
  uint32_t alignment;
  uint64_t capacity;
  char *x, *scales;      // scales and all that follow: nullptr = not wanted
  int32_t* counts;
  int64_t* offsets;
  float* weights;
  int32_t *sourceRank, *sourceToken, *topkIdx;
  float* topkWeights;
  uint64_t *rows, *tokens;
};

// A buffer, on the device's side.
struct EpBuffer {
  EpTeam team;
  bool dropsInvalid;   // else invalid input is an error
  EpFlight flights[kEpInFlight];
  int64_t* begin;      // [local experts + 1] the first row of each
  EpEnded ended;       // of the last dispatch that has ended

  // The earliest dispatch in a phase; nullptr = none.
  RH_FN EpFlight* earliest(EpPhase phase) {
    EpFlight* found = nullptr;
    for (EpFlight& f : flights) {
      if (f.phase == phase && (found == nullptr || static_cast<int32_t>(f.number - found->number) < 0)) found = &f;
    }
    return found;
  }
  RH_FN EpFlight* flightOf(const EpCell& cell) { return cell.flight < 0 ? nullptr : &flights[cell.flight]; }
  RH_FN uint32_t localExperts() const { return team.localExperts[team.rank]; }

  // After awaitCounts: the rows of a local expert, and the token copies, from all ranks.
  RH_FN uint64_t rowsOf(const EpFlight& f, uint32_t local) const {
    uint64_t n = 0;
    for (int s = 0; s < team.worldSize; s++) n += f.counts[static_cast<uint64_t>(s) * team.maxLocal + local];
    return n;
  }
  RH_FN uint64_t tokensOf(const EpFlight& f) const {
    uint64_t n = 0;
    for (int s = 0; s < team.worldSize; s++) n += f.received[s];
    return n;
  }
};

// ---- Order ----

// The flight that a dispatch uses: any free one. Flights do not alternate, since a later dispatch may be released before an earlier one.
RH_FN EpError epTakeFlight(EpBuffer* b, const EpCell& cell, EpFlight** taken) {
  if (cell.flight >= 0) return EpError::kStillInFlight;
  *taken = b->earliest(EpPhase::kFree);
  return *taken == nullptr ? EpError::kTooManyInFlight : EpError::kNone;
}

RH_FN EpError epMayReceive(EpBuffer* b, const EpCell& cell) {
  const EpFlight* f = b->flightOf(cell);
  if (f == nullptr) return EpError::kNotInFlight;
  if (f->phase != EpPhase::kSent) return EpError::kReceivedBefore;
  return b->earliest(EpPhase::kSent) == f ? EpError::kNone : EpError::kEarlierToReceive;
}

// Refuses a dispatch while an earlier one is in phase `wanted`, or is not received yet.
RH_FN EpError epIsNextToCombine(const EpFlight& f, EpPhase wanted) {
  const bool waits = f.other->phase == wanted || f.other->phase == EpPhase::kSent;
  return f.isBehindOther() && waits ? EpError::kEarlierToCombine : EpError::kNone;
}

// wanted: kReceived to begin a combine, kAdding to end it.
RH_FN EpError epMayCombine(EpBuffer* b, const EpCell& cell, EpPhase wanted) {
  const EpFlight* f = b->flightOf(cell);
  if (f == nullptr) return EpError::kNotInFlight;
  if (f->phase == wanted) return epIsNextToCombine(*f, wanted);
  if (f->phase == EpPhase::kSent) return EpError::kNotReceived;
  return wanted == EpPhase::kAdding ? EpError::kNoCombine : EpError::kBeingCombined;
}

RH_FN void epEndFlight(EpBuffer* b, EpCell* cell) {
  b->ended = {cell->dispatched, cell->combined};
  b->flights[cell->flight].phase = EpPhase::kFree;
  cell->flight = -1;
}

// Starts a flight whose plan is made.
RH_FN void epStartFlight(EpBuffer* b, EpFlight* f, EpCell* cell) {
  for (int r = 0; r < b->team.worldSize; r++) {
    f->moved[r] = f->taken[r] = f->received[r] = f->returned[r] = 0;
    f->pushed[r] = f->pulled[r] = f->counted[r] = false;
  }
  f->finished = 0;
  f->lostRanks = f->masked;
  f->lostCopies = f->maskedCopies;
  f->overCapacity = 0;
  f->number = ++b->team.state()->dispatches;
  f->phase = EpPhase::kSent;
  cell->flight = static_cast<int>(f - b->flights);
}

// ---- Received rows ----

RH_FN uint64_t epRoundUp(uint64_t n, uint64_t to) { return to <= 1 ? n : (n + to - 1) / to * to; }

// Computes where rows begin, and whether they have room. Needs the counts.
RH_FN EpError epLayOut(EpBuffer* b, const EpFlight& f, const EpReceive& to, EpReport* report) {
  const uint32_t local = b->localExperts();
  report->capacity = to.capacity;
  report->tokens = b->tokensOf(f);
  uint64_t row = 0;
  for (uint32_t e = 0; e < local && to.layout != EpRowLayout::kTokens; e++) {
    const uint64_t n = b->rowsOf(f, e);
    if (to.layout == EpRowLayout::kPadded && n > to.capacity && report->wanted == 0) {
      report->wantedBy = static_cast<uint16_t>(e);
      report->wanted = n;
      if (!b->dropsInvalid) return EpError::kNoRoom;
    }
    b->begin[e] = static_cast<int64_t>(row);
    row += to.layout == EpRowLayout::kPadded ? to.capacity : epRoundUp(n, to.alignment);
  }
  b->begin[local] = static_cast<int64_t>(row);
  report->rows = to.layout == EpRowLayout::kTokens ? report->tokens : row;
  if (to.layout == EpRowLayout::kPadded || report->rows <= to.capacity) return EpError::kNone;
  report->wantedBy = kNoExpert;
  report->wanted = report->rows;
  return EpError::kNoRoom;
}

// Rows that will be written. In kPadded the caller's memory may be many times as large.
RH_FN uint64_t epRowsWritten(const EpBuffer& b, const EpFlight& f, const EpReceive& to) {
  if (to.layout == EpRowLayout::kTokens) return b.tokensOf(f);
  uint64_t rows = 0;
  for (uint32_t e = 0; e < b.localExperts(); e++) {
    const uint64_t n = b.rowsOf(f, e);
    rows += to.layout == EpRowLayout::kPadded && n > to.capacity ? to.capacity : n;
  }
  return rows;
}

// Writes counts, offsets and totals to the caller's arrays.
RH_FN void epDescribeRows(const EpBuffer& b, const EpFlight& f, const EpReceive& to, const EpReport& report) {
  const uint32_t local = b.localExperts();
  for (uint32_t e = 0; e < local && to.counts != nullptr; e++) {
    const uint64_t n = b.rowsOf(f, e);
    to.counts[e] = static_cast<int32_t>(to.layout == EpRowLayout::kPadded && n > to.capacity ? to.capacity : n);
  }
  for (uint32_t e = 0; e <= local && to.offsets != nullptr && to.layout != EpRowLayout::kTokens; e++) to.offsets[e] = b.begin[e];
  if (to.rows != nullptr) *to.rows = report.rows;
  if (to.tokens != nullptr) *to.tokens = report.tokens;
}

// ---- Reports ----

RH_FN void epReportLosses(const EpBuffer& b, const EpFlight& f, EpReport* report) {
  report->number = f.number;
  report->lostRanks = f.lostRanks | b.team.state()->masked;
  report->lostCopies = f.lostCopies;
}

// After the receive phase. Copies that were sent to ranks masked since are lost too.
RH_FN void epReportDispatch(const EpBuffer& b, EpFlight* f, EpReport* report) {
  epReportLosses(b, *f, report);
  for (uint64_t left = report->lostRanks; left != 0; left &= left - 1) report->lostCopies += f->copies[lowestBit(left)];
  f->dispatchLostCopies = report->lostCopies;
  report->overCapacity = f->overCapacity;
  report->problems = f->problems;
  report->tokens = b.tokensOf(*f);  // without those that a rank has counted and, as it died, not sent
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_EP_CALLS_H_
