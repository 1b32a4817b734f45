// The calls of dispatch and combine as kernels on the caller's stream.
#include <algorithm>

#include "base/error.h"
#include "device/cuda/cuda_ep.h"

namespace railhead::client::cuda {

namespace {

constexpr uint32_t kThreads = 512;

// Few tokens of all ranks together are as fast with half as many blocks (docs/kernels.md). tokens: of this rank, since those of the others are not known.
Grid gridOf(const CudaEp& ep, const EpTeam& team, uint32_t tokens) {
  constexpr uint64_t kFewTokens = 16;
  constexpr uint32_t kFewBlocks = 32;
  const bool few = uint64_t{tokens} * static_cast<uint32_t>(team.worldSize) <= kFewTokens;
  return {few ? std::min(ep.blocks, kFewBlocks) : ep.blocks, kThreads};
}

// Of the call's dispatch. A routing that is made has none.
uint32_t tokensOf(const EpRequest& r) { return r.dispatched == nullptr ? r.send.routing.tokens : r.dispatched->tokens; }

const gpu::EpCachedPlan& planOf(const EpRequest& r) { return static_cast<const CudaPlan*>(r.cached->onDevice)->arrays; }

// One call's kernels.
class Launches {
 public:
  Launches(Comm* comm, const EpRequest& r, Queue on, uint32_t stream, Failure* why)
      : of_(onCuda(comm)), ep_(*onCuda(r.ep)), r_(r), on_(on), why_(why), grid_(gridOf(ep_, ep_.common.team, tokensOf(r))), common_(ep_.common) {
    common_.call = callOf(comm, {operationOf(r), 0, 0, kNoRoot, 0, 0, 0, 0}, ep_.common.team.layout.bytes, stream);
    if (common_.team.dropsDead) waitInPieces(&common_.call.team, common_.team);
    common_.cell = r.cell;
    if (r.dispatched != nullptr) common_.flight = ep_.flights + r.dispatched->number;
  }

  bool run() {
    switch (r_.kind) {
      case EpRequest::kDispatch: return encode() && dispatch(gpu::kEpSends | gpu::kEpReceives);
      case EpRequest::kDispatchSend: return encode() && dispatch(gpu::kEpSends);
      case EpRequest::kDispatchCounts: return dispatch(gpu::kEpLooks);
      case EpRequest::kDispatchReceive: return dispatch(gpu::kEpReceives);
      case EpRequest::kCombine: return combine(gpu::kEpSends | gpu::kEpReceives);
      case EpRequest::kCombineSend: return combine(gpu::kEpSends);
      case EpRequest::kCombineReceive: return combine(gpu::kEpReceives);
      case EpRequest::kRelease: return put(ep_.kernels->release, {1, 32}, &common_);
      case EpRequest::kMakePlan: return makePlan();
    }
    return because(why_, RH_ERR_UNSUPPORTED, "there is no kernel for it on a CUDA device");
  }

 private:
  // A wait looks for deaths after each piece. Its deadlines are the team's (railhead/gpu/ep_waits.h), which come before those of the comm.
  static void waitInPieces(gpu::Team* to, const EpTeam& team) {
    to->timeoutNs = static_cast<uint64_t>(team.deathCheckNs);
    to->limitNs = static_cast<uint64_t>(team.limitNs + 2 * team.timeoutNs);
  }
  bool put(CUfunction kernel, Grid grid, gpu::EpCommonCall* call) { return launch(of_, kernel, grid, call, on_, why_); }

