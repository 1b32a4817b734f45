// Windows of the caller's own memory, of the host or of the comm's device.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/error.h"
#include "comm/set_up.h"
#include "memory/shareable.h"
#include "memory/window.h"

namespace railhead::client {

namespace {

rh_result unexpected(const Comm* comm, const Received& r, const char* expected) {
  if (r.fd >= 0) close(r.fd);
  return fail(RH_ERR_PROTOCOL, "window_register: rank %d: message type %d in place of %s", number(comm->rank), r.m.h.type, expected);
}

// Maps bytes at offset of a peer's file. Returns 0 or an errno.
int mapPeer(int fd, uint64_t offset, uint64_t bytes, PeerMapping* out) {
  struct stat st;
  if (fstat(fd, &st) != 0) return errno;
  // As for a heap: without the seal later accesses could raise SIGBUS.
  const int seals = fcntl(fd, F_GET_SEALS);
  const auto size = static_cast<uint64_t>(st.st_size);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || offset > size || bytes > size - offset) return EPERM;
  // st_blksize of a memfd is its page size; a mapping of huge pages must be aligned to it.
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t block = static_cast<uint64_t>(st.st_blksize) > page ? static_cast<uint64_t>(st.st_blksize) : page;
  const uint64_t begin = offset / block * block;
  const uint64_t end = (offset + bytes + block - 1) / block * block;
  void* p = mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(begin));
  if (p == MAP_FAILED) return errno;
  *out = {p, end - begin, static_cast<char*>(p) + (offset - begin)};
  return 0;
}

// The answers to a registration received so far.
struct Answers {
  uint32_t number = 0;  // number of the window; 0 = no answer yet
  LocalRankSet peers;   // whose memory was received
  int error = 0;        // first error of mapping them
  bool told = false;    // the result of mapping was sent to the daemon
  Offered offered[RHW_MAX_LOCAL];  // by local rank: memory of a device, which is mapped once all is known. Its descriptors are owned

  Answers() = default;
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;
  ~Answers() { forget(); }
  void forget() {
    for (Offered& o : offered) {
      if (o.fd >= 0) close(o.fd);
      o = {};
    }
    number = 0;
    peers = {};
    error = 0;
    told = false;
  }
};

const DeviceMemory* deviceMemory(const Comm* comm) { return comm->device->ownMemory; }

// Whether a peer's memory is of a kind that ranks on the comm's device register.
bool isOwnKind(const Comm* comm, uint32_t kind) {
  if (deviceMemory(comm) == nullptr) return kind == RHW_MEMORY_CPU;
  return kind == deviceMemory(comm)->kind || kind == RHW_MEMORY_CUDA_IPC;
}

bool freeNumber(const Comm* comm, const Answers& a, uint32_t number) {
  return comm->regions[number] == nullptr && (a.number == 0 || a.number == number);
}

rh_result takePeer(const Comm* comm, const Shareable& mine, const Received& r, Region* region, Answers* a) {
  const rhw_peer_memory& m = r.m.peerMemory;
  const LocalRank local{m.local};
  const bool known = comm->localRanks().has(local) && local != comm->localRank && isOwnKind(comm, m.memory);
  if (!known || a->peers.has(local) || !mine.can() || m.bytes != region->bytes || !freeNumber(comm, *a, m.region)) {
    if (r.fd >= 0) close(r.fd);
    return fail(RH_ERR_PROTOCOL, "window_register: rank %d: unexpected memory of local rank %d: %llu bytes for window %u",
                number(comm->rank), m.local, static_cast<unsigned long long>(m.bytes), m.region);
  }
  a->number = m.region;
  a->peers.add(local);
  if (deviceMemory(comm) != nullptr) {
    Offered& o = a->offered[m.local];
    o.fd = r.fd;
    o.offset = m.fd_offset;
    o.allocationBytes = m.allocation_bytes;
    memcpy(o.handle, m.handle, sizeof o.handle);
    return RH_OK;
  }
  const int error = mapPeer(r.fd, m.fd_offset, m.bytes, &region->peers[m.local]);
  close(r.fd);
  if (a->error == 0) a->error = error;
  region->parts[m.local] = region->peers[m.local].part;
  return RH_OK;
}

