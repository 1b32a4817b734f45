// The life of a buffer: create, query, mask ranks, destroy.
#include "ep/ep.h"

#include <new>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/abi.h"
#include "base/commit.h"
#include "base/error.h"
#include "base/fork.h"
#include "comm/rank_list.h"
#include "comm/thread_group.h"
#include "host/futex.h"
#include "memory/streams.h"
#include "memory/window.h"

namespace railhead::client {

Eps& eps() {
  static Eps table;
  return table;
}
EpHandles& epHandles() {
  static EpHandles table;
  return table;
}

EpRoutings& epRoutings() {
  static EpRoutings table;
  return table;
}

EpCall::EpCall(rh_ep* handle, const char* operation) : operation_(operation) { open(handle, operation); }

EpCall::EpCall(rh_ep_handle* handle, const char* operation) : operation_(operation) {
  rh_ep* ep = nullptr;
  {
    EpHandles::Shared ref(epHandles(), handle);
    dispatched_ = ref.get();
    if (dispatched_ != nullptr) ep = dispatched_->ep;
  }
  if (ep != nullptr) open(ep, operation);
  // Another thread may have ended the handle meanwhile; the buffer and the object of the handle may be gone too.
  if (ep == nullptr || (result_ == RH_OK && !(__atomic_load_n(&dispatched_->open, __ATOMIC_ACQUIRE) && dispatched_->handle == handle))) {
    result_ = fail(RH_ERR_INVALID_HANDLE, "%s: not a dispatch in flight: was it combined or released?", operation);
  }
}

EpCall::EpCall(rh_ep_routing* handle, const char* operation) : operation_(operation) {
  rh_ep* ep = nullptr;
  {
    EpRoutings::Shared ref(epRoutings(), handle);
    if (ref.get() != nullptr) ep = ref.get()->ep;
  }
  if (ep != nullptr) open(ep, operation);
  if (result_ != RH_OK && ep != nullptr) return;
  // This thread has exclusive access to the comm, so no other thread can end the routing.
  EpRoutings::Shared ref(epRoutings(), handle);
  cached_ = ref.get();
  if (cached_ == nullptr) result_ = fail(RH_ERR_INVALID_HANDLE, "%s: not a live routing: was it destroyed?", operation);
}

rh_result EpCall::onStream(const void* stream) {
  if (result_ == RH_OK) result_ = checkStream(ep_->comm, operation_, stream);
  return result_;
}

void EpCall::open(rh_ep* handle, const char* operation) {
  result_ = refuseInGroup(operation);
  if (result_ != RH_OK) return;
  rh_comm* comm = nullptr;
  {
    Eps::Shared ref(eps(), handle);
    if (ref.get() != nullptr) comm = ref.get()->commHandle;
  }
  if (comm != nullptr) {
    auto* guard = new (guard_) Comms::Exclusive(comms(), comm);
    guarded_ = true;
    result_ = checkGuard(*guard, operation);
    if (result_ != RH_OK) return;
    // This thread has exclusive access to the comm, so no other thread can end the buffer.
    Eps::Shared ref(eps(), handle);
    ep_ = ref.get();
  }
  if (ep_ == nullptr) result_ = fail(RH_ERR_INVALID_HANDLE, "%s: not a live buffer: was it destroyed?", operation);
}

EpCall::~EpCall() {
  if (guarded_) reinterpret_cast<Comms::Exclusive*>(guard_)->~Exclusive();
}

EpDispatched* findDispatched(Ep* ep, const rh_ep_handle* handle) {
  for (EpDispatched& d : ep->dispatched) {
    if (d.open && d.handle == handle) return &d;
  }
  for (EpDispatched* d = ep->graphs; d != nullptr; d = d->next) {
    if (__atomic_load_n(&d->open, __ATOMIC_ACQUIRE) && d->handle == handle) return d;
  }
  return nullptr;
}

// The masked ranks, as the other ranks see them. The state of the buffer itself belongs to the running calls.
static rh_result maskedIn(Ep* ep, const char* operation, LocalRankSet* out) {
  if (ep->experts() != nullptr) return ep->experts()->masked(ep, operation, out);
  *out = LocalRankSet{__atomic_load_n(&ep->team().state()->gaveUp, __ATOMIC_ACQUIRE)};
  return RH_OK;
}

rh_result awaitQuiet(const Ep* ep, const char* operation) {
  Comm* comm = ep->comm;
  if (comm->device->synchronize(comm, comm->deadlineNs())) return RH_OK;
  return fail(RH_ERR_TIMEOUT, "%s: rank %d: calls of this comm on streams had not run within %u ms", operation, number(comm->rank), comm->timeoutMs);
}

bool isBroken(const Ep* ep) {
  const uint32_t abort = __atomic_load_n(ep->comm->team.abortWord, __ATOMIC_ACQUIRE);
  return abort != 0 && !(ep->team().dropsDead && (abort & 0xff) == RH_ERR_RANK_DEAD);
}

namespace {

void freeEp(Ep* ep) {
  while (EpDispatched* d = ep->graphs) {
    ep->graphs = d->next;
    delete d;
  }
  while (EpCached* cached = ep->routings) {
    ep->routings = cached->next;
    freeRouting(cached);
  }
  free(ep->memory);
  delete ep;
}

// Ends all handles of the buffer. The last reference frees the memory.
void destroyEp(Ep* ep) {
  for (EpDispatched& d : ep->dispatched) epHandles().remove(d.handle);
  for (EpDispatched* d = ep->graphs; d != nullptr; d = d->next) endGraphHandle(d);
  for (EpCached* cached = ep->routings; cached != nullptr; cached = cached->next) epRoutings().remove(cached->handle);
  releaseEp(ep);
}

}  // namespace

void retainEp(Ep* ep) { __atomic_fetch_add(&ep->references, 1, __ATOMIC_RELAXED); }

void releaseEp(Ep* ep) {
  // Acquire and release: all accesses through the other references happen before the buffer is freed.
  if (__atomic_sub_fetch(&ep->references, 1, __ATOMIC_ACQ_REL) == 0) freeEp(ep);
}

namespace {

void fillTeam(Ep* ep) {
  const Comm* comm = ep->comm;
  const rh_ep_config& c = ep->config;
  EpTeam& t = ep->buffer.team;
  const EpShape shape = epShapeOf(c, comm->worldSize);
  t.rank = number(comm->localRank);
  t.worldSize = comm->localSize();
  t.maxTokens = c.max_tokens_per_rank;
  t.topk = c.topk;
  t.logical = c.num_experts;
  t.physical = epPhysical(c);
  t.maxLocal = shape.maxLocal;
  t.countsFirst = shape.countsFirst;
  t.dropsDead = c.on_dead == RH_EP_DEAD_DROP;
  t.layout = epLayoutOf(shape);
  t.rowBytes = static_cast<uint32_t>(shape.rowBytes);
  t.combineRowBytes = static_cast<uint32_t>(shape.combineRowBytes);
  t.timeoutNs = comm->team.timeoutNs;
  t.limitNs = limitNs(comm, t.layout.bytes);
  t.deathCheckNs = static_cast<int64_t>(comm->plans.ep_death_check_ns);
  t.waiterDeadlines = static_cast<int>(comm->plans.ep_waiter_deadlines);
  ep->buffer.streamAboveBytes = comm->plans.ep_stream_above_bytes;
  t.abortWord = comm->team.abortWord;
  t.leases = reinterpret_cast<const char*>(&comm->line(LocalRank{0})->lease.word);
  t.leaseStride = comm->parts.lines.stride;
  t.waitTurns = reinterpret_cast<const char*>(&countersOf(comm, LocalRank{0})->waitTurns);
  t.waitTurnsStride = comm->parts.counters.stride;
  t.counters = countersOf(comm, comm->localRank);
}

// Where the buffers of all ranks are in their heaps.
void mapTeam(Ep* ep, uint64_t offset) {
  EpTeam& team = ep->buffer.team;
  const bool onDevice = ep->experts() != nullptr;
  team.buffers = (onDevice ? ep->comm->deviceHeaps : ep->comm->team.heaps) + offset;
  team.bufferStride = onDevice ? ep->comm->deviceHeapStride : ep->comm->team.heapStride;
  ep->buffer.flags = ep->comm->team;
  ep->buffer.flags.limitNs = team.limitNs;
  epPrepareFlags(team, &ep->quiet, &ep->buffer.flags);
  uint64_t* experts = &team.counters->experts;
  if (*experts < team.physical) __atomic_store_n(experts, uint64_t{team.physical}, __ATOMIC_RELAXED);
}

Ep* newEp(Comm* comm, rh_comm* handle, const rh_ep_config& config) {
  auto* ep = new Ep();
  if (ep == nullptr) return nullptr;
  ep->references = 1;
  ep->comm = comm;
  ep->commHandle = handle;
  ep->config = config;
  host::EpBuffer& buffer = ep->buffer;
  buffer.format = epFormatOf(config);
  buffer.rows = &comm->kernels->rows;
  buffer.dropsInvalid = config.on_invalid == RH_EP_INVALID_DROP;
  buffer.renormalizes = config.lost_weights == RH_EP_LOST_RENORMALIZE;
  fillTeam(ep);
  // A rank without memory tells all other ranks.
  const auto counters = static_cast<uint64_t>(reinterpret_cast<char*>(ep->team().counters) - comm->control);
  if (commitPages(comm->controlFd, counters, sizeof(rhw_ep_counters), comm->deadlineNs()) == 0) allocateEp(ep);
  return ep;
}

rh_result tooManyEps() {
  return fail(RH_ERR_LIMIT, "ep_create: this process has %d buffers, the most there can be; destroy some", kMaxEps);
}

// Undoes what rh_ep_create has done, and keeps the thread's message. Returns the buffer's window, which is to be freed; nullptr = it has none.
rh_window* undo(rh_ep* handle) {
  Ep* ep = eps().remove(handle);
  rh_window* window = ep->window;
  if (ep->onDevice != nullptr) ep->experts()->close(ep);
  destroyEp(ep);
  return window;
}

rh_result openOnDevice(Ep* ep) {
  rh_result result = ep->experts()->open(ep);
  for (uint32_t i = 0; i < kEpHandles && result == RH_OK; i++) result = ep->experts()->cell(ep, i, "ep_create", &ep->dispatched[i].cell);
  return result;
}

// The sizes of a buffer depend on its device. A device without Experts has the layout of the CPU.
rh_result checkDevice(const Comm* comm, const rh_ep_config& config) {
  const int32_t kind = comm->device->experts == nullptr ? RH_DEVICE_CPU : RH_DEVICE_CUDA;
  if (config.device_kind == kind) return RH_OK;
  return fail(RH_ERR_INVALID_ARGUMENT, "ep_create: rank %d: device_kind is %d and that of the comm %d; give rh_ep_config the kind of the comm's device",
              number(comm->rank), config.device_kind, kind);
}

// Before the window: everything that can fail on one rank alone, including a free slot in the table.
rh_result prepare(Comm* comm, rh_comm* commHandle, const rh_ep_config* config, rh_ep** out) {
  rh_ep_config c;
  rh_result result = readEpConfig("ep_create", config, comm->worldSize, &c);
  if (result == RH_OK) result = checkDevice(comm, c);
  if (result == RH_OK && comm->device->experts != nullptr) result = comm->device->experts->admit(comm);
  if (result != RH_OK) return result;
  Ep* ep = newEp(comm, commHandle, c);
  if (ep == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "ep_create: rank %d: no memory for what is kept of a buffer", number(comm->rank));
  auto* handle = static_cast<rh_ep*>(eps().insert(ep));
  if (handle == nullptr) {
    destroyEp(ep);
    return tooManyEps();
  }
  for (uint32_t i = 0; i < kEpHandles; i++) {
    EpDispatched& d = ep->dispatched[i];
    d.ep = handle;
    d.number = i;
    d.own.flight = -1;
    d.cell = &d.own;
    d.handle = static_cast<rh_ep_handle*>(epHandles().insert(&d));  // the table reserves these slots for each buffer
  }
  result = compareEps(comm, *ep);
  ep->config.physical_expert = ep->config.physical_rank = nullptr;  // owned by the caller
  if (result == RH_OK && ep->experts() != nullptr) result = agreeOnEp(comm, openOnDevice(ep));
  if (result != RH_OK) {
    undo(handle);
    return result;
  }
  comm->buffers++;
  *out = handle;
  return RH_OK;
}

rh_result giveWindow(Comm* comm, rh_comm* commHandle, rh_ep* handle) {
  Eps::Shared ref(eps(), handle);  // no other thread knows the handle yet
  Ep* ep = ref.get();
  const bool onDevice = ep->experts() != nullptr;
  rh_result result = allocWindow(comm, commHandle, ep->team().layout.bytes, onDevice ? RH_MEMORY_DEVICE : RH_MEMORY_HOST, &ep->window);
  rh_window_info info = RH_WINDOW_INFO_INIT;
  if (result == RH_OK) result = rh_window_get_info(ep->window, &info);
  if (result != RH_OK) return result;
  mapTeam(ep, info.offset);
  return onDevice ? agreeOnEp(comm, ep->experts()->fill(ep)) : RH_OK;
}

}  // namespace

namespace {

void endEps(Comm* comm) {
  eps().forEach([&](void* handle) {
    Ep* mine = nullptr;
    {
      Eps::Shared ref(eps(), handle);
      if (ref.get() != nullptr && ref.get()->comm == comm) mine = ref.get();
    }
    if (mine != nullptr) destroyEp(eps().remove(handle));
  });
}

constexpr CommUser makeUser() {
  CommUser u = {};
  u.end = endEps;
  return u;
}
CommUser user = makeUser();
ForkHandler forkHandler = {[] {
  epHandles().forget([](EpDispatched*) {});
  epRoutings().forget([](EpCached*) {});
  eps().forget([](Ep*) {});
}};

// Makes buffers end with their comm, and before the windows that they are in.
void watchEps() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] {
    watchWindows();
    addCommUser(&user);
    addForkHandler(&forkHandler);
  });
}

}  // namespace

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_ep_create(rh_comm* handle, const rh_ep_config* config, rh_ep** out) {
  if (out == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "ep_create: ep is NULL");
  *out = nullptr;
  rh_result result = refuseInGroup("ep_create");
  if (result != RH_OK) return result;
  // Held for the whole call: a finalize by another thread in between would end the buffer.
  Comms::Exclusive guard(comms(), handle);
  result = checkGuard(guard, "ep_create");
  if (result == RH_OK) result = checkNotCapturing(guard.get(), "ep_create");
  if (result == RH_OK && guard.get()->device->streams != nullptr && guard.get()->device->expert == nullptr) {
    result = fail(RH_ERR_UNSUPPORTED, "ep_create: rank %d: dispatch and combine do not run on %s devices; make a comm on the CPU for them",
                  number(guard.get()->rank), guard.get()->device->name);
  }
  rh_ep* made = nullptr;
  watchEps();
  if (result == RH_OK) result = prepare(guard.get(), handle, config, &made);
  if (result != RH_OK) return result;
  result = giveWindow(guard.get(), handle, made);
  if (result == RH_OK) {
    *out = made;
    return RH_OK;
  }
  char text[RHW_TEXT];
  snprintf(text, sizeof text, "%s", rh_last_error_message());
  rh_window* window = undo(made);
  if (window != nullptr) freeWindow(guard.get(), window);
  return fail(result, "%s", text);
}

