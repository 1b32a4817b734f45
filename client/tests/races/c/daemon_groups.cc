// The daemon's groups: their memory, ranks that come and come back, ranks of other processes, leases.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon_state.h"
#include "railhead/exchange/pipes.h"
#include "real.h"

namespace world {

namespace {

constexpr uint32_t kBlock = 16384, kSlot = 256;
constexpr uint32_t kPlayedTid = 0x3000000;  // of played ranks: no thread has it

uint64_t pages(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }
uint64_t granules(uint64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

rhw_parts partsOf(int world) {
  rhw_parts p = {};
  uint64_t at = 4096;
  const auto place = [&at](rhw_part& part, uint32_t count, uint64_t stride) {
    part = {at, count, static_cast<uint32_t>(stride)};
    at += pages(count * stride);
  };
  const auto n = static_cast<uint32_t>(world);
  place(p.plans, 1, sizeof(rhw_plans));
  place(p.lines, n, sizeof(rhw_rank_line));
  place(p.flights, n, RHW_FLIGHT_RECORDS * sizeof(rhw_flight_record));
  place(p.ledger, 1, sizeof(rhw_ledger));
  place(p.counters, n, sizeof(rhw_ep_counters));
  return p;
}

uint64_t controlBytes(int world) {
  const rhw_parts p = partsOf(world);
  return pages(p.counters.offset + uint64_t{p.counters.count} * p.counters.stride);
}

uint64_t scratchOf(int world) { return granules(railhead::scratchBytes(world, kBlock, kSlot, kSlot, railhead::kLLSlotBytes)); }

int segment(uint64_t bytes) {
  const int fd = __real_memfd_create("races", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) fail("memfd_create");
  return fd;
}

void* map(int fd, uint64_t bytes) {
  void* p = __real_mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) fail("the daemon cannot map %llu bytes", static_cast<unsigned long long>(bytes));
  return p;
}

void writePlans(rhw_plans* p, int world) {
  p->device = RHW_DEVICE_CPU;
  p->collectives = RHW_PLANS;
  p->channels = 1;
  for (int r = 0; r < world; r++) p->order[r] = static_cast<uint8_t>(r);
  p->polls_per_turn = 1;
  p->ep_waiter_deadlines = 4;
  p->recheck_ns = static_cast<uint64_t>(oneIn(2) ? 100 * kMs : 5 * kSecond);
  p->long_turn_ns = kMs;
  p->busy_spin_ns = oneIn(2) ? 0 : 50'000;
  p->busy_ns = p->busy_most_ns = oneIn(2) ? 0 : 100 * kMs;
  p->ep_death_check_ns = 10 * kMs;
  p->ep_stream_above_bytes = 1 << 20;
  for (int i = 0; i < RHW_PLANS; i++) {
    p->copied[i].count = p->zero_copy[i].count = 1;
    p->copied[i].choice[0].below_bytes = p->zero_copy[i].choice[0].below_bytes = ~uint64_t{0};
    p->copied[i].choice[0].algo = i == RHW_PLAN_BROADCAST ? RHW_ALGO_PIPE : RHW_ALGO_ONESHOT;
  }
}

void makeMemory(Group& g) {
  g.controlFd = segment(controlBytes(g.world));
  for (int r = 0; r < g.world; r++) g.heapFds[r] = segment(kHeapBytes);
  g.controlFile = fileOf(g.controlFd);
  for (SeenLease& s : g.seen) s = {};
  g.control = static_cast<char*>(map(g.controlFd, controlBytes(g.world)));
  rhw_control_header* h = g.header();
  h->magic = RHW_CONTROL_MAGIC;
  h->version = RHW_CONTROL_VERSION;
  h->world = h->local_size = static_cast<uint32_t>(g.world);
  h->nodes = 1;
  h->bytes = controlBytes(g.world);
  h->parts = partsOf(g.world);
  writePlans(reinterpret_cast<rhw_plans*>(g.control + h->parts.plans.offset), g.world);
  g.nextOffset = scratchOf(g.world);
  for (int r = 0; r < g.world; r++) {
    g.line(r)->rank = r;
    if (g.ranks[r].played) g.line(r)->lease.word = kPlayedTid + static_cast<uint32_t>(r);
  }
}

// A group that did not become ready is formed anew: no rank has it.
void dropMemory(Group& g) {
  __real_munmap(g.control, controlBytes(g.world));
  __real_close(g.controlFd);
  for (int r = 0; r < g.world; r++) __real_close(g.heapFds[r]);
  g.control = nullptr;
  g.controlFd = -1;
}

Group* byName(const char* name) {
  for (Group& g : d.groups) {
    if (g.used && strcmp(g.name, name) == 0) return &g;
  }
  return nullptr;
}

Group& groupNamed(const char* name, int world) {
  if (Group* g = byName(name)) return *g;
  for (Group& g : d.groups) {
    if (g.used) continue;
    g.used = true;
    snprintf(g.name, sizeof g.name, "%s", name);
    g.world = world;
    g.number = d.nextGroup++;
    return g;
  }
  fail("more than %d groups", DaemonState::kMaxGroups);
}

Group& mustExist(const char* name) {
  Group* g = byName(name);
  if (g == nullptr) fail("no group %s", name);
  return *g;
}

void wakeWord(const Group& g, const void* word) {
  wake({g.controlFile, static_cast<uint64_t>(static_cast<const char*>(word) - g.control)});
}

void breakGroup(const Group& g, rh_result code, int culprit, uint32_t op, uint32_t reporter) {
  const uint64_t word = uint64_t{static_cast<uint32_t>(code)} | uint64_t{static_cast<uint32_t>(culprit)} << 8 | uint64_t{op} << 32 |
                        uint64_t{reporter} << 40;
  if (g.abortWord() != 0) return;
  __atomic_store_n(&g.header()->abort, word, __ATOMIC_RELEASE);
  wakeWord(g, &g.header()->abort);
}

}  // namespace

rhw_rank_line* Group::line(int r) const {
  const rhw_part& p = header()->parts.lines;
  return reinterpret_cast<rhw_rank_line*>(control + p.offset + static_cast<uint64_t>(r) * p.stride);
}
rhw_ledger* Group::ledger() const { return reinterpret_cast<rhw_ledger*>(control + header()->parts.ledger.offset); }

int Group::firstReal() const {
  for (int r = 0; r < world; r++) {
    if (!ranks[r].played) return r;
  }
  fail("a group without a rank of the library");
}

bool Group::hasCallToBreak() const {
  if (abortWord() == 0) return false;
  if (ending != RHW_OP_NONE) return true;
  for (int r = 0; r < world; r++) {
    if (ranks[r].op != RHW_OP_NONE) return true;
  }
  return false;
}

bool Group::hasDeathToReport() const {
  if (control == nullptr || abortWord() != 0) return false;
  for (int r = 0; r < world; r++) {
    if ((__atomic_load_n(&line(r)->lease.word, __ATOMIC_ACQUIRE) & FUTEX_OWNER_DIED) != 0) return true;
  }
  return false;
}

void Group::forgetRanks() {
  for (int r = 0; r < world; r++) {
    const bool played = ranks[r].played, silent = ranks[r].silent;
    ranks[r] = {};
    ranks[r].silent = silent;
    ranks[r].played = ranks[r].attached = ranks[r].known = played;
    ranks[r].client = played ? 1 : 0;
  }
  ending = RHW_OP_NONE;
  offset = 0;
  if (control != nullptr && ledger()->ended == 0) {
    dropMemory(*this);
    ready = false;
  }
}

void takeSession(int fd, uint64_t client) {
  if (fd < 0) fail("SessionLease without a descriptor");
  const uint64_t file = fileOf(fd);
  for (const SessionSegment& s : d.sessions) {
    if (s.at != nullptr && s.file == file) return;
  }
  for (SessionSegment& s : d.sessions) {
    if (s.at != nullptr) continue;
    s = {static_cast<rhw_session*>(map(fd, RHW_SESSION_BYTES)), file, {}};
    s.seen.word = s.at->lease.word;
    if (s.at->magic != RHW_SESSION_MAGIC || s.at->client != client || s.at->lease.client != client) fail("a session segment of another session");
    if (s.at->lease.word == 0) fail("SessionLease before the lease is taken");
    return;
  }
  fail("more than %d sessions", DaemonState::kMaxSegments);
}

Group* join(Socket* from, const rhw_join& m, uint64_t request) {
  Group& g = groupNamed(m.group, static_cast<int>(m.common.world));
  Rank& rank = g.ranks[m.own.place.rank];
  if (rank.client != 0) fail("rank %d joins twice", m.own.place.rank);
  rank.socket = from;
  rank.client = 1;
  rank.request = request;
  for (int r = 0; r < g.world; r++) {
    if (g.ranks[r].client == 0) return nullptr;
  }
  makeMemory(g);
  return &g;
}

rhw_joined joinedOf(const Group& g) {
  rhw_joined m = {};
  m.group = g.number;
  m.incarnation = 1;
  m.control_bytes = controlBytes(g.world);
  m.heap_bytes = kHeapBytes;
  m.scratch_bytes = scratchOf(g.world);
  m.world = m.local_size = m.reduce_group = static_cast<uint32_t>(g.world);
  m.block_bytes = kBlock;
  m.pipe_slot_bytes = m.broadcast_slot_bytes = kSlot;
  return m;
}

uint64_t reannounced(Socket* from, const rhw_reannounce& m, uint64_t request, int controlFd) {
  const uint64_t file = fileOf(controlFd);
  for (Group& g : d.groups) {
    if (!g.used || g.controlFd < 0 || g.controlFile != file) continue;
    if (g.brokenAtStart) fail("rank %d announces a broken group", m.place.rank);
    Rank& rank = g.ranks[m.place.rank];
    if (rank.socket != nullptr) fail("rank %d announces itself twice", m.place.rank);
    if (m.world != static_cast<uint32_t>(g.world)) fail("rank %d announces a world of %u", m.place.rank, m.world);
    rank.socket = from;
    rank.client = 1;
    rank.request = request;
    rank.attached = rank.announced = true;
    return g.number;
  }
  fail("rank %d announces a group that never was", m.place.rank);
}

void heapReannounced(Socket* from, Group* g, uint64_t request, const Packet& p) {
  for (int r = 0; g != nullptr && r < g->world; r++) {
    Rank& rank = g->ranks[r];
    if (rank.socket != from || rank.request != request || !rank.announced) continue;
    if (fileOf(p.fd) != fileOf(g->heapFds[r])) fail("rank %d announces a heap that is not its own", r);
    rank.announced = false;
    rank.known = true;
    rank.announcedAt = p.at;
    return;
  }
  fail("ReannounceHeap of no rank");
}

void reportDeath(Group& g) {
  for (int r = 0; r < g.world; r++) {
    if ((g.line(r)->lease.word & FUTEX_OWNER_DIED) == 0) continue;
    breakGroup(g, RH_ERR_RANK_DEAD, r, g.line(r)->op, RHW_NO_RANK);
    return;
  }
}

void playRank(const char* group, int world, int rank, bool silent) {
  Rank& r = groupNamed(group, world).ranks[rank];
  r.silent = silent;
  r.played = r.attached = r.known = true;
  r.client = 1;
}

void setOperation(const char* group, int rank, uint32_t op) { mustExist(group).line(rank)->op = op; }

void killRank(const char* group, int rank) {
  Group& g = mustExist(group);
  g.ranks[rank].played = g.ranks[rank].silent = true;  // from here on, if it is a rank of the library
  rhw_lease& lease = g.line(rank)->lease;
  __atomic_store_n(&lease.word, FUTEX_OWNER_DIED, __ATOMIC_RELEASE);
  wakeWord(g, &lease.word);
}

void abortAs(const char* group, int rank, rh_result code, uint32_t op) {
  breakGroup(mustExist(group), code, rank, op, static_cast<uint32_t>(rank));
}

int endedCallsOf(const char* group) {
  const Group& g = mustExist(group);
  return g.control == nullptr ? 0 : static_cast<int>(g.ledger()->ended);
}
Ended endedCall(const char* group, int number) { return mustExist(group).ended[number]; }
bool groupIsReady(const char* group) {
  const Group* g = byName(group);
  return g != nullptr && g->control != nullptr && g->ledger()->ended > 0;
}
Resumed resumed(const char* group, int rank) {
  const Rank& r = mustExist(group).ranks[rank];
  return {r.announcedAt, r.calledAt, d.errorSentAt};
}
uint64_t abortWordOf(const char* group) {
  const Group* g = byName(group);
  return g == nullptr || g->control == nullptr ? 0 : g->header()->abort;
}

}  // namespace world
