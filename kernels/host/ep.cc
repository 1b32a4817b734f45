#include "host/ep.h"

#include <string.h>

#include "host/mem.h"
#include "railhead/ep/ep_combine.h"

namespace railhead::host {

namespace {

struct EpMem : Mem {
  explicit EpMem(const EpRowKernels& kernels) : kernels_(kernels) {}
  void fanOutFromSlot(const char* row, void* const* to, uint32_t n, uint32_t bytes, bool streams) {
    kernels_.fanOut(row, to, static_cast<int>(n), bytes, streams);
  }
  void fanOutLocal(const char* row, void* const* to, uint32_t n, uint32_t bytes, bool streams) { fanOutFromSlot(row, to, n, bytes, streams); }

 private:
  const EpRowKernels& kernels_;
};

// Works on rows of known element types through function pointers: one call a row.
class SumRows {
 public:
  SumRows(const EpBuffer& buffer, const EpSums& sums)
      : format_(buffer.format), kernels_(*buffer.rows), s_(sums), yStride_(stride(sums.y)), outStride_(stride(sums.out)) {}

  void partial(const EpRowRef* list, uint32_t n, char* out) const {
    if (n == 0) {
      memset(out, 0, stride(format_.combine));
      return;
    }
    const void* rows[kEpMaxTopk];
    float weights[kEpMaxTopk];
    for (uint32_t i = 0; i < n; i++) {
      rows[i] = s_.yRows + list[i].row * yStride_;
      weights[i] = list[i].weight;
    }
    kernels_.partial(format_, s_.y, rows, s_.weighted ? nullptr : weights, static_cast<int>(n), out);
  }
  void finish(uint32_t token, const char* const* partials, int n, bool scaled, float factor) const {
    const char* add = s_.addRows == nullptr ? nullptr : s_.addRows + token * outStride_;
    const void* rows[kMaxWorldSize] = {};
    for (int i = 0; i < n; i++) rows[i] = partials[i];
    kernels_.finish(format_, rows, n, scaled, factor, add, s_.out, s_.outRows + token * outStride_);
  }

 private:
  uint64_t stride(Type t) const { return uint64_t{format_.hidden} * bytesOf(t); }

