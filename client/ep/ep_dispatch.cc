// rh_ep_dispatch, its two phases, and what may come between them.
#include <string.h>

#include "base/abi.h"
#include "base/element_types.h"
#include "base/error.h"
#include "ep/ep.h"

namespace railhead::client {

namespace {

rh_result readIn(const Ep* ep, const rh_ep_dispatch_in* given, const char* operation, EpRequest* request) {
  rh_ep_dispatch_in in;
  const int rank = ep->team().rank;
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: in is NULL", operation, rank);
  const rh_result result = readStruct(operation, "in", given, &in);
  if (result != RH_OK) return result;
  if (in.hidden != ep->config.hidden) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: hidden is %u; the buffer was made for %u", operation, rank, in.hidden, ep->config.hidden);
  }
  if (in.idx_dtype != RH_I32 && in.idx_dtype != RH_I64) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: idx_dtype %s (%d); topk_idx is i32 or i64", operation, rank,
                dtypeName(static_cast<uint32_t>(in.idx_dtype)), in.idx_dtype);
  }
  const bool scaled = ep->buffer.format.in == host::Type::kE4M3 && ep->buffer.format.scale != host::EpScale::kStatic;
  if (in.num_tokens > 0 && (in.x == nullptr || in.topk_idx == nullptr || (scaled && in.x_scales == nullptr))) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %u tokens and %s is NULL", operation, rank, in.num_tokens,
                in.x == nullptr ? "x" : in.topk_idx == nullptr ? "topk_idx" : "x_scales");
  }
  request->send = {nullptr, {in.topk_idx, in.idx_dtype == RH_I64, in.topk_weights, in.num_tokens}, nullptr, static_cast<const char*>(in.x),
                   static_cast<const char*>(in.x_scales)};
  return RH_OK;
}

rh_result checkRoom(const Ep* ep, const rh_ep_dispatch_out* out, const char* operation) {
  const int rank = ep->team().rank;
  if (out->layout > RH_EP_TOKENS) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: layout %u; want 0..%d", operation, rank, out->layout, RH_EP_TOKENS);
  const uint64_t each = out->layout == RH_EP_PADDED ? ep->buffer.localExperts() : 1;
  if (each > 0 && out->capacity > UINT32_MAX / each) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: capacity %llu; a rank has at most %u rows", operation, rank,
                static_cast<unsigned long long>(out->capacity), UINT32_MAX);
  }
  if (out->capacity * each > 0 && out->x == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: x is NULL", operation, rank);
  return RH_OK;
}

// Where a caller wants its rows, and its report.
rh_result readOut(const Ep* ep, const rh_ep_dispatch_out* given, const char* operation, EpRequest* request) {
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: out is NULL", operation, ep->team().rank);
  rh_ep_dispatch_out out;
  rh_result result = readStruct(operation, "out", given, &out);
  if (result == RH_OK) result = readReport(ep, operation, out.report, &request->report);
  if (result == RH_OK) result = checkRoom(ep, &out, operation);
  if (result != RH_OK) return result;
  request->receive = {nullptr, static_cast<EpRowLayout>(out.layout), out.alignment, out.capacity, static_cast<char*>(out.x),
                      static_cast<char*>(out.scales), out.counts, out.offsets, out.weights, out.source_rank, out.source_token, out.topk_idx,
                      out.topk_weights, nullptr, nullptr};
  return RH_OK;
}

// A handle that nobody has: there are more than dispatches can be in flight.
EpDispatched* freeHandle(Ep* ep) {
  for (EpDispatched& d : ep->dispatched) {
    if (!d.open) return &d;
  }
  return nullptr;
}

// Runs a call that receives. Rows and tokens are told where there is too little room as well: the caller makes more of it.
rh_result runWithResults(EpRequest* request, EpCell* cell, rh_ep_dispatch_out* given, const char* operation) {
  request->cell = request->send.cell = request->receive.cell = cell;
  const EpError error = runEp(*request);
  if (given != nullptr && (error == EpError::kNone || error == EpError::kNoRoom)) {
    rh_ep_dispatch_out out;
    memcpy(&out, given, commonBytes(given));
    out.rows = cell->dispatched.rows;
    out.tokens = cell->dispatched.tokens;
    writeStruct(given, out);
  }
  return resultOf(*request, error, operation);
}

// A dispatch, whose handle is open where it is in flight afterwards. out: nullptr = its first phase only.
rh_result start(Ep* ep, const rh_ep_dispatch_in* in, rh_ep_dispatch_out* out, rh_ep_handle** handle, const char* operation) {
  EpRequest request = {out == nullptr ? EpRequest::kDispatchSend : EpRequest::kDispatch, ep, nullptr, {}, {}, {}, {}};
  rh_result result = out == nullptr ? RH_OK : readOut(ep, out, operation, &request);
  if (result == RH_OK) result = readIn(ep, in, operation, &request);
  if (result != RH_OK) return result;
  EpDispatched* d = freeHandle(ep);
  result = runWithResults(&request, &d->cell, out, operation);
  d->open = d->cell.flight >= 0;
  if (d->open) *handle = d->handle;
  return result;
}

rh_result receive(const EpCall& call, rh_ep_dispatch_out* out, const char* operation) {
  EpRequest request = {EpRequest::kDispatchReceive, call.ep(), nullptr, {}, {}, {}, {}};
  const rh_result result = readOut(call.ep(), out, operation, &request);
  return result == RH_OK ? runWithResults(&request, &call.dispatched()->cell, out, operation) : result;
}

rh_result count(const EpCall& call, int32_t* counts, uint64_t* tokens, const char* operation) {
  EpRequest request = {EpRequest::kDispatchCounts, call.ep(), nullptr, {}, {}, {}, {}};
  request.receive.counts = counts;
  request.receive.tokens = tokens;
  return runWithResults(&request, &call.dispatched()->cell, nullptr, operation);
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
  const int rank = call.ep()->team().rank;
  if (out == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: out is NULL", operation, rank);
  return start(call.ep(), in, out, dispatched, operation);
}

extern "C" rh_result rh_ep_dispatch_send(rh_ep* handle, const rh_ep_dispatch_in* in, rh_ep_handle** dispatched) {
  const char* operation = "ep_dispatch_send";
  if (dispatched == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: handle is NULL", operation);
  *dispatched = nullptr;
  EpCall call(handle, operation);
  return call.result() == RH_OK ? start(call.ep(), in, nullptr, dispatched, operation) : call.result();
}

extern "C" rh_result rh_ep_dispatch_recv(rh_ep_handle* handle, rh_ep_dispatch_out* out) {
  EpCall call(handle, "ep_dispatch_recv");
  return call.result() == RH_OK ? receive(call, out, "ep_dispatch_recv") : call.result();
}

extern "C" rh_result rh_ep_dispatch_counts(rh_ep_handle* handle, int32_t* counts, uint64_t* tokens) {
  EpCall call(handle, "ep_dispatch_counts");
  return call.result() == RH_OK ? count(call, counts, tokens, "ep_dispatch_counts") : call.result();
}
