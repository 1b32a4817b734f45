// A comm as a member of its session: how it is announced to a new daemon, and what is done for it while there is no daemon.
#include <linux/futex.h>
#include <pthread.h>

#include "base/fork.h"
#include "comm/comm.h"

namespace railhead::client {

namespace {

Comm* commOf(Member* member) { return static_cast<Comm*>(member); }
const Comm* commOf(const Member* member) { return static_cast<const Comm*>(member); }

void forEachComm(void (*visit)(Member* member, void* argument), void* argument) {
  comms().forEach([&](void* handle) {
    Comms::Shared comm(comms(), handle);
    if (comm.get() != nullptr) visit(comm.get(), argument);
  });
}

// The ranks of a broken group learn that from its abort word, without a daemon.
bool isBroken(const Member* member) {
  // Acquire: as in every read of the abort word.
  return __atomic_load_n(commOf(member)->team.abortWord, __ATOMIC_ACQUIRE) != 0;
}

// The first rank of a group that reaches a new daemon passes it the control segment.
bool announce(const Member* member, const Announcer& to) {
  const Comm* comm = commOf(member);
  rhw_reannounce m = {};
  m.group = comm->daemon.group;
  m.control_bytes = comm->controlBytes;
  m.world = static_cast<uint32_t>(comm->worldSize);
  m.nodes = 1;
  m.place = {number(comm->rank), number(comm->localRank), 0, static_cast<uint32_t>(comm->localSize())};
  m.timeout_ms = comm->timeoutMs;
  return to.send(&m, RHW_REANNOUNCE, comm->controlFd);
}

bool completeAnnouncement(const Member* member, uint64_t group, const Announcer& to) {
  rhw_reannounce_heap m = {};
  m.group = group;
  return to.send(&m, RHW_REANNOUNCE_HEAP, commOf(member)->heapFd);
}

// Breaks the group if another rank has died, as the daemon's watcher would (server/group/lease.go). The watcher sleeps on the lease words;
// the control thread sleeps in poll(2) and checks them periodically. That needs no FUTEX_WAITERS bit: the kernel marks the word of a
// dead holder in any case.
void checkPeerLeases(const Comm* comm) {
  for (const LocalRank r : comm->localRanks()) {
    const rhw_rank_line* line = comm->line(r);
    // Acquire: what the rank wrote into its line before it died is visible.
    if (r == comm->localRank || (__atomic_load_n(&line->lease.word, __ATOMIC_ACQUIRE) & FUTEX_OWNER_DIED) == 0) continue;
    const uint32_t op = __atomic_load_n(&line->op, __ATOMIC_RELAXED);
    if (op == RHW_OP_FINALIZE) continue;  // the rank may have completed it
    poison(comm, RH_ERR_RANK_DEAD, op, comm->worldOf(r), comm->rank);
    return;
  }
}

// Interval of lease checks, while no daemon watches the ranks and while one does, which may hang.
constexpr int64_t kUnwatchedNs = int64_t{25} * 1000 * 1000;
constexpr int64_t kWatchedNs = int64_t{1000} * 1000 * 1000;

int64_t tick(Member* member, bool watched, int64_t now) {
  Comm* comm = commOf(member);
  const int64_t tended = comm->device->tend == nullptr ? INT64_MAX : comm->device->tend(comm, now);
  if (isBroken(member)) return tended;
  const int64_t period = watched ? kWatchedNs : kUnwatchedNs;
  if (comm->nextLeaseCheck <= now || comm->nextLeaseCheck > now + period) {
    checkPeerLeases(comm);
    comm->nextLeaseCheck = now + period;
  }
  return comm->nextLeaseCheck < tended ? comm->nextLeaseCheck : tended;
}

constexpr MemberKind makeKind() {
  MemberKind k = {};
  k.forEach = forEachComm;
  k.isBroken = isBroken;
  k.announce = announce;
  k.complete = completeAnnouncement;
  k.tick = tick;
  k.anyBusy = anyCommBusy;
  k.abandon = abandonComms;
  return k;
}
MemberKind kind = makeKind();
ForkHandler forkHandler = {forgetComms};

}  // namespace

const MemberKind* commKind() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] {
    addMemberKind(&kind);
    addForkHandler(&forkHandler);
  });
  return &kind;
}

}  // namespace railhead::client
