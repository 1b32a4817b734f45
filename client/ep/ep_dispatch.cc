// rh_ep_dispatch and its two phases.
#include <stdio.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "collectives/operation.h"
#include "ep/ep.h"

namespace railhead::client {

namespace {

rh_result readIn(const Ep* ep, const rh_ep_dispatch_in* given, const char* operation, rh_ep_dispatch_in* in) {
  const int rank = ep->team.rank;
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: in is NULL", operation, rank);
  const rh_result result = readStruct(operation, "in", given, in);
  if (result != RH_OK) return result;
  if (in->hidden != ep->config.hidden) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: hidden is %u; the buffer was made for %u", operation, rank, in->hidden, ep->config.hidden);
  }
  if (in->idx_dtype != RH_I32 && in->idx_dtype != RH_I64) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: idx_dtype %s (%d); topk_idx is i32 or i64", operation, rank,
                dtypeName(static_cast<uint32_t>(in->idx_dtype)), in->idx_dtype);
  }
  const bool scaled = ep->format.in == host::Type::kE4M3 && ep->format.scale != host::EpScale::kStatic;
  if (in->num_tokens > 0 && (in->x == nullptr || in->topk_idx == nullptr || (scaled && in->x_scales == nullptr))) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %u tokens and %s is NULL", operation, rank, in->num_tokens,
                in->x == nullptr ? "x" : in->topk_idx == nullptr ? "topk_idx" : "x_scales");
  }
  return RH_OK;
}

// A token of x and its scales.
const char* rowOf(const Ep* ep, const rh_ep_dispatch_in& in, uint32_t t) {
  return static_cast<const char*>(in.x) + uint64_t{t} * ep->format.hidden * host::bytesOf(ep->format.in);
}
const char* scalesOf(const Ep* ep, const rh_ep_dispatch_in& in, uint32_t t) {
  return in.x_scales == nullptr ? nullptr : static_cast<const char*>(in.x_scales) + uint64_t{t} * host::epScaleBytes(ep->format);
}

// Where the exponent of a type has all bits set, and what lies below it: 0 = an infinity. (E4M3 has only the NaN of all bits.)
struct NonFiniteBits {
  uint32_t exponent, mantissa, sign;
};
NonFiniteBits nonFiniteBitsOf(host::Type t) {
  switch (t) {
    case host::Type::kF32: return {0x7f800000, 0x7fffff, 0x80000000};
    case host::Type::kBF16: return {0x7f80, 0x7f, 0x8000};
    case host::Type::kF16: return {0x7c00, 0x3ff, 0x8000};
    default: return {0x7f, 0x7f, 0x80};
  }
}

// Notes the first element of a row that is not finite; where all are, one of its scales is not.
void noteNonFinite(const Ep* ep, const char* row, uint32_t token, EpProblem* problem) {
  const uint32_t size = host::bytesOf(ep->format.in);
  const NonFiniteBits of = nonFiniteBitsOf(ep->format.in);
  for (uint32_t i = 0; i < ep->format.hidden; i++) {
    uint32_t bits = 0;
    memcpy(&bits, row + uint64_t{i} * size, size);
    if ((bits & of.exponent) != of.exponent) continue;
    const EpNonFinite what = (bits & of.mantissa) != 0 ? EpNonFinite::kNaN : (bits & of.sign) != 0 ? EpNonFinite::kNegative : EpNonFinite::kPositive;
    problem->note(token, i, static_cast<int64_t>(what));
    return;
  }
  problem->note(token, 0, static_cast<int64_t>(EpNonFinite::kScale));
}

// FP8 has no place for infinities, and one of them, or a NaN, would spoil its whole block.
void checkFinite(const Ep* ep, const rh_ep_dispatch_in& in, EpFlight* f, EpProblems* problems) {
  if (ep->format.wire != host::Type::kE4M3) return;
  for (uint32_t t = 0; t < f->tokens; t++) {
    if (epRanksOf(ep->team, *f, t) == 0 || ep->comm->kernels->rows.isFinite(ep->format, rowOf(ep, in, t), scalesOf(ep, in, t))) continue;
    noteNonFinite(ep, rowOf(ep, in, t), t, &problems->nonFinite);
    epDropToken(ep->team, t, f);
  }
}

