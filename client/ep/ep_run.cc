// Runs the calls of expert parallelism. A device that runs calls later runs this code then, so every decision that depends on the state of
// the buffer is made here or below.
#include "base/error.h"
#include "ep/ep.h"
#include "host/fp_environment.h"

namespace railhead::client {

namespace {

uint64_t bytesOf(const EpRequest& r) {
  const EpTeam& team = r.ep->team();
  switch (r.kind) {
    case EpRequest::kDispatch:
    case EpRequest::kDispatchSend: return uint64_t{r.send.routing.tokens} * team.rowBytes;
    case EpRequest::kCombine:
    case EpRequest::kCombineSend: return r.cell->flight < 0 ? 0 : uint64_t{r.ep->buffer.flightOf(*r.cell)->tokens} * team.combineRowBytes;
    default: return 0;
  }
}

// The call's number among the comm's collectives; 0 = it has none. A dispatch counts as two: itself, and its end by a combine or a release.
// Both are counted when it begins. So ranks that mask another one in between, or end it differently, still agree on how many there were.
//
// A masked rank does not dispatch, so the others do not count dispatches without it: it still participates in the comm's other collectives.
// Ranks that drop a peer by themselves do so in different calls, so no rank counts those dispatches either.
uint64_t collectiveOf(const EpRequest& r) {
  const EpTeam& team = r.ep->team();
  switch (r.kind) {
    case EpRequest::kDispatch:
    case EpRequest::kDispatchSend: return team.dropsDead || team.state()->masked != 0 ? 0 : r.ep->comm->state()->collectives + 1;
    case EpRequest::kCombine:
    case EpRequest::kCombineSend: return r.cell->flight < 0 || r.dispatched->collective == 0 ? 0 : r.dispatched->collective + 1;
    default: return 0;
  }
}

EpReport* reportTo(const EpRequest& r) { return r.kind >= EpRequest::kCombine ? &r.cell->combined : &r.cell->dispatched; }

EpError refuse(EpReport* report, EpError why) {
  *report = {};
  return report->error = why;
}

// The sending phase of a dispatch.
EpError send(const EpRequest& r) {
  const uint64_t collective = collectiveOf(r);
  const EpError error = host::epSend(&r.ep->buffer, r.send);
  if (error != EpError::kNone) return error;
  r.dispatched->collective = collective;
  if (collective != 0) r.ep->comm->state()->collectives += 2;
  return error;
}

EpError dispatch(const EpRequest& r) {
  host::EpBuffer* buffer = &r.ep->buffer;
  if (buffer->earliest(EpPhase::kSent) != nullptr) return refuse(&r.cell->dispatched, EpError::kOtherNotReceived);
  const EpError error = send(r);
  return error == EpError::kNone ? host::epReceive(buffer, r.receive) : error;
}

EpError counts(const EpRequest& r) {
  const host::EpBuffer& b = r.ep->buffer;
  const EpError error = host::epAwaitCounts(&r.ep->buffer, r.cell);
  if (error != EpError::kNone) return error;
  const EpFlight& f = *r.ep->buffer.flightOf(*r.cell);
  for (uint32_t e = 0; e < b.localExperts() && r.receive.counts != nullptr; e++) r.receive.counts[e] = static_cast<int32_t>(b.rowsOf(f, e));
  if (r.receive.tokens != nullptr) *r.receive.tokens = b.tokensOf(f);
  return EpError::kNone;
}

EpError combine(const EpRequest& r) {
  host::EpBuffer* buffer = &r.ep->buffer;
  const EpFlight* f = buffer->flightOf(*r.cell);
  // Check before anything is sent: an earlier dispatch whose combine has not ended would block the second phase.
  if (f != nullptr && epIsNextToCombine(*f, EpPhase::kAdding) != EpError::kNone) return refuse(&r.cell->combined, EpError::kEarlierToCombine);
  const EpError error = host::epCombineSend(buffer, r.combine);
  return error == EpError::kNone ? host::epCombineReceive(buffer, r.cell) : error;
}

EpError run(const EpRequest& r) {
  const host::StandardFp standard;
  host::EpBuffer* buffer = &r.ep->buffer;
  switch (r.kind) {
    case EpRequest::kMakePlan: return host::epMakePlan(*buffer, r.send.routing, r.plan, reportTo(r));
    case EpRequest::kDispatch: return dispatch(r);
    case EpRequest::kDispatchSend: return send(r);
    case EpRequest::kDispatchCounts: return counts(r);
    case EpRequest::kDispatchReceive: return host::epReceive(buffer, r.receive);
    case EpRequest::kCombine: return combine(r);
    case EpRequest::kCombineSend: return host::epCombineSend(buffer, r.combine);
    case EpRequest::kCombineReceive: return host::epCombineReceive(buffer, r.cell);
    case EpRequest::kRelease: return host::epRelease(buffer, r.cell, isBroken(r.ep));
  }
  return EpError::kNone;
}

// A call that counts as an operation of the comm.
EpError runOperation(const EpRequest& r) {
  Comm* comm = r.ep->comm;
  if (isBroken(r.ep)) return refuse(reportTo(r), EpError::kStopped);
  enterOperation(comm, operationOf(r), bytesOf(r), kNoCallDetails, collectiveOf(r));
  const EpError error = run(r);
  if (error == EpError::kStopped) {
    const EpReport& report = reportOf(r);
    stopOperation(comm, {report.stop, report.missing, {}, false});
  } else {
    leaveOperation(comm);
  }
  return error;
}

}  // namespace

EpError runEp(const EpRequest& r) {
  const bool isOperation = r.kind != EpRequest::kRelease && r.kind != EpRequest::kMakePlan;
  const EpError error = isOperation ? runOperation(r) : run(r);
  writeReport(r.ep, r.kind, reportOf(r), r.report);
  return error;
}

uint32_t operationOf(const EpRequest& r) {
  switch (r.kind) {
    case EpRequest::kDispatch: return RHW_OP_EP_DISPATCH;
    case EpRequest::kDispatchSend: return RHW_OP_EP_DISPATCH_SEND;
    case EpRequest::kCombine: return RHW_OP_EP_COMBINE;
    case EpRequest::kCombineSend: return RHW_OP_EP_COMBINE_SEND;
    case EpRequest::kCombineReceive: return RHW_OP_EP_COMBINE_RECV;
    default: return RHW_OP_EP_DISPATCH_RECV;
  }
}

rh_result submitEp(const EpRequest& r, void* stream) {
  if (r.ep->runsLater()) return queueEp(r, stream);
  if (runEp(r) == EpError::kNone) return RH_OK;
  char text[640];
  const rh_result result = resultOf(r.ep, r.kind, reportOf(r), text, sizeof text);
  return reportOf(r).error == EpError::kStopped ? fail(result, "%s", text) : fail(result, "%s: %s", r.operation, text);
}

}  // namespace railhead::client
