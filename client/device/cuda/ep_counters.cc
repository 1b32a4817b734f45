// Counters of dispatch and combine: kernels add to those of their buffer in the GPU's memory, and the host, when it is asked, adds what is new there to
// the rank's counters in the control segment, which other ranks and the daemon read.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/cuda/cuda_ep.h"

namespace railhead::client::cuda {

namespace {

// Kernels may be adding meanwhile: each word is whole.
bool read(const CudaComm& of, const CudaEp& ep, EpCounters* to, int64_t deadlineNs, Failure* why) {
  const Current current(of.context, why);
  return current &&
         of.context.driver->cuMemcpyAsync(why, reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(ep.common.team.counters), sizeof *to, of.context.stream) &&
         finish(of.context, of.context.stream, deadlineNs, why);
}

}  // namespace

rh_result count(Comm* comm, const char* operation) {
  const CudaComm& of = *onCuda(comm);
  auto* now = static_cast<EpCounters*>(malloc(sizeof(EpCounters)));
  if (now == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory for a copy of the counters", operation, number(comm->rank));
  Failure why;
  auto* to = reinterpret_cast<uint64_t*>(countersOf(comm, comm->localRank));
  const auto* words = reinterpret_cast<const uint64_t*>(now);
  for (const CudaEp* ep = of.eps; ep != nullptr; ep = ep->next) {
    if (!read(of, *ep, now, comm->deadlineNs(), &why)) {
      if (why.result != RH_ERR_TIMEOUT) free(now);  // else the copy may write it yet
      return fail(why.result, "%s: rank %d: reading counters from the GPU: %s", operation, number(comm->rank), why.text);
    }
    const auto* before = reinterpret_cast<const uint64_t*>(ep->counted);
    for (uint64_t i = 0; i < sizeof(EpCounters) / sizeof(uint64_t); i++) {
      if (words[i] != before[i]) __atomic_store_n(to + i, __atomic_load_n(to + i, __ATOMIC_RELAXED) + words[i] - before[i], __ATOMIC_RELAXED);
    }
    memcpy(ep->counted, now, sizeof *now);
  }
  free(now);
  return RH_OK;
}

}  // namespace railhead::client::cuda
