// rh_ep_combine and its two phases; rh_ep_release.
#include "base/abi.h"
#include "base/error.h"
#include "collectives/operation.h"
#include "ep/ep.h"

namespace railhead::client {

namespace {

rh_result readArgs(const Ep* ep, int i, const rh_ep_combine_args* given, const char* operation, rh_ep_combine_args* a) {
  const int rank = ep->team.rank;
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: args is NULL", operation, rank);
  const rh_result result = readStruct(operation, "args", given, a);
  if (result != RH_OK) return result;
  if (!isSumType(a->y_dtype) || !isSumType(a->out_dtype)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: y_dtype %s, out_dtype %s; each is f32, bf16 or f16", operation, rank,
                dtypeName(static_cast<uint32_t>(a->y_dtype)), dtypeName(static_cast<uint32_t>(a->out_dtype)));
  }
  const EpFlight& f = ep->flights[i];
  const bool hasRows = ep->hasRows[i], hasTokens = f.tokens + ep->excess[i] > 0;
  if ((hasRows && a->y == nullptr) || (hasTokens && a->out == nullptr)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %s is NULL", operation, rank, hasRows && a->y == nullptr ? "y" : "out");
  }
  return RH_OK;
}

// No earlier dispatch has yet to come to where this one is, or is to go.
rh_result checkOrder(const Ep* ep, int flight, EpPhase wanted, const char* operation) {
  const int other = 1 - flight;
  const bool older = static_cast<int32_t>(ep->flights[other].number - ep->flights[flight].number) < 0;
  const EpPhase phase = ep->phases[other];
  if (older && (phase == wanted || phase == EpPhase::kSent)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: dispatches are combined in the order in which they were sent; there is an earlier one: "
                "combine or release it first", operation, ep->team.rank);
  }
  return RH_OK;
}

// Received, and no earlier dispatch waits to be combined; or adding, and no earlier one is.
rh_result checkPhase(const Ep* ep, int flight, EpPhase wanted, const char* operation) {
  if (ep->phases[flight] != wanted) {
    const char* what = ep->phases[flight] == EpPhase::kSent ? "has not been received" : wanted == EpPhase::kAdding ? "has no combine under way"
                                                                                                                    : "is being combined";
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: this dispatch %s", operation, ep->team.rank, what);
  }
  return checkOrder(ep, flight, wanted, operation);
}

rh_result send(Ep* ep, int i, const rh_ep_combine_args* args, const char* operation) {
  rh_ep_combine_args a;
  rh_result result = checkPhase(ep, i, EpPhase::kReceived, operation);
  if (result == RH_OK) result = readArgs(ep, i, args, operation, &a);
  if (result != RH_OK) return result;
  ep->sums[i] = {&ep->comm->kernels->rows, &ep->format, static_cast<host::Type>(a.y_dtype), static_cast<host::Type>(a.out_dtype),
                 a.weighted != 0 || ep->perToken[i], ep->config.lost_weights == RH_EP_LOST_RENORMALIZE, static_cast<const char*>(a.y),
                 static_cast<const char*>(a.add), static_cast<char*>(a.out), ep->scratch};
  ep->phases[i] = EpPhase::kAdding;
  ep->team.state()->combines++;
  if (countsAsCollective(ep)) ep->comm->collectives++;
  const host::Outcome outcome = host::epCombineSend(ep->flags, ep->team, &ep->flights[i], ep->sums[i]);
  return outcome.stop == Stop::kNone ? RH_OK : stopOperation(ep->comm, outcome);
}

// report: the caller's; nullptr = not wanted. copy: the library's, which was read from it.
rh_result receive(Ep* ep, int i, rh_ep_report* report, rh_ep_report* copy, const char* operation) {
  const rh_result result = checkPhase(ep, i, EpPhase::kAdding, operation);
  if (result != RH_OK) return result;
  EpFlight* f = &ep->flights[i];
  const host::Outcome outcome = host::epCombineReceive(ep->flags, ep->team, f, ep->sums[i]);
  if (outcome.stop != Stop::kNone) return stopOperation(ep->comm, outcome);
  host::epFinishWithout(ep->sums[i], f->tokens, f->tokens + ep->excess[i]);
  if (report != nullptr) {
    reportFlight(ep, i, false, copy);
    writeStruct(report, *copy);
  }
  addToCounter(&ep->team.counters->lostCopies, f->lostCopies);
  addToCounter(&ep->team.counters->combines, 1);
  endFlight(ep, i);
  return RH_OK;
}

uint64_t bytesOf(const Ep* ep, int flight) { return uint64_t{ep->flights[flight].tokens} * ep->team.combineRowBytes; }

rh_result ended(Ep* ep, rh_result result) {
  if (result == RH_OK || result == RH_ERR_INVALID_ARGUMENT) endEpOperation(ep);
  return result;
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_ep_combine(rh_ep_handle* handle, const rh_ep_combine_args* args, rh_ep_report* report) {
  EpCall call(handle, "ep_combine");
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  rh_ep_report copy;
  rh_result result = readReport(ep, "ep_combine", report, &copy);  // before anything is sent
  if (result != RH_OK) return result;
  if (!beginEpOperation(ep, RHW_OP_EP_COMBINE, bytesOf(ep, call.flight()), true)) return whyBroken(ep->comm);
  result = checkOrder(ep, call.flight(), EpPhase::kAdding, "ep_combine");
  if (result == RH_OK) result = send(ep, call.flight(), args, "ep_combine");
  if (result == RH_OK) result = receive(ep, call.flight(), report, &copy, "ep_combine");
  return ended(ep, result);
}

extern "C" rh_result rh_ep_combine_send(rh_ep_handle* handle, const rh_ep_combine_args* args) {
  EpCall call(handle, "ep_combine_send");
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  if (!beginEpOperation(ep, RHW_OP_EP_COMBINE_SEND, bytesOf(ep, call.flight()), true)) return whyBroken(ep->comm);
  return ended(ep, send(ep, call.flight(), args, "ep_combine_send"));
}

extern "C" rh_result rh_ep_combine_recv(rh_ep_handle* handle, rh_ep_report* report) {
  EpCall call(handle, "ep_combine_recv");
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  rh_ep_report copy;
  const rh_result result = readReport(ep, "ep_combine_recv", report, &copy);
  if (result != RH_OK) return result;
  if (!beginEpOperation(ep, RHW_OP_EP_COMBINE_RECV, 0, false)) return whyBroken(ep->comm);
  return ended(ep, receive(ep, call.flight(), report, &copy, "ep_combine_recv"));
}

extern "C" rh_result rh_ep_release(rh_ep_handle* handle) {
  EpCall call(handle, "ep_release");
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  if (ep->phases[call.flight()] != EpPhase::kReceived && !isBroken(ep)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "ep_release: rank %d: this dispatch %s", ep->team.rank,
                ep->phases[call.flight()] == EpPhase::kSent ? "has not been received; receive it first, the other ranks count on it"
                                                            : "is being combined; end that with ep_combine_recv");
  }
  if (ep->phases[call.flight()] == EpPhase::kReceived) addToCounter(&ep->team.counters->lostCopies, ep->lostCopies[call.flight()]);
  endFlight(ep, call.flight());
  return RH_OK;
}
