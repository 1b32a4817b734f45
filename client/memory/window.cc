// Windows: symmetric memory at the same offset of every rank's heap. (registration.cc: memory that the callers own.)
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/error.h"
#include "base/fork.h"
#include "comm/set_up.h"
#include "comm/thread_group.h"
#include "host/futex.h"
#include "memory/allocation.h"
#include "memory/window.h"

namespace railhead::client {

namespace {

// How many calls of live graphs use the window.
uint32_t capturedCalls(const void* handle) {
  Windows::Shared ref(windows(), handle);
  // Acquire: the replays of the graphs that released the window have ended.
  return ref.get() == nullptr ? 0 : __atomic_load_n(&ref.get()->captured, __ATOMIC_ACQUIRE);
}

// A replay of a graph would access the memory of a freed window. A driver may release what a graph kept a while after the graph was destroyed, on a
// thread of its own, so the check looks again for a while.
rh_result checkNotCaptured(const Comm* comm, const void* handle, const char* operation) {
  constexpr int64_t kPatienceNs = int64_t{500} * 1000000;
  const int64_t until = host::nowNs() + kPatienceNs;
  uint32_t captured = capturedCalls(handle);
  while (captured != 0 && host::nowNs() < until) {
    const timespec pause = {0, 1000000};
    nanosleep(&pause, nullptr);
    captured = capturedCalls(handle);
  }
  Windows::Shared ref(windows(), handle);
  const Window* w = ref.get();
  if (captured == 0 || w == nullptr) return RH_OK;
  return fail(RH_ERR_BUSY, "%s: rank %d: the window of %zu bytes at %s %llu is used by %u calls of captured graphs; destroy those "
              "first", operation, number(comm->rank), w->bytes, w->region == 0 ? "offset" : "registration", static_cast<unsigned long long>(w->region == 0 ? w->offset : w->region), captured);
}

rh_result unexpected(const char* operation, const Comm* comm, const Received& r) {
  if (r.fd >= 0) close(r.fd);
  return fail(RH_ERR_PROTOCOL, "%s: rank %d: unexpected message type %d from the daemon", operation, number(comm->rank), r.m.h.type);
}

bool fitsHeap(const Comm* comm, uint64_t offset, uint64_t given, uint64_t wanted) {
  return given >= wanted && offset >= comm->scratchBytes && offset <= comm->heapBytes && given <= comm->heapBytes - offset;
}

rh_result badRange(const Comm* comm, uint64_t offset, uint64_t given, uint64_t wanted) {
  return fail(RH_ERR_PROTOCOL, "window_alloc: rank %d: the daemon gave %llu bytes at %llu for a window of %llu; windows lie in "
              "%llu..%llu", number(comm->rank), static_cast<unsigned long long>(given), static_cast<unsigned long long>(offset),
              static_cast<unsigned long long>(wanted), static_cast<unsigned long long>(comm->scratchBytes),
              static_cast<unsigned long long>(comm->heapBytes));
}

// Replaces RH_MEMORY_DEFAULT by what it means. Every device has the host's memory.
rh_result checkMemory(const Comm* comm, int32_t* memory) {
  if (*memory == RH_MEMORY_DEFAULT) *memory = comm->device->memory;
  if (*memory == RH_MEMORY_HOST) return RH_OK;
  if (*memory != RH_MEMORY_DEVICE) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_alloc: rank %d: memory %d; want RH_MEMORY_DEFAULT, RH_MEMORY_HOST or RH_MEMORY_DEVICE", number(comm->rank), *memory);
  }
  if (comm->device->ownMemory != nullptr) return comm->device->ownMemory->check(comm, "window_alloc");
  return fail(RH_ERR_UNSUPPORTED, "window_alloc: rank %d: device %s makes no windows of device memory; ask for RH_MEMORY_DEFAULT", number(comm->rank),
              comm->device->name);
}

rh_result tooManyWindows() {
  return fail(RH_ERR_LIMIT, "window_alloc: this process has %d windows, the most there can be; free some", kMaxWindows);
}

rh_result allocateOnce(Comm* comm, Call* call, int64_t deadline, size_t bytes, uint64_t* offset) {
  rhw_window_alloc request = {};
  request.group = call->group();
  request.bytes = bytes;
  request.memory = RHW_MEMORY_CPU;
  rh_result result = call->send(&request, RHW_WINDOW_ALLOC, deadline);
  Received r;
  if (result == RH_OK) result = call->wait(&r, deadline);
  if (result != RH_OK) return result;
  if (r.m.h.type != RHW_WINDOW_COMMIT) return unexpected("window_alloc", comm, r);
  const rhw_window_commit commit = r.m.windowCommit;
  if (commit.memory != RHW_MEMORY_CPU) {
    return fail(RH_ERR_PROTOCOL, "window_alloc: rank %d: the daemon allocated memory of kind %u, expected %d (CPU)", number(comm->rank), commit.memory,
                RHW_MEMORY_CPU);
  }
  if (!fitsHeap(comm, commit.offset, commit.bytes, bytes)) return badRange(comm, commit.offset, commit.bytes, bytes);

  rhw_window_committed done = {};
  done.group = call->group();
  done.offset = commit.offset;
  done.memory = commit.memory;
  done.error = comm->device->commit(comm->heapFd, commit.offset, commit.bytes, deadline);
  result = call->send(&done, RHW_WINDOW_COMMITTED, deadline);
  if (result == RH_OK) result = call->wait(&r, deadline);
  if (result != RH_OK) return result;
  if (r.m.h.type != RHW_WINDOW_READY) return unexpected("window_alloc", comm, r);
  *offset = commit.offset;
  return RH_OK;
}

}  // namespace

