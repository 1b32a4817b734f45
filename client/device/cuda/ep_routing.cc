// Plans of cached routings, in private memory as that of a buffer (ep_memory.cc): each takes whole granules of the device heap's addresses.
#include <stddef.h>
#include <stdlib.h>

#include <algorithm>

#include "base/error.h"
#include "device/cuda/cuda_ep.h"
#include "memory/allocation.h"

namespace railhead::client::cuda {

namespace {

uint64_t takePlan(const EpTeam& t, uint64_t tokens, CUdeviceptr base, gpu::EpCachedPlan* out) {
  const uint64_t world = static_cast<uint64_t>(t.worldSize);
  Parts parts(base);
  parts.take(&out->idx, tokens * t.topk);
  parts.take(&out->weights, tokens * t.topk);
  parts.take(&out->entries, tokens * t.topk);
  parts.take(&out->ranks, tokens);
  parts.take(&out->copyOf, world * tokens);
  parts.take(&out->totals, t.physical + world + 4);
  return parts.used();
}

bool make(Comm* comm, const EpTeam& t, uint64_t tokens, CudaPlan* plan, Failure* why) {
  CudaComm* of = onCuda(comm);
  HeapPart part = {number(comm->localRank), 0, wholeGranules(comm, takePlan(t, tokens, 0, &plan->arrays))};
  if (!of->heaps.findRoom(comm->deviceHeapBytes, part.bytes, &part.offset)) {
    return because(why, RH_ERR_OUT_OF_MEMORY, "no addresses are left for %llu bytes of a routing: destroy routings, buffers or windows", static_cast<unsigned long long>(part.bytes));
  }
  if (!of->heaps.create(part, comm->deadlineNs(), why)) return prefix(why, "memory of a routing: ");
  plan->memory = part;
  takePlan(t, tokens, of->heaps.address(part.rank, part.offset), &plan->arrays);
  return true;
}

// A flight that dispatches with the routing have made, and that has not ended.
bool isOf(const gpu::EpFlightState& flight, const CudaPlan& plan) {
  return static_cast<EpPhase>(flight.phase) != EpPhase::kFree && flight.plan == reinterpret_cast<uintptr_t>(plan.arrays.idx);
}

}  // namespace

rh_result makePlan(Ep* ep, const char* operation, uint32_t tokens, void** out) {
  CudaEp* on = onCuda(ep);
  Failure why;
  auto* plan = new CudaPlan();
  if (plan == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory for what is kept of a routing", operation, ep->rankNumber());
  *plan = {};
  if (!make(ep->comm, ep->team(), std::min(tokens, ep->team().maxTokens), plan, &why)) {
    delete plan;
    return fail(why.result, "%s: rank %d: %s", operation, ep->rankNumber(), why.text);
  }
  plan->next = on->plans;
  on->plans = plan;
  *out = plan;
  return RH_OK;
}

void dropPlan(Ep* ep, void* dropped) {
  CudaPlan** at = &onCuda(ep)->plans;
  while (*at != dropped) at = &(*at)->next;
  CudaPlan* plan = *at;
  *at = plan->next;
  freePlan(onCuda(ep->comm), plan);
}

void freePlan(CudaComm* of, CudaPlan* plan) {
  Failure ignored;  // what the driver cannot unmap stays until the comm ends
  of->heaps.unmap(plan->memory, &ignored);
  delete plan;
}

rh_result usesPlan(Ep* ep, const char* operation, const void* plan, bool* out) {
  constexpr size_t kBytes = sizeof(gpu::EpRankState::flights);
  const CudaComm& of = *onCuda(ep->comm);
  auto* flights = static_cast<gpu::EpFlightState*>(malloc(kBytes));
  if (flights == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory for a copy of the dispatches in flight", operation, ep->rankNumber());
  Failure why;
  const auto from = reinterpret_cast<CUdeviceptr>(onCuda(ep)->common.state->flights);
  const Current current(of.context, &why);
  const bool loaded = current && of.context.driver->cuMemcpyAsync(&why, reinterpret_cast<CUdeviceptr>(flights), from, kBytes, of.context.stream) &&
                      finish(of.context, of.context.stream, ep->comm->deadlineNs(), &why);
  *out = loaded && (isOf(flights[0], *static_cast<const CudaPlan*>(plan)) || isOf(flights[1], *static_cast<const CudaPlan*>(plan)));
  if (loaded || why.result != RH_ERR_TIMEOUT) free(flights);  // else the copy may write it yet
  return loaded ? RH_OK : fail(why.result, "%s: rank %d: %s", operation, ep->rankNumber(), why.text);
}

}  // namespace railhead::client::cuda
