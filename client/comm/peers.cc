// What the daemon's watcher does (server/group/lease.go), for the time without one: a rank that dies must not leave the others waiting.
//
// The watcher sleeps on the lease words. The control thread cannot: it sleeps in poll(2). It looks at them from time to time,
// which needs no FUTEX_WAITERS: the kernel marks the word of a dead holder in any case.
#include <linux/futex.h>

#include "comm/comm.h"

namespace railhead::client {

void lookAtPeers(const Comm* comm) {
  for (int32_t r = 0; r < comm->worldSize; r++) {
    const rhw_rank_line* line = comm->line(r);
    // Acquire: what the rank wrote into its line before it died.
    if (r == comm->rank || (__atomic_load_n(&line->lease, __ATOMIC_ACQUIRE) & FUTEX_OWNER_DIED) == 0) continue;
    const uint32_t op = __atomic_load_n(&line->op, __ATOMIC_RELAXED);
    if (op == RHW_OP_FINALIZE) continue;  // it may have been done
    poison(comm, RH_ERR_RANK_DEAD, op, static_cast<uint32_t>(r), static_cast<uint32_t>(comm->rank));
    return;
  }
}

}  // namespace railhead::client