rh_result allocateHostMemory(Comm* comm, uint64_t bytes, uint64_t* offset) {
  return setUp(
      comm, RHW_OP_WINDOW_ALLOC,
      [&](Call* call, int64_t deadline) { return allocateOnce(comm, call, deadline, bytes, offset); },
      [&](const rhw_outcome& o) {
        // The call succeeded, so every rank has committed the pages.
        *offset = o.offset;
        return fitsHeap(comm, o.offset, o.bytes, bytes) ? RH_OK : badRange(comm, o.offset, o.bytes, bytes);
      });
}

namespace {

// offset is an offset in the heap of that kind of memory (rhw_memory_kind), or with kind 0 a region number shifted by RHW_REGION_SHIFT.
rh_result releaseOnce(Comm* comm, Call* call, int64_t deadline, uint64_t offset, uint32_t memory) {
  rhw_window_free request = {};
  request.group = call->group();
  request.offset = offset;
  request.memory = memory;
  rh_result result = call->send(&request, RHW_WINDOW_FREE, deadline);
  Received r;
  if (result == RH_OK) result = call->wait(&r, deadline);
  if (result != RH_OK) return result;
  return r.m.h.type == RHW_WINDOW_FREED ? RH_OK : unexpected("window_free", comm, r);
}

rh_result release(Comm* comm, uint64_t offset, uint32_t memory) {
  return setUp(
      comm, RHW_OP_WINDOW_FREE, [&](Call* call, int64_t deadline) { return releaseOnce(comm, call, deadline, offset, memory); },
      [](const rhw_outcome&) { return RH_OK; });
}

}  // namespace

rh_result freeDeviceMemory(Comm* comm, uint64_t offset, uint64_t bytes) {
  const rh_result result = release(comm, offset, comm->device->ownMemory->kind);
  if (result == RH_OK) comm->device->ownMemory->unmap(comm, offset, wholeGranules(comm, bytes));
  return result;
}

namespace {

rh_result release(Comm* comm, const Window& w) {
  if (w.region != 0) return release(comm, uint64_t{w.region} << RHW_REGION_SHIFT, 0);
  return w.memory == RH_MEMORY_HOST ? release(comm, w.offset, RHW_MEMORY_CPU) : freeDeviceMemory(comm, w.offset, w.bytes);
}

rh_result allocate(Comm* comm, Window* w) {
  return w->memory == RH_MEMORY_HOST ? allocateHostMemory(comm, w->bytes, &w->offset) : allocateDeviceMemory(comm, w->bytes, &w->offset);
}

// What a window of that memory can have.
uint64_t mostBytes(const Comm* comm, int32_t memory) {
  return memory == RH_MEMORY_HOST ? comm->heapBytes - comm->scratchBytes : comm->deviceHeapBytes - comm->deviceScratchBytes;
}

}  // namespace

Windows& windows() {
  static Windows table;
  return table;
}

namespace {

void endWindows(Comm* comm) {
  const auto isMine = [&](void* handle) {
    Windows::Shared window(windows(), handle);
    return window.get() != nullptr && window.get()->comm == comm;
  };
  windows().forEach([&](void* handle) {
    if (isMine(handle)) delete windows().remove(handle);
  });
}

void dropRegions(Comm* comm) {
  while (comm->lastRegion > 0) dropRegion(comm, comm->lastRegion);
}

void unmapRegions(Comm* comm) {
  for (Region* region : comm->regions) {
    if (region != nullptr) unmapPeers(region);
  }
}

constexpr CommUser makeUser() {
  CommUser u = {};
  u.end = endWindows;
  u.unmap = dropRegions;
  u.inChild = unmapRegions;
  return u;
}
CommUser user = makeUser();
ForkHandler forkHandler = {[] { windows().forget([](Window*) {}); }};

}  // namespace

void watchWindows() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] {
    addCommUser(&user);
    addForkHandler(&forkHandler);
  });
}

rh_result checkUnused(const Comm* comm, const rh_window* handle, const char* operation) {
  const rh_result result = checkNoneNoted(comm, operation);
  return result == RH_OK ? checkNotCaptured(comm, handle, operation) : result;
}

