// The device boundary: calls become work on a stream, whose thread runs them with the CPU's code.
#include <string.h>
#include <unistd.h>

#include "base/commit.h"
#include "base/error.h"
#include "device/cpu/run.h"
#include "device/threads/stream.h"
#include "ep/ep.h"
#include "host/mem.h"

namespace railhead::client::threads {

namespace {

constexpr uint32_t kKind = kDeviceKinds - 1;

using Memory = host::Mem;

// Lets one stream at a time run an operation of the comm. If another stream already does, the caller has not ordered the two, and the
// group is broken on all ranks.
bool claim(Comm* comm, uint32_t op, uint32_t stream) {
  DeviceState* state = comm->state();
  Memory memory;
  uint32_t holder;
  if (takeState(memory, state, stream, &holder)) return true;
  __atomic_store_n(&state->clash, uint64_t{stream} << 32 | holder, __ATOMIC_RELAXED);  // ordered by the abort word
  poison(comm, RH_ERR_BUSY, op, comm->rank, comm->rank);
  return false;
}

void giveBack(Comm* comm) {
  Memory memory;
  giveStateBack(memory, comm->state());
}

// Runs an operation, if the rank is still in the group and no other operation of the comm is running.
template <class Run>
rh_result runAs(Comm* comm, uint32_t op, uint32_t stream, Run run) {
  // Acquire: pairs with endComm.
  if (__atomic_load_n(&comm->state()->left, __ATOMIC_ACQUIRE) != 0) {
    return fail(RH_ERR_INVALID_HANDLE, "%s: rank %d of group \"%s\": the comm has been finalized: nothing was done; destroy the graph", operationName(op),
                number(comm->rank), comm->name);
  }
  if (!claim(comm, op, stream)) return whyBroken(comm);
  comm->runsOn = {stream == kHost ? 0 : stream, launch.graph, launch.replay};
  const rh_result result = run();
  comm->runsOn = {};
  giveBack(comm);
  return result;
}

rh_result runCollectiveWork(Stream* s, Work* work) {
  const CollectiveCall* call = work->as<CollectiveCall>();
  return runAs(work->comm, call->operation.op, s->number, [&] { return runCollective(work->comm, *call); });
}

// The list follows the call in memory.
rh_result runTransfersWork(Stream* s, Work* work) {
  auto* call = work->as<TransfersCall>();
  auto* list = reinterpret_cast<Transfer*>(call + 1);
  return runAs(work->comm, call->op, s->number, [&] {
    for (int i = 0; i < 2 * call->pairs + call->n; i++) {
      list[i].done = 0;
      list[i].ended = false;
    }
    call->list = list;
    return runTransfers(work->comm, *call);
  });
}

// The outcome of a call is in its reports. A broken group also fails the stream.
rh_result runExpertWork(Stream* s, Work* work) {
  const EpRequest* r = work->as<EpRequest>();
  return runAs(work->comm, operationOf(*r), s->number, [&] { return runEp(*r) == EpError::kStopped ? whyBroken(work->comm) : RH_OK; });
}

// Work holds a reference to its comm, so it stays valid until its last run, even after the handle has ended.
Work* newCommWork(Comm* comm, rh_result (*run)(Stream*, Work*), size_t argsBytes) {
  Work* work = newWork(run, argsBytes);
  if (work == nullptr) return nullptr;
  retainComm(comm);
  work->comm = comm;
  work->drop = [](Work* w) { releaseComm(w->comm); };
  return work;
}

rh_result noMemory(const Comm* comm, uint32_t op) {
  return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory to queue the call", operationName(op), number(comm->rank));
}

rh_result submitTo(void* stream, Work* work) {
  StreamTable::Shared ref(streams(), stream);
  if (ref.get() != nullptr) {
    submit(ref.get(), work);
    return RH_OK;
  }
  freeWork(work);
  return fail(RH_ERR_INVALID_HANDLE, "another thread has destroyed the stream");
}

rh_result collective(Comm* comm, const CollectiveCall& call, void* stream) {
  Work* work = newCommWork(comm, runCollectiveWork, sizeof call);
  if (work == nullptr) return noMemory(comm, call.operation.op);
  *work->as<CollectiveCall>() = call;
  return submitTo(stream, work);
}

rh_result transfers(Comm* comm, const TransfersCall& call, void* stream) {
  const size_t listBytes = static_cast<size_t>(2 * call.pairs + call.n) * sizeof(Transfer);
  Work* work = newCommWork(comm, runTransfersWork, sizeof call + listBytes);
  if (work == nullptr) return noMemory(comm, call.op);
  auto* copy = work->as<TransfersCall>();
  *copy = call;
  memcpy(copy + 1, call.list, listBytes);
  return submitTo(stream, work);
}

rh_result expert(Comm* comm, const EpRequest& call, void* stream) {
  Work* work = newCommWork(comm, runExpertWork, sizeof call);
  if (work == nullptr) return noMemory(comm, operationOf(call));
  *work->as<EpRequest>() = call;
  retainEp(call.ep);
  work->drop = [](Work* w) {
    releaseEp(w->as<EpRequest>()->ep);
    releaseComm(w->comm);
  };
  return submitTo(stream, work);
}

rh_result open(Comm* comm) {
  auto* of = new CommWork();
  if (of == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "comm_init: no memory for a comm");
  initialize(&of->mutex, &of->changed);
  comm->onDevice = of;
  return RH_OK;
}

void close(Comm* comm) {
  auto* of = static_cast<CommWork*>(comm->onDevice);
  pthread_mutex_destroy(&of->mutex);
  pthread_cond_destroy(&of->changed);
  delete of;
}

bool synchronize(Comm* comm, int64_t deadlineNs) {
  auto* of = static_cast<CommWork*>(comm->onDevice);
  pthread_mutex_lock(&of->mutex);
  bool inTime = true;
  while (of->pending > 0 && inTime) inTime = waitUntil(&of->changed, &of->mutex, deadlineNs);
  const bool idle = of->pending == 0;
  pthread_mutex_unlock(&of->mutex);
  return idle;
}

rh_result gather(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes) {
  if (!synchronize(comm, comm->deadlineNs())) {
    poison(comm, RH_ERR_TIMEOUT, op, comm->rank, comm->rank);
    return whyBroken(comm);
  }
  return runAs(comm, op, kHost, [&] { return runGather(comm, op, mine, all, bytes); });
}

bool isStream(const void* stream) {
  StreamTable::Shared ref(streams(), stream);
  return ref.get() != nullptr;
}

rh_result captureOn(const Comm*, const void* stream, uint64_t* capture) {
  StreamTable::Shared ref(streams(), stream);
  *capture = ref.get() != nullptr ? captureOf(ref.get()) : 0;
  return RH_OK;
}

bool isCapturing(const Comm*, const void* stream, uint64_t capture) {
  StreamTable::Shared ref(streams(), stream);
  return ref.get() != nullptr && captureOf(ref.get()) == capture;
}

bool keep(const Comm*, void* stream, void (*release)(void*), void* object) {
  StreamTable::Shared ref(streams(), stream);
  Stream* s = ref.get();
  auto* kept = new Sequence::Kept();
  if (s == nullptr || kept == nullptr) {
    delete kept;
    return false;
  }
  kept->release = release;
  kept->object = object;
  pthread_mutex_lock(&s->mutex);
  const bool captures = s->sequence != nullptr;
  if (captures) {
    kept->next = s->sequence->kept;
    s->sequence->kept = kept;
  }
  pthread_mutex_unlock(&s->mutex);
  if (!captures) delete kept;
  return captures;
}

uint64_t granularity(const Comm*) { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

constexpr Streams makeStreams() {
  Streams s = {};
  s.isStream = isStream;
  s.captureOf = captureOn;
  s.isCapturing = isCapturing;
  s.keep = keep;
  return s;
}
constexpr Streams kStreams = makeStreams();

constexpr Device makeDevice() {
  Device d = {};
  d.kind = kKind;
  d.wire = RHW_DEVICE_CPU;
  d.name = "thread";
  d.memory = RH_MEMORY_HOST;
  d.streams = &kStreams;
  d.open = open;
  d.close = close;
  d.collective = collective;
  d.transfers = transfers;
  d.expert = expert;
  d.gather = gather;
  d.synchronize = synchronize;
  d.granularity = granularity;
  d.commit = commitPages;
  return d;
}
constexpr Device kDevice = makeDevice();

}  // namespace
}  // namespace railhead::client::threads

extern "C" uint32_t rht_device_kind(void) {
  railhead::client::addDevice(&railhead::client::threads::kDevice);
  return railhead::client::threads::kKind;
}
