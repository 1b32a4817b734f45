// Three ranks call collectives, sends and receives while a thread overwrites what they share: flags, signatures, offers, slots and buffers in
// all heaps, and the control segment with the ranks' lines, leases and ledger. Calls may fail and results may be wrong. But every call must
// end before its deadline, and must access only the memory that the caller gave. That memory is exactly as large as the calls need, and a
// sanitizer checks.
//
// Usage: hostile SECONDS. RAILHEAD_SOCKET names the daemon. Plays the seeds from 0 on, at least kLeast of them.
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "wire.h"

namespace {

constexpr int32_t kWorld = 3;
constexpr int kLeast = 42, kCalls = 60;  // each algorithm with each aim
constexpr uint32_t kTimeoutMs = 200;
constexpr double kMostSeconds = 30;  // of a call, whose deadline is 0.8 s, on a busy machine
constexpr size_t kWindow = 1 << 18;
const char* const kAlgorithms[] = {"auto", "oneshot", "twoshot", "pull", "ring", "tree"};

using Random = std::mt19937_64;

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Range {
  uint64_t* words;
  size_t count;
};

// What the hostile thread of a round writes to. Each round has one of these, so that the others stay right and calls get far.
enum Aim { kAnything, kFlags, kCounters, kOffers, kSlots, kLines, kControl, kAims };

struct Targets {
  Range scratches[kWorld];
  Range control, lines;
};

struct Round {
  uint64_t seed;
  rh_session** sessions;
  rh_comm* comms[kWorld];
  rh_window* windows[kWorld];
  Targets targets;
  pthread_barrier_t met;
  std::atomic<bool> over{false};
  bool formed;
};

struct Member {
  Round* round;
  int32_t rank;
};

Range part(const Range& all, size_t from, size_t to) {
  CHECK(from < to && to <= all.count);
  return {all.words + from, to - from};
}

// The mapping of this process's latest control segment.
Range controlSegment() {
  FILE* maps = fopen("/proc/self/maps", "r");
  CHECK(maps != nullptr);
  Range found = {};
  char line[512];
  while (fgets(line, sizeof line, maps) != nullptr) {
    uintptr_t from, to;
    if (strstr(line, "memfd:railhead-control") == nullptr || sscanf(line, "%lx-%lx rw", &from, &to) != 2) continue;
    found = {reinterpret_cast<uint64_t*>(from), (to - from) / 8};
  }
  fclose(maps);
  CHECK(found.words != nullptr);
  return found;
}

Targets findTargets(const Round& round) {
  Targets t = {};
  rh_window_info info = RH_WINDOW_INFO_INIT;
  OK(rh_window_get_info(round.windows[0], &info));
  for (int32_t r = 0; r < kWorld; r++) {
    void* p = nullptr;
    OK(rh_window_pointer(round.windows[0], r, &p));
    auto* heap = reinterpret_cast<uint64_t*>(static_cast<char*>(p) - info.offset);
    t.scratches[r] = {heap, info.offset / 8};
  }
  t.control = controlSegment();
  const rhw_part& lines = reinterpret_cast<const rhw_control_header*>(t.control.words)->parts.lines;
  t.lines = part(t.control, lines.offset / 8, (lines.offset + kWorld * lines.stride) / 8);
  return t;
}

// Anything: random, small, near what was there, and what is elsewhere.
uint64_t value(Random* random, uint64_t before, const Range& range) {
  switch ((*random)() % 6) {
    case 0: return (*random)();
    case 1: return (*random)() % 64;
    case 2: return before + (*random)() % 9 - 4;
    case 3: return before ^ uint64_t{1} << (*random)() % 64;
    case 4: return range.words[(*random)() % range.count];
    default: return (*random)() << 48 | (*random)() % (1 << 20);  // an offer
  }
}

// Words of a heap (kernels/include/railhead/exchange/flags.h and pipes.h) and of the control segment (internal/wire/wire.h).
constexpr size_t kHeaderWords = 256 / 8, kPublished = 64 / 8, kOffersAt = 128 / 8, kFlagsAt = 4096 / 8, kTableWords = 4096 / 8, kSlotsAt = 24576 / 8;

Range aim(const Targets& t, Aim at, Random* random) {
  const Range& scratch = t.scratches[(*random)() % kWorld];
  switch (at) {
    case kFlags: {  // the generation, or the flags of a pipe
      const size_t table = (*random)() % ((kSlotsAt - kFlagsAt) / kTableWords);
      const size_t line = kFlagsAt + table * kTableWords + (*random)() % kWorld * 8;
      return (*random)() % 4 == 0 ? part(scratch, kPublished, kPublished + 1) : part(scratch, line, line + 1);
    }
    case kCounters: return part(scratch, 0, kPublished);
    case kOffers: return part(scratch, kOffersAt, kOffersAt + 2);
    case kSlots: return part(scratch, kSlotsAt, scratch.count);
    case kLines: return t.lines;
    case kControl: return t.control;
    default: return (*random)() % 4 == 0 ? t.control : (*random)() % 2 == 0 ? part(scratch, 0, kHeaderWords) : scratch;
  }
}

void* scribble(void* argument) {
  auto* round = static_cast<Round*>(argument);
  Random random(round->seed);
  const Aim at = static_cast<Aim>(round->seed / 6 % kAims);
  const auto pauseUs = static_cast<useconds_t>(uint64_t{1} << random() % 8);
  while (!round->over) {
    const Range range = aim(round->targets, at, &random);
    uint64_t* word = &range.words[random() % range.count];
    const uint64_t written = value(&random, __atomic_load_n(word, __ATOMIC_RELAXED), range);
    if (random() % 2 == 0) {
      __atomic_store_n(word, written, __ATOMIC_RELAXED);
    } else {
      __atomic_store_n(reinterpret_cast<uint32_t*>(word) + random() % 2, static_cast<uint32_t>(written), __ATOMIC_RELAXED);
    }
    if (random() % 4 == 0) usleep(pauseUs);
  }
  return nullptr;
}

// Memory of exactly that size: a sanitizer reports any access beyond it.
using Memory = std::unique_ptr<char, decltype(&free)>;
Memory exactly(size_t bytes) { return Memory(static_cast<char*>(calloc(bytes == 0 ? 1 : bytes, 1)), free); }

rh_result exchange(rh_comm* comm, int32_t rank, size_t count) {
  Memory out = exactly(count), in = exactly(count);
  OK(rh_group_start());
  rh_send(out.get(), count, RH_U8, (rank + 1) % kWorld, comm, nullptr);
  rh_recv(in.get(), count, RH_U8, (rank + kWorld - 1) % kWorld, comm, nullptr);
  return rh_group_end();
}

// One of the operations. All ranks draw the same.
rh_result play(const Round& round, int32_t rank, Random* random) {
  rh_comm* comm = round.comms[rank];
  const uint64_t op = (*random)() % 10, size = (*random)() % 4;
  const size_t count = size == 0 ? (*random)() % 16 : size == 1 ? (*random)() % 2000 : (*random)() % 20000;
  const auto root = static_cast<int32_t>((*random)() % kWorld);
  const bool windows = (*random)() % 2 == 0;
  Memory small = exactly(4 * count), large = exactly(4 * count * kWorld);
  void *one = small.get(), *all = large.get(), *window = nullptr;
  if (windows && rh_window_pointer(round.windows[rank], rank, &window) == RH_OK && 4 * count * kWorld <= kWindow / 2) {
    one = window;
    all = static_cast<char*>(window) + kWindow / 2;
  }
  switch (op) {
    case 0: return rh_all_reduce(one, one, count, RH_F32, RH_SUM, comm, nullptr);
    case 1: return rh_all_reduce(all, all, count * kWorld, RH_BF16, RH_MAX, comm, nullptr);
    case 2: return rh_all_gather(one, all, count, RH_I32, comm, nullptr);
    case 3: return rh_reduce_scatter(all, one, count, RH_F32, RH_AVG, comm, nullptr);
    case 4: {
      Memory parts = exactly(4 * count * kWorld);
      return rh_all_to_all(parts.get(), all, count, RH_F32, comm, nullptr);
    }
    case 5: return rh_broadcast(one, one, count, RH_F32, root, comm, nullptr);
    case 6: return rh_reduce(one, one, count, RH_I32, RH_PROD, root, comm, nullptr);
    case 7: return root == 0 ? rh_gather(one, all, count, RH_F32, root, comm, nullptr) : rh_scatter(all, one, count, RH_F32, root, comm, nullptr);
    case 8: return exchange(comm, rank, count);
    default: return rh_barrier(comm, nullptr);
  }
}

// Joins with a deadline that a busy machine may miss.
bool form(Member* me) {
  Round* round = me->round;
  char name[40];
  snprintf(name, sizeof name, "hostile %llu", static_cast<unsigned long long>(round->seed));
  rh_comm_config config = comm_config(name, me->rank, kWorld);
  config.heap_bytes = 4 << 20;
  config.timeout_ms = kTimeoutMs;
  config.reproducible = round->seed % 2 == 0 ? RH_REPRODUCIBLE_ON : RH_REPRODUCIBLE_OFF;
  if (rh_comm_init(round->sessions[me->rank], &config, &round->comms[me->rank]) != RH_OK) return false;
  return rh_window_alloc(round->comms[me->rank], kWindow, nullptr, &round->windows[me->rank]) == RH_OK;
}

void* member(void* argument) {
  auto* me = static_cast<Member*>(argument);
  Round* round = me->round;
  const bool formed = form(me);
  if (!formed) __atomic_store_n(&round->formed, false, __ATOMIC_RELAXED);
  pthread_barrier_wait(&round->met);
  if (me->rank == 0 && round->formed) round->targets = findTargets(*round);
  pthread_barrier_wait(&round->met);
  pthread_t thread;
  const bool hostile = me->rank == 0 && round->formed;
  if (hostile) CHECK(pthread_create(&thread, nullptr, scribble, round) == 0);
  Random random(round->seed);
  rh_result result = round->formed ? RH_OK : RH_ERR_RANK_MISSING;
  for (int i = 0; i < kCalls && result == RH_OK; i++) {
    const double began = now();
    result = play(*round, me->rank, &random);
    CHECK(now() - began < kMostSeconds);
    rh_comm_status status = RH_COMM_STATUS_INIT;
    OK(rh_comm_get_status(round->comms[me->rank], &status));
  }
  pthread_barrier_wait(&round->met);  // scribble until the last rank has ended, but not into the memory of a later group
  round->over = true;
  if (hostile) CHECK(pthread_join(thread, nullptr) == 0);
  pthread_barrier_wait(&round->met);
  if (round->comms[me->rank] == nullptr) return nullptr;
  const double began = now();
  rh_comm_abort(round->comms[me->rank]);
  rh_comm_finalize(round->comms[me->rank]);
  CHECK(now() - began < kMostSeconds);
  return nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 2);
  const double end = now() + atof(arguments[1]);
  int formed = 0;
  rh_session* sessions[kWorld];
  for (uint64_t seed = 0; formed < kLeast || now() < end; seed++) {
    for (rh_session*& s : sessions) s = open_session();
    CHECK(setenv("RAILHEAD_ALGO", kAlgorithms[seed % 6], 1) == 0);
    Round round = {};
    round.seed = seed;
    round.sessions = sessions;
    round.formed = true;
    CHECK(pthread_barrier_init(&round.met, nullptr, kWorld) == 0);
    pthread_t threads[kWorld];
    Member members[kWorld];
    for (int32_t r = 0; r < kWorld; r++) {
      members[r] = {&round, r};
      CHECK(pthread_create(&threads[r], nullptr, member, &members[r]) == 0);
    }
    for (pthread_t t : threads) CHECK(pthread_join(t, nullptr) == 0);
    formed += round.formed;
    pthread_barrier_destroy(&round.met);
    for (rh_session* s : sessions) OK(rh_close(s));
  }
  printf("%d groups\n", formed);
  return 0;
}
