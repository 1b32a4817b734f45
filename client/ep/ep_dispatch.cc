// rh_ep_dispatch, its two phases, and the calls between them.
#include <string.h>

#include "base/abi.h"
#include "base/element_types.h"
#include "base/error.h"
#include "ep/ep.h"

namespace railhead::client {

rh_result readRouting(const Ep* ep, const char* operation, const rh_ep_dispatch_in& in, EpRouting* routing) {
  const int rank = ep->rankNumber();
  if (in.hidden != ep->config.hidden) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: hidden is %u; the buffer was made for %u", operation, rank, in.hidden, ep->config.hidden);
  }
  if (in.idx_dtype != RH_I32 && in.idx_dtype != RH_I64) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: idx_dtype %s (%d); topk_idx is i32 or i64", operation, rank,
                dtypeName(static_cast<uint32_t>(in.idx_dtype)), in.idx_dtype);
  }
  if (in.num_tokens > 0 && in.topk_idx == nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %u tokens and topk_idx is NULL", operation, rank, in.num_tokens);
  }
  *routing = {in.topk_idx, in.idx_dtype == RH_I64, in.topk_weights, in.num_tokens};
  return RH_OK;
}

namespace {

bool belongsTo(const Ep* ep, const EpCached* cached) {
  for (const EpCached* c = ep->routings; c != nullptr; c = c->next) {
    if (c == cached) return true;
  }
  return false;
}

// The routing of the tokens: a cached one, or the caller's indices.
rh_result readRoute(const Ep* ep, const rh_ep_dispatch_in& in, EpRequest* request) {
  if (in.routing == nullptr) return readRouting(ep, request->operation, in, &request->send.routing);
  const int rank = ep->rankNumber();
  EpRoutings::Shared ref(epRoutings(), in.routing);
  EpCached* cached = ref.get();
  if (cached == nullptr || !belongsTo(ep, cached)) {
    return fail(RH_ERR_INVALID_HANDLE, "%s: rank %d: not a live routing of this buffer", request->operation, rank);
  }
  if (in.topk_idx != nullptr || in.topk_weights != nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: a routing is given and %s as well; one of them", request->operation, rank,
                in.topk_idx != nullptr ? "topk_idx" : "topk_weights");
  }
  if (in.num_tokens != cached->tokens) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %u tokens; the routing was made of %u", request->operation, rank, in.num_tokens,
                cached->tokens);
  }
  request->send.routing.tokens = in.num_tokens;
  request->send.cached = &cached->plan;
  request->cached = cached;
  return RH_OK;
}

rh_result readIn(const Ep* ep, const rh_ep_dispatch_in* given, EpRequest* request) {
  const int rank = ep->rankNumber();
  rh_ep_dispatch_in in;
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: in is NULL", request->operation, rank);
  rh_result result = readStruct(request->operation, "in", given, &in);
  if (result == RH_OK) result = readRoute(ep, in, request);
  if (result != RH_OK) return result;
  const bool scaled = ep->buffer.format.in == host::Type::kE4M3 && ep->buffer.format.scale != host::EpScale::kStatic;
  if (in.num_tokens > 0 && (in.x == nullptr || (scaled && in.x_scales == nullptr))) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %u tokens and %s is NULL", request->operation, rank, in.num_tokens,
                in.x == nullptr ? "x" : "x_scales");
  }
  request->send.x = static_cast<const char*>(in.x);
  request->send.scales = static_cast<const char*>(in.x_scales);
  return RH_OK;
}

rh_result checkRoom(const Ep* ep, const rh_ep_dispatch_out* out, const char* operation) {
  const int rank = ep->rankNumber();
  if (out->layout > RH_EP_TOKENS) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: layout %u; want 0..%d", operation, rank, out->layout, RH_EP_TOKENS);
  const uint64_t each = out->layout == RH_EP_PADDED ? ep->buffer.localExperts() : 1;
  if (each > 0 && out->capacity > UINT32_MAX / each) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: capacity %llu; a rank has at most %u rows", operation, rank,
                static_cast<unsigned long long>(out->capacity), UINT32_MAX);
  }
  if (out->capacity * each > 0 && out->x == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: x is NULL", operation, rank);
  return RH_OK;
}

// Where the caller wants the rows and the report.
rh_result readOut(const Ep* ep, const rh_ep_dispatch_out* given, EpRequest* request) {
  const char* operation = request->operation;
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: out is NULL", operation, ep->rankNumber());
  rh_ep_dispatch_out out;
  rh_result result = readStruct(operation, "out", given, &out);
  if (result == RH_OK) result = readReport(ep, operation, out.report, &request->report);
  if (result == RH_OK) result = checkRoom(ep, &out, operation);
  if (result != RH_OK) return result;
  request->receive = {nullptr, static_cast<EpRowLayout>(out.layout), out.alignment, out.capacity, static_cast<char*>(out.x),
                      static_cast<char*>(out.scales), out.counts, out.offsets, out.weights, out.source_rank, out.source_token, out.topk_idx,
                      out.topk_weights, out.rows_ptr, out.tokens_ptr};
  return RH_OK;
}

