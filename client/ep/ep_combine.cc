// rh_ep_combine and its two phases; rh_ep_release.
#include "base/abi.h"
#include "base/element_types.h"
#include "base/error.h"
#include "ep/ep.h"

namespace railhead::client {

namespace {

rh_result readArgs(const Ep* ep, const rh_ep_combine_args* given, const char* operation, host::EpSums* sums) {
  rh_ep_combine_args a;
  const int rank = ep->team().rank;
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

// Runs a call on a dispatch; one that ends it ends its handle.
rh_result run(const EpCall& call, EpRequest::Kind kind, const rh_ep_combine_args* args, rh_ep_report* report, const char* operation) {
  if (call.result() != RH_OK) return call.result();
  EpDispatched* d = call.dispatched();
  EpRequest request = {kind, call.ep(), &d->cell, {}, {}, {}, {}};
  rh_result result = readReport(call.ep(), operation, report, &request.report);
  if (result == RH_OK && (kind == EpRequest::kCombine || kind == EpRequest::kCombineSend)) {
    request.combine.cell = &d->cell;
    result = readArgs(call.ep(), args, operation, &request.combine.sums);
  }
  if (result != RH_OK) return result;
  const EpError error = runEp(request);
  if (d->cell.flight < 0) {
    d->handle = static_cast<rh_ep_handle*>(epHandles().renew(d->handle));
    d->open = false;
  }
  return resultOf(request, error, operation);
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_ep_combine(rh_ep_handle* handle, const rh_ep_combine_args* args, rh_ep_report* report) {
  const EpCall call(handle, "ep_combine");
  return run(call, EpRequest::kCombine, args, report, "ep_combine");
}

extern "C" rh_result rh_ep_combine_send(rh_ep_handle* handle, const rh_ep_combine_args* args) {
  const EpCall call(handle, "ep_combine_send");
  return run(call, EpRequest::kCombineSend, args, nullptr, "ep_combine_send");
}

extern "C" rh_result rh_ep_combine_recv(rh_ep_handle* handle, rh_ep_report* report) {
  const EpCall call(handle, "ep_combine_recv");
  return run(call, EpRequest::kCombineReceive, nullptr, report, "ep_combine_recv");
}

extern "C" rh_result rh_ep_release(rh_ep_handle* handle) {
  const EpCall call(handle, "ep_release");
  return run(call, EpRequest::kRelease, nullptr, nullptr, "ep_release");
}
