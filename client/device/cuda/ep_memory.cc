// The private memory of a buffer: the arrays of dispatches in flight, and the tables of experts.
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_ep.h"
#include "memory/allocation.h"

namespace railhead::client::cuda {

namespace {

struct Tables {
  uint8_t* expertRank;
  uint16_t *expertLocal, *replicaBegin, *replicas, *ownExperts, *home;
};

uint64_t takeTables(const EpTeam& t, Parts* parts, Tables* out) {
  const uint64_t before = parts->used();
  parts->take(&out->expertRank, t.physical);
  parts->take(&out->expertLocal, t.physical);
  parts->take(&out->replicaBegin, t.logical + uint64_t{1});
  parts->take(&out->replicas, t.physical);
  parts->take(&out->ownExperts, t.maxLocal);
  parts->take(&out->home, t.logical);
  return parts->used() - before;
}

void takeFlight(const EpTeam& t, const gpu::EpRowFormat& format, Parts* parts, gpu::EpFlightArrays* f) {
  const uint64_t world = static_cast<uint64_t>(t.worldSize), tokens = t.maxTokens;
  *f = {};
  parts->take(&f->ranks, tokens);
  parts->take(&f->entries, tokens * t.topk);
  parts->take(&f->weights, tokens * t.topk);
  parts->take(&f->copyOf, world * tokens);
  parts->take(&f->copies, world);
  parts->take(&f->received, world);
  parts->take(&f->own, 1u + t.localExperts[t.rank]);
  parts->take(&f->lengths, world * tokens);
  parts->take(&f->lists, world * tokens * (t.topk < t.maxLocal ? t.topk : t.maxLocal));
  parts->take(&f->sums, tokens * t.layout.combineStride);
  if (!format.isPlain()) parts->take(&f->encoded, tokens * t.layout.rowStride);
  if (format.wire == gpu::EpType::kE4M3) parts->take(&f->unfit, tokens);
}

// Returns its bytes. tables: their addresses on the device.
uint64_t takeAll(const EpTeam& t, CUdeviceptr base, CudaEp* out, Tables* tables) {
  Parts parts(base);
  parts.take(&out->common.state, 1);
  parts.take(&out->flights, kMostCells);
  parts.take(&out->common.team.counters, 1);
  if (t.countsFirst) parts.take(&out->common.read, 2 * static_cast<uint64_t>(t.worldSize) * t.layout.slots * t.layout.chunkTokens);
  takeTables(t, &parts, tables);
  for (gpu::EpFlightArrays& f : out->common.flights) takeFlight(t, out->common.format, &parts, &f);
  return parts.used();
}

bool copyTables(const Context& context, const EpTeam& t, const Tables& to, int64_t deadlineNs, Failure* why) {
  Tables at;
  Parts size(0);
  const uint64_t bytes = takeTables(t, &size, &at);
  auto* all = static_cast<char*>(calloc(1, bytes));
  if (all == nullptr) return because(why, RH_ERR_OUT_OF_MEMORY, "no memory for the tables of experts");
  Parts parts(reinterpret_cast<CUdeviceptr>(all));
  takeTables(t, &parts, &at);
  memcpy(at.expertRank, t.expertRank, t.physical * sizeof(uint8_t));
  memcpy(at.expertLocal, t.expertLocal, t.physical * sizeof(uint16_t));
  memcpy(at.replicaBegin, t.replicaBegin, (t.logical + 1) * sizeof(uint16_t));
  memcpy(at.replicas, t.replicas, t.physical * sizeof(uint16_t));
  memcpy(at.ownExperts, t.ownExperts, t.localExperts[t.rank] * sizeof(uint16_t));
  for (uint32_t e = 0; e < t.logical; e++) at.home[e] = gpu::epHomeOf(t, e);
  const Current current(context, why);
  const bool queued = current && context.driver->cuMemcpyAsync(why, reinterpret_cast<CUdeviceptr>(to.expertRank), reinterpret_cast<CUdeviceptr>(all), bytes, context.stream);
  const bool copied = queued && finish(context, context.stream, deadlineNs, why);
  if (copied || !queued) free(all);  // else the copy may read it yet
  return copied;
}

}  // namespace

bool makePrivateMemory(Ep* ep, CudaEp* out, Failure* why) {
  Comm* comm = ep->comm;
  CudaComm* of = onCuda(comm);
  const EpTeam& t = ep->team();
  Tables tables;
  const uint64_t bytes = wholeGranules(comm, takeAll(t, 0, out, &tables));
  HeapPart part = {number(comm->localRank), 0, bytes};
  if (!of->heaps.findRoom(comm->deviceHeapBytes, bytes, &part.offset)) {
    return because(why, RH_ERR_OUT_OF_MEMORY, "no addresses are left for %llu bytes of private memory: destroy buffers or windows", static_cast<unsigned long long>(bytes));
  }
  if (!of->heaps.create(part, comm->deadlineNs(), why)) return prefix(why, "private memory: ");
  out->memory = part;
  takeAll(t, of->heaps.address(part.rank, part.offset), out, &tables);
  const uint64_t flights = reinterpret_cast<CUdeviceptr>(out->flights) - of->heaps.address(part.rank, 0);
  if (!of->heaps.fill(part.rank, flights, kMostCells * sizeof(int32_t), 0xff, comm->deadlineNs(), why)) return false;
  if (!copyTables(of->context, t, tables, comm->deadlineNs(), why)) return false;
  EpTeam& team = out->common.team;
  EpCounters* counters = team.counters;
  team = t;
  team.counters = counters;
  team.abortWord = nullptr;
  team.leases = team.waitTurns = nullptr;
  team.expertRank = tables.expertRank;
  team.expertLocal = tables.expertLocal;
  team.replicaBegin = tables.replicaBegin;
  team.replicas = tables.replicas;
  team.ownExperts = tables.ownExperts;
  out->common.home = tables.home;
  return true;
}

}  // namespace railhead::client::cuda