// Fills the flight's routing. What is wrong with it is an error, or dropped.
rh_result route(Ep* ep, int i, const rh_ep_dispatch_in& in, const char* operation) {
  EpFlight* f = &ep->flights[i];
  EpProblems* problems = &ep->problems[i];
  *problems = {};
  const bool drops = ep->config.on_invalid == RH_EP_INVALID_DROP;
  const uint32_t most = ep->team.maxTokens;
  ep->excess[i] = in.num_tokens > most ? in.num_tokens - most : 0;
  f->tokens = in.num_tokens - ep->excess[i];
  if (ep->excess[i] != 0) {
    problems->excessTokens.note(most, 0, in.num_tokens);
    problems->excessTokens.count = ep->excess[i];
  }
  const EpRouting routing = {in.topk_idx, in.idx_dtype == RH_I64, in.topk_weights, f->tokens};
  for (uint32_t t = 0; t < f->tokens; t++) epMapToken(ep->team, routing, t, f, problems);
  checkFinite(ep, in, f, problems);
  const EpProblems& p = *problems;
  if (drops || p.invalidIds.count + p.duplicateIds.count + p.excessTokens.count + p.nonFinite.count == 0) return RH_OK;
  char text[400];
  describeProblems(ep, p, text, sizeof text);
  return fail(RH_ERR_INVALID_ARGUMENT, "%s: %s; nothing was sent (on_invalid = RH_EP_INVALID_DROP would leave it out)", operation, text);
}

void countProblems(const Ep* ep, const EpProblems& p) {
  EpCounters* c = ep->team.counters;
  addToCounter(&c->invalidIds, p.invalidIds.count);
  addToCounter(&c->duplicateIds, p.duplicateIds.count);
  addToCounter(&c->excessTokens, p.excessTokens.count);
  addToCounter(&c->nonFinite, p.nonFinite.count);
}

// A fresh flight, all but the routing.
void startFlight(Ep* ep, int i, const rh_ep_dispatch_in& in) {
  EpFlight* f = &ep->flights[i];
  for (int r = 0; r < ep->team.worldSize; r++) {
    f->moved[r] = f->taken[r] = f->received[r] = f->returned[r] = 0;
    f->pushed[r] = f->pulled[r] = f->counted[r] = false;
  }
  f->finished = 0;
  f->lostRanks = f->lostCopies = f->overCapacity = 0;
  f->number = ++ep->team.state()->dispatches;
  epPlan(ep->team, f);
  f->rows = static_cast<const char*>(in.x);
  f->rowStride = uint64_t{ep->format.hidden} * host::bytesOf(ep->format.in);
  char* encoded = ep->encoded[i];
  if (encoded == nullptr) return;
  for (uint32_t t = 0; t < f->tokens; t++) {
    if (f->ranks[t] == 0) continue;
    ep->comm->kernels->rows.encode(ep->format, rowOf(ep, in, t), scalesOf(ep, in, t), encoded + t * ep->team.layout.rowStride);
  }
  f->rows = encoded;
  f->rowStride = ep->team.layout.rowStride;
}

rh_result send(Ep* ep, const rh_ep_dispatch_in* given, const char* operation, int* flight, rh_ep_handle** out) {
  rh_ep_dispatch_in in;
  rh_result result = readIn(ep, given, operation, &in);
  if (result != RH_OK) return result;
  const int i = ep->earliest(EpPhase::kFree);  // not by turns: a later dispatch may be released before an earlier one
  if (i < 0) {
    return fail(RH_ERR_LIMIT, "%s: rank %d: %d dispatches are in flight, the most there can be; combine or release the earliest", operation,
                ep->team.rank, kEpInFlight);
  }
  result = route(ep, i, in, operation);
  if (result != RH_OK) return result;
  ep->phases[i] = EpPhase::kSent;
  startFlight(ep, i, in);
  if (countsAsCollective(ep)) ep->comm->collectives++;
  countProblems(ep, ep->problems[i]);
  *flight = i;
  *out = ep->handles[i];
  const host::Outcome outcome = host::epDispatchSend(ep->flags, ep->team, &ep->flights[i]);
  return outcome.stop == Stop::kNone ? RH_OK : stopOperation(ep->comm, outcome);
}