// A free handle.
rh_result takeHandle(Ep* ep, const char* operation, const void* stream, EpDispatched** out) {
  *out = nullptr;
  const bool captured = isCaptured(ep, stream);
  // In turn: the reports of a dispatch that has ended lie in its handle's cell until that is used again (Experts).
  for (int i = 1; i <= kEpHandles && !captured; i++) {
    const uint32_t next = (ep->lastHandle + static_cast<uint32_t>(i)) % kEpHandles;
    if (ep->dispatched[next].open) continue;
    ep->lastHandle = next;
    *out = &ep->dispatched[next];
    return RH_OK;
  }
  if (captured) return graphHandle(ep, operation, out);
  return fail(RH_ERR_LIMIT, "%s: rank %d: %d dispatches have been neither combined nor released; do that with the earliest", operation,
              ep->rankNumber(), kEpHandles);
}

// Passes a receiving call to the device. After it has run, rows and tokens are set even if the capacity was too small, so that the
// caller can allocate more.
rh_result submit(EpRequest* request, EpDispatched* d, rh_ep_dispatch_out* given, void* stream) {
  request->dispatched = d;
  request->cell = request->send.cell = request->receive.cell = d->cell;
  const rh_result result = submitEp(*request, stream);
  if (given == nullptr || request->ep->runsLater()) return result;
  const EpReport& report = d->cell->dispatched;
  if (report.error != EpError::kNone && report.error != EpError::kNoRoom) return result;
  rh_ep_dispatch_out out;
  memcpy(&out, given, commonBytes(given));
  out.rows = report.rows;
  out.tokens = report.tokens;
  writeStruct(given, out);
  return result;
}

// A dispatch. Its handle is open afterwards if it is in flight, or may be later.
rh_result start(const EpCall& call, EpRequest* request, const rh_ep_dispatch_in* in, rh_ep_dispatch_out* out, rh_ep_handle** handle,
                void* stream) {
  Ep* ep = request->ep = call.ep();
  EpDispatched* d = nullptr;
  rh_result result = request->kind == EpRequest::kDispatch ? readOut(ep, out, request) : RH_OK;
  if (result == RH_OK) result = readIn(ep, in, request);
  if (result == RH_OK) result = takeHandle(ep, request->operation, stream, &d);
  if (result != RH_OK) return result;
  result = submit(request, d, out, stream);
  if (ep->runsLater() ? result == RH_OK : d->cell->flight >= 0) {
    // That of a captured dispatch is open already, and the last graph with a call on it may have ended by now, on another thread.
    if (!d->ofGraph) d->open = true;
    *handle = d->handle;
  } else {
    returnHandle(d);
  }
  return result;
}

rh_result receive(const EpCall& call, rh_ep_dispatch_out* out, const char* operation, void* stream) {
  EpRequest request = {};
  request.kind = EpRequest::kDispatchReceive;
  request.operation = operation;
  request.ep = call.ep();
  const rh_result result = readOut(call.ep(), out, &request);
  return result == RH_OK ? submit(&request, call.dispatched(), out, stream) : result;
}

rh_result count(const EpCall& call, int32_t* counts, uint64_t* tokens, const char* operation, void* stream) {
  EpRequest request = {};
  request.kind = EpRequest::kDispatchCounts;
  request.operation = operation;
  request.ep = call.ep();
  request.receive.counts = counts;
  request.receive.tokens = tokens;
  return submit(&request, call.dispatched(), nullptr, stream);
}

rh_result dispatch(rh_ep* handle, EpRequest::Kind kind, const char* operation, const rh_ep_dispatch_in* in, rh_ep_dispatch_out* out,
                   rh_ep_handle** dispatched, void* stream) {
  if (dispatched == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: handle is NULL", operation);
  *dispatched = nullptr;
  EpCall call(handle, operation);
  EpRequest request = {};
  request.kind = kind;
  request.operation = operation;
  return call.onStream(stream) == RH_OK ? start(call, &request, in, out, dispatched, stream) : call.result();
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_ep_dispatch(rh_ep* handle, const rh_ep_dispatch_in* in, rh_ep_dispatch_out* out, rh_ep_handle** dispatched,
                                    void* stream) {
  return dispatch(handle, EpRequest::kDispatch, "ep_dispatch", in, out, dispatched, stream);
}

extern "C" rh_result rh_ep_dispatch_send(rh_ep* handle, const rh_ep_dispatch_in* in, rh_ep_handle** dispatched, void* stream) {
  return dispatch(handle, EpRequest::kDispatchSend, "ep_dispatch_send", in, nullptr, dispatched, stream);
}

extern "C" rh_result rh_ep_dispatch_recv(rh_ep_handle* handle, rh_ep_dispatch_out* out, void* stream) {
  EpCall call(handle, "ep_dispatch_recv");
  return call.onStream(stream) == RH_OK ? receive(call, out, "ep_dispatch_recv", stream) : call.result();
}

extern "C" rh_result rh_ep_dispatch_counts(rh_ep_handle* handle, int32_t* counts, uint64_t* tokens, void* stream) {
  EpCall call(handle, "ep_dispatch_counts");
  return call.onStream(stream) == RH_OK ? count(call, counts, tokens, "ep_dispatch_counts", stream) : call.result();
}
