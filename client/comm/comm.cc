// The life of a comm after rh_comm_init: operations begin and end, the group breaks, finalize.
#include "comm/comm.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/error.h"
#include "base/registry.h"
#include "comm/set_up.h"
#include "comm/thread_group.h"
#include "host/futex.h"
#include "session/control_thread.h"

namespace railhead::client {

namespace {

// Stores to words of the control segment that other processes read concurrently.
template <class T>
void storeRelaxed(T* p, T value) {
  __atomic_store_n(p, value, __ATOMIC_RELAXED);
}

}  // namespace

Comms& comms() {
  static Comms table;
  return table;
}

namespace {

Registry<CommUser> users;

void unmapHeaps(Comm* comm) {
  if (comm->heapsBytes != 0) munmap(comm->team.heaps, comm->heapsBytes);
  comm->heapsBytes = 0;
  comm->mappedHeaps = {};
}

}  // namespace

void addCommUser(CommUser* user) { users.add(user); }

void forgetComms() {
  comms().forget([](Comm* comm) {
    for (const CommUser* u = users.first(); u != nullptr; u = u->next) {
      if (u->inChild != nullptr) u->inChild(comm);
    }
    unmapHeaps(comm);
    munmap(comm->control, comm->controlBytes);
    close(comm->heapFd);
    close(comm->controlFd);
  });
}

int64_t Comm::deadlineNs() const { return host::nowNs() + int64_t{timeoutMs} * 1000000 + kAnswerGraceNs; }

rh_result checkGuard(const Comms::Exclusive& guard, const char* operation) {
  if (guard.get() != nullptr) return RH_OK;
  if (guard.busy()) {
    return fail(RH_ERR_BUSY, "%s: another thread is inside a call on this comm; give each thread a comm of its own", operation);
  }
  return fail(RH_ERR_INVALID_HANDLE, "%s: not a live comm: was it finalized?", operation);
}

rh_result checkNotCapturing(const Comm* comm, const char* operation) {
  const Streams* streams = comm->device->streams;
  if (streams == nullptr) return RH_OK;
  for (const Capture& c : comm->captures) {
    if (c.number == 0 || !streams->isCapturing(comm, c.stream, c.number)) continue;
    return fail(RH_ERR_BUSY, "%s: rank %d: calls on this comm are being captured on a stream, and %s cannot be; end the capture first", operation,
                number(comm->rank), operation);
  }
  return RH_OK;
}

Capture* captureOf(Comm* comm, const void* stream, uint64_t number) {
  for (Capture& c : comm->captures) {
    if (c.number == number) return &c;
  }
  for (Capture& c : comm->captures) {
    if (c.number != 0 && comm->device->streams->isCapturing(comm, c.stream, c.number)) continue;
    c = {number, stream, 0};
    return &c;
  }
  return nullptr;
}

void noteChoice(const Comm* comm, const Choice& choice) {
  if (choice.algo != RHW_ALGO_AUTO) storeRelaxed(&comm->ownLine()->chosen, choice.algo | choice.why << 16);
}

bool beginOperation(Comm* comm, uint32_t op, uint64_t bytes, const CallDetails& details, uint64_t collective) {
  // Acquire: what the rank that broke the group wrote before is visible.
  if (__atomic_load_n(comm->team.abortWord, __ATOMIC_ACQUIRE) != 0) return false;
  enterOperation(comm, op, bytes, details, collective);
  return true;
}

namespace {

// Waits until nothing of the comm runs any more on its device. False: the deadline has passed, and the group is broken.
bool waitForDevice(Comm* comm, uint32_t op) {
  if (comm->device->synchronize(comm, comm->deadlineNs())) return true;
  poison(comm, RH_ERR_TIMEOUT, op, comm->rank, comm->rank);  // this rank's own streams keep it from the call
  return false;
}

}  // namespace

bool beginSetUp(Comm* comm, uint32_t op, uint64_t bytes, bool unmaps) {
  return ((comm->device->countsApart && !unmaps) || waitForDevice(comm, op)) && beginOperation(comm, op, bytes);
}

int64_t limitNs(const Comm* comm, uint64_t bytes) {
  const uint64_t seconds = (bytes >> 24) * static_cast<uint64_t>(comm->worldSize);
  constexpr uint64_t kMost = uint64_t{1} << 30;  // 34 years, so that nothing overflows below
  return 4 * comm->team.timeoutNs + static_cast<int64_t>(seconds < kMost ? seconds : kMost) * 1000000000;
}

void enterOperation(Comm* comm, uint32_t op, uint64_t bytes, const CallDetails& details, uint64_t collective) {
  comm->team.limitNs = limitNs(comm, bytes);
  rhw_rank_line* line = comm->ownLine();
  const uint64_t number = ++comm->state()->begun;
  storeRelaxed(&line->seq, number);
  storeRelaxed(&line->op, op);
  storeRelaxed(&line->bytes, bytes);
  storeRelaxed(&line->waiting_for, uint64_t{0});
  comm->flight.begin(number, op, details, bytes, collective, comm->runsOn);
}

namespace {

void endRecord(Comm* comm, uint32_t algo, Stop stop) { comm->flight.end(algo, stop, comm->worldOf(comm->flight.lastArrival())); }

}  // namespace

// A failed operation stays in the rank line: it is the report of the operation that was interrupted.
void endOperation(Comm* comm, uint32_t algo) {
  endRecord(comm, algo, Stop::kNone);
  if (__atomic_load_n(comm->team.abortWord, __ATOMIC_RELAXED) != 0) return;
  storeRelaxed(&comm->ownLine()->op, uint32_t{RHW_OP_NONE});
}

void leaveOperation(Comm* comm, uint32_t algo) {
  endRecord(comm, algo, Stop::kNone);
  storeRelaxed(&comm->ownLine()->waiting_for, uint64_t{0});
  storeRelaxed(&comm->ownLine()->op, uint32_t{RHW_OP_NONE});
}

void poison(const Comm* comm, rh_result code, uint32_t op, WorldRank culprit, WorldRank reporter) {
  const auto bits = [](WorldRank r) { return static_cast<uint64_t>(number(r)) & RHW_NO_RANK; };  // kNoWorldRank gives all ones
  const auto cause = static_cast<uint32_t>(code);
  const uint64_t word = uint64_t{cause & 0xffu} | bits(culprit) << 8 | (uint64_t{op} & 0xff) << 32 | bits(reporter) << 40;
  // Release: the rank lines that explain the cause were written before. Only the first word with a nonzero low half counts, because all
  // ranks and the daemon poll that half.
  uint64_t seen = 0;
  while (!__atomic_compare_exchange_n(&comm->header()->abort, &seen, word, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
         static_cast<uint32_t>(seen) == 0) {
  }
  host::futexWakeAll(comm->team.abortWord);
}

namespace {

// Of a cycle of wait-for chains, the rank whose line is stale: it was stopped in its sleep, and what it waited for has come since. It has
// begun the fewest operations. Of equals it went to sleep first: the rank that it waited for published, and only then went to sleep.
LocalRank staleOf(const Comm* comm, const LocalRank* cycle, int n) {
  LocalRank stale = cycle[0];
  const auto begun = [&](LocalRank r) { return __atomic_load_n(&comm->line(r)->seq, __ATOMIC_RELAXED); };
  const auto asleepSince = [&](LocalRank r) { return __atomic_load_n(&comm->line(r)->asleep_since, __ATOMIC_RELAXED); };
  for (int i = 1; i < n; i++) {
    const uint64_t a = begun(cycle[i]), b = begun(stale);
    if (a < b || (a == b && asleepSince(cycle[i]) < asleepSince(stale))) stale = cycle[i];
  }
  return stale;
}

// The root of the wait-for chain that begins at a late rank. Each rank waits for the next; the root waits for none.
LocalRank rootOfWaitChain(const Comm* comm, LocalRank late) {
  LocalRank chain[RHW_MAX_LOCAL];
  LocalRankSet seen;
  int n = 0;
  for (LocalRank r = late;;) {
    chain[n++] = r;
    seen.add(r);
    const rhw_rank_line* line = comm->line(r);
    const LocalRankSet waitsFor{__atomic_load_n(&line->waiting_for, __ATOMIC_RELAXED)};
    if (__atomic_load_n(&line->op, __ATOMIC_RELAXED) == RHW_OP_NONE || waitsFor.empty()) return r;
    r = waitsFor.lowest();
    if (!comm->localRanks().has(r)) return late;
    // This rank waits for the late one, so a chain that comes to it is a cycle, whose other lines may be stale.
    if (r == comm->localRank) return staleOf(comm, chain, n);
    if (!seen.has(r)) continue;
    int first = 0;
    while (chain[first] != r) first++;
    return staleOf(comm, chain + first, n - first);
  }
}

}  // namespace

rh_result stopOperation(Comm* comm, const host::Outcome& outcome, uint32_t algo) {
  endRecord(comm, algo, outcome.stop);
  breakFor(comm, __atomic_load_n(&comm->ownLine()->op, __ATOMIC_RELAXED), outcome);
  return whyBroken(comm);
}

void breakFor(const Comm* comm, uint32_t op, const host::Outcome& outcome) {
  const LocalRankSet missing{outcome.missing};
  rhw_rank_line* line = comm->ownLine();
  storeRelaxed(&line->waiting_for, missing.mask());
  if (outcome.stop == Stop::kMismatch) {
    storeRelaxed(&line->call, outcome.difference.ours.call);
    storeRelaxed(&line->call_count, outcome.difference.ours.count);
    storeRelaxed(&line->call_detail, outcome.difference.ours.detail);
    storeRelaxed(&line->other_call, outcome.difference.theirs.call);
    storeRelaxed(&line->other_count, outcome.difference.theirs.count);
    storeRelaxed(&line->other_detail, outcome.difference.theirs.detail);
  }
  if (outcome.stop != Stop::kNone && outcome.stop != Stop::kAborted) {
    // If several ranks are late, the lowest is named; the message lists all of them.
    LocalRank culprit = missing.lowest();
    if (outcome.stop == Stop::kTimeout && culprit != kNoLocalRank) culprit = rootOfWaitChain(comm, culprit);
    const rh_result code = outcome.stop == Stop::kTimeout ? RH_ERR_TIMEOUT : outcome.stop == Stop::kMismatch ? RH_ERR_MISMATCH : RH_ERR_PROTOCOL;
    poison(comm, code, op, comm->worldOf(culprit), comm->rank);
  }
}

rh_result whyBroken(const Comm* comm) {
  char text[512];
  const rh_result result = describe(comm, text, sizeof text);
  return result == RH_OK ? RH_OK : fail(result, "%s", text);
}

namespace {

void endLease(Comm* comm) {
  if (comm->lease.lease != nullptr) dropLease(&comm->lease);
  comm->lease.lease = nullptr;
}

}  // namespace

namespace {

void destroyComm(Comm* comm) {
  if (comm->onDevice != nullptr) comm->device->close(comm);
  for (const CommUser* u = users.first(); u != nullptr; u = u->next) {
    if (u->unmap != nullptr) u->unmap(comm);
  }
  unmapHeaps(comm);
  if (comm->control != nullptr) munmap(comm->control, comm->controlBytes);
  if (comm->heapFd >= 0) close(comm->heapFd);
  if (comm->controlFd >= 0) close(comm->controlFd);
  delete comm;
}

}  // namespace

void retainComm(Comm* comm) { __atomic_fetch_add(&comm->references, 1, __ATOMIC_RELAXED); }

void releaseComm(Comm* comm) {
  // Acquire and release: all accesses through the other references happen before the comm is freed.
  if (__atomic_sub_fetch(&comm->references, 1, __ATOMIC_ACQ_REL) != 0) return;
  if (comm->device->end != nullptr) comm->device->end(comm, destroyComm);
  else destroyComm(comm);
}

void endComm(Comm* comm) {
  for (const CommUser* u = users.first(); u != nullptr; u = u->next) {
    if (u->end != nullptr) u->end(comm);
  }
  endLease(comm);
  // Release: a graph launched after this sees that the rank has left. Only queued and captured calls hold further references. Without them
  // nothing is written: the heap of a comm that has not formed may have no pages there.
  if (__atomic_load_n(&comm->references, __ATOMIC_ACQUIRE) > 1) {
    __atomic_store_n(&comm->state()->left, 1, __ATOMIC_RELEASE);
    if (comm->device->leave != nullptr) comm->device->leave(comm);
  }
  releaseComm(comm);
}

namespace {

bool belongsTo(void* handle, const Session* session) {
  Comms::Shared ref(comms(), handle);
  return ref.get() != nullptr && ref.get()->session == session;
}

}  // namespace

namespace {

bool hasNoted(void* handle) {
  Comms::Shared ref(comms(), handle);
  return ref.get() != nullptr && __atomic_load_n(&ref.get()->noted, __ATOMIC_RELAXED) != 0;
}

}  // namespace

bool anyCommBusy(const Session* session) {
  bool busy = false;
  comms().forEach([&](void* handle) { busy = busy || (belongsTo(handle, session) && (comms().busy(handle) || hasNoted(handle))); });
  return busy;
}

namespace {

// Breaks the group of a comm of the session. False when the handle is not a comm of the session.
bool abandon(void* handle, const Session* session) {
  Comms::Shared ref(comms(), handle);
  const Comm* comm = ref.get();
  if (comm == nullptr || comm->session != session) return false;
  poison(comm, RH_ERR_RANK_DEAD, __atomic_load_n(&comm->ownLine()->op, __ATOMIC_RELAXED), comm->rank, comm->rank);
  return true;
}

}  // namespace

namespace {

// False when the session has no comm left.
bool abandonSome(const Session* session) {
  bool found = false;
  comms().forEach([&](void* handle) {
    if (!abandon(handle, session)) return;
    found = true;
    // A call may have begun after rh_close checked for one. It returns soon, because its group is broken and its session is shut down.
    // Its mappings must stay until then.
    for (;;) {
      Comms::Exclusive guard(comms(), handle);
      if (guard.get() != nullptr) {
        endComm(comms().remove(handle));
        return;
      }
      if (!guard.busy()) return;  // another thread finalized the comm
      const timespec pause = {0, 50 * 1000};
      nanosleep(&pause, nullptr);
    }
  });
  return found;
}

}  // namespace

void abandonComms(const Session* session) {
  // A concurrent split may have put its new comm into a slot that a pass had already visited.
  while (abandonSome(session)) {
  }
}

}  // namespace railhead::client

using namespace railhead::client;

namespace {

// finalize of a broken group does not wait for the other ranks. It only waits this long for the daemon to drop the rank.
constexpr int64_t kBrokenLeaveNs = int64_t{2} * 1000000000;

// Waits until every rank has called finalize. The lease is held meanwhile, so a death during the wait is detected.
rh_result leave(Comm* comm, Call* call, int64_t deadline) {
  rhw_leave request = {};
  request.group = call->group();
  rh_result result = call->send(&request, RHW_LEAVE, deadline);
  Received r;
  if (result == RH_OK) result = call->wait(&r, deadline);
  if (result != RH_OK) return result;
  if (r.fd >= 0) close(r.fd);
  return r.m.h.type == RHW_LEFT ? RH_OK
                                : fail(RH_ERR_PROTOCOL, "finalize: rank %d: message type %d in place of Left", number(comm->rank), r.m.h.type);
}

void leaveBroken(Comm* comm) {
  Call call(*comm->session, "finalize", comm->rank);
  const int64_t now = railhead::host::nowNs();
  // Only a daemon that knows the comm now has to drop the rank.
  if (call.open(&comm->daemon, now) == RH_OK) leave(comm, &call, now + kBrokenLeaveNs);
}

}  // namespace

rh_result railhead::client::leaveGroup(rh_comm* handle, Comm* held) {
  rh_result result = RH_OK;
  const bool idle = waitForDevice(held, RHW_OP_FINALIZE);
  if (idle && beginOperation(held, RHW_OP_FINALIZE, 0)) {
    result = setUp(
        held, RHW_OP_FINALIZE, [&](Call* call, int64_t deadline) { return leave(held, call, deadline); },
        [](const rhw_outcome&) { return RH_OK; });
  } else {
    leaveBroken(held);
    if (!idle) result = whyBroken(held);
  }
  // Before the handle ends: it keeps rh_close away, and without a session there is no control thread to drop the lease.
  endLease(held);
  Comm* comm = comms().remove(handle);
  if (comm != nullptr) endComm(comm);
  return result;
}

extern "C" rh_result rh_comm_finalize(rh_comm* handle) {
  Comms::Exclusive guard(comms(), handle);
  rh_result result = checkGuard(guard, "finalize");
  if (result == RH_OK) result = checkNoneNoted(guard.get(), "finalize");
  return result == RH_OK ? leaveGroup(handle, guard.get()) : result;
}

extern "C" rh_result rh_comm_abort(rh_comm* handle) {
  Comms::Shared ref(comms(), handle);
  const Comm* comm = ref.get();
  if (comm == nullptr) return fail(RH_ERR_INVALID_HANDLE, "abort: not a live comm: was it finalized?");
  poison(comm, RH_ERR_ABORTED, __atomic_load_n(&comm->ownLine()->op, __ATOMIC_RELAXED), comm->rank, comm->rank);
  return RH_OK;
}

extern "C" rh_result rh_comm_rank(rh_comm* handle, int32_t* rank) {
  if (rank == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "comm_rank: rank is NULL");
  Comms::Shared ref(comms(), handle);
  if (ref.get() == nullptr) return fail(RH_ERR_INVALID_HANDLE, "comm_rank: not a live comm: was it finalized?");
  *rank = number(ref.get()->rank);
  return RH_OK;
}

extern "C" rh_result rh_comm_world_size(rh_comm* handle, int32_t* worldSize) {
  if (worldSize == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "comm_world_size: world_size is NULL");
  Comms::Shared ref(comms(), handle);
  if (ref.get() == nullptr) return fail(RH_ERR_INVALID_HANDLE, "comm_world_size: not a live comm: was it finalized?");
  *worldSize = ref.get()->worldSize;
  return RH_OK;
}

extern "C" rh_result rh_comm_get_info(rh_comm* handle, rh_comm_info* info) {
  const rh_result result = checkStruct("comm_get_info", "info", info);
  if (result != RH_OK) return result;
  Comms::Shared ref(comms(), handle);
  const Comm* comm = ref.get();
  if (comm == nullptr) return fail(RH_ERR_INVALID_HANDLE, "comm_get_info: not a live comm: was it finalized?");
  rh_comm_info results = RH_COMM_INFO_INIT;
  results.rank = number(comm->rank);
  results.local_rank = number(comm->localRank);
  results.world_size = comm->worldSize;
  results.local_size = comm->localSize();
  results.node = 0;
  results.device_kind = static_cast<int32_t>(comm->device->kind);
  results.device_ordinal = comm->place.ordinal;
  results.granularity = comm->device->granularity(comm);
  if (comm->device->describe != nullptr) comm->device->describe(comm, &results);
  writeStruct(info, results);
  return RH_OK;
}