  const EpRowFormat& format_;
  const EpRowKernels& kernels_;
  const EpSums& s_;
  const uint64_t yStride_, outStride_;
};

// A wait that succeeds in a later piece leaves the stop reason of an earlier piece in the flags. So `done` decides.
EpError ended(const EpLinks<EpMem>& links, bool done, EpReport* report) {
  if (done) return EpError::kNone;
  report->stop = links.stop();
  report->missing = links.missing();
  return report->error = EpError::kStopped;
}

template <class Step>
EpError dispatch(const EpBuffer& b, EpFlight* flight, EpReport* report, Step step) {
  EpMem mem(*b.rows);
  EpLinks<EpMem> links(mem, b.flags, b.team);
  EpDispatch<EpMem> d(mem, b.team, links, *flight);
  return ended(links, step(d), report);
}

template <class Step>
EpError combine(EpBuffer* b, const EpCell& cell, EpReport* report, Step step) {
  EpMem mem(*b->rows);
  EpLinks<EpMem> links(mem, b->flags, b->team);
  SumRows rows(*b, b->sums[cell.flight]);
  EpCombine<EpMem, SumRows> c(mem, b->team, links, b->flights[cell.flight], rows, b->scratch, b->renormalizes);
  return ended(links, step(c), report);
}

// ---- A dispatch's input ----

// Token t of x, and its scales.
const char* rowOf(const EpBuffer& b, const EpSend& call, uint32_t t) { return call.x + uint64_t{t} * b.format.hidden * bytesOf(b.format.in); }
const char* scalesOf(const EpBuffer& b, const EpSend& call, uint32_t t) {
  return call.scales == nullptr ? nullptr : call.scales + uint64_t{t} * epScaleBytes(b.format);
}

// Bit masks of a type. A value whose exponent bits are all set is an infinity if its mantissa bits are 0, else a NaN. (In E4M3 the only
// NaN has all bits set, so all seven bits count as exponent.)
struct NonFiniteBits {
  uint32_t exponent, mantissa, sign;
};
NonFiniteBits nonFiniteBitsOf(Type t) {
  switch (t) {
    case Type::kF32: return {0x7f800000, 0x7fffff, 0x80000000};
    case Type::kBF16: return {0x7f80, 0x7f, 0x8000};
    case Type::kF16: return {0x7c00, 0x3ff, 0x8000};
    default: return {0x7f, 0x7f, 0x80};
  }
}

// Notes the first element of a row that is not finite. If all are finite, one of its scales is not.
void noteNonFinite(const EpRowFormat& format, const char* row, uint32_t token, EpProblem* problem) {
  const uint32_t size = bytesOf(format.in);
  const NonFiniteBits of = nonFiniteBitsOf(format.in);
  for (uint32_t i = 0; i < format.hidden; i++) {
    uint32_t bits = 0;
    memcpy(&bits, row + uint64_t{i} * size, size);
    if ((bits & of.exponent) != of.exponent) continue;
    const EpNonFinite what = (bits & of.mantissa) != 0 ? EpNonFinite::kNaN : (bits & of.sign) != 0 ? EpNonFinite::kNegative : EpNonFinite::kPositive;
    problem->note(token, i, static_cast<int64_t>(what));
    return;
  }
  problem->note(token, 0, static_cast<int64_t>(EpNonFinite::kScale));
}

// The first token from `from` on that is unfit for FP8: an infinity or NaN would spoil its whole block. plan.tokens: there is none.
uint32_t nextNonFinite(const EpBuffer& b, const EpSend& call, const EpPlan& plan, uint32_t from) {
  if (b.format.wire != Type::kE4M3) return plan.tokens;
  for (uint32_t t = from; t < plan.tokens; t++) {
    if (epRanksOf(b.team, plan, t) != 0 && !b.rows->isFinite(b.format, rowOf(b, call, t), scalesOf(b, call, t))) return t;
  }
  return plan.tokens;
}

void dropNonFinite(const EpBuffer& b, const EpSend& call, EpPlan* plan) {
  for (uint32_t t = nextNonFinite(b, call, *plan, 0); t < plan->tokens; t = nextNonFinite(b, call, *plan, t + 1)) {
    noteNonFinite(b.format, rowOf(b, call, t), t, &plan->problems.nonFinite);
    epDropToken(b.team, t, plan);
  }
}

void mapTokens(const EpBuffer& b, const EpRouting& routing, EpPlan* plan) {
  epNewPlan(b.team, routing.tokens, plan);
  for (uint32_t t = 0; t < plan->tokens; t++) epMapToken(b.team, routing, t, plan);
}

// Copies a cached plan to the flight's own memory, where it can be changed.
void copyPlan(const EpBuffer& b, const EpPlan& cached, EpFlight* f) {
  static_cast<EpPlan&>(*f) = cached;
  static_cast<EpPlanArrays&>(*f) = f->own;
  const uint64_t entries = uint64_t{f->tokens} * b.team.topk;
  memcpy(f->expert, cached.expert, entries * sizeof *f->expert);
  memcpy(f->weight, cached.weight, entries * sizeof *f->weight);
}

// Whether a cached plan can be used unchanged: no rank was masked since, and every token is fit for FP8.
bool servesAsItIs(const EpBuffer& b, const EpSend& call) {
  return call.cached->masked == b.team.state()->masked && nextNonFinite(b, call, *call.cached, 0) == call.cached->tokens;
}

// True: the flight's plan is complete. False: tokens are mapped, but copies have no indices yet.
bool takePlan(const EpBuffer& b, const EpSend& call, EpFlight* f) {
  f->cached = nullptr;
  if (call.cached != nullptr && servesAsItIs(b, call)) {
    f->cached = call.cached;
    static_cast<EpPlan&>(*f) = *call.cached;
    return true;
  }
  if (call.cached != nullptr) {
    copyPlan(b, *call.cached, f);
  } else {
    static_cast<EpPlanArrays&>(*f) = f->own;
    mapTokens(b, call.routing, f);
  }
  dropNonFinite(b, call, f);
  return false;
}

// Makes rows in wire format, unless x is sent as it is.
void encode(const EpBuffer& b, const EpSend& call, EpFlight* f, char* encoded) {
  f->rows = call.x;
  f->rowStride = uint64_t{b.format.hidden} * bytesOf(b.format.in);
  if (encoded == nullptr) return;
  for (uint32_t t = 0; t < f->tokens; t++) {
    if (f->ranks[t] == 0) continue;
    b.rows->encode(b.format, rowOf(b, call, t), scalesOf(b, call, t), encoded + t * b.team.layout.rowStride);
  }
  f->rows = encoded;
  f->rowStride = b.team.layout.rowStride;
}

void addToCounter(uint64_t* counter, uint64_t n) {
  __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

void countProblems(EpCounters* c, const EpProblems& p) {
  addToCounter(&c->invalidIds, p.invalidIds.count);
  addToCounter(&c->duplicateIds, p.duplicateIds.count);
  addToCounter(&c->excessTokens, p.excessTokens.count);
  addToCounter(&c->nonFinite, p.nonFinite.count);
}

// ---- Received rows ----

EpOutput outputOf(const EpBuffer& b, const EpFlight& f, const EpReceive& to) {
  const uint32_t data = b.format.hidden * bytesOf(b.format.wire);
  return {to.layout == EpRowLayout::kTokens, to.capacity, b.begin, to.layout == EpRowLayout::kPadded, data, epScaleOffset(b.format),
          epScaleBytes(b.format), epRowsWritten(b, f, to) * data > b.streamAboveBytes, to.x, to.scales, to.weights, to.sourceRank, to.sourceToken,
          to.topkIdx, to.topkWeights};
}

EpError refuse(EpReport* report, EpError why) { return report->error = why; }

}  // namespace

EpError epMakePlan(const EpBuffer& b, const EpRouting& routing, EpPlan* plan, EpReport* report) {
  *report = {};
  mapTokens(b, routing, plan);
  report->problems = plan->problems;
  if (!b.dropsInvalid && plan->problems.count() != 0) return refuse(report, EpError::kInvalidInput);
  epPlace(b.team, plan);
  return EpError::kNone;
}

EpError epSend(EpBuffer* b, const EpSend& call) {
  EpReport* report = &call.cell->dispatched;
  *report = {};
  EpFlight* f = nullptr;
  const EpError error = epTakeFlight(b, *call.cell, &f);
  if (error != EpError::kNone) return refuse(report, error);
  const bool isPlaced = takePlan(*b, call, f);
  report->problems = f->problems;
  if (!b->dropsInvalid && f->problems.count() != 0) return refuse(report, EpError::kInvalidInput);
  if (!isPlaced) epPlace(b->team, f);
  epStartFlight(b, f, call.cell);
  report->number = f->number;
  encode(*b, call, f, b->encoded[call.cell->flight]);
  countProblems(b->team.counters, f->problems);
  return dispatch(*b, f, report, [](auto& d) { return d.send(); });
}

EpError epAwaitCounts(EpBuffer* b, EpCell* cell) {
  EpReport* report = &cell->dispatched;
  *report = {};
  const EpError error = epMayReceive(b, *cell);
  if (error != EpError::kNone) return refuse(report, error);
  return dispatch(*b, b->flightOf(*cell), report, [](auto& d) { return d.awaitCounts(); });
}

EpError epReceive(EpBuffer* b, const EpReceive& call) {
  EpReport* report = &call.cell->dispatched;
  EpError error = epAwaitCounts(b, call.cell);
  if (error != EpError::kNone) return error;
  EpFlight* f = b->flightOf(*call.cell);
  error = epLayOut(b, *f, call, report);
  if (error != EpError::kNone) return refuse(report, error);
  error = dispatch(*b, f, report, [&](auto& d) { return d.receive(outputOf(*b, *f, call)); });
  if (error != EpError::kNone) return error;
  f->phase = EpPhase::kReceived;
  f->perToken = call.layout == EpRowLayout::kTokens;
  epReportDispatch(*b, f, report);
  f->hasRows = report->tokens > 0 && report->rows > 0;
  epDescribeRows(*b, *f, call, *report);
  addToCounter(&b->team.counters->overCapacity, f->overCapacity);
  addToCounter(&b->team.counters->dispatches, 1);
  return EpError::kNone;
}

EpError epCombineSend(EpBuffer* b, const EpCombineSend& call) {
  EpReport* report = &call.cell->combined;
  *report = {};
  const EpError error = epMayCombine(b, *call.cell, EpPhase::kReceived);
  if (error != EpError::kNone) return refuse(report, error);
  EpFlight* f = b->flightOf(*call.cell);
  if (f->hasRows && call.sums.yRows == nullptr) return refuse(report, EpError::kNoY);
  if (f->tokens + f->excess > 0 && call.sums.outRows == nullptr) return refuse(report, EpError::kNoOut);
  EpSums* sums = &b->sums[call.cell->flight];
  *sums = call.sums;
  sums->weighted = sums->weighted || f->perToken;
  f->phase = EpPhase::kAdding;
  b->team.state()->combines++;
  return combine(b, *call.cell, report, [](auto& c) {
    c.send();
    return true;
  });
}

EpError epCombineReceive(EpBuffer* b, EpCell* cell) {
  EpReport* report = &cell->combined;
  *report = {};
  EpError error = epMayCombine(b, *cell, EpPhase::kAdding);
  if (error != EpError::kNone) return refuse(report, error);
  error = combine(b, *cell, report, [](auto& c) { return c.receive(); });
  if (error != EpError::kNone) return error;
  const EpFlight& f = *b->flightOf(*cell);
  const SumRows rows(*b, b->sums[cell->flight]);
  for (uint32_t t = f.tokens; t < f.tokens + f.excess; t++) rows.finish(t, nullptr, 0, false, 1);  // they took no part
  epReportLosses(*b, f, report);
  addToCounter(&b->team.counters->lostCopies, f.lostCopies);
  addToCounter(&b->team.counters->combines, 1);
  epEndFlight(b, cell);
  return EpError::kNone;
}

EpError epRelease(EpBuffer* b, EpCell* cell, bool broken) {
  EpReport* report = &cell->combined;
  *report = {};
  const EpFlight* f = b->flightOf(*cell);
  if (f == nullptr) return refuse(report, EpError::kNotInFlight);
  if (f->phase == EpPhase::kReceived) {
    addToCounter(&b->team.counters->lostCopies, f->dispatchLostCopies);
  } else if (!broken) {
    return refuse(report, f->phase == EpPhase::kSent ? EpError::kNotReceived : EpError::kBeingCombined);
  }
  epEndFlight(b, cell);
  return EpError::kNone;
}

}  // namespace railhead::host
