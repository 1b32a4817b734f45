// rh_ep_combine and its two phases; rh_ep_release.
#include "base/abi.h"
#include "base/element_types.h"
#include "base/error.h"
#include "ep/ep.h"

namespace railhead::client {

namespace {

rh_result readArgs(const Ep* ep, const rh_ep_combine_args* given, const char* operation, host::EpSums* sums) {
  rh_ep_combine_args a;
  const int rank = ep->rankNumber();
  if (given == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: args is NULL", operation, rank);
  const rh_result result = readStruct(operation, "args", given, &a);
  if (result != RH_OK) return result;
  if (!isSumType(a.y_dtype) || !isSumType(a.out_dtype)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: y_dtype %s, out_dtype %s; each is f32, bf16 or f16", operation, rank,
                dtypeName(static_cast<uint32_t>(a.y_dtype)), dtypeName(static_cast<uint32_t>(a.out_dtype)));
  }
  *sums = {static_cast<host::Type>(a.y_dtype), static_cast<host::Type>(a.out_dtype), a.weighted != 0, static_cast<const char*>(a.y),
           static_cast<const char*>(a.add), static_cast<char*>(a.out)};
  return RH_OK;
}

// Whether a call that runs later ends the handle. The dispatch may still be in flight, but the caller cannot use it any more.
bool endsLater(EpRequest::Kind kind, const EpDispatched& d) { return kind != EpRequest::kCombineSend && !d.ofGraph; }

// A call on a dispatch. If the call ends the dispatch, it also ends the handle.
rh_result submit(rh_ep_handle* handle, EpRequest::Kind kind, const char* operation, const rh_ep_combine_args* args, rh_ep_report* report,
                 void* stream) {
  EpCall call(handle, operation);
  if (call.onStream(stream) != RH_OK) return call.result();
  EpDispatched* d = call.dispatched();
  EpRequest request = {};
  request.kind = kind;
  request.operation = operation;
  request.ep = call.ep();
  request.dispatched = d;
  request.cell = request.combine.cell = d->cell;
  rh_result result = readReport(call.ep(), operation, report, &request.report);
  if (result == RH_OK && (kind == EpRequest::kCombine || kind == EpRequest::kCombineSend)) {
    result = readArgs(call.ep(), args, operation, &request.combine.sums);
  }
  if (result != RH_OK) return result;
  result = submitEp(request, stream);
  if (call.ep()->runsLater() ? result == RH_OK && endsLater(kind, *d) : d->cell->flight < 0) {
    d->handle = static_cast<rh_ep_handle*>(epHandles().renew(d->handle));
    d->open = false;
  }
  return result;
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_ep_combine(rh_ep_handle* handle, const rh_ep_combine_args* args, rh_ep_report* report, void* stream) {
  return submit(handle, EpRequest::kCombine, "ep_combine", args, report, stream);
}

extern "C" rh_result rh_ep_combine_send(rh_ep_handle* handle, const rh_ep_combine_args* args, void* stream) {
  return submit(handle, EpRequest::kCombineSend, "ep_combine_send", args, nullptr, stream);
}

extern "C" rh_result rh_ep_combine_recv(rh_ep_handle* handle, rh_ep_report* report, void* stream) {
  return submit(handle, EpRequest::kCombineReceive, "ep_combine_recv", nullptr, report, stream);
}

extern "C" rh_result rh_ep_release(rh_ep_handle* handle, void* stream) {
  return submit(handle, EpRequest::kRelease, "ep_release", nullptr, nullptr, stream);
}