rh_result checkOrder(const Ep* ep, int flight, const char* operation) {
  if (ep->phases[flight] != EpPhase::kSent) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: this dispatch has been received already", operation, ep->team.rank);
  }
  if (ep->earliest(EpPhase::kSent) != flight) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: dispatches are received in the order in which they were sent; there is an earlier one",
                operation, ep->team.rank);
  }
  return RH_OK;
}

// Where a caller wants its rows, and its report: copies.
struct Room {
  rh_ep_dispatch_out* given;
  rh_ep_dispatch_out out;
  rh_ep_report report;
};

rh_result readRoom(const Ep* ep, rh_ep_dispatch_out* given, const char* operation, Room* room) {
  const int rank = ep->team.rank;
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: out is NULL", operation, rank);
  room->given = given;
  rh_result result = readStruct(operation, "out", given, &room->out);
  if (result == RH_OK) result = readReport(ep, operation, room->out.report, &room->report);
  if (result != RH_OK) return result;
  const rh_ep_dispatch_out* out = &room->out;
  if (out->layout > RH_EP_TOKENS) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: layout %u; want 0..%d", operation, rank, out->layout, RH_EP_TOKENS);
  const uint64_t each = out->layout == RH_EP_PADDED ? ep->localExperts() : 1;
  if (each > 0 && out->capacity > UINT32_MAX / each) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: capacity %llu; a rank has at most %u rows", operation, rank,
                static_cast<unsigned long long>(out->capacity), UINT32_MAX);
  }
  if (out->capacity * each > 0 && out->x == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: x is NULL", operation, rank);
  return RH_OK;
}

uint64_t roundUp(uint64_t n, uint64_t to) { return to <= 1 ? n : (n + to - 1) / to * to; }

// Where rows begin, and whether they have room. Counts are known.
rh_result layOut(Ep* ep, const EpFlight& f, rh_ep_dispatch_out* out, const char* operation) {
  const int rank = ep->team.rank;
  const uint32_t local = ep->localExperts();
  out->tokens = host::epTokensOf(ep->team, f);
  uint64_t row = 0;
  for (uint32_t e = 0; e < local && out->layout != RH_EP_TOKENS; e++) {
    const uint64_t n = host::epRowsOf(ep->team, f, e);
    if (out->layout == RH_EP_PADDED && n > out->capacity && ep->config.on_invalid == RH_EP_INVALID_ERROR) {
      return fail(RH_ERR_LIMIT, "%s: rank %d: %llu rows for local expert %u, capacity is %llu; nothing was taken: receive again with room",
                  operation, rank, static_cast<unsigned long long>(n), e, static_cast<unsigned long long>(out->capacity));
    }
    ep->begin[e] = static_cast<int64_t>(row);
    row += out->layout == RH_EP_PADDED ? out->capacity : roundUp(n, out->alignment);
  }
  ep->begin[local] = static_cast<int64_t>(row);
  out->rows = out->layout == RH_EP_TOKENS ? out->tokens : row;
  if (out->layout != RH_EP_PADDED && out->rows > out->capacity) {
    return fail(RH_ERR_LIMIT, "%s: rank %d: %llu rows, capacity is %llu; nothing was taken: receive again with room", operation, rank,
                static_cast<unsigned long long>(out->rows), static_cast<unsigned long long>(out->capacity));
  }
  return RH_OK;
}

// Beyond this, rows go past the caches: they do not stay there until the experts read them.
constexpr uint64_t kStreamBytes = uint64_t{32} << 20;