uint32_t railhead::client::capturesLeft(const uint32_t* captures) {
  constexpr int64_t kPatienceNs = int64_t{500} * 1000000;
  const int64_t until = railhead::host::nowNs() + kPatienceNs;
  uint32_t left;
  while ((left = __atomic_load_n(captures, __ATOMIC_ACQUIRE)) != 0 && railhead::host::nowNs() < until) {
    const timespec pause = {0, 1000000};
    nanosleep(&pause, nullptr);
  }
  return left;
}

extern "C" rh_result rh_ep_destroy(rh_ep* handle) {
  EpCall call(handle, "ep_destroy");
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  Comm* comm = ep->comm;
  rh_window* window = ep->window;
  const uint32_t captures = capturesLeft(&ep->captures);
  if (captures != 0) {
    return fail(RH_ERR_BUSY, "ep_destroy: rank %d: the buffer is used by %u calls of captured graphs; destroy those first", ep->rankNumber(), captures);
  }
  const rh_result result = checkUnused(comm, window, "ep_destroy");  // while there is a handle
  if (result != RH_OK) return result;
  const bool idle = comm->device->synchronize(comm, comm->deadlineNs());  // on a timeout freeWindow reports the error
  if (idle && ep->onDevice != nullptr) {
    ep->experts()->count(comm, "ep_destroy");
    ep->experts()->close(ep);
  }
  destroyEp(eps().remove(handle));
  return freeWindow(comm, window);  // in the same call: another thread's call in between would make it BUSY, and the window would stay
}

