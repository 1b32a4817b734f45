// rh_comm_init: rendezvous, mapping, lease.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/commit.h"
#include "base/error.h"
#include "base/identity.h"
#include "base/settings.h"
#include "comm/choice.h"
#include "comm/comm.h"
#include "comm/set_up.h"
#include "host/futex.h"
#include "session/control_thread.h"

namespace railhead::client {

namespace {

// All ranks are on one node, so the place on the node is that in the world.
rh_result checkPlace(const rh_comm_config& c, WorldRank rank, int32_t world) {
  const struct {
    const char* name;
    int32_t given, only;
  } places[] = {{"local_rank", c.local_rank, number(rank)}, {"local_size", c.local_size, world}, {"node", c.node, 0}};
  for (const auto& p : places) {
    if (p.given == -1 || p.given == p.only) continue;
    return fail(RH_ERR_UNSUPPORTED, "comm_init: rank %d: %s %d, where all ranks of a group are on one node: it can be %d, or -1 for that",
                number(rank),
                p.name, p.given, p.only);
  }
  return RH_OK;
}

rh_result findDevice(const rh_comm_config& c, WorldRank rank, Located* on) {
  on->device = deviceOf(static_cast<uint32_t>(c.device_kind));
  if (on->device == nullptr) {
    return fail(RH_ERR_UNSUPPORTED, "comm_init: rank %d: this library has no device of kind %d; the CPU is RH_DEVICE_CPU, %d, GPUs are RH_DEVICE_CUDA, %d",
                number(rank), c.device_kind, RH_DEVICE_CPU, RH_DEVICE_CUDA);
  }
  if (on->device->locate != nullptr) return on->device->locate(c, rank, &on->place);
  if (c.device_kind == RH_DEVICE_CPU && (c.device_ordinal != -1 || c.device_uuid != nullptr)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: rank %d: device_ordinal %d, device_uuid %s%.40s; the CPU has neither: leave them -1 and NULL",
                number(rank), c.device_ordinal, c.device_uuid == nullptr ? "NULL" : "", c.device_uuid == nullptr ? "" : c.device_uuid);
  }
  return RH_OK;
}

rh_result readConfig(const rh_comm_config* config, rhw_join* out, Located* on) {
  rh_comm_config c = RH_COMM_CONFIG_INIT;
  rh_result r = config == nullptr ? RH_OK : readStruct("comm_init", "config", config, &c);
  *out = {};
  Identity me = {};
  if (r == RH_OK) r = forcedAlgorithms(out->common.forcing);
  if (r == RH_OK) r = reproducible(c.reproducible, &out->common.reproducible);
  if (r == RH_OK) r = checkIsa();
  bool recorded;
  if (r == RH_OK) r = flightRecord(&recorded);  // before other ranks rely on this one
  if (r == RH_OK) r = identify(c, &me);
  if (r == RH_OK) r = timeoutMs(c.timeout_ms, "comm_init", &out->own.timeout_ms);
  if (r != RH_OK) return r;
  const int32_t givenRank = me.rank, world = me.world;
  if (world < 1 || world > RH_MAX_LOCAL_RANKS) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: world size %d is outside 1..%d: all ranks of a group are on one node", world,
                RH_MAX_LOCAL_RANKS);
  }
  if (givenRank < 0 || givenRank >= world) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: rank %d is outside 0..%d, because the world size is %d; correct one of them", givenRank, world - 1,
                world);
  }
  const WorldRank rank{givenRank};
  r = checkPlace(c, rank, world);
  if (r != RH_OK) return r;
  if (c.reduce_group > static_cast<uint32_t>(world)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: reduce_group %u is larger than the world size %d", c.reduce_group,
                world);
  }
  if (c.heap_bytes > uint64_t{1} << 40) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: heap_bytes %llu is more than 1 TiB",
                static_cast<unsigned long long>(c.heap_bytes));
  }
  r = findDevice(c, rank, on);
  if (r != RH_OK) return r;
  memcpy(out->group, me.group, sizeof out->group);
  memcpy(out->common.token, me.token, sizeof out->common.token);
  ownProcessors(out->own.cpus);
  out->common.world = static_cast<uint32_t>(world);
  placeOnOneNode(out, rank, *on);
  out->common.reduce_group = c.reduce_group;
  out->common.heap_bytes = c.heap_bytes;
  return RH_OK;
}

