// The calls on a buffer as they are seen where they run: which flight a dispatch takes, in which order calls may come, where rows go,
// and what is reported. A host may have made a call long before it runs, or once for many runs (a captured graph), so nothing here is
// decided by it: a call finds its flight by its cell.
#ifndef RAILHEAD_KERNELS_EP_CALLS_H_
#define RAILHEAD_KERNELS_EP_CALLS_H_

#include "railhead/ep/ep_dispatch.h"
#include "railhead/ep/ep_plan.h"

namespace railhead {

// Why a call did not do what it is for. All but kStopped leave the buffer as it was.
enum class EpError : uint32_t {
  kNone,
  kStopped,            // the group is broken, or a deadline has passed
  kTooManyInFlight,
  kStillInFlight,      // the handle's dispatch, when it was to be sent again
  kOtherNotReceived,   // a dispatch in one call, and an earlier one has been sent only
  kInvalidInput,       // EpReport.problems
  kNotInFlight,        // the handle's dispatch was refused, or has ended
  kReceivedBefore,
  kEarlierToReceive,
  kNoRoom,             // EpReport.wanted
  kNotReceived,
  kNoCombine,          // none is under way
  kBeingCombined,
  kEarlierToCombine,
  kNoY, kNoOut,        // rows, or tokens, and nullptr
};

// What came of a call.
struct EpReport {
  EpError error;
  Stop stop;               // kStopped: why, and who was missing
  uint64_t missing;
  uint64_t lostRanks, lostCopies;
  uint64_t overCapacity;   // rows that had no room
  uint16_t wantedBy;       // the first local expert without room for all of its rows; kNoExpert: all of them together
  uint64_t wanted;         // its rows; 0 = everything had room
  uint64_t capacity;
  uint64_t rows, tokens;   // received
  uint32_t number;         // of the dispatch; 0 = none began
  EpProblems problems;
};

// What a handle is where calls run. Writer: the handle's calls. Readers: they; and the host, once they have run.
struct EpCell {
  int flight;  // of its dispatch as long as that is in flight; else -1
  EpReport dispatched, combined;
};

// The reports of a dispatch that has ended.
struct EpEnded {
  EpReport dispatched, combined;
};

// A dispatch of the caller.
struct EpSend {
  EpCell* cell;
  EpRouting routing;     // tokens: all that the caller has
  const EpPlan* cached;  // in place of a routing; nullptr
  const char *x, *scales;
};

// By the numbers of railhead.h's RH_EP_PADDED, ...
enum class EpRowLayout : uint32_t { kPadded, kFlat, kTokens };

// Where it wants what it receives.
struct EpReceive {
  EpCell* cell;
  EpRowLayout layout;
  uint32_t alignment;
  uint64_t capacity;
  char *x, *scales;      // scales and what follows: nullptr = not wanted
  int32_t* counts;
  int64_t* offsets;
  float* weights;
  int32_t *sourceRank, *sourceToken, *topkIdx;
  float* topkWeights;
  uint64_t *rows, *tokens;
};

// A buffer as its calls see it.
struct EpBuffer {
  EpTeam team;
  bool dropsInvalid;   // else invalid input is an error
  EpFlight flights[kEpInFlight];
  int64_t* begin;      // [local experts + 1] where each one's rows begin
  EpEnded ended;       // the last one

  // The flight of the earliest dispatch in a phase; nullptr = none is.
  RH_FN EpFlight* earliest(EpPhase phase) {
    EpFlight* found = nullptr;
    for (EpFlight& f : flights) {
      if (f.phase == phase && (found == nullptr || static_cast<int32_t>(f.number - found->number) < 0)) found = &f;
    }
    return found;
  }
  RH_FN EpFlight* flightOf(const EpCell& cell) { return cell.flight < 0 ? nullptr : &flights[cell.flight]; }
  RH_FN uint32_t localExperts() const { return team.localExperts[team.rank]; }

  // After awaitCounts: rows of a local expert, and token copies, from all ranks.
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

// The flight that a dispatch takes. Not by turns: a later dispatch may be released before an earlier one.
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

// No earlier dispatch has yet to come to where this one is, or is to go.
RH_FN EpError epIsNextToCombine(const EpFlight& f, EpPhase wanted) {
  const bool waits = f.other->phase == wanted || f.other->phase == EpPhase::kSent;
  return f.isBehindOther() && waits ? EpError::kEarlierToCombine : EpError::kNone;
}

// wanted: kReceived, to begin a combine; kAdding, to end it.
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

// A dispatch begins. Its plan is made.
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

// Where rows begin, and whether they have room. Counts are known.
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

// Rows that will be written; in kPadded the caller's memory may be many times as large.
RH_FN uint64_t epRowsWritten(const EpBuffer& b, const EpFlight& f, const EpReceive& to) {
  if (to.layout == EpRowLayout::kTokens) return b.tokensOf(f);
  uint64_t rows = 0;
  for (uint32_t e = 0; e < b.localExperts(); e++) {
    const uint64_t n = b.rowsOf(f, e);
    rows += to.layout == EpRowLayout::kPadded && n > to.capacity ? to.capacity : n;
  }
  return rows;
}

// What the caller learns besides the rows themselves.
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

// After the receive phase: with what had been sent to ranks that have been lost since.
RH_FN void epReportDispatch(const EpBuffer& b, EpFlight* f, EpReport* report) {
  epReportLosses(b, *f, report);
  for (uint64_t left = report->lostRanks; left != 0; left &= left - 1) report->lostCopies += f->copies[lowestBit(left)];
  f->dispatchLostCopies = report->lostCopies;
  report->overCapacity = f->overCapacity;
  report->problems = f->problems;
  report->tokens = b.tokensOf(*f);  // less what a rank that died over it has counted and not sent
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_EP_CALLS_H_
