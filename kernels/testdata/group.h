// Ranks as threads, in teams that are made by hand. All ranks see each other's memory at the same addresses, so ThreadSanitizer sees the
// whole protocol. The epoch can start anywhere.
#ifndef RAILHEAD_KERNELS_TESTDATA_GROUP_H_
#define RAILHEAD_KERNELS_TESTDATA_GROUP_H_

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vector>

#include "check.h"
#include "host/kernel_set.h"
#include "host/kernels.h"
#include "railhead/exchange/pipes.h"

namespace railhead {

// Small: sums take many blocks, and the two buffers alternate often. Large: a block has several runs of tiles.
constexpr uint32_t kSmallBlock = 128 * kMaxWorldSize, kBlockBytes = 320 * kMaxWorldSize;
constexpr size_t kMaxCount = 5000;
constexpr uint32_t kSlotBytes = 1024;
// Offset of pull's buffers in a heap: send, then recv.
inline const size_t kWindow = scratchBytes(kMaxWorldSize, kBlockBytes, kSlotBytes, kSlotBytes, kLLSlotBytes);
constexpr int64_t kMs = 1000000;

struct Options {
  int world, reduceGroup;
  uint32_t firstEpoch;
  int64_t spinNs;
  int rounds;
  uint64_t seed;
};

inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

struct Group {
  explicit Group(const Options& o, int64_t timeoutNs) : teams(static_cast<size_t>(o.world)), waiting(teams.size()), asleep(teams.size()), busy(teams.size()), calls(teams.size()) {
    const size_t bytes = kWindow + 2 * kMaxCount * sizeof(float), stride = (bytes + 63) / 64 * 64;
    heaps = static_cast<char*>(aligned_alloc(64, stride * teams.size()));
    memset(heaps, 0, stride * teams.size());
    for (int r = 0; r < o.world; r++) {
      FlagTeam& team = teams[static_cast<size_t>(r)];
      team = {};
      team.rank = r;
      team.worldSize = o.world;
      team.reduceGroup = o.reduceGroup;
      team.blockBytes = o.seed % 3 == 0 ? kBlockBytes : kSmallBlock;
      team.pipeSlotBytes = team.broadcastSlotBytes = kSlotBytes;
      team.llSlotBytes = kLLSlotBytes;
      team.spinNs = o.spinNs;
      team.yieldNs = o.seed % 2 == 0 ? 0 : 4000;
      team.pollsPerTurn = o.seed % 2 == 0 ? 8 : 64;
      team.longTurnNs = kMs;
      team.busyNs = 10 * kMs;
      team.busyMostNs = 1000 * kMs;
      team.busySpinNs = team.yieldNs;
      team.busy = &busy[static_cast<size_t>(r)];
      team.recheckNs = 100 * kMs;
      team.timeoutNs = timeoutNs;
      team.heaps = heaps;
      team.heapStride = stride;
      team.heapBytes = bytes;
      team.scratchBytes = kWindow;
      team.calls = reinterpret_cast<char*>(calls.data());
      team.callStride = sizeof(CallWords);
      header(r)->generation = header(r)->published.generation.value = o.firstEpoch;
      team.abortWord = &abortWord;
      team.waitingFor = &waiting[static_cast<size_t>(r)];
      team.asleepSince = &asleep[static_cast<size_t>(r)];
    }
  }
  ~Group() { free(heaps); }
  ScratchHeader* header(int r) { return reinterpret_cast<ScratchHeader*>(teams[static_cast<size_t>(r)].heap(r)); }

  std::vector<FlagTeam> teams;
  char* heaps;
  std::vector<uint64_t> waiting, asleep;
  std::vector<Busy> busy;
  std::vector<CallWords> calls;
  uint32_t abortWord = 0;
};

// A call of count elements.
inline host::KernelCall callOf(const FlagTeam& team, const RingPlan& ring, host::Type type, const void* send, void* recv, size_t count) {
  host::KernelCall c = {team, ring};
  c.send = send;
  c.recv = recv;
  c.count = count;
  c.bytes = count * host::bytesOf(type);
  c.elements = &host::kernels().elements[host::indexOf(type)];
  return c;
}

inline host::Kernel kernelOf(host::Algorithm algorithm, host::Collective collective) { return host::kKernels.of[algorithm][collective]; }

// Runs f(rank) in a thread for each rank.
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

// Delays a rank now and then, so that the others run ahead as far as the protocol allows.
inline void maybeDelay(uint64_t h) {
  if (h % 8 == 0) sched_yield();
  if (h % 64 == 1) {
    const timespec pause = {0, static_cast<long>(h >> 8 & 0x3ffff)};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_TESTDATA_GROUP_H_