// Maps a segment that the daemon promised to be at least bytes long and sealed against shrinking. Without the seal another process could
// truncate it, and later accesses would raise SIGBUS. at: reserved addresses to map over; nullptr = any address.
rh_result mapSegment(int fd, uint64_t bytes, const char* what, WorldRank rank, char* at, char** out) {
  struct stat st;
  if (fstat(fd, &st) != 0) return fail(RH_ERR_SYSTEM, "comm_init: fstat of the %s: %s", what, strerror(errno));
  const int seals = fcntl(fd, F_GET_SEALS);
  if (static_cast<uint64_t>(st.st_size) < bytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return fail(RH_ERR_PROTOCOL, "comm_init: the %s of rank %d has %lld bytes (seals %#x), the daemon promised %llu, sealed",
                what, number(rank), static_cast<long long>(st.st_size), static_cast<unsigned>(seals),
                static_cast<unsigned long long>(bytes));
  }
  constexpr int access = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_NORESERVE;
  // A MAP_FIXED that the file refuses leaves a hole, which another thread may fill: whether it refuses is found out elsewhere.
  constexpr size_t kPage = 4096;
  void* p = at == nullptr ? nullptr : mmap(nullptr, kPage, access, flags, fd, 0);
  if (at != nullptr && p != MAP_FAILED) munmap(p, kPage);
  if (p != MAP_FAILED) p = mmap(at, bytes, access, flags | (at == nullptr ? 0 : MAP_FIXED), fd, 0);
  if (p == MAP_FAILED) {
    return fail(RH_ERR_OUT_OF_MEMORY, "comm_init: cannot map %llu bytes, the %s of rank %d: %s; a smaller heap_bytes or a "
                "larger `ulimit -v` helps", static_cast<unsigned long long>(bytes), what, number(rank), strerror(errno));
  }
  *out = static_cast<char*>(p);
  return RH_OK;
}

// Reserves addresses for the heaps of all ranks, at equal distances. The gaps between heaps are inaccessible.
rh_result reserveHeaps(Comm* comm) {
  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  uint64_t bytes = 0;
  const uint64_t stride = (comm->heapBytes / kHugePage + 2) * kHugePage;
  const bool tooLarge = comm->heapBytes > INT64_MAX || __builtin_mul_overflow(stride, static_cast<uint64_t>(comm->localSize()), &bytes);
  void* p = MAP_FAILED;
  errno = ENOMEM;
  if (!tooLarge) p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return fail(RH_ERR_OUT_OF_MEMORY, "comm_init: cannot map the heaps of %d ranks, %llu bytes each: %s; a smaller heap_bytes or a larger "
                "`ulimit -v` helps", comm->localSize(), static_cast<unsigned long long>(comm->heapBytes), strerror(errno));
  }
  comm->heapsBytes = bytes;
  comm->team.heaps = static_cast<char*>(p);
  comm->team.heapStride = stride;
  return RH_OK;
}

