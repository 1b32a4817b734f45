#include "memory/streams.h"

#include <stdlib.h>

#include "base/error.h"
#include "memory/window.h"

namespace railhead::client {

namespace {

// What a captured call keeps alive.
struct Kept {
  Comm* comm;
  int n;
  void* windows[];  // handles, because windows end with their comm
};

const char* ownPartOf(const Window* w) {
  const Comm* comm = w->comm;
  if (w->region != 0) return comm->regions[w->region]->own;
  return (w->memory == RH_MEMORY_DEVICE ? comm->deviceHeap(comm->localRank) : comm->ownHeap()) + w->offset;
}

bool touches(const Window* w, const Extent* extents, int n) {
  const auto begin = reinterpret_cast<uintptr_t>(ownPartOf(w));
  for (int i = 0; i < n; i++) {
    const auto at = reinterpret_cast<uintptr_t>(extents[i].at);
    if (extents[i].bytes > 0 && begin != 0 && at < begin + w->bytes && begin < at + extents[i].bytes) return true;
  }
  return false;
}

// Visits the comm's windows that the extents touch. The caller has exclusive access to the comm, so none is freed meanwhile.
template <class Visit>
void forEachTouched(const Comm* comm, const Extent* extents, int n, Visit visit) {
  windows().forEach([&](void* handle) {
    Windows::Shared ref(windows(), handle);
    Window* w = ref.get();
    if (w != nullptr && w->comm == comm && touches(w, extents, n)) visit(handle, w);
  });
}

void letGo(void* p) {
  auto* kept = static_cast<Kept*>(p);
  for (int i = 0; i < kept->n; i++) {
    Windows::Shared ref(windows(), kept->windows[i]);
    if (ref.get() != nullptr) __atomic_fetch_sub(&ref.get()->captured, 1, __ATOMIC_RELEASE);
  }
  releaseComm(kept->comm);
  free(kept);
}

Kept* keep(Comm* comm, const Extent* extents, int n) {
  size_t touched = 0;
  forEachTouched(comm, extents, n, [&](void*, Window*) { touched++; });
  auto* kept = static_cast<Kept*>(malloc(sizeof(Kept) + touched * sizeof(void*)));
  if (kept == nullptr) return nullptr;
  kept->comm = comm;
  kept->n = 0;
  retainComm(comm);
  forEachTouched(comm, extents, n, [&](void* handle, Window* w) {
    __atomic_fetch_add(&w->captured, 1, __ATOMIC_RELAXED);
    kept->windows[kept->n++] = handle;
  });
  return kept;
}

}  // namespace

rh_result checkStream(const Comm* comm, const char* operation, const void* stream) {
  const Device* device = comm->device;
  if (device->streams == nullptr) {
    return stream == nullptr ? RH_OK
                             : fail(RH_ERR_UNSUPPORTED, "%s: rank %d: a stream was given to a %s comm; pass NULL", operation, number(comm->rank), device->name);
  }
  if (device->streams->isStream(stream)) return RH_OK;
  return fail(RH_ERR_INVALID_ARGUMENT, "%s: rank %d: %p is not a stream of the comm's device (%s)", operation, number(comm->rank), stream, device->name);
}

rh_result keepForGraph(Comm* comm, const char* operation, void* stream, const Extent* extents, int n, Capture** capture) {
  const Streams* streams = comm->device->streams;
  *capture = nullptr;
  uint64_t inProgress = 0;
  const rh_result bad = streams->captureOf(comm, stream, &inProgress);
  if (bad != RH_OK || inProgress == 0) return bad;
  *capture = captureOf(comm, stream, inProgress);
  if (*capture == nullptr) {
    return fail(RH_ERR_LIMIT, "%s: rank %d: calls on this comm are being captured on %d streams, the most there can be; end a capture", operation,
                number(comm->rank), kMaxCaptures);
  }
  Kept* kept = keep(comm, extents, n);
  if (kept != nullptr && streams->keep(comm, stream, letGo, kept)) return RH_OK;
  if (kept != nullptr) letGo(kept);
  return fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory to note what the captured call keeps", operation, number(comm->rank));
}

rh_result admitCall(Comm* comm, const char* operation, void* stream, const Extent* extents, int n, uint32_t* captured) {
  *captured = 0;
  rh_result result = whyBroken(comm);
  Capture* capture = nullptr;
  if (result == RH_OK) result = keepForGraph(comm, operation, stream, extents, n, &capture);
  if (result == RH_OK && capture != nullptr) *captured = capture->collectives++ % kMaxCaptured + 1;
  return result;
}

}  // namespace railhead::client
