// Passes on why kernels stopped, to the group, and that the group is broken, to the kernels. The control thread does both.
#include "comm/comm.h"
#include "device/cuda/cuda_comm.h"
#include "railhead/ep/ep_links.h"

namespace railhead::client::cuda {

namespace {

// The control thread looks this often. A look reads a word of host memory and the abort word.
constexpr int64_t kLookNs = int64_t{2} * 1000 * 1000;
// For so long after the group was broken, it looks what the kernels waited for.
constexpr int64_t kAfterNs = int64_t{1000} * 1000 * 1000;

template <class T>
T relaxed(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

bool isBroken(const Comm* comm) {
  // Acquire: as in every read of the abort word.
  return __atomic_load_n(comm->team.abortWord, __ATOMIC_ACQUIRE) != 0;
}

// Breaks the group if the kernels of this rank have found a reason. The words of the status do not change any more.
void report(Comm* comm, const gpu::Status& status, Stop stop) {
  const uint32_t op = relaxed(status.operation);
  const uint64_t clash = relaxed(status.clash);
  if (clash != 0) {
    __atomic_store_n(&comm->state()->clash, clash, __ATOMIC_RELAXED);  // ordered by the abort word
    poison(comm, RH_ERR_BUSY, op, comm->rank, comm->rank);
    return;
  }
  if (stop == Stop::kMismatch) {  // ordered by the abort word, like the signatures
    __atomic_store_n(&comm->ownLine()->way, relaxed(status.ourWay), __ATOMIC_RELAXED);
    __atomic_store_n(&comm->ownLine()->other_way, relaxed(status.theirWay), __ATOMIC_RELAXED);
  }
  host::Outcome outcome = {};
  outcome.stop = stop;
  outcome.missing = relaxed(status.missing);
  outcome.difference = status.difference;
  breakFor(comm, op, outcome);
}

}  // namespace

StoppedKernel stopped(const Comm* comm) {
  const gpu::Status* status = __atomic_load_n(&onCuda(comm)->status, __ATOMIC_ACQUIRE);
  // Acquire: the words that explain it were written before.
  if (status == nullptr || __atomic_load_n(&status->stop, __ATOMIC_ACQUIRE) == 0) return {};
  return {relaxed(status->operation), relaxed(status->number), LocalRankSet{relaxed(status->missing)}};
}

namespace {

// Ranks that have died or left, of a group that is broken by nothing but a death; none of any other (as EpLinks::dead). Relaxed: no data is read because of it.
LocalRankSet deadRanks(const Comm* comm) {
  LocalRankSet dead;
  const uint32_t abort = relaxed(*comm->team.abortWord);
  if ((abort & railhead::kAbortCode) != railhead::kAbortRankDead) return dead;
  const LocalRank culprit = comm->localOf(WorldRank{static_cast<int32_t>(abort >> railhead::kAbortCulpritShift)});
  if (culprit != kNoLocalRank) dead.add(culprit);
  for (const LocalRank r : comm->localRanks()) {
    const uint32_t lease = relaxed(comm->line(r)->lease.word);
    if (r != comm->localRank && (lease == 0 || (lease & railhead::kLeaseOwnerDied) != 0)) dead.add(r);
  }
  return dead;
}

}  // namespace

// In the order that gpu::Status says.
void stopKernels(const Comm* comm) {
  gpu::Status* status = __atomic_load_n(&onCuda(comm)->status, __ATOMIC_ACQUIRE);
  if (status == nullptr) return;
  const uint64_t dead = __atomic_load_n(&onCuda(comm)->left, __ATOMIC_ACQUIRE) ? 0 : deadRanks(comm).mask();
  for (auto& line : status->abort) {
    __atomic_store_n(&line.dead[0], static_cast<uint32_t>(dead), __ATOMIC_RELAXED);
    __atomic_store_n(&line.dead[1], static_cast<uint32_t>(dead >> 32), __ATOMIC_RELAXED);
    __atomic_store_n(&line.onlyDeaths, dead != 0 ? 1u : 0u, __ATOMIC_RELEASE);
    __atomic_store_n(&line.word, 1, __ATOMIC_RELEASE);
  }
}

int64_t tend(Comm* comm, int64_t now) {
  CudaComm* of = onCuda(comm);
  // Acquire: the status was cleared before.
  const gpu::Status* status = __atomic_load_n(&of->status, __ATOMIC_ACQUIRE);
  if (status == nullptr) return now + kLookNs;  // the comm is being set up
  // Acquire: the words that explain it were written before.
  const auto stop = static_cast<Stop>(__atomic_load_n(&status->stop, __ATOMIC_ACQUIRE));
  if (stop != Stop::kNone && !of->reported) {
    of->reported = true;
    report(comm, *status, stop);
  }
  if (!isBroken(comm)) return now + kLookNs;
  if (of->tendUntil == 0) {
    of->tendUntil = now + kAfterNs;
    stopKernels(comm);
  }
  if (__atomic_load_n(&of->survivors, __ATOMIC_RELAXED) != 0 && !deadRanks(comm).empty()) {  // its kernels go on, and must know of further deaths
    stopKernels(comm);
    return now + kLookNs;
  }
  return of->reported || now >= of->tendUntil ? INT64_MAX : now + kLookNs;
}

}  // namespace railhead::client::cuda