// Handles Joined: the group's parameters and the control segment.
rh_result takeJoined(Comm* comm, const rhw_joined& m, int fd) {
  comm->daemon.group = comm->birth = m.group;
  comm->controlBytes = m.control_bytes;
  comm->heapBytes = m.heap_bytes;
  comm->scratchBytes = m.scratch_bytes;
  comm->deviceHeapBytes = m.device_heap_bytes;
  comm->deviceScratchBytes = m.device_scratch_bytes;
  comm->deviceSlotBytes = m.device_slot_bytes;
  comm->deviceGranularity = m.device_granularity;
  if ((comm->device->ownMemory != nullptr) != (m.device_granularity != 0)) {
    return fail(RH_ERR_PROTOCOL, "comm_init: rank %d: the daemon gave the ranks device heaps of %llu bytes, on devices of kind %s", number(comm->rank),
                static_cast<unsigned long long>(m.device_heap_bytes), comm->device->name);
  }
  if (m.world != static_cast<uint32_t>(comm->worldSize) || m.local_size != m.world) {
    return fail(RH_ERR_PROTOCOL, "comm_init: the daemon formed a group of %u ranks, %u of them on this node, expected %d, all on this node",
                m.world, m.local_size, comm->worldSize);
  }
  rh_result r = mapSegment(fd, comm->controlBytes, "control segment", comm->rank, nullptr, &comm->control);
  if (r != RH_OK) return r;
  if (comm->header()->magic != RHW_CONTROL_MAGIC || comm->header()->version != RHW_CONTROL_VERSION) {
    return fail(RH_ERR_PROTOCOL, "comm_init: the control segment is not one of version %u", RHW_CONTROL_VERSION);
  }
  // A private copy: every rank can write the segment.
  comm->parts = comm->header()->parts;
  if (const char* wrong = checkParts(comm->parts, m.local_size, comm->controlBytes)) {
    return fail(RH_ERR_PROTOCOL, "comm_init: rank %d: the control segment has %s", number(comm->rank), wrong);
  }
  r = takePlans(comm);
  if (r != RH_OK) return r;
  FlagTeam& team = comm->team;
  team.rank = number(comm->localRank);
  team.worldSize = comm->localSize();
  team.reduceGroup = static_cast<int>(m.reduce_group);
  team.blockBytes = m.block_bytes;
  team.pipeSlotBytes = m.pipe_slot_bytes;
  team.broadcastSlotBytes = m.broadcast_slot_bytes;
  team.llSlotBytes = kLLSlotBytes;
  team.heapBytes = comm->heapBytes;
  team.scratchBytes = comm->scratchBytes;
  team.regions = comm->shared;
  team.calls = reinterpret_cast<char*>(&comm->line(LocalRank{0})->call);
  team.callStride = comm->parts.lines.stride;
  team.spinNs = m.spin_ns;
  team.yieldNs = m.yield_ns;
  team.pollsPerTurn = static_cast<int>(comm->plans.polls_per_turn);
  team.longTurnNs = comm->plans.long_turn_ns;
  team.busySpinNs = comm->plans.busy_spin_ns;
  team.busyNs = comm->plans.busy_ns;
  team.busyMostNs = comm->plans.busy_most_ns;
  team.busy = &comm->busy;
  team.recheckNs = static_cast<int64_t>(comm->plans.recheck_ns);
  team.timeoutNs = int64_t{comm->timeoutMs} * 1000000;
  team.abortWord = reinterpret_cast<const uint32_t*>(&comm->header()->abort);  // little-endian: the low half is the first word
  team.waitingFor = &comm->ownLine()->waiting_for;
  team.asleepSince = &comm->ownLine()->asleep_since;
  return reserveHeaps(comm);
}

// Allocates the pages of this rank's part of the control segment after the lines, and starts its flight record there.
rh_result startFlight(Comm* comm, int controlFd, int64_t deadlineNs) {
  bool on;
  const rh_result bad = flightRecord(&on);
  if (bad != RH_OK || !on) return bad;
  const uint64_t bytes = comm->parts.flights.stride;
  const uint64_t offset = comm->parts.flights.offset + static_cast<uint64_t>(number(comm->localRank)) * bytes;
  const int error = commitPages(controlFd, offset, bytes, deadlineNs);
  if (error != 0) {
    return fail(RH_ERR_OUT_OF_MEMORY, "comm_init: rank %d cannot get %llu bytes of shared memory for its flight record: %s; "
                "RAILHEAD_FLIGHT_RECORD=off does without", number(comm->rank), static_cast<unsigned long long>(bytes), strerror(error));
  }
  comm->flight.start(comm->control + offset);
  comm->team.arrivals = comm->flight.arrivals();
  return RH_OK;
}

// Handles Heap: one rank's heap. Keeps the descriptor of this rank's own.
rh_result takeHeap(Comm* comm, const rhw_heap& m, int fd, bool* keptFd) {
  const LocalRank local{m.local};
  if (!comm->localRanks().has(local) || comm->mappedHeaps.has(local)) {
    return fail(RH_ERR_PROTOCOL, "comm_init: rank %d: an unexpected heap, of local rank %d", number(comm->rank), m.local);
  }
  comm->pids[m.local] = m.pid;
  *keptFd = local == comm->localRank;
  if (*keptFd) comm->heapFd = fd;
  char* heap = comm->heap(local);
  const rh_result r = mapSegment(fd, comm->heapBytes, "heap", comm->worldOf(local), heap, &heap);
  if (r == RH_OK) comm->mappedHeaps.add(local);
  return r;
}

