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
  freeRouting(cached);
}

rh_result make(rh_ep* handle, Ep* ep, EpRequest* request, EpCached** out, void* stream) {
  auto* cached = new EpCached();
  if (cached == nullptr || !allocatePlan(ep, cached)) {
    delete cached;
    return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory for a routing", request->operation, ep->rankNumber());
  }
  cached->tokens = request->send.routing.tokens;
  cached->cell.flight = -1;
  cached->ep = handle;
  cached->handle = static_cast<rh_ep_routing*>(epRoutings().insert(cached));
  if (cached->handle == nullptr) {
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

bool isInUse(const Ep* ep, const EpCached* cached) {
  for (const railhead::EpFlight& f : ep->buffer.flights) {
    if (f.phase != EpPhase::kFree && f.cached == &cached->plan) return true;
  }
  return false;
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
  if (call.ep()->experts() != nullptr) {
    return fail(RH_ERR_UNSUPPORTED, "%s: rank %d: there are no cached routings on %s devices; give each dispatch its topk_idx", operation,
                call.ep()->rankNumber(), call.ep()->comm->device->name);
  }
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
  const uint32_t captures = __atomic_load_n(&call.cached()->captures, __ATOMIC_ACQUIRE);
  if (captures != 0) {
    return fail(RH_ERR_BUSY, "ep_routing_destroy: rank %d: the routing is used by %u calls of captured graphs; destroy those first", rank, captures);
  }
  const rh_result result = awaitQuiet(call.ep(), "ep_routing_destroy");
  if (result != RH_OK) return result;
  if (isInUse(call.ep(), call.cached())) {
    return fail(RH_ERR_BUSY, "ep_routing_destroy: rank %d: a dispatch with this routing is in flight; combine or release it first", rank);
  }
  epRoutings().remove(handle);
  forget(call.ep(), call.cached());
  return RH_OK;
}
