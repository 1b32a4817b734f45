// Ranks as threads on a Team that is made by hand: all of them see each other's scratch at the same addresses, so that
// ThreadSanitizer sees the whole protocol, and the epoch can begin anywhere.
//
// Usage: team MODE WORLD REDUCE_GROUP FIRST_EPOCH SPIN_NS ROUNDS SEED
//   sums     random all-reduces by every algorithm and barriers, each result checked
//   late     a rank that comes at about the deadline of the others: whoever gives up names somebody
//   abort    the abort word is set while ranks spin or sleep
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <stdint.h>

#include <atomic>
#include <vector>

#include "check.h"
#include "host/kernel_set.h"
#include "host/futex.h"

using namespace railhead;

namespace {

constexpr uint32_t kBlockBytes = 64 * kMaxWorldSize;  // small: sums have many blocks and the two buffers are used in turn often
constexpr size_t kMaxCount = 5000;
constexpr size_t kWindow = kScratchHeaderBytes + 2 * kBlockBytes;  // where pull's buffers lie: send, then recv
constexpr int64_t kMs = 1000000;

struct Options {
  int world, reduceGroup;
  uint32_t firstEpoch;
  int64_t spinNs;
  int rounds;
  uint64_t seed;
};

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

struct Group {
  explicit Group(const Options& o, int64_t timeoutNs) : teams(static_cast<size_t>(o.world)), heaps(teams.size()), waiting(teams.size()) {
    const size_t bytes = kWindow + 2 * kMaxCount * sizeof(float);
    for (auto& heap : heaps) {
      heap = static_cast<char*>(aligned_alloc(64, bytes));
      memset(heap, 0, bytes);
      auto* header = reinterpret_cast<ScratchHeader*>(heap);
      header->generation = o.firstEpoch;
      header->published.generation = o.firstEpoch;
    }
    for (int r = 0; r < o.world; r++) {
      FlagTeam& team = teams[static_cast<size_t>(r)];
      team = {};
      team.rank = r;
      team.worldSize = o.world;
      team.reduceGroup = o.reduceGroup;
      team.blockBytes = kBlockBytes;
      team.spinNs = o.spinNs;
      team.timeoutNs = timeoutNs;
      for (int peer = 0; peer < o.world; peer++) team.heap[peer] = heaps[static_cast<size_t>(peer)];
      team.abortWord = &abortWord;
      team.waitingFor = &waiting[static_cast<size_t>(r)];
    }
  }
  ~Group() {
    for (char* heap : heaps) free(heap);
  }
  ScratchHeader* header(int r) { return reinterpret_cast<ScratchHeader*>(heaps[static_cast<size_t>(r)]); }