rh_result unexpected(const Comm* comm, const Received& r, const char* expected) {
  if (r.fd >= 0) close(r.fd);
  return fail(RH_ERR_PROTOCOL, "comm_init: rank %d: message type %d in place of %s", number(comm->rank), r.m.h.type, expected);
}

// Receives Joined and the heaps. Stops at the first error; the call then drops the messages that follow. *joined says whether the
// daemon waits for Attached.
rh_result attach(Comm* comm, Call* call, const uint32_t* abortWord, int64_t* deadlineNs, bool* joined) {
  Received r;
  rh_result result = call->wait(&r, *deadlineNs, abortWord);
  if (result != RH_OK) return result;
  if (r.m.h.type != RHW_JOINED) return unexpected(comm, r, "Joined");
  // The daemon gives the ranks the same time again to attach.
  const int64_t deadline = *deadlineNs = comm->deadlineNs();
  *joined = true;
  comm->controlFd = r.fd;
  result = takeJoined(comm, r.m.joined, r.fd);
  if (result == RH_OK) result = startFlight(comm, r.fd, deadline);
  for (int32_t i = 0; i < comm->localSize() && result == RH_OK; i++) {
    result = call->wait(&r, deadline, abortWord);
    if (result != RH_OK) {
      *joined = false;  // the daemon abandoned the group, or is gone: it expects no Attached
      return result;
    }
    if (r.m.h.type != RHW_HEAP) return unexpected(comm, r, "Heap");
    bool keptFd = false;
    result = takeHeap(comm, r.m.heap, r.fd, &keptFd);
    if (!keptFd) close(r.fd);
  }
  if (result != RH_OK) return result;
  const int error = comm->device->commit(comm->heapFd, 0, comm->scratchBytes, deadline);
  if (error != 0) {
    return fail(RH_ERR_OUT_OF_MEMORY, "comm_init: rank %d cannot get %llu bytes of shared memory for its scratch: %s",
                number(comm->rank), static_cast<unsigned long long>(comm->scratchBytes), strerror(error));
  }
  rhw_lease* lease = &comm->ownLine()->lease;
  lease->client = comm->session->lease().client();  // before the lease is taken: that publishes the id
  comm->lease.lease = lease;
  takeLease(&comm->lease);
  return RH_OK;
}

rh_result join(Call* call, rhw_join* request, const uint32_t* abortWord, Comm* comm) {
  int64_t deadline = comm->deadlineNs();
  rh_result result = call->open(nullptr, deadline, abortWord);
  if (result == RH_OK) result = call->send(request, RHW_JOIN, deadline);
  if (result != RH_OK) return result;
  comm->daemon.connection = call->connection();
  bool joined = false;
  const rh_result attached = attach(comm, call, abortWord, &deadline, &joined);
  if (!joined) return attached;

  rhw_attached answer = {};
  answer.group = comm->birth;
  answer.error = attached == RH_OK ? 0 : attached == RH_ERR_OUT_OF_MEMORY ? ENOMEM : EPROTO;
  result = call->send(&answer, RHW_ATTACHED, deadline);
  if (attached != RH_OK) return attached;
  Received r;
  if (result == RH_OK) result = call->wait(&r, deadline, abortWord);
  if (result != RH_OK) return result;
  return r.m.h.type == RHW_GROUP_READY ? RH_OK : unexpected(comm, r, "GroupReady");
}