extern "C" rh_result rh_ep_get_info(rh_ep* handle, rh_ep_info* info) {
  const rh_result result = checkStruct("ep_get_info", "info", info);
  if (result != RH_OK) return result;
  EpCall call(handle, "ep_get_info");
  if (call.result() != RH_OK) return call.result();
  Ep* ep = call.ep();
  LocalRankSet masked;
  const rh_result read = maskedIn(ep, "ep_get_info", &masked);
  if (read != RH_OK) return read;
  rh_ep_info results = RH_EP_INFO_INIT;
  results.local_experts = ep->buffer.localExperts();
  results.num_physical = ep->team().physical;
  results.max_local_experts = ep->team().maxLocal;
  results.scale_columns = railhead::host::epScaleColumns(ep->buffer.format);
  results.buffer_bytes = ep->team().layout.bytes;
  results.private_bytes = ep->memoryBytes;
  results.masked_count = listRanks(ep->comm, masked, nullptr, 0);
  writeStruct(info, results);
  return RH_OK;
}

extern "C" rh_result rh_ep_get_masked(rh_ep* handle, int32_t* ranks, int32_t capacity, int32_t* count) {
  EpCall call(handle, "ep_get_masked");
  if (call.result() != RH_OK) return call.result();
  LocalRankSet masked;
  const rh_result read = maskedIn(call.ep(), "ep_get_masked", &masked);
  return read == RH_OK ? giveRanks(call.ep()->comm, "ep_get_masked", masked, ranks, capacity, count) : read;
}