// Rows that will be written; in PADDED the caller's memory may be many times as large.
uint64_t rowsWritten(const Ep* ep, const EpFlight& f, const rh_ep_dispatch_out& o) {
  if (o.layout == RH_EP_TOKENS) return o.tokens;
  uint64_t rows = 0;
  for (uint32_t e = 0; e < ep->localExperts(); e++) {
    const uint64_t n = host::epRowsOf(ep->team, f, e);
    rows += o.layout == RH_EP_PADDED && n > o.capacity ? o.capacity : n;
  }
  return rows;
}

EpOutput outputOf(const Ep* ep, const EpFlight& f, const rh_ep_dispatch_out& o) {
  const uint32_t data = ep->format.hidden * host::bytesOf(ep->format.wire);
  return {o.layout == RH_EP_TOKENS, o.capacity, ep->begin, o.layout == RH_EP_PADDED, data, host::epScaleOffset(ep->format),
          host::epScaleBytes(ep->format), rowsWritten(ep, f, o) * data > kStreamBytes, static_cast<char*>(o.x), static_cast<char*>(o.scales),
          o.weights, o.source_rank, o.source_token, o.topk_idx, o.topk_weights};
}

void describeRows(const Ep* ep, const EpFlight& f, rh_ep_dispatch_out* out) {
  const uint32_t local = ep->localExperts();
  for (uint32_t e = 0; e < local && out->counts != nullptr; e++) {
    const uint64_t n = host::epRowsOf(ep->team, f, e);
    out->counts[e] = static_cast<int32_t>(out->layout == RH_EP_PADDED && n > out->capacity ? out->capacity : n);
  }
  for (uint32_t e = 0; e <= local && out->offsets != nullptr && out->layout != RH_EP_TOKENS; e++) out->offsets[e] = ep->begin[e];
}

// The first expert that had no room for all of its rows.
void describeCapacity(const Ep* ep, const EpFlight& f, uint64_t capacity, rh_ep_report* report) {
  for (uint32_t e = 0; e < ep->localExperts() && f.overCapacity != 0; e++) {
    const uint64_t n = host::epRowsOf(ep->team, f, e);
    if (n <= capacity) continue;
    char text[128];
    snprintf(text, sizeof text, "rank %d: %llu rows for local expert %u, capacity is %llu", ep->team.rank, static_cast<unsigned long long>(n),
             e, static_cast<unsigned long long>(capacity));
    appendSentence(report->message, sizeof report->message, text);
    return;
  }
}

rh_result receiveRows(Ep* ep, int i, rh_ep_dispatch_out* out, rh_ep_report* report, const char* operation) {
  EpFlight& f = ep->flights[i];
  rh_result result = checkOrder(ep, i, operation);
  if (result != RH_OK) return result;
  host::Outcome outcome = host::epAwaitCounts(ep->flags, ep->team, &f);
  if (outcome.stop != Stop::kNone) return stopOperation(ep->comm, outcome);
  result = layOut(ep, f, out, operation);
  if (result != RH_OK) return result;
  outcome = host::epDispatchReceive(ep->flags, ep->team, &f, outputOf(ep, f, *out));
  if (outcome.stop != Stop::kNone) return stopOperation(ep->comm, outcome);
  out->tokens = host::epTokensOf(ep->team, f);  // less what a rank that died over it has counted and not sent
  ep->phases[i] = EpPhase::kReceived;
  ep->perToken[i] = out->layout == RH_EP_TOKENS;
  ep->hasRows[i] = out->tokens > 0 && out->rows > 0;
  describeRows(ep, f, out);
  reportFlight(ep, i, true, report);
  ep->lostCopies[i] = report->lost_copies;
  describeCapacity(ep, f, out->capacity, report);
  addToCounter(&ep->team.counters->overCapacity, f.overCapacity);
  addToCounter(&ep->team.counters->dispatches, 1);
  return RH_OK;
}