// Maps memory of a device, when that of all other ranks has been received. Returns 0 or an error for the daemon.
int placePeers(Comm* comm, const Shareable& mine, Region* region, Answers* a) {
  Offered& own = a->offered[number(comm->localRank)];
  own.fd = mine.fd;
  own.offset = mine.offset;
  own.allocationBytes = mine.allocationBytes;
  const int error = deviceMemory(comm)->place(comm, region->own, region->bytes, a->offered, &region->placed, region->parts);
  own.fd = -1;  // it belongs to mine
  if (error != 0 || region->placed.apart != 0) return error;
  for (const LocalRank r : comm->localRanks()) {
    if (r != comm->localRank) region->parts[number(r)] = comm->deviceHeap(r) + region->placed.offset;
  }
  return 0;
}

rh_result takeRegistered(Comm* comm, const Shareable& mine, const rhw_registered& m, Region* region, Answers* a) {
  const LocalRank staged{m.staged_local};
  const bool allMapped = mine.can() && a->peers.size() == comm->localSize() - 1 && a->error == 0;
  if (!freeNumber(comm, *a, m.region) || (staged == kNoLocalRank ? !allMapped : !comm->localRanks().has(staged))) {
    return fail(RH_ERR_PROTOCOL, "window_register: rank %d: the daemon says that window %u is %s by local rank %d, which cannot be",
                number(comm->rank), m.region, staged == kNoLocalRank ? "shared" : "staged", m.staged_local);
  }
  a->number = m.region;
  region->staged = staged;
  memcpy(region->reason, m.reason, sizeof region->reason);
  if (!region->isShared()) unmapRegion(comm, region);
  return RH_OK;
}

rh_result offerMine(Call* call, const Shareable& mine, uint32_t memory, uint64_t bytes, int64_t deadline) {
  if (mine.can()) {
    rhw_register request = {};
    request.group = call->group();
    request.bytes = bytes;
    request.fd_offset = mine.offset;
    request.memory = mine.byHandle ? uint32_t{RHW_MEMORY_CUDA_IPC} : memory;
    request.allocation_bytes = mine.allocationBytes;
    memcpy(request.handle, mine.handle, sizeof request.handle);
    return call->send(&request, RHW_REGISTER, deadline, mine.fd);
  }
  rhw_register_private request = {};
  request.group = call->group();
  request.bytes = bytes;
  memcpy(request.reason, mine.reason, sizeof request.reason);
  return call->send(&request, RHW_REGISTER_PRIVATE, deadline);
}

// Tells the daemon whether this rank has mapped the memory of all others.
rh_result tell(Call* call, int64_t deadline, Answers* answers) {
  rhw_register_mapped mapped = {};
  mapped.group = call->group();
  mapped.region = answers->number;
  mapped.error = answers->error;
  answers->told = true;
  return call->send(&mapped, RHW_REGISTER_MAPPED, deadline);
}

rh_result exchangeOnce(Comm* comm, Call* call, int64_t deadline, const Shareable& mine, Region* region, Answers* answers) {
  unmapRegion(comm, region);  // left from an attempt with the previous daemon
  answers->forget();
  const uint32_t memory = deviceMemory(comm) == nullptr ? uint32_t{RHW_MEMORY_CPU} : deviceMemory(comm)->kind;
  rh_result result = offerMine(call, mine, memory, region->bytes, deadline);
  for (int peers = 0; result == RH_OK;) {
    Received r;
    result = call->wait(&r, deadline);
    if (result != RH_OK) break;
    if (r.m.h.type == RHW_REGISTERED) return takeRegistered(comm, mine, r.m.registered, region, answers);
    if (r.m.h.type != RHW_PEER_MEMORY) return unexpected(comm, r, "Registered");
    result = takePeer(comm, mine, r, region, answers);
    if (result != RH_OK || ++peers < comm->localSize() - 1) continue;
    if (deviceMemory(comm) != nullptr) answers->error = placePeers(comm, mine, region, answers);
    result = tell(call, deadline, answers);
  }
  return result;
}