rh_result newComm(Session* session, const rhw_join& request, const Located& on, Comm** out) {
  auto* comm = new Comm();
  if (comm == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "comm_init: no memory for a comm");
  comm->kind = commKind();
  comm->session = session;
  memcpy(comm->name, request.group, sizeof comm->name);
  memcpy(comm->token, request.common.token, sizeof comm->token);
  comm->rank = WorldRank{request.own.place.rank};
  comm->localRank = LocalRank{request.own.place.local};
  comm->worldSize = static_cast<int32_t>(request.common.world);
  comm->timeoutMs = request.own.timeout_ms;
  memcpy(comm->forcing, request.common.forcing, sizeof comm->forcing);
  comm->reproducible = request.common.reproducible;
  comm->heapFd = comm->controlFd = -1;
  comm->references = 1;
  comm->device = on.device;
  comm->place = on.place;
  comm->kernels = &host::kernels();
  const rh_result result = on.device->open(comm);
  if (result == RH_OK) {
    *out = comm;
  } else {
    endComm(comm);
  }
  return result;
}

// Makes a comm that has joined its group, and survives restarts of the daemon. A daemon that dies meanwhile has written into the ledger
// whether the group was ready with all its ranks. If it was not, no rank has the group, and all ranks join again at the next daemon.
rh_result joinOver(Session* session, const rhw_join& request, const Located& on, const uint32_t* abortWord, Comm** out) {
  int64_t until = 0;
  for (;;) {
    Comm* comm = nullptr;
    rh_result result = newComm(session, request, on, &comm);
    if (result != RH_OK) return result;
    if (until == 0) until = comm->deadlineNs();
    Call call(*session, "comm_init", comm->rank);
    rhw_join message = request;
    result = join(&call, &message, abortWord, comm);
    const bool lost = result != RH_OK && call.lost();
    if (lost && comm->lease.lease != nullptr && endedCalls(comm) != 0) result = RH_OK;
    if (result == RH_OK) {
      *out = comm;
      return RH_OK;
    }
    endComm(comm);
    if (!lost || host::nowNs() >= until) return result;
  }
}

// Nobody else knows the handle yet. After a failure, which all ranks have, they leave the group together.
rh_result setUpDevice(rh_comm* handle, Comm* comm) {
  if (comm->device->setUp == nullptr) return RH_OK;
  Comms::Exclusive guard(comms(), handle);
  const rh_result result = comm->device->setUp(comm);
  if (result == RH_OK) return RH_OK;
  char why[768];
  snprintf(why, sizeof why, "%s", rh_last_error_message());
  leaveGroup(handle, comm);
  return fail(result, "%s", why);
}

rh_result tooManyComms() {
  return fail(RH_ERR_LIMIT, "comm_init: this process has %d comms, the most there can be; finalize some", kMaxComms);
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_comm_init(rh_session* handle, const rh_comm_config* config, rh_comm** out) {
  if (out == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "comm_init: comm is NULL");
  *out = nullptr;
  HandleTable<Session, kMaxSessions>::Shared session(sessions(), handle);
  if (session.get() == nullptr) return fail(RH_ERR_INVALID_HANDLE, "comm_init: not a live session: was it closed?");
  rhw_join request;
  Located on = {};
  const rh_result result = readConfig(config, &request, &on);
  return result == RH_OK ? joinGroup(session.get(), request, on, nullptr, out) : result;
}

void railhead::client::placeOnOneNode(rhw_join* request, WorldRank rank, const Located& on) {
  request->common.nodes = 1;
  request->own.place = {number(rank), number(rank), 0, request->common.world};
  request->own.device = on.device->wire;
  memcpy(request->own.device_uuid, on.place.uuid, sizeof on.place.uuid);
  request->own.device_multiprocessors = on.place.multiprocessors;
  request->own.device_architecture = on.place.architecture;
}

rh_result railhead::client::joinGroup(Session* session, const rhw_join& request, const Located& on, const Comm* parent, rh_comm** out) {
  if (comms().full()) return tooManyComms();  // before other ranks rely on this one
  Comm* comm = nullptr;
  rh_result result = joinOver(session, request, on, parent == nullptr ? nullptr : parent->team.abortWord, &comm);
  if (result == RH_ERR_ABORTED && parent != nullptr) return whyBroken(parent);
  if (result != RH_OK) return result;
  *out = static_cast<rh_comm*>(comms().insert(comm));
  if (*out == nullptr) {
    endComm(comm);
    return tooManyComms();
  }
  nudgeControlThread();  // from here on it watches the comm
  result = setUpDevice(*out, comm);
  if (result != RH_OK) *out = nullptr;
  return result;
}