extern "C" rh_result rh_ep_mask_rank(rh_ep* handle, int32_t rank) {
  EpCall call(handle, "ep_mask_rank");
  if (call.result() != RH_OK) return call.result();
  const Comm* comm = call.ep()->comm;
  const LocalRank masked = comm->localOf(WorldRank{rank});
  if (masked == kNoLocalRank || masked == comm->localRank) {
    return fail(RH_ERR_INVALID_ARGUMENT, "ep_mask_rank: rank %d: cannot mask rank %d; want another one of 0..%d", number(comm->rank), rank,
                comm->worldSize - 1);
  }
  const rh_result result = awaitQuiet(call.ep(), "ep_mask_rank");
  if (result != RH_OK) return result;
  if (const Experts* experts = call.ep()->experts()) {
    LocalRankSet all;
    const rh_result read = experts->masked(call.ep(), "ep_mask_rank", &all);
    all.add(masked);
    return read == RH_OK ? experts->mask(call.ep(), all) : read;
  }
  railhead::EpState* state = call.ep()->team().state();
  LocalRankSet all{state->masked};
  all.add(masked);
  state->masked = all.mask();
  __atomic_store_n(&state->gaveUp, state->masked, __ATOMIC_RELEASE);
  return RH_OK;
}

extern "C" rh_result rh_ep_get_load(rh_ep* handle, uint64_t* total, uint64_t* local, uint32_t experts) {
  EpCall call(handle, "ep_get_load");
  if (call.result() != RH_OK) return call.result();
  const Ep* ep = call.ep();
  if (experts != ep->team().physical) {
    return fail(RH_ERR_INVALID_ARGUMENT, "ep_get_load: rank %d: %u experts; the buffer has %u physical ones", ep->rankNumber(), experts,
                ep->team().physical);
  }
  const rh_result counted = ep->experts() == nullptr ? RH_OK : ep->experts()->count(ep->comm, "ep_get_load");
  if (counted != RH_OK) return counted;
  for (uint32_t e = 0; e < experts; e++) {
    uint64_t sum = 0;
    for (const LocalRank r : ep->comm->localRanks()) sum += __atomic_load_n(&countersOf(ep->comm, r)->routed[e], __ATOMIC_RELAXED);
    if (total != nullptr) total[e] = sum;
    if (local != nullptr) local[e] = __atomic_load_n(&ep->team().counters->routed[e], __ATOMIC_RELAXED);
  }
  return RH_OK;
}
