// Cached routing: created once, used by any number of dispatches.
#include <stdlib.h>

#include "base/abi.h"
#include "base/error.h"
#include "ep/ep.h"

namespace railhead::client {

namespace {

rh_result readIn(const Ep* ep, const rh_ep_dispatch_in* given, EpRequest* request) {
  rh_ep_dispatch_in in;
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: in is NULL", request->operation, ep->rankNumber());
  const rh_result result = readStruct(request->operation, "in", given, &in);
  if (result != RH_OK) return result;
  if (in.routing != nullptr) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: in has a routing already", request->operation, ep->rankNumber());
  }
  return readRouting(ep, request->operation, in, &request->send.routing);
}

void forget(Ep* ep, EpCached* cached) {
  EpCached** at = &ep->routings;
  while (*at != cached) at = &(*at)->next;
  *at = cached->next;
  if (cached->onDevice != nullptr) ep->experts()->dropPlan(ep, cached->onDevice);
  freeRouting(cached);
}

rh_result allocate(Ep* ep, const EpRequest& request, EpCached** out) {
  auto* cached = *out = new EpCached();
  if (cached != nullptr && ep->experts() != nullptr) {
    const rh_result result = ep->experts()->makePlan(ep, request.operation, request.send.routing.tokens, &cached->onDevice);
    if (result != RH_OK) delete cached;
    return result;
  }
  if (cached != nullptr && allocatePlan(ep, cached)) return RH_OK;
  delete cached;
  return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory for a routing", request.operation, ep->rankNumber());
}

rh_result make(rh_ep* handle, Ep* ep, EpRequest* request, EpCached** out, void* stream) {
  EpCached* cached = nullptr;
  const rh_result allocated = allocate(ep, *request, &cached);
  if (allocated != RH_OK) return allocated;
  cached->tokens = request->send.routing.tokens;
  cached->cell.flight = -1;
  cached->ep = handle;
  cached->handle = static_cast<rh_ep_routing*>(epRoutings().insert(cached));
  if (cached->handle == nullptr) {
    if (cached->onDevice != nullptr) ep->experts()->dropPlan(ep, cached->onDevice);
    freeRouting(cached);
    return fail(RH_ERR_LIMIT, "%s: this process has %d routings, the most there can be; destroy some", request->operation, kMaxEpRoutings);
  }
  cached->next = ep->routings;
  ep->routings = cached;
  request->cached = cached;
  request->cell = &cached->cell;
  request->plan = &cached->plan;
  const rh_result result = submitEp(*request, stream);
  if (result == RH_OK) {
    *out = cached;
  } else {  // the call has run, or will never run
    epRoutings().remove(cached->handle);
    forget(ep, cached);
  }
  return result;
}

// Whether a dispatch with the routing is in flight. No call is running.
rh_result isInUse(Ep* ep, const EpCached* cached, const char* operation, bool* out) {
  *out = false;
  if (cached->onDevice != nullptr) return ep->experts()->usesPlan(ep, operation, cached->onDevice, out);
  for (const railhead::EpFlight& f : ep->buffer.flights) {
    if (f.phase != EpPhase::kFree && f.cached == &cached->plan) *out = true;
  }
  return RH_OK;
}

}  // namespace

void freeRouting(EpCached* cached) {
  free(cached->memory);
  delete cached;
}

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_ep_routing_create(rh_ep* handle, const rh_ep_dispatch_in* in, rh_ep_routing** routing, void* stream) {
  const char* operation = "ep_routing_create";
  if (routing == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: routing is NULL", operation);
  *routing = nullptr;
  EpCall call(handle, operation);
  if (call.onStream(stream) != RH_OK) return call.result();
  EpRequest request = {};
  request.kind = EpRequest::kMakePlan;
  request.operation = operation;
  request.ep = call.ep();
  rh_result result = readIn(call.ep(), in, &request);
  EpCached* made = nullptr;
  if (result == RH_OK) result = make(handle, call.ep(), &request, &made, stream);
  if (made != nullptr) *routing = made->handle;
  return result;
}

extern "C" rh_result rh_ep_routing_destroy(rh_ep_routing* handle) {
  EpCall call(handle, "ep_routing_destroy");
  if (call.result() != RH_OK) return call.result();
  const int rank = call.ep()->rankNumber();
  const uint32_t captures = capturesLeft(&call.cached()->captures);
  if (captures != 0) {
    return fail(RH_ERR_BUSY, "ep_routing_destroy: rank %d: the routing is used by %u calls of captured graphs; destroy those first", rank, captures);
  }
  bool inUse = false;
  rh_result result = awaitQuiet(call.ep(), "ep_routing_destroy");
  if (result == RH_OK) result = isInUse(call.ep(), call.cached(), "ep_routing_destroy", &inUse);
  if (result != RH_OK) return result;
  if (inUse) {
    return fail(RH_ERR_BUSY, "ep_routing_destroy: rank %d: a dispatch with this routing is in flight; combine or release it first", rank);
  }
  epRoutings().remove(handle);
  forget(call.ep(), call.cached());
  return RH_OK;
}