// Rows and tokens are written where there is too little room as well: the caller makes more of it.
rh_result receive(Ep* ep, int i, Room* room, const char* operation) {
  const rh_result result = receiveRows(ep, i, &room->out, &room->report, operation);
  writeStruct(room->given, room->out);
  if (result == RH_OK && room->out.report != nullptr) writeStruct(room->out.report, room->report);
  return result;
}

uint64_t bytesOf(const Ep* ep, const rh_ep_dispatch_in* in) { return in == nullptr ? 0 : uint64_t{in->num_tokens} * ep->team.rowBytes; }

// A call that failed without breaking the group leaves no operation behind.
rh_result ended(Ep* ep, rh_result result) {
  if (result == RH_OK || result == RH_ERR_INVALID_ARGUMENT || result == RH_ERR_LIMIT) endEpOperation(ep);
  return result;
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_ep_dispatch(rh_ep* handle, const rh_ep_dispatch_in* in, rh_ep_dispatch_out* out, rh_ep_handle** dispatched) {
  const char* operation = "ep_dispatch";
  if (dispatched == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: handle is NULL", operation);
  *dispatched = nullptr;
  EpCall call(handle, operation);
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  Room room;
  rh_result result = readRoom(ep, out, operation, &room);  // before anything is sent
  if (result != RH_OK) return result;
  if (!beginEpOperation(ep, RHW_OP_EP_DISPATCH, bytesOf(ep, in), true)) return whyBroken(ep->comm);
  if (ep->earliest(EpPhase::kSent) >= 0) {
    result = fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: an earlier dispatch has not been received; receive it first", operation, ep->team.rank);
  }
  int flight = 0;
  if (result == RH_OK) result = send(ep, in, operation, &flight, dispatched);
  if (result == RH_OK) result = receive(ep, flight, &room, operation);
  return ended(ep, result);
}

extern "C" rh_result rh_ep_dispatch_send(rh_ep* handle, const rh_ep_dispatch_in* in, rh_ep_handle** dispatched) {
  const char* operation = "ep_dispatch_send";
  if (dispatched == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: handle is NULL", operation);
  *dispatched = nullptr;
  EpCall call(handle, operation);
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  if (!beginEpOperation(ep, RHW_OP_EP_DISPATCH_SEND, bytesOf(ep, in), true)) return whyBroken(ep->comm);
  int flight = 0;
  return ended(ep, send(ep, in, operation, &flight, dispatched));
}

extern "C" rh_result rh_ep_dispatch_recv(rh_ep_handle* handle, rh_ep_dispatch_out* out) {
  EpCall call(handle, "ep_dispatch_recv");
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  Room room;
  const rh_result result = readRoom(ep, out, "ep_dispatch_recv", &room);
  if (result != RH_OK) return result;
  if (!beginEpOperation(ep, RHW_OP_EP_DISPATCH_RECV, 0, false)) return whyBroken(ep->comm);
  return ended(ep, receive(ep, call.flight(), &room, "ep_dispatch_recv"));
}

extern "C" rh_result rh_ep_dispatch_counts(rh_ep_handle* handle, int32_t* counts, uint64_t* tokens) {
  EpCall call(handle, "ep_dispatch_counts");
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  railhead::EpFlight& f = ep->flights[call.flight()];
  const rh_result result = checkOrder(ep, call.flight(), "ep_dispatch_counts");
  if (result != RH_OK) return result;
  if (!beginEpOperation(ep, RHW_OP_EP_DISPATCH_RECV, 0, false)) return whyBroken(ep->comm);
  const railhead::host::Outcome outcome = railhead::host::epAwaitCounts(ep->flags, ep->team, &f);
  if (outcome.stop != railhead::Stop::kNone) return stopOperation(ep->comm, outcome);
  endEpOperation(ep);
  for (uint32_t e = 0; e < ep->localExperts() && counts != nullptr; e++) {
    counts[e] = static_cast<int32_t>(railhead::host::epRowsOf(ep->team, f, e));
  }
  if (tokens != nullptr) *tokens = railhead::host::epTokensOf(ep->team, f);
  return RH_OK;
}