// Runs the collective.
rh_result exchange(Comm* comm, const Shareable& mine, Region* region, Answers* answers) {
  return setUp(
      comm, RHW_OP_WINDOW_REGISTER,
      [&](Call* call, int64_t deadline) {
        const rh_result result = exchangeOnce(comm, call, deadline, mine, region, answers);
        if (call->lost()) answers->told = false;  // the ledger knows whether the window exists
        return result;
      },
      [&](const rhw_outcome& o) {
        rhw_registered m = {};
        m.region = o.region;
        m.staged_local = o.staged_local;
        memcpy(m.reason, o.text, sizeof m.reason - 1);  // it was made to fit
        if (o.region < 1 || o.region > RHW_MAX_REGION) {
          return fail(RH_ERR_PROTOCOL, "window_register: rank %d: the ledger gives the window number %u", number(comm->rank), o.region);
        }
        return takeRegistered(comm, mine, m, region, answers);
      });
}

rh_result readConfig(const Comm* comm, const rh_register_config* config, rh_register_config* c) {
  const int rank = number(comm->rank);
  if (config == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: config is NULL", rank);
  const rh_result result = readStruct("window_register", "config", config, c);
  if (result != RH_OK) return result;
  if (deviceMemory(comm) != nullptr && c->fd >= 0) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: fd %d: memory of a %s device is found by its address alone; pass -1", rank, c->fd, comm->device->name);
  }
  if (c->pointer == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: pointer is NULL", rank);
  if (c->bytes == 0 || c->bytes > RHW_MAX_REGISTERED) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: %zu bytes; 1 to 1 TiB can be registered", rank, c->bytes);
  }
  if (c->fd < 0 && c->fd_offset != 0) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: fd_offset %llu without an fd", rank,
                static_cast<unsigned long long>(c->fd_offset));
  }
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (c->fd_offset % page != 0 || c->fd_offset > RHW_MAX_FILE_OFFSET) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: fd_offset %llu; it must be a multiple of the page size, %llu, as "
                "for mmap", rank, static_cast<unsigned long long>(c->fd_offset), static_cast<unsigned long long>(page));
  }
  return RH_OK;
}

rh_result tooManyWindows(const Comm* comm) {
  return fail(RH_ERR_LIMIT, "window_register: rank %d: this process has %d windows, the most there can be; free some", number(comm->rank),
              kMaxWindows);
}

void keepRegion(Comm* comm, uint32_t number, Region* region) {
  comm->regions[number] = region;
  if (number > comm->lastRegion) comm->lastRegion = number;
  // For the host's kernels, which must not read a device's memory.
  if (region->isShared() && deviceMemory(comm) == nullptr) comm->shared[number] = {region->bytes, region->parts};
}

// Runs the operation. On success the comm owns the region; otherwise the region ends.
rh_result runRegistration(Comm* comm, const Shareable& mine, Region* region, uint32_t* number) {
  if (!beginSetUp(comm, RHW_OP_WINDOW_REGISTER, region->bytes)) {
    delete region;
    return whyBroken(comm);
  }
  Answers answers;
  const rh_result result = exchange(comm, mine, region, &answers);
  endOperation(comm);
  *number = answers.number;
  if (result == RH_OK) {
    keepRegion(comm, answers.number, region);
  } else if (answers.told && answers.error == 0) {
    // The daemon did not answer in time. It may have told the others that the window exists, and they offer their parts in collectives.
    region->own = nullptr;
    keepRegion(comm, answers.number, region);
  } else {
    unmapRegion(comm, region);
    delete region;
  }
  return result;
}

// Everything between the checks and the creation of the handle.
rh_result registerMemory(Comm* comm, const rh_register_config& config, uint32_t* regionNumber) {
  Shareable mine;
  rh_result result = deviceMemory(comm) == nullptr ? findShareable(comm->rank, config, &mine)
                                                   : deviceMemory(comm)->share(comm, config.pointer, config.bytes, &mine);
  if (result != RH_OK) return result;
  auto* region = new Region();
  if (region == nullptr) {
    result = fail(RH_ERR_OUT_OF_MEMORY, "window_register: rank %d: no memory for a table of mappings", number(comm->rank));
  } else {
    region->bytes = config.bytes;
    region->staged = kNoLocalRank;
    region->own = static_cast<char*>(config.pointer);
    region->parts[number(comm->localRank)] = region->own;
    result = runRegistration(comm, mine, region, regionNumber);
  }
  if (mine.fd >= 0) close(mine.fd);
  return result;
}

}  // namespace