  bool encode() {
    if (common_.format.isPlain() || r_.send.routing.tokens == 0) return true;
    gpu::EpEncodeCall call = {};
    static_cast<gpu::EpCommonCall&>(call) = common_;
    call.tokens = r_.send.routing.tokens;
    call.x = r_.send.x;
    call.scales = r_.send.scales;
    return put(ep_.kernels->encodeOf(common_.format.in), grid_, &call);
  }
  bool makePlan() {
    gpu::EpDispatchCall call = {};
    static_cast<gpu::EpCommonCall&>(call) = common_;
    for (gpu::EpFlightArrays& f : call.flights) f.unfit = nullptr;
    call.routing = r_.send.routing;
    call.plan = planOf(r_);
    return put(ep_.kernels->plan, grid_, &call);
  }
  bool dispatch(uint32_t steps) {
    gpu::EpDispatchCall call = {};
    static_cast<gpu::EpCommonCall&>(call) = common_;
    call.steps = steps;
    call.dropsInvalid = r_.ep->buffer.dropsInvalid;
    call.routing = r_.send.routing;
    if (r_.cached != nullptr) {
      call.plan = planOf(r_);
      call.routing = {call.plan.idx, true, call.plan.weights, r_.send.routing.tokens};
    }
    call.x = r_.send.x;
    call.receive = r_.receive;
    return put(ep_.kernels->dispatchOf(call), grid_, &call);
  }
  bool combine(uint32_t steps) {
    const host::EpSums& sums = r_.combine.sums;
    gpu::EpCombineCall call = {};
    static_cast<gpu::EpCommonCall&>(call) = common_;
    call.steps = steps;
    call.weighted = sums.weighted;
    call.renormalizes = r_.ep->buffer.renormalizes;
    call.y = static_cast<gpu::EpType>(sums.y);
    call.yRows = sums.yRows;
    call.out = static_cast<gpu::EpType>(sums.out);
    call.add = sums.addRows;
    call.outRows = sums.outRows;
    return put(ep_.kernels->combineOf(common_.team.countsFirst, static_cast<gpu::EpType>(r_.ep->buffer.format.combine)), grid_, &call);
  }

  CudaComm* of_;
  const CudaEp& ep_;
  const EpRequest& r_;
  Queue on_;
  Failure* why_;
  Grid grid_;
  gpu::EpCommonCall common_;
};

// The kernels, and the report behind them.
bool submit(Comm* comm, const EpRequest& r, Queue on, uint32_t stream, Failure* why) {
  EpReporting* reporting = nullptr;
  if (r.report.given != nullptr && !prepareReport(comm, r, on, &reporting, why)) return false;
  if (!Launches(comm, r, on, stream, why).run()) {
    if (reporting != nullptr) dropReport(reporting, on);
    return false;
  }
  return reporting == nullptr || queueReport(*onCuda(comm), reporting, on, why);
}

uint64_t bytesOf(const EpRequest& r) {
  const EpTeam& team = r.ep->team();
  switch (r.kind) {
    case EpRequest::kDispatch:
    case EpRequest::kDispatchSend: return uint64_t{r.dispatched->tokens} * team.rowBytes;
    case EpRequest::kCombine:
    case EpRequest::kCombineSend: return uint64_t{r.dispatched->tokens} * team.combineRowBytes;
    default: return 0;
  }
}

}  // namespace

// The flight record of an eager call says when the host has queued it, as for collectives.
rh_result expert(Comm* comm, const EpRequest& r, void* stream) {
  CudaComm* of = onCuda(comm);
  Failure why;
  if (r.kind == EpRequest::kDispatch || r.kind == EpRequest::kDispatchSend) r.dispatched->tokens = r.send.routing.tokens;
  const bool records = !r.captured && r.kind != EpRequest::kRelease && r.kind != EpRequest::kMakePlan;
  const uint32_t number = r.captured ? of->streams.of(stream) : queues(of, stream);
  if (records) {
    comm->runsOn = {number, 0, 0};
    if (r.ep->team().dropsDead) {
      enterOperation(comm, operationOf(r), bytesOf(r), kNoCallDetails, 0);  // a death does not end it
    } else if (!beginOperation(comm, operationOf(r), bytesOf(r))) {
      return whyBroken(comm);
    }
  }
  const bool queued = submit(comm, r, {stream, r.captured}, number, &why);
  if (records) {
    if (r.ep->team().dropsDead) leaveOperation(comm);
    else endOperation(comm);
    comm->runsOn = {};
  }
  if (queued) return RH_OK;
  return fail(why.result, "%s: rank %d: %s", r.operation, client::number(comm->rank), why.text);
}

}  // namespace railhead::client::cuda