  std::vector<FlagTeam> teams;
  std::vector<char*> heaps;
  std::vector<uint64_t> waiting;
  uint32_t abortWord = 0;
};

// Runs f(rank) on a thread each.
template <class F>
void onRanks(int world, F f) {
  struct Start {
    F* f;
    int rank;
    pthread_t thread;
  };
  std::vector<Start> starts(static_cast<size_t>(world));
  for (int r = 0; r < world; r++) {
    Start& s = starts[static_cast<size_t>(r)];
    s = {&f, r, {}};
    CHECK(pthread_create(&s.thread, nullptr, [](void* p) -> void* {
            auto* start = static_cast<Start*>(p);
            (*start->f)(start->rank);
            return nullptr;
          }, &s) == 0);
  }
  for (Start& s : starts) CHECK(pthread_join(s.thread, nullptr) == 0);
}

float input(uint64_t seed, int rank, int round, size_t i) {
  const uint64_t h = mix(mix(seed + static_cast<uint64_t>(rank)) + static_cast<uint64_t>(round) * kMaxCount + i);
  return ldexpf(static_cast<float>(static_cast<int>(h & 0xffffff) - 0x800000), static_cast<int>(h >> 40 & 15) - 30);
}

float expected(const Options& o, int round, size_t i) {
  float total = 0;
  for (int first = 0; first < o.world; first += o.reduceGroup) {
    float part = input(o.seed, first, round, i);
    for (int r = first + 1; r < first + o.reduceGroup && r < o.world; r++) part += input(o.seed, r, round, i);
    total = first == 0 ? part : total + part;
  }
  return total;
}

// Holds a rank back now and then, so that the others are ahead by as much as the protocol allows.
void dawdle(uint64_t h) {
  if (h % 8 == 0) sched_yield();
  if (h % 64 == 1) {
    const timespec pause = {0, static_cast<long>(h >> 8 & 0x3ffff)};
    nanosleep(&pause, nullptr);
  }
}

void sums(const Options& o) {
  Group group(o, 60000 * kMs);
  onRanks(o.world, [&](int rank) {
    const FlagTeam& team = group.teams[static_cast<size_t>(rank)];
    std::vector<float> send(kMaxCount), recv(kMaxCount);
    const host::KernelSet& kernels = host::kernels();
    for (int round = 0; round < o.rounds; round++) {
      const uint64_t shared = mix(o.seed ^ static_cast<uint64_t>(round));  // the same on all ranks
      dawdle(mix(shared + static_cast<uint64_t>(rank)));
      if (shared % 4 == 0) {
        CHECK(kernels.barrier(team).stop == Stop::kNone);
        continue;
      }
      const size_t count = static_cast<size_t>(shared >> 8) % (shared % 4 == 1 ? 20 : kMaxCount + 1);
      for (size_t i = 0; i < count; i++) send[i] = input(o.seed, rank, round, i);
      float* in = send.data();
      float* out = shared >> 40 & 1 ? in : recv.data();
      switch (shared >> 48 & 3) {
        case 0: CHECK(kernels.f32.oneshot(team, in, out, count).stop == Stop::kNone); break;
        case 1: CHECK(kernels.f32.twoshot(team, in, out, count).stop == Stop::kNone); break;
        default: {
          // Some rank's buffer is in no window now and then: nobody may take the zero-copy way then.
          const bool all = (shared >> 50 & 1) != 0;
          auto* window = reinterpret_cast<float*>(team.heap[rank] + kWindow);
          memcpy(window, in, count * sizeof(float));
          const bool here = all || (shared >> 52) % static_cast<uint64_t>(o.world) != static_cast<uint64_t>(rank);
          const uint64_t sendAt = here ? kWindow : kNoOffset;
          const uint64_t recvAt = out == in ? sendAt : here ? kWindow + kMaxCount * sizeof(float) : kNoOffset;
          bool zeroCopy = false;
          CHECK(kernels.f32.pull(team, sendAt, recvAt, count, &zeroCopy).stop == Stop::kNone);
          CHECK(zeroCopy == (all || count == 0));
          if (zeroCopy) {
            memcpy(out, team.heap[rank] + (count == 0 ? kWindow : recvAt), count * sizeof(float));
          } else {
            CHECK(kernels.f32.twoshot(team, in, out, count).stop == Stop::kNone);
          }
        }
      }
      for (size_t i = 0; i < count; i++) CHECK(out[i] == expected(o, round, i));
    }
  });
  for (int r = 1; r < o.world; r++) CHECK(group.header(r)->generation == group.header(0)->generation);
  printf("generations %u to %u\n", o.firstEpoch, group.header(0)->generation);
}

void late(const Options& o) {
  int gaveUp = 0;
  for (int round = 0; round < o.rounds; round++) {
    const int64_t timeoutNs = 200 * 1000;
    Group group(o, timeoutNs);
    std::atomic<int> stopped{0};
    onRanks(o.world, [&](int rank) {
      if (rank == o.world - 1) {  // from much before the deadline to much after it
        const timespec pause = {0, static_cast<long>(mix(o.seed + static_cast<uint64_t>(round)) % (2 * timeoutNs))};
        nanosleep(&pause, nullptr);
      }
      const auto [stop, missing] = host::kernels().barrier(group.teams[static_cast<size_t>(rank)]);
      CHECK(stop == Stop::kNone || stop == Stop::kTimeout);
      if (stop == Stop::kNone) return;
      stopped++;
      CHECK(missing != 0);
      CHECK((missing >> rank & 1) == 0);
      CHECK(o.world == 64 || missing >> o.world == 0);
      CHECK(group.waiting[static_cast<size_t>(rank)] == missing);
    });
    gaveUp += stopped != 0;
  }
  printf("%d of %d rounds gave up\n", gaveUp, o.rounds);
}

void abortWord(const Options& o) {
  for (int round = 0; round < o.rounds; round++) {
    Group group(o, 60000 * kMs);
    const uint64_t all = o.world == 64 ? ~uint64_t{0} : (uint64_t{1} << o.world) - 1;
    const uint64_t absent = uint64_t{1} << (o.world - 1);
    onRanks(o.world, [&](int rank) {
      if (rank == o.world - 1) {  // never arrives; breaks the group while the others are on their way, spin or sleep
        const timespec pause = {0, static_cast<long>(mix(o.seed + static_cast<uint64_t>(round)) % 200000)};
        nanosleep(&pause, nullptr);
        __atomic_store_n(&group.abortWord, 1, __ATOMIC_RELEASE);
        host::futexWakeAll(&group.abortWord);
        return;
      }
      float data[100] = {};
      const auto& f32 = host::kernels().f32;
      const auto run = round % 2 == 0 ? f32.oneshot : f32.twoshot;
      const auto [stop, missing] = run(group.teams[static_cast<size_t>(rank)], data, data, 100);
      CHECK(stop == Stop::kAborted);
      CHECK((missing & absent) != 0 && (missing & ~all) == 0 && (missing >> rank & 1) == 0);
    });
    for (int r = 0; r < o.world; r++) CHECK(group.header(r)->published.sleepers == 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 8);
  const Options o = {atoi(argv[2]), atoi(argv[3]), static_cast<uint32_t>(strtoul(argv[4], nullptr, 0)), atoll(argv[5]), atoi(argv[6]),
                     strtoull(argv[7], nullptr, 0)};
  switch (argv[1][0]) {
    case 's': sums(o); break;
    case 'l': late(o); break;
    case 'a': abortWord(o); break;
    default: CHECK(!"a mode");
  }
  return 0;
}
