// The outcome of a call of expert parallelism, as numbers and as a sentence.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <initializer_list>

#include "base/abi.h"
#include "base/error.h"
#include "comm/rank_list.h"
#include "ep/ep.h"

namespace railhead::client {

namespace {

// Appends "; text" (or "text", if out is empty) to a message, which may be full.
void appendSentence(char* out, size_t size, const char* text) {
  size_t used = strlen(out);
  for (const char* part : {used == 0 ? "" : "; ", text}) {
    for (; *part != 0 && used + 1 < size; part++) out[used++] = *part;
  }
  out[used] = 0;
}

void describeEntry(char* out, size_t size, const Ep* ep, const EpProblem& p, const char* what) {
  char text[256];
  if (p.count == 0) return;
  snprintf(text, sizeof text, "rank %d: token %u: topk_idx[%u] is %lld, %s", ep->rankNumber(), p.token, p.k, static_cast<long long>(p.value), what);
  appendSentence(out, size, text);
}

// What is wrong with a dispatch's input, the first of each kind, as one sentence; "" = nothing.
void describeProblems(const Ep* ep, const EpProblems& p, char* out, size_t size) {
  char text[160];
  out[0] = 0;
  if (p.excessTokens.count != 0) {
    snprintf(text, sizeof text, "rank %d: %lld tokens, max_tokens_per_rank is %u", ep->rankNumber(),
             static_cast<long long>(p.excessTokens.value), ep->team().maxTokens);
    appendSentence(out, size, text);
  }
  snprintf(text, sizeof text, "neither -1 nor in 0..%u", ep->team().logical - 1);
  describeEntry(out, size, ep, p.invalidIds, text);
  describeEntry(out, size, ep, p.duplicateIds, "which the token has named before");
  if (p.nonFinite.count != 0) {
    constexpr const char* kValues[] = {"NaN", "+infinity", "-infinity"};
    const auto what = static_cast<host::EpNonFinite>(p.nonFinite.value);
    if (what == host::EpNonFinite::kScale) {
      snprintf(text, sizeof text, "rank %d: token %u: a scale is not finite", ep->rankNumber(), p.nonFinite.token);
    } else {
      snprintf(text, sizeof text, "rank %d: token %u: element %u is %s, which fp8 cannot scale", ep->rankNumber(), p.nonFinite.token,
               p.nonFinite.k, kValues[p.nonFinite.value]);
    }
    appendSentence(out, size, text);
  }
}

// Local experts (or all rows together) whose rows exceed the capacity.
void describeRoom(const Ep* ep, const EpReport& r, char* out, size_t size) {
  const auto wanted = static_cast<unsigned long long>(r.wanted), capacity = static_cast<unsigned long long>(r.capacity);
  if (r.wantedBy == kNoExpert) {
    snprintf(out, size, "rank %d: %llu rows, capacity is %llu", ep->rankNumber(), wanted, capacity);
  } else {
    snprintf(out, size, "rank %d: %llu rows for local expert %u, capacity is %llu", ep->rankNumber(), wanted, r.wantedBy, capacity);
  }
}

// Errors of the order of calls.
const char* misuseOf(EpRequest::Kind kind, EpError error) {
  const bool releases = kind == EpRequest::kRelease;
  switch (error) {
    case EpError::kStillInFlight: return "this handle's dispatch is still in flight; combine or release it first";
    case EpError::kOtherNotReceived: return "an earlier dispatch has not been received; receive it first";
    case EpError::kNotInFlight: return "this handle has no dispatch in flight: it was refused, or has ended";
    case EpError::kReceivedBefore: return "this dispatch has been received already";
    case EpError::kEarlierToReceive: return "dispatches are received in the order in which they were sent; there is an earlier one";
    case EpError::kNotReceived:
      return releases ? "this dispatch has not been received; receive it first, the other ranks count on it" : "this dispatch has not been received";
    case EpError::kNoCombine: return "this dispatch has no combine under way";
    case EpError::kBeingCombined:
      return releases ? "this dispatch is being combined; end that with ep_combine_recv" : "this dispatch is being combined";
    case EpError::kEarlierToCombine:
      return "dispatches are combined in the order in which they were sent; there is an earlier one: combine or release it first";
    case EpError::kNoY: return "y is NULL";
    default: return "out is NULL";
  }
}

// All fields but the inputs. Several calls that run later may share one report, so no call writes what another reads when it is made.
void writeResults(rh_ep_report* given, const rh_ep_report& results) {
  constexpr size_t kInputs = offsetof(rh_ep_report, lost_ranks), kBehind = offsetof(rh_ep_report, lost_count);
  auto* to = reinterpret_cast<char*>(given);
  const auto* from = reinterpret_cast<const char*>(&results);
  memcpy(to + sizeof(StructHeader), from + sizeof(StructHeader), kInputs - sizeof(StructHeader));
  memcpy(to + kBehind, from + kBehind, commonBytes(given) - kBehind);
}

// Whether a kernel of the comm has given up. That the comm was finalized is no such reason.
bool gaveUp(const Comm* comm) { return comm->device->stopped != nullptr && comm->device->stopped(comm).op != RHW_OP_NONE; }

// Token copies that were lost or left out.
void describeLosses(const Ep* ep, const EpReport& report, char* out, size_t size) {
  describeProblems(ep, report.problems, out, size);
  char text[kRanksText + 96];
  if (report.lostRanks != 0) {
    char ranks[kRanksText];
    formatRanks(ep->comm, LocalRankSet{report.lostRanks}, ranks, sizeof ranks);
    snprintf(text, sizeof text, "rank %d: %llu token copies lost with rank %s", ep->rankNumber(),
             static_cast<unsigned long long>(report.lostCopies), ranks);
    appendSentence(out, size, text);
  }
  if (report.overCapacity != 0) {
    describeRoom(ep, report, text, sizeof text);
    appendSentence(out, size, text);
  }
}

}  // namespace

void awaitCause(const Comm* comm) {
  constexpr int kTurns = 2000;  // of 1 ms: the thread may have to wait for a processor
  for (int i = 0; i < kTurns && __atomic_load_n(comm->team.abortWord, __ATOMIC_ACQUIRE) == 0; i++) {
    const timespec turn = {0, 1000000};
    nanosleep(&turn, nullptr);
  }
}

rh_result resultOf(const Ep* ep, EpRequest::Kind kind, const EpReport& report, char* text, size_t size) {
  const int rank = ep->rankNumber();
  text[0] = 0;
  switch (report.error) {
    case EpError::kNone: return RH_OK;
    case EpError::kStopped: {
      const rh_result cause = describe(ep->comm, text, size);
      if (cause != RH_OK) return cause;
      if (gaveUp(ep->comm)) {
        snprintf(text, size, "rank %d: a kernel gave up, and the group does not know why yet; rh_comm_get_status will say it", rank);
      } else {
        snprintf(text, size, "rank %d: the comm has been finalized: nothing was done", rank);  // a replay
      }
      return RH_ERR_ABORTED;
    }
    case EpError::kTooManyInFlight:
      snprintf(text, size, "rank %d: %d dispatches are in flight, the most there can be; combine or release the earliest", rank, kEpInFlight);
      return RH_ERR_LIMIT;
    case EpError::kNoRoom:
      describeRoom(ep, report, text, size);
      appendSentence(text, size, "no row was received: receive again with more room");
      return RH_ERR_LIMIT;
    case EpError::kInvalidInput:
      describeProblems(ep, report.problems, text, size);
      appendSentence(text, size, kind == EpRequest::kMakePlan ? "there is no routing" : "nothing was sent");
      appendSentence(text, size, "on_invalid = RH_EP_INVALID_DROP would leave it out");
      return RH_ERR_INVALID_ARGUMENT;
    default: snprintf(text, size, "rank %d: %s", rank, misuseOf(kind, report.error)); return RH_ERR_INVALID_ARGUMENT;
  }
}

rh_result readReport(const Ep* ep, const char* operation, rh_ep_report* given, EpReportTo* to) {
  *to = {given, nullptr, 0};
  if (given == nullptr) return RH_OK;
  const rh_result result = checkInput(operation, "report", given, kindOf(given), sizeof(rh_ep_report));
  if (result != RH_OK) return result;
  to->lostRanks = given->lost_ranks;
  to->lostCapacity = given->lost_capacity;
  return checkRankList(ep->comm, operation, "lost_ranks", to->lostRanks, to->lostCapacity);
}

void writeReport(const Ep* ep, EpRequest::Kind kind, const EpReport& from, const EpReportTo& to) {
  if (to.given == nullptr) return;
  rh_ep_report report = RH_EP_REPORT_INIT;
  report.result = resultOf(ep, kind, from, report.message, sizeof report.message);
  report.dispatch = from.number;
  report.rows = from.rows;
  report.tokens = from.tokens;
  report.lost_count = listRanks(ep->comm, LocalRankSet{from.lostRanks}, to.lostRanks, to.lostCapacity);
  report.lost_copies = from.lostCopies;
  report.invalid_ids = from.problems.invalidIds.count;
  report.duplicate_ids = from.problems.duplicateIds.count;
  report.excess_tokens = from.problems.excessTokens.count;
  report.non_finite = from.problems.nonFinite.count;
  report.over_capacity = from.overCapacity;
  if (report.result == RH_OK) describeLosses(ep, from, report.message, sizeof report.message);
  writeResults(to.given, report);
}

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_ep_get_report(rh_ep* handle, rh_ep_handle* dispatch, rh_ep_report* dispatched, rh_ep_report* combined) {
  const char* operation = "ep_get_report";
  EpCall call(handle, operation);
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  EpReportTo first, second;
  rh_result result = readReport(ep, operation, dispatched, &first);
  if (result == RH_OK) result = readReport(ep, operation, combined, &second);
  if (result == RH_OK) result = awaitQuiet(ep, operation);
  if (result != RH_OK) return result;
  railhead::EpEnded reports = ep->buffer.ended;
  if (dispatch != nullptr) {
    const EpDispatched* d = findDispatched(ep, dispatch);
    if (d == nullptr) return fail(RH_ERR_INVALID_HANDLE, "%s: not a dispatch of this buffer: was it combined or released?", operation);
    reports = {d->cell->dispatched, d->cell->combined};
    // Of an earlier dispatch with the same handle or cell. A replay that was refused has no number; then it may be that of the replay before.
    const uint64_t number = reports.combined.number;
    if (number != 0 && number != reports.dispatched.number && (reports.dispatched.number != 0 || !d->ofGraph)) reports.combined = {};
  } else if (ep->experts() != nullptr) {
    result = ep->experts()->ended(ep, &reports);
  }
  if (result != RH_OK) return result;
  if (ep->experts() != nullptr && gaveUp(ep->comm)) {  // a call that a kernel gave up has written no report
    awaitCause(ep->comm);
    reports.dispatched.error = reports.combined.error = railhead::EpError::kStopped;
  }
  writeReport(ep, EpRequest::kDispatch, reports.dispatched, first);
  writeReport(ep, EpRequest::kCombine, reports.combined, second);
  return RH_OK;
}
