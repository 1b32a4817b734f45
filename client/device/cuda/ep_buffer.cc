// The life of a buffer of dispatch and combine on a GPU.
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "device/cuda/cuda_ep.h"

namespace railhead::client::cuda {

namespace {

rh_result admit(const Comm* comm) { return comm->device->ownMemory->check(comm, "ep_create"); }

rh_result failed(const Ep* ep, const char* operation, const Failure& why) {
  return fail(why.result, "%s: rank %d: %s", operation, ep->rankNumber(), why.text);
}

// One block runs on a multiprocessor (gpu/ep_call.h), and those of all ranks must run at once.
uint32_t blocksOf(const Comm* comm) {
  constexpr uint32_t kMost = 64;  // what was measured (docs/kernels.md)
  const CudaComm* of = onCuda(comm);
  uint32_t sharing = 0;
  for (const LocalRank r : comm->localRanks()) sharing += memcmp(of->uuids[number(r)], of->uuids[number(comm->localRank)], sizeof of->uuids[0]) == 0 ? 1 : 0;
  return std::clamp(comm->place.multiprocessors / std::max(sharing, 1u), 1u, kMost);
}

rh_result open(Ep* ep) {
  Comm* comm = ep->comm;
  CudaComm* of = onCuda(comm);
  Failure why;
  auto* made = new CudaEp();
  auto* counted = static_cast<EpCounters*>(calloc(1, sizeof(EpCounters)));
  if (made == nullptr || counted == nullptr) {
    delete made;
    ::free(counted);
    return fail(RH_ERR_OUT_OF_MEMORY, "ep_create: rank %d: no memory for what is kept of a buffer", ep->rankNumber());
  }
  *made = {};
  made->counted = counted;
  const host::EpRowFormat& f = ep->buffer.format;
  made->common.format = {static_cast<gpu::EpType>(f.in), static_cast<gpu::EpType>(f.wire), static_cast<gpu::EpScaling>(f.scale), f.staticScale, f.hidden};
  made->common.counts = !ep->team().dropsDead;
  made->common.team.dropsDead = ep->team().dropsDead;
  made->blocks = blocksOf(comm);
  ep->onDevice = made;
  made->next = of->eps;
  of->eps = made;
  if (ep->team().dropsDead) __atomic_fetch_add(&of->survivors, 1, __ATOMIC_RELAXED);
  made->kernels = shareEpKernels(of->context, of->shared, comm->place.architecture, &why);
  if (made->kernels == nullptr || !makePrivateMemory(ep, made, &why)) return failed(ep, "ep_create", why);
  ep->memoryBytes += made->memory.bytes;
  made->cells[0] = static_cast<EpCell*>(takePinned(of->context, of->shared, &why));
  return made->cells[0] != nullptr ? RH_OK : failed(ep, "ep_create", why);
}

// Partial sums that are not there are all ones (gpu/ep_slots.h); a window is zero at first.
rh_result fill(Ep* ep) {
  const Comm* comm = ep->comm;
  CudaComm* of = onCuda(comm);
  Failure why;
  const EpTeam& team = ep->team();
  EpTeam& on = onCuda(ep)->common.team;
  on.buffers = team.buffers;
  on.bufferStride = team.bufferStride;
  const uint64_t offset = static_cast<uint64_t>(team.base(team.rank) - comm->deviceHeap(comm->localRank)), sums = team.layout.bytes - team.layout.combine;
  if (sums == 0) return RH_OK;  // of one rank
  return of->heaps.fill(team.rank, offset + team.layout.combine, sums, 0xff, comm->deadlineNs(), &why) ? RH_OK : failed(ep, "ep_create", why);
}

void free(CudaComm* of, CudaEp* ep) {
  while (CudaPlan* plan = ep->plans) {
    ep->plans = plan->next;
    freePlan(of, plan);
  }
  Failure ignored;  // what the driver cannot unmap stays until the comm ends
  if (ep->memory.bytes != 0) of->heaps.unmap(ep->memory, &ignored);
  if (ep->common.team.dropsDead) __atomic_fetch_sub(&of->survivors, 1, __ATOMIC_RELAXED);
  for (EpCell* block : ep->cells) {
    if (block != nullptr) givePinnedBack(of->shared, block);
  }
  ::free(ep->counted);
  delete ep;
}

void close(Ep* ep) {
  CudaComm* of = onCuda(ep->comm);
  CudaEp** at = &of->eps;
  while (*at != onCuda(ep)) at = &(*at)->next;
  *at = onCuda(ep)->next;
  free(of, onCuda(ep));
  ep->onDevice = nullptr;
}

// Stores a value of 32 bits n times.
bool store(const CudaComm& of, const void* to, uint32_t value, uint64_t n, int64_t deadlineNs, Failure* why) {
  const Current current(of.context, why);
  return current && of.context.driver->cuMemsetD32Async(why, reinterpret_cast<CUdeviceptr>(to), value, n, of.context.stream) &&
         finish(of.context, of.context.stream, deadlineNs, why);
}

rh_result cell(Ep* ep, uint32_t number, const char* operation, EpCell** out) {
  CudaComm* of = onCuda(ep->comm);
  CudaEp* on = onCuda(ep);
  Failure why;
  if (number >= kMostCells) return fail(RH_ERR_LIMIT, "%s: rank %d: %u captured dispatches of the buffer; destroy graphs", operation, ep->rankNumber(), number);
  EpCell*& block = on->cells[number / kCellsOfBlock];
  if (block == nullptr) block = static_cast<EpCell*>(takePinned(of->context, of->shared, &why));
  if (block == nullptr) return failed(ep, operation, why);
  // A graph may have been destroyed while its dispatch was in flight. The reports need not tell: a call that was refused may have been the last.
  if (number < on->cellsGiven && !store(*of, on->flights + number, ~0u, 1, ep->comm->deadlineNs(), &why)) return failed(ep, operation, why);
  on->cellsGiven = std::max(on->cellsGiven, number + 1);
  EpCell* cell = block + number % kCellsOfBlock;
  *cell = {};
  cell->flight = -1;
  *out = cell;
  return RH_OK;
}

// Copies a word of the device's memory.
bool load(const Ep* ep, uint64_t* out, const uint64_t* from, Failure* why) {
  const CudaComm& of = *onCuda(ep->comm);
  const Current current(of.context, why);
  auto* to = static_cast<uint64_t*>(malloc(sizeof *out));
  if (to == nullptr) return because(why, RH_ERR_OUT_OF_MEMORY, "no memory for a copy of a word");
  const bool loaded =
      current && of.context.driver->cuMemcpyAsync(why, reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), sizeof *to, of.context.stream) &&
      finish(of.context, of.context.stream, ep->comm->deadlineNs(), why);
  if (loaded) *out = *to;
  if (loaded || why->result != RH_ERR_TIMEOUT) ::free(to);  // else the copy may write it yet
  return loaded;
}

rh_result masked(Ep* ep, const char* operation, LocalRankSet* out) {
  Failure why;
  uint64_t mask = 0;
  *out = onCuda(ep)->masked;
  if (!ep->team().dropsDead) return RH_OK;  // only the host masks
  if (!load(ep, &mask, &onCuda(ep)->common.team.state()->gaveUp, &why)) return failed(ep, operation, why);
  *out = LocalRankSet{mask};
  return RH_OK;
}

// gaveUp last: it tells the others that this rank has sent all that it ever sends to the masked ranks.
rh_result mask(Ep* ep, LocalRankSet masked) {
  Failure why;
  const EpState* state = onCuda(ep)->common.team.state();
  for (const uint64_t* word : {&state->masked, &state->gaveUp}) {
    for (uint64_t i = 0; i < 2; i++) {
      const auto half = static_cast<uint32_t>(masked.mask() >> (32 * i));
      if (!store(*onCuda(ep->comm), reinterpret_cast<const uint32_t*>(word) + i, half, 1, ep->comm->deadlineNs(), &why)) return failed(ep, "ep_mask_rank", why);
    }
  }
  onCuda(ep)->masked = masked;
  return RH_OK;
}

rh_result ended(Ep* ep, EpEnded* out) {
  Failure why;
  uint64_t address = 0;
  if (!load(ep, &address, &onCuda(ep)->common.state->ended, &why)) return failed(ep, "ep_get_report", why);
  const auto* cell = reinterpret_cast<const EpCell*>(static_cast<uintptr_t>(address));
  *out = cell == nullptr ? EpEnded{} : EpEnded{cell->dispatched, cell->combined};
  return RH_OK;
}

constexpr Experts makeExperts() {
  Experts e = {};
  e.admit = admit;
  e.open = open;
  e.fill = fill;
  e.close = close;
  e.cell = cell;
  e.masked = masked;
  e.mask = mask;
  e.count = count;
  e.ended = ended;
  e.makePlan = makePlan;
  e.dropPlan = dropPlan;
  e.usesPlan = usesPlan;
  return e;
}

}  // namespace

const Experts kExperts = makeExperts();

void freeEps(Comm* comm) {
  CudaComm* of = onCuda(comm);
  while (CudaEp* ep = of->eps) {
    of->eps = ep->next;
    free(of, ep);
  }
}

}  // namespace railhead::client::cuda
