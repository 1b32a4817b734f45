// Runs the calls of expert parallelism. A device that runs calls later runs this code then, so every decision that depends on the state of
// the buffer is made here or below.
#include "base/error.h"
#include "ep/ep.h"

namespace railhead::client {

namespace {

// How a call counts as an operation of the comm: its number, and whether it begins a dispatch or a combine. A dispatch or combine that has
// begun is one of the comm's collectives.
struct EpOperation {
  uint32_t op;
  bool isCollective;
};

EpOperation asOperation(EpRequest::Kind kind) {
  switch (kind) {
    case EpRequest::kDispatch: return {RHW_OP_EP_DISPATCH, true};
    case EpRequest::kDispatchSend: return {RHW_OP_EP_DISPATCH_SEND, true};
    case EpRequest::kCombine: return {RHW_OP_EP_COMBINE, true};
    case EpRequest::kCombineSend: return {RHW_OP_EP_COMBINE_SEND, true};
    case EpRequest::kCombineReceive: return {RHW_OP_EP_COMBINE_RECV, false};
    default: return {RHW_OP_EP_DISPATCH_RECV, false};
  }
}

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

// A masked rank does not make these calls, so the others do not count them: the rank still participates in the comm's other collectives.
// Ranks that drop a peer by themselves do so in different calls, so no rank counts those calls either.
bool countsAsCollective(const Ep* ep) { return !ep->team().dropsDead && ep->team().state()->masked == 0; }

EpReport* reportTo(const EpRequest& r) { return r.kind >= EpRequest::kCombine ? &r.cell->combined : &r.cell->dispatched; }

EpError refuse(EpReport* report, EpError why) {
  *report = {};
  return report->error = why;
}

// The sending phase. It is one of the comm's collectives, unless it was refused.
template <class Phase>
EpError begin(Ep* ep, Phase phase) {
  const bool counts = countsAsCollective(ep);
  const EpError error = phase();
  if (counts && (error == EpError::kNone || error == EpError::kStopped)) ep->comm->state()->collectives++;
  return error;
}

EpError dispatch(const EpRequest& r) {
  host::EpBuffer* buffer = &r.ep->buffer;
  if (buffer->earliest(EpPhase::kSent) != nullptr) return refuse(&r.cell->dispatched, EpError::kOtherNotReceived);
  const EpError error = begin(r.ep, [&] { return host::epSend(buffer, r.send); });
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
  const EpError error = begin(r.ep, [&] { return host::epCombineSend(buffer, r.combine); });
  return error == EpError::kNone ? host::epCombineReceive(buffer, r.cell) : error;
}

EpError run(const EpRequest& r) {
  host::EpBuffer* buffer = &r.ep->buffer;
  switch (r.kind) {
    case EpRequest::kMakePlan: return host::epMakePlan(*buffer, r.send.routing, r.plan, reportTo(r));
    case EpRequest::kDispatch: return dispatch(r);
    case EpRequest::kDispatchSend: return begin(r.ep, [&] { return host::epSend(buffer, r.send); });
    case EpRequest::kDispatchCounts: return counts(r);
    case EpRequest::kDispatchReceive: return host::epReceive(buffer, r.receive);
    case EpRequest::kCombine: return combine(r);
    case EpRequest::kCombineSend: return begin(r.ep, [&] { return host::epCombineSend(buffer, r.combine); });
    case EpRequest::kCombineReceive: return host::epCombineReceive(buffer, r.cell);
    case EpRequest::kRelease: return host::epRelease(buffer, r.cell, isBroken(r.ep));
  }
  return EpError::kNone;
}

// A call that counts as an operation of the comm.
EpError runOperation(const EpRequest& r) {
  Comm* comm = r.ep->comm;
  if (isBroken(r.ep)) return refuse(reportTo(r), EpError::kStopped);
  const EpOperation o = asOperation(r.kind);
  enterOperation(comm, o.op, bytesOf(r), kNoCallDetails, o.isCollective && countsAsCollective(r.ep) ? comm->state()->collectives + 1 : 0);
  const EpError error = run(r);
  if (error == EpError::kStopped) {
    const EpReport& report = reportOf(r);
    stopOperation(comm, {report.stop, report.missing, {}});
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

uint32_t operationOf(const EpRequest& r) { return asOperation(r.kind).op; }

rh_result submitEp(const EpRequest& r, void* stream) {
  if (r.ep->runsLater()) return queueEp(r, stream);
  if (runEp(r) == EpError::kNone) return RH_OK;
  char text[640];
  const rh_result result = resultOf(r.ep, r.kind, reportOf(r), text, sizeof text);
  return reportOf(r).error == EpError::kStopped ? fail(result, "%s", text) : fail(result, "%s: %s", r.operation, text);
}

}  // namespace railhead::client
