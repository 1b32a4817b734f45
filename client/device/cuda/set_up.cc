// The GPU's part of rh_comm_init: memory, kernels, and a test of the path to every peer. The ranks exchange what has failed after each step,
// through the host's memory, so that a failure on one rank is an error on all ranks that names it, and all choose the same path.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/cpu/run.h"
#include "device/cuda/cuda_comm.h"
#include "device/cuda/host_memory.h"
#include "device/cuda/peers.h"
#include "device/cuda/probe.h"
#include "host/futex.h"
#include "memory/allocation.h"

namespace railhead::client::cuda {

namespace {

// How a step went on a rank.
struct Verdict {
  uint32_t result;   // rh_result
  uint32_t refused;  // 1 = the GPUs cannot access each other's memory, which is no failure
  char uuid[sizeof(DeviceFacts::uuid)];
  char text[RHW_TEXT];
};

Verdict verdictOf(const Comm* comm, const Failure& why, bool refused) {
  Verdict v = {};
  v.result = static_cast<uint32_t>(why.result);
  v.refused = refused;
  memcpy(v.uuid, onCuda(comm)->uuids[number(comm->localRank)], sizeof v.uuid);
  snprintf(v.text, sizeof v.text, "%.*s", static_cast<int>(sizeof v.text) - 1, why.text);
  return v;
}

// What all ranks have found together.
struct Agreement {
  rh_result result = RH_OK;  // with the thread's message
  bool refused = false;      // on some rank; the reason is then in CudaComm::reason
};

// The verdict that counts: a refusal, since the other ranks then fail because of it; else a failure; of several that of the lowest rank.
const Verdict* worstOf(const Comm* comm, const Verdict* all, int* rank) {
  const Verdict* worst = nullptr;
  for (int r = 0; r < comm->worldSize; r++) {
    if (all[r].result == RH_OK || (worst != nullptr && (worst->refused != 0 || all[r].refused == 0))) continue;
    worst = &all[r];
    *rank = r;
  }
  return worst;
}

Agreement judge(Comm* comm, const Verdict* all) {
  Agreement out;
  int rank = 0;
  const Verdict* worst = worstOf(comm, all, &rank);
  if (worst == nullptr) return out;
  if (worst->refused != 0) {
    out.refused = true;
    snprintf(onCuda(comm)->reason, sizeof CudaComm::reason, "rank %d: %.240s", rank, worst->text);
    return out;
  }
  char by[32] = "";
  if (rank != number(comm->rank)) snprintf(by, sizeof by, "rank %d: ", rank);
  out.result = fail(static_cast<rh_result>(worst->result), "comm_init: rank %d: %s%s", number(comm->rank), by, worst->text);
  return out;
}

// The exchanges are a part of comm_init, which is no operation of the comm yet.
rh_result gather(Comm* comm, const void* mine, void* all, size_t bytes) {
  comm->team.limitNs = limitNs(comm, bytes);
  const host::Outcome outcome = gatherBytes(comm, RHW_OP_COMM_INIT, mine, all, bytes);
  if (outcome.stop == Stop::kNone) return RH_OK;
  breakFor(comm, RHW_OP_COMM_INIT, outcome);
  return whyBroken(comm);
}

Agreement agree(Comm* comm, const Failure& why, bool refused = false) {
  auto* all = static_cast<Verdict*>(malloc(static_cast<size_t>(comm->worldSize) * sizeof(Verdict)));
  const Verdict mine = verdictOf(comm, why, refused);
  Agreement out;
  if (all == nullptr) {
    out.result = fail(RH_ERR_OUT_OF_MEMORY, "comm_init: rank %d: no memory for the other ranks' findings", number(comm->rank));
    return out;
  }
  out.result = gather(comm, &mine, all, sizeof mine);
  if (out.result == RH_OK) {
    for (int r = 0; r < comm->worldSize; r++) {
      all[r].uuid[sizeof mine.uuid - 1] = all[r].text[sizeof mine.text - 1] = '\0';
      memcpy(onCuda(comm)->uuids[number(comm->localOf(WorldRank{r}))], all[r].uuid, sizeof mine.uuid);
    }
    out = judge(comm, all);
  }
  free(all);
  return out;
}

void fillTeam(Comm* comm) {
  gpu::Team& t = onCuda(comm)->team;
  t.rank = number(comm->localRank);
  t.worldSize = comm->localSize();
  t.reduceGroup = comm->team.reduceGroup;
  t.waitPolls = comm->devicePlans.polls_per_turn;
  t.slotBytes = comm->deviceSlotBytes;
  t.timeoutNs = static_cast<uint64_t>(comm->team.timeoutNs);
  t.status = onCuda(comm)->pinned;
}

bool checkJoined(const Comm* comm, Failure* why) {
  uint64_t granularity = 0;
  if (!memoryGranularity(onCuda(comm)->context, &granularity, why)) return false;
  const gpu::Layout layout = gpu::layoutOf(comm->localSize(), comm->deviceSlotBytes);
  const bool good = comm->deviceGranularity % granularity == 0 && layout.bytes <= comm->deviceScratchBytes && probeBytes(comm->localSize()) <= layout.inboxBytes;
  return good || because(why, RH_ERR_PROTOCOL, "the daemon gave granules of %llu bytes and a scratch of %llu, with slots of %llu: this GPU's memory comes in pieces of "
                         "%llu, and the kernels need %llu", static_cast<unsigned long long>(comm->deviceGranularity),
                         static_cast<unsigned long long>(comm->deviceScratchBytes), static_cast<unsigned long long>(comm->deviceSlotBytes),
                         static_cast<unsigned long long>(granularity), static_cast<unsigned long long>(layout.bytes));
}

// Addresses for the device heaps. Behind the windows each has as many as the GPU has memory, for registered windows. Where the process has too few
// addresses left, none: then registered windows are staged.
bool reserveHeaps(const Comm* comm, const DeviceFacts& facts, Failure* why) {
  CudaComm* of = onCuda(comm);
  const uint64_t granule = comm->deviceGranularity, forRegistered = (facts.memoryBytes + granule - 1) / granule * granule;
  Failure ignored;
  return of->heaps.reserve(of->context, comm->localSize(), comm->deviceHeapBytes + forRegistered, &ignored) ||
         of->heaps.reserve(of->context, comm->localSize(), comm->deviceHeapBytes, why);
}

// What this rank can do alone.
bool prepare(Comm* comm, Failure* why) {
  CudaComm* of = onCuda(comm);
  const Driver* driver = loadDriver(why);
  DeviceFacts facts;
  if (driver == nullptr || !openContext(driver, comm->place.ordinal, &of->context, why) || !checkJoined(comm, why) ||
      !describeDevice(*driver, of->context.device, &facts, why)) {
    return false;
  }
  memcpy(of->uuids[number(comm->localRank)], facts.uuid, sizeof facts.uuid);
  of->shared = share(of->context, comm->place.architecture, why);
  if (of->shared == nullptr) return false;
  of->kernels = findKernels(of->context, of->shared->module, comm->localSize(), why);
  if (of->kernels == nullptr || !reserveHeaps(comm, facts, why)) return false;
  comm->deviceHeaps = reinterpret_cast<char*>(of->heaps.base());
  comm->deviceHeapStride = of->heaps.stride();
  of->pinned = static_cast<gpu::Status*>(takePinned(of->context, of->shared, why));
  if (of->pinned == nullptr || !openCopyStreams(of->context, &of->copyStreams, why)) return false;
  fillTeam(comm);
  return true;
}

// Whether the driver lets this rank's GPU reach those of all others, as far as it can tell.
bool reachesAll(const Comm* comm, Failure* why) {
  const CudaComm* of = onCuda(comm);
  for (const LocalRank r : comm->localRanks()) {
    if (r == comm->localRank) continue;
    const PeerReach reach = reachOf(of->context, of->uuids[number(r)]);
    if (reach.reach == Reach::kNone) return because(why, RH_ERR_UNSUPPORTED, "%s", reach.reason);
  }
  return true;
}

// The probe's memory is the inbox of packets, which is zero before the first kernel.
Probe probeOf(const Comm* comm) {
  const CudaComm* of = onCuda(comm);
  const uint64_t at = gpu::layoutOf(comm->localSize(), comm->deviceSlotBytes).packetsOffset;
  return {&of->context, of->heaps.address(0, at), of->heaps.stride(), number(comm->localRank), comm->localSize(), comm->deadlineNs()};
}

bool clearProbe(Comm* comm, Failure* why) {
  const uint64_t at = gpu::layoutOf(comm->localSize(), comm->deviceSlotBytes).packetsOffset;
  return onCuda(comm)->heaps.fill(number(comm->localRank), at, probeBytes(comm->localSize()), 0, comm->deadlineNs(), why);
}

// Every rank has mapped the scratch of all; now data is copied to and from every peer.
Agreement probePeers(Comm* comm) {
  Failure why;
  bool ok = probeVisitPeers(probeOf(comm), &why);
  Agreement found = agree(comm, why, !ok);
  if (found.result != RH_OK || found.refused) return found;
  ok = probeReadOwn(probeOf(comm), &why);
  found = agree(comm, why, !ok);
  if (found.result != RH_OK || found.refused) return found;
  clearProbe(comm, &why);
  return agree(comm, why);
}

// Puts the scratch into the device heaps. Refused: not possible.
Agreement shareScratch(Comm* comm) {
  CudaComm* of = onCuda(comm);
  Failure why;
  const bool reaches = reachesAll(comm, &why);
  Agreement found = agree(comm, why, !reaches);
  if (found.result != RH_OK || found.refused) return found;
  const rh_result allocated = allocateScratch(comm);
  if (allocated != RH_OK) {
    if (of->refused) why = of->failed;
    else because(&why, allocated, "%s", rh_last_error_message());
  } else if (clearScratch(comm, &why)) {
    probeStoreOwn(probeOf(comm), &why);
  }
  found = agree(comm, why, of->refused);
  return found.result != RH_OK || found.refused ? found : probePeers(comm);
}

rh_result stageScratch(Comm* comm) {
  Failure why;
  if (onCuda(comm)->team.base != nullptr) {
    const rh_result freed = freeDeviceMemory(comm, 0, comm->deviceScratchBytes);
    if (freed != RH_OK) because(&why, freed, "%s", rh_last_error_message());
  }
  if (allocateStagedScratch(comm, &why)) clearScratch(comm, &why);
  return agree(comm, why).result;
}

// An answer for rh_comm_get_info; no failure.
void findFabric(CudaComm* of) {
  Failure why;
  of->fabric = probeFabric(of->context, &why);
  snprintf(of->fabricReason, sizeof of->fabricReason, "%.*s", static_cast<int>(sizeof of->fabricReason) - 1, why.text);
}

}  // namespace

rh_result open(Comm* comm) {
  comm->onDevice = new CudaComm();
  return comm->onDevice != nullptr ? RH_OK : fail(RH_ERR_OUT_OF_MEMORY, "comm_init: no memory for a comm");
}

rh_result setUp(Comm* comm) {
  CudaComm* of = onCuda(comm);
  Failure why;
  prepare(comm, &why);
  Agreement found = agree(comm, why);
  if (found.result == RH_OK) found = shareScratch(comm);
  if (found.result == RH_OK && found.refused) found.result = stageScratch(comm);
  if (found.result == RH_OK) findFabric(of);
  // Release: the control thread reads the status from here on.
  if (found.result == RH_OK) __atomic_store_n(&of->status, of->pinned, __ATOMIC_RELEASE);
  return found.result;
}

// Where kernels may still run, nothing is freed: they would fault, which would end the whole process's use of the GPU.
void close(Comm* comm) {
  constexpr int64_t kBrokenNs = int64_t{5} * 1000000000;  // kernels of a broken group end within milliseconds
  CudaComm* of = onCuda(comm);
  if (of->streams.busy != 0 && !awaitIdle(comm, host::nowNs() + kBrokenNs)) return;
  Failure ignored;
  if (of->context.handle != nullptr) {
    releaseStagedScratch(comm);
    closeApart(of, 0);
    of->heaps.release(&ignored);
    closeCopyStreams(of->context, &of->copyStreams);
    freeEps(comm);
    if (of->pinned != nullptr) givePinnedBack(of->shared, of->pinned);
    delete of->kernels;
    if (of->shared != nullptr) unshare(of->context, of->shared);
    closeContext(&of->context, &ignored);
  }
  delete of;
}

}  // namespace railhead::client::cuda