rh_result allocWindow(Comm* comm, rh_comm* handle, size_t bytes, int32_t memory, rh_window** out) {
  const uint64_t most = mostBytes(comm, memory);
  if (bytes == 0 || bytes > most) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_alloc: rank %d: %zu bytes; the heap can hold 1..%llu (heap_bytes of the "
                "comm's config)", number(comm->rank), bytes, static_cast<unsigned long long>(most));
  }
  watchWindows();
  if (windows().full()) return tooManyWindows();
  auto* window = new Window{{}, comm, handle, 0, bytes, memory, 0, 0};
  if (window == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "window_alloc: no memory for a handle");
  if (!beginSetUp(comm, RHW_OP_WINDOW_ALLOC, bytes)) {
    delete window;
    return whyBroken(comm);
  }
  rh_result result = allocate(comm, window);
  endOperation(comm);
  if (result == RH_OK) {
    *out = static_cast<rh_window*>(windows().insert(window));
    if (*out != nullptr) return RH_OK;
    result = tooManyWindows();
  }
  delete window;
  return result;
}

rh_result freeWindow(Comm* comm, rh_window* handle) {
  Window* window = windows().remove(handle);
  if (window == nullptr) return fail(RH_ERR_INVALID_HANDLE, "window_free: another thread freed this window");
  // Whatever the result, the caller may unmap its own memory from here on, so it is not offered to peers any more.
  if (window->region != 0) comm->regions[window->region]->own = nullptr;
  rh_result result;
  if (beginSetUp(comm, RHW_OP_WINDOW_FREE, window->bytes, true)) {
    result = release(comm, *window);
    endOperation(comm);
  } else {
    result = whyBroken(comm);
  }
  if (result == RH_OK && window->region != 0) {
    unmapRegion(comm, comm->regions[window->region]);
    dropRegion(comm, window->region);
  }
  delete window;
  return result;
}

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_window_alloc(rh_comm* handle, size_t bytes, const rh_window_config* config, rh_window** out) {
  if (out == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "window_alloc: window is NULL");
  *out = nullptr;
  rh_window_config c = RH_WINDOW_CONFIG_INIT;
  rh_result result = config == nullptr ? RH_OK : readStruct("window_alloc", "config", config, &c);
  if (result != RH_OK) return result;
  Comms::Exclusive guard(comms(), handle);
  result = checkGuard(guard, "window_alloc");
  if (result == RH_OK) result = checkMemory(guard.get(), &c.memory);
  if (result == RH_OK) result = checkNotCapturing(guard.get(), "window_alloc");
  return result == RH_OK ? allocWindow(guard.get(), handle, bytes, c.memory, out) : result;
}

extern "C" rh_result rh_window_free(rh_window* handle) {
  rh_comm* commHandle = nullptr;
  {
    Windows::Shared ref(windows(), handle);
    if (ref.get() == nullptr) return fail(RH_ERR_INVALID_HANDLE, "window_free: not a live window: was it freed before?");
    commHandle = ref.get()->commHandle;
  }
  Comms::Exclusive guard(comms(), commHandle);
  rh_result result = checkGuard(guard, "window_free");
  if (result == RH_OK) result = checkUnused(guard.get(), handle, "window_free");
  return result == RH_OK ? freeWindow(guard.get(), handle) : result;
}

extern "C" rh_result rh_window_pointer(rh_window* handle, int32_t rank, void** out) {
  if (out == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "window_pointer: pointer is NULL");
  *out = nullptr;
  Windows::Shared window(windows(), handle);
  if (window.get() == nullptr) return fail(RH_ERR_INVALID_HANDLE, "window_pointer: not a live window: was it freed?");
  const Comm* comm = window.get()->comm;
  const LocalRank local = comm->localOf(WorldRank{rank});
  if (local == kNoLocalRank) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_pointer: rank %d is outside 0..%d", rank, comm->worldSize - 1);
  }
  const Region* region = window.get()->registered();
  if (region == nullptr) {
    *out = (window.get()->memory == RH_MEMORY_HOST ? comm->heap(local) : comm->deviceHeap(local)) + window.get()->offset;
    return RH_OK;
  }
  if (!region->isShared() && local != comm->localRank) {
    return fail(RH_ERR_UNSUPPORTED, "window_pointer: rank %d: the memory of rank %d is not mapped here, the window is staged: %s",
                number(comm->rank), rank, region->reason);
  }
  *out = region->parts[number(local)];
  return RH_OK;
}

extern "C" rh_result rh_window_get_info(rh_window* handle, rh_window_info* info) {
  const rh_result result = checkStruct("window_get_info", "info", info);
  if (result != RH_OK) return result;
  Windows::Shared window(windows(), handle);
  if (window.get() == nullptr) return fail(RH_ERR_INVALID_HANDLE, "window_get_info: not a live window: was it freed?");
  rh_window_info results = RH_WINDOW_INFO_INIT;
  results.bytes = window.get()->bytes;
  results.offset = window.get()->offset;
  results.memory = window.get()->memory;
  writeStruct(info, results);
  return RH_OK;
}