void unmapPeers(Region* region) {
  for (PeerMapping& peer : region->peers) {
    if (peer.base != nullptr) munmap(peer.base, peer.bytes);
    peer = {};
  }
}

void unmapRegion(Comm* comm, Region* region) {
  unmapPeers(region);
  if (region->placed.bytes != 0 || region->placed.apart != 0) deviceMemory(comm)->unplace(comm, region->placed);
  region->placed = {};
}

void dropRegion(Comm* comm, uint32_t number) {
  if (comm->regions[number] == nullptr) return;
  unmapPeers(comm->regions[number]);
  delete comm->regions[number];
  comm->regions[number] = nullptr;
  comm->shared[number] = {};
  while (comm->lastRegion > 0 && comm->regions[comm->lastRegion] == nullptr) comm->lastRegion--;
}

static_assert(RHW_REGION_SHIFT == kOfferRegionShift && RHW_MAX_REGION < kMaxRegions, "a region's number has a place in an offer");

uint64_t offerInRegions(const Comm* comm, const void* buffer, uint64_t bytes) {
  for (uint32_t k = 1; k <= comm->lastRegion; k++) {
    const Region* region = comm->regions[k];
    if (region == nullptr || region->own == nullptr || !region->isShared()) continue;
    const uint64_t offset = reinterpret_cast<uintptr_t>(buffer) - reinterpret_cast<uintptr_t>(region->own);
    if (offset < region->bytes && bytes <= region->bytes - offset) return uint64_t{k} << RHW_REGION_SHIFT | offset;
  }
  return kNoOffset;
}

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_window_register(rh_comm* handle, const rh_register_config* given, rh_window** out) {
  if (out == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "window_register: window is NULL");
  *out = nullptr;
  Comms::Exclusive guard(comms(), handle);
  rh_result result = checkGuard(guard, "window_register");
  if (result != RH_OK) return result;
  Comm* comm = guard.get();
  rh_register_config config;
  result = checkNotCapturing(comm, "window_register");
  if (result == RH_OK) result = readConfig(comm, given, &config);
  if (result != RH_OK) return result;
  watchWindows();
  if (windows().full()) return tooManyWindows(comm);
  auto* window = new Window{{}, comm, handle, 0, config.bytes, comm->device->memory, 0, 0};
  if (window == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "window_register: no memory for a handle");
  result = registerMemory(comm, config, &window->region);
  if (result == RH_OK) {
    *out = static_cast<rh_window*>(windows().insert(window));
    if (*out != nullptr) return RH_OK;
    comm->regions[window->region]->own = nullptr;  // the other ranks have the window, so their memory stays mapped until the comm ends
    result = tooManyWindows(comm);
  }
  delete window;
  return result;
}

extern "C" rh_result rh_window_get_sharing(rh_window* handle, rh_window_sharing* sharing) {
  const rh_result result = checkStruct("window_get_sharing", "sharing", sharing);
  if (result != RH_OK) return result;
  Windows::Shared window(windows(), handle);
  if (window.get() == nullptr) return fail(RH_ERR_INVALID_HANDLE, "window_get_sharing: not a live window: was it freed?");
  rh_window_sharing results = RH_WINDOW_SHARING_INIT;
  const Region* region = window.get()->registered();
  results.zero_copy = region == nullptr || region->isShared();
  results.rank = results.zero_copy ? -1 : number(window.get()->comm->worldOf(region->staged));
  static_assert(sizeof results.reason == RHW_REASON, "a reason fits");
  if (region != nullptr) memcpy(results.reason, region->reason, sizeof results.reason);
  writeStruct(sharing, results);
  return RH_OK;
}
