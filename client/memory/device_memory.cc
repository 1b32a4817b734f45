// Memory in the device heaps. Each rank makes its own part and gives its descriptor to the daemon, which passes it to all other ranks.
#include <unistd.h>

#include "base/error.h"
#include "comm/set_up.h"
#include "memory/allocation.h"

namespace railhead::client {

namespace {

// What this rank has done of an allocation.
struct Part {
  uint64_t offset = 0, bytes = 0;  // bytes 0: nothing yet
  LocalRankSet mapped;             // ranks whose memory is mapped, this one included
};

rh_result unexpected(const Comm* comm, const Received& r, const char* expected) {
  if (r.fd >= 0) close(r.fd);
  return fail(RH_ERR_PROTOCOL, "window_alloc: rank %d: message type %d in place of %s", number(comm->rank), r.m.h.type, expected);
}

bool fits(const Comm* comm, uint64_t offset, uint64_t given, uint64_t wanted) {
  return given == wholeGranules(comm, wanted) && offset % comm->deviceGranularity == 0 && offset <= comm->deviceHeapBytes &&
         given <= comm->deviceHeapBytes - offset;
}

rh_result badRange(const Comm* comm, uint64_t offset, uint64_t given, uint64_t wanted) {
  return fail(RH_ERR_PROTOCOL, "window_alloc: rank %d: the daemon gave %llu bytes at %llu for %llu bytes of device memory; a device heap has %llu, in granules "
              "of %llu", number(comm->rank), static_cast<unsigned long long>(given), static_cast<unsigned long long>(offset),
              static_cast<unsigned long long>(wanted), static_cast<unsigned long long>(comm->deviceHeapBytes),
              static_cast<unsigned long long>(comm->deviceGranularity));
}

void drop(Comm* comm, Part* part) {
  if (part->bytes != 0 && !part->mapped.empty()) comm->device->ownMemory->unmap(comm, part->offset, part->bytes);
  *part = {};
}

// Makes this rank's memory and tells the daemon, which learns of a failure too.
rh_result makeOwn(Comm* comm, Call* call, int64_t deadline, const rhw_window_commit& m, Part* part) {
  int fd = -1;
  rhw_window_committed done = {};
  done.group = call->group();
  done.offset = m.offset;
  done.memory = m.memory;
  done.error = comm->device->ownMemory->create(comm, m.offset, m.bytes, &fd);
  part->offset = m.offset;
  part->bytes = m.bytes;
  if (done.error == 0) part->mapped.add(comm->localRank);
  const rh_result result = call->send(&done, RHW_WINDOW_COMMITTED, deadline, fd);
  if (fd >= 0) close(fd);
  return result;
}

rh_result takePeer(Comm* comm, const Received& r, Part* part, int* error) {
  if (r.m.h.type != RHW_PEER_MEMORY) return unexpected(comm, r, "PeerMemory");
  const rhw_peer_memory& m = r.m.peerMemory;
  const LocalRank local{m.local};
  const bool known = comm->localRanks().has(local) && !part->mapped.has(local) && m.region == 0 && m.memory == comm->device->ownMemory->kind;
  if (!known || m.fd_offset != part->offset || m.bytes != part->bytes) {
    if (r.fd >= 0) close(r.fd);
    return fail(RH_ERR_PROTOCOL, "window_alloc: rank %d: unexpected memory of local rank %d: %llu bytes at %llu", number(comm->rank), m.local,
                static_cast<unsigned long long>(m.bytes), static_cast<unsigned long long>(m.fd_offset));
  }
  if (*error == 0) *error = comm->device->ownMemory->map(comm, local, m.fd_offset, m.bytes, r.fd);
  close(r.fd);
  part->mapped.add(local);
  return RH_OK;
}

// Maps the memory of all other ranks and tells the daemon, which learns of a failure too.
rh_result mapPeers(Comm* comm, Call* call, int64_t deadline, Part* part) {
  int error = 0;
  for (int32_t i = 1; i < comm->localSize(); i++) {
    Received r;
    rh_result result = call->wait(&r, deadline);
    if (result == RH_OK) result = takePeer(comm, r, part, &error);
    if (result != RH_OK) return result;
  }
  rhw_register_mapped mapped = {};
  mapped.group = call->group();
  mapped.error = error;
  return call->send(&mapped, RHW_REGISTER_MAPPED, deadline);
}

rh_result allocateOnce(Comm* comm, Call* call, int64_t deadline, uint64_t bytes, Part* part) {
  drop(comm, part);  // left from an attempt with the previous daemon
  rhw_window_alloc request = {};
  request.group = call->group();
  request.bytes = bytes;
  request.memory = comm->device->ownMemory->kind;
  rh_result result = call->send(&request, RHW_WINDOW_ALLOC, deadline);
  Received r;
  if (result == RH_OK) result = call->wait(&r, deadline);
  if (result != RH_OK) return result;
  if (r.m.h.type != RHW_WINDOW_COMMIT) return unexpected(comm, r, "WindowCommit");
  const rhw_window_commit commit = r.m.windowCommit;
  if (commit.memory != request.memory) {
    return fail(RH_ERR_PROTOCOL, "window_alloc: rank %d: the daemon allocated memory of kind %u, expected %u", number(comm->rank), commit.memory,
                request.memory);
  }
  if (!fits(comm, commit.offset, commit.bytes, bytes)) return badRange(comm, commit.offset, commit.bytes, bytes);
  result = makeOwn(comm, call, deadline, commit, part);
  if (result == RH_OK && comm->localSize() > 1) result = mapPeers(comm, call, deadline, part);
  if (result == RH_OK) result = call->wait(&r, deadline);
  if (result != RH_OK) return result;
  return r.m.h.type == RHW_WINDOW_READY ? RH_OK : unexpected(comm, r, "WindowReady");
}

}  // namespace

rh_result allocateDeviceMemory(Comm* comm, uint64_t bytes, uint64_t* offset) {
  Part part;
  const rh_result result = setUp(
      comm, RHW_OP_WINDOW_ALLOC, [&](Call* call, int64_t deadline) { return allocateOnce(comm, call, deadline, bytes, &part); },
      [&](const rhw_outcome& o) {
        // The call succeeded, so every rank has mapped the memory of all, this one included.
        return o.offset == part.offset && o.bytes == part.bytes && part.mapped == comm->localRanks() ? RH_OK : badRange(comm, o.offset, o.bytes, bytes);
      });
  *offset = part.offset;
  if (result != RH_OK) drop(comm, &part);
  return result;
}

}  // namespace railhead::client
