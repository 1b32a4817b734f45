// Calls of expert parallelism on a device that runs later: queuing, references held by graphs, handles of captured dispatches.
#include "base/error.h"
#include "ep/ep.h"
#include "memory/streams.h"

namespace railhead::client {

int epGraphHandles = 0;

namespace {

// What a captured call keeps alive, besides the comm and windows.
struct Kept : Malloced {
  Ep* ep;
  EpDispatched* dispatched;  // this and the next: nullptr = none
  EpCached* cached;
};

// The last graph with a call on the handle has ended, so a later captured dispatch may use the object again.
void closeHandle(EpDispatched* d) {
  endGraphHandle(d);
  __atomic_store_n(&d->open, false, __ATOMIC_RELEASE);
}

void dropCapture(EpDispatched* d) {
  if (__atomic_sub_fetch(&d->captures, 1, __ATOMIC_ACQ_REL) == 0) closeHandle(d);
}

void letGo(void* p) {
  auto* kept = static_cast<Kept*>(p);
  if (kept->dispatched != nullptr) dropCapture(kept->dispatched);
  if (kept->cached != nullptr) __atomic_fetch_sub(&kept->cached->captures, 1, __ATOMIC_RELEASE);
  __atomic_fetch_sub(&kept->ep->captures, 1, __ATOMIC_RELEASE);
  releaseEp(kept->ep);
  delete kept;
}

// Counts a captured call on a dispatch. False: the last graph with one has ended meanwhile, and with it the handle. The dispatch itself is
// the first call.
bool countCapture(EpDispatched* d, bool isFirst) {
  uint32_t captures = __atomic_load_n(&d->captures, __ATOMIC_RELAXED);
  do {
    if (captures == 0 && !isFirst) return false;
  } while (!__atomic_compare_exchange_n(&d->captures, &captures, captures + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return true;
}

bool isDispatch(const EpRequest& r) { return r.kind == EpRequest::kDispatch || r.kind == EpRequest::kDispatchSend; }

// Keeps what the captured call uses alive until its graph is destroyed.
rh_result keep(const EpRequest& r, void* stream) {
  if (r.dispatched != nullptr && !countCapture(r.dispatched, isDispatch(r))) {
    return fail(RH_ERR_INVALID_HANDLE, "%s: rank %d: the last graph with a call on this dispatch has been destroyed", r.operation, r.ep->rankNumber());
  }
  auto* kept = new Kept();
  if (kept != nullptr) {
    *kept = {};
    kept->ep = r.ep;
    kept->dispatched = r.dispatched;
    kept->cached = r.cached;
    retainEp(r.ep);
    __atomic_fetch_add(&r.ep->captures, 1, __ATOMIC_RELAXED);
    if (r.cached != nullptr) __atomic_fetch_add(&r.cached->captures, 1, __ATOMIC_RELAXED);
    if (r.ep->comm->device->streams->keep(r.ep->comm, stream, letGo, kept)) return RH_OK;
    letGo(kept);
  } else if (r.dispatched != nullptr) {
    dropCapture(r.dispatched);
  }
  return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory to note what the captured call keeps", r.operation, r.ep->rankNumber());
}

}  // namespace

void endGraphHandle(EpDispatched* d) {
  if (epHandles().remove(d->handle) != nullptr) __atomic_fetch_sub(&epGraphHandles, 1, __ATOMIC_RELAXED);
}

namespace {

rh_result tooManyGraphHandles(const Ep* ep, const char* operation) {
  return fail(RH_ERR_LIMIT, "%s: rank %d: no handle for another captured dispatch (this process can have %d); destroy graphs", operation, ep->rankNumber(),
              kMaxEpGraphHandles);
}

}  // namespace

// The handle of a captured dispatch: one whose graphs have ended, or a new one.
rh_result graphHandle(Ep* ep, const char* operation, EpDispatched** out) {
  EpDispatched* d = ep->graphs;
  while (d != nullptr && __atomic_load_n(&d->open, __ATOMIC_ACQUIRE)) d = d->next;
  if (d == nullptr) {
    d = new EpDispatched();
    if (d == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory for a captured dispatch", operation, ep->rankNumber());
    d->ep = ep->dispatched[0].ep;
    d->ofGraph = true;
    d->number = kEpHandles + ep->graphHandles++;
    d->next = ep->graphs;
    ep->graphs = d;
  }
  // The table has that many slots for captured dispatches; the handles of buffers have slots of their own.
  const bool isOneTooMany = __atomic_add_fetch(&epGraphHandles, 1, __ATOMIC_RELAXED) > kMaxEpGraphHandles;
  rh_result result = isOneTooMany ? tooManyGraphHandles(ep, operation) : RH_OK;
  d->cell = &d->own;
  if (result == RH_OK && ep->experts() != nullptr) result = ep->experts()->cell(ep, d->number, operation, &d->cell);
  if (result == RH_OK) {
    d->handle = static_cast<rh_ep_handle*>(epHandles().insert(d));
    if (d->handle == nullptr) result = tooManyGraphHandles(ep, operation);
  }
  if (result != RH_OK) {
    __atomic_fetch_sub(&epGraphHandles, 1, __ATOMIC_RELAXED);
    return result;
  }
  d->own.flight = -1;
  d->open = true;
  *out = d;
  return RH_OK;
}

bool isCaptured(const Ep* ep, const void* stream) {
  uint64_t capture = 0;
  return ep->runsLater() && ep->comm->device->streams->captureOf(ep->comm, stream, &capture) == RH_OK && capture != 0;
}

namespace {

// Memory that the call touches and that may be in windows. A size that is not known yet (rows) counts as one byte.
int extentsOf(const EpRequest& r, Extent* out) {
  const EpTeam& team = r.ep->team();
  out[0] = {team.base(team.rank), team.layout.bytes};
  out[1] = {r.send.x, size_t{r.send.routing.tokens} * r.ep->buffer.format.hidden};
  out[2] = {r.receive.x, static_cast<size_t>(r.receive.capacity)};
  out[3] = {r.combine.sums.yRows, r.combine.sums.yRows != nullptr};
  out[4] = {r.combine.sums.outRows, r.combine.sums.outRows != nullptr};
  return 5;
}

}  // namespace

void returnHandle(EpDispatched* d) {
  if (!d->ofGraph) {
    d->open = false;
  } else if (__atomic_load_n(&d->captures, __ATOMIC_ACQUIRE) == 0) {
    closeHandle(d);  // otherwise its graph does
  }
}

rh_result queueEp(const EpRequest& r, void* stream) {
  Ep* ep = r.ep;
  if (isBroken(ep)) return r.kind == EpRequest::kRelease ? RH_OK : whyBroken(ep->comm);  // no call of the buffer runs any more
  const bool captured = isCaptured(ep, stream);
  if (captured && r.dispatched != nullptr && !r.dispatched->ofGraph) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: the dispatch of this handle was not captured, and so this call cannot be", r.operation,
                ep->rankNumber());
  }
  if (!captured && isDispatch(r) && r.dispatched->ofGraph) {  // no graph would end its handle
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: another thread has ended the capture of the stream during the call", r.operation,
                ep->rankNumber());
  }
  if (captured) {
    Extent extents[5];
    Capture* capture = nullptr;
    const int n = extentsOf(r, extents);
    rh_result result = keepForGraph(ep->comm, r.operation, stream, extents, n, &capture);
    if (result == RH_OK) result = keep(r, stream);
    if (result != RH_OK) return result;
  }
  EpRequest request = r;
  request.captured = captured;
  return ep->comm->device->expert(ep->comm, request, stream);
}

}  // namespace railhead::client
