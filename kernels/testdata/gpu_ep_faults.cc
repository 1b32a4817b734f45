// What the GPU kernels of MoE dispatch and combine do when other ranks fail.
//
//   gpu_ep_faults stop WORLD             a rank that does not come to a dispatch or a combine; an abort
//   gpu_ep_faults drops SEED ROUNDS      with RH_EP_DEAD_DROP: a rank dies before its counts, between its rows, or before its combine. The others go on
//   gpu_ep_faults late WORLD FROM HT     with RH_EP_DEAD_DROP: a rank that does not come to a dispatch (0) or its combine (1) is masked after the deadline, in ll (0) or ht (1)
//   gpu_ep_faults alone WORLD HT         with RH_EP_DEAD_DROP: all others have died, in ll (0) or ht (1)
//   gpu_ep_faults twice WORLD            with RH_EP_DEAD_DROP: a second rank dies
//   gpu_ep_faults full 3                 with RH_EP_DEAD_DROP: a rank dies, of whose rows some have no room
//   gpu_ep_faults waiter HT              with RH_EP_DEAD_DROP: a rank gives signs of life and sends nothing, in ll (0) or ht (1)
//   gpu_ep_faults limit HT               with RH_EP_DEAD_DROP: a rank does not come, and the limit of all waits of a call is before its deadline
//   gpu_ep_faults sums HT                with RH_EP_DEAD_DROP: a rank does not come to the combine, and is masked long before the limit
//   gpu_ep_faults hostile SEED ROUNDS    the other ranks have filled this rank's buffer with anything. It must access only its own memory, which
//                                        AddressSanitizer watches, and its own tokens' rows must be whole
#include <chrono>
#include <thread>

#include "gpu_ep_drops.h"
#include "gpu_ep_hostile.h"

namespace {

// The last rank does not come to what begins with `from`: 0 a dispatch, 1 its combine.
void stops(int world, int from, bool aborts) {
  const EpPlacement p = placement(world, static_cast<uint32_t>(2 * world));
  EpGpuRanks ranks(p, 0);
  const uint64_t last = uint64_t{1} << (world - 1);
  const uint64_t timeoutNs = aborts ? 60000 * kMs : 1000 * kMs;  // the others come much earlier
  std::vector<std::unique_ptr<Calls>> calls;
  for (int r = 0; r < world; r++) calls.push_back(std::make_unique<Calls>(ranks, r, p.logical, timeoutNs));
  std::thread host;
  if (aborts) {
    host = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      for (Status& s : ranks.group().status) {
        for (int b = 0; b < 4; b++) __atomic_store_n(&s.abort[b].word, 1, __ATOMIC_RELAXED);
      }
    });
  }
  if (from == 1) onRanks(world, [&](int r) { ranks.dispatch(&calls[static_cast<size_t>(r)]->dispatch, kGrid); });
  const auto call = [&](int r, int which) {
    Calls& c = *calls[static_cast<size_t>(r)];
    if (which == 0) {
      ranks.dispatch(&c.dispatch, kGrid);
    } else {
      ranks.combine(&c.combine, kGrid);
    }
  };
  onRanks(world - 1, [&](int r) {
    call(r, from);
    call(r, from);  // returns at once
  });
  if (aborts) host.join();
  for (int r = 0; r < world - 1; r++) {
    // Every rank that waits has tokens for the last one's experts, and its experts have tokens of the last one. At an abort control may be the first
    // to see it, which waits for no rank.
    stopped(ranks.group(), r, aborts ? Stop::kAborted : Stop::kTimeout, aborts ? 0 : last);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 3);
  const std::string what = argv[1];
  if (what == "stop") {
    for (const bool aborts : {false, true}) {
      for (const int from : {0, 1}) stops(atoi(argv[2]), from, aborts);
    }
    return 0;
  }
  if (what == "late") {
    const int world = atoi(argv[2]);
    CHECK(argc == 5);
    Drops(world, atoi(argv[4]) != 0, 4000 * kMs).stayAway(atoi(argv[3]) != 0);
    Drops(world, atoi(argv[4]) != 0, 60000 * kMs).breaks();
    return 0;
  }
  if (what == "alone") {
    CHECK(argc == 4);
    Drops(atoi(argv[2]), atoi(argv[3]) != 0, 60000 * kMs).isAlone();
    return 0;
  }
  if (what == "twice") {
    Drops(atoi(argv[2]), false, 60000 * kMs).dieOneByOne();
    return 0;
  }
  if (what == "full") {
    Drops(atoi(argv[2]), false, 60000 * kMs).dieWithoutRoom();
    return 0;
  }
  if (what == "waiter") {
    for (int tries = 1; !Drops(2, atoi(argv[2]) != 0, 100 * kMs).awaitWaiter(); tries++) {
      if (tries == 20) return fprintf(stderr, "in %d tries a sign of life was late each time: the processor is too busy for this test\n", tries), 1;
    }
    return 0;
  }
  if (what == "limit") {
    Drops(2, atoi(argv[2]) != 0, 60000 * kMs).awaitToTheLimit();
    return 0;
  }
  if (what == "sums") {
    Drops(2, atoi(argv[2]) != 0, 60000 * kMs).awaitSums();
    return 0;
  }
  if (what == "drops") {
    const uint64_t from = strtoull(argv[2], nullptr, 0), n = strtoull(argv[3], nullptr, 0);
    for (uint64_t seed = from; seed != from + n; seed++) {
      if (getenv("SHOW_SEEDS") != nullptr) fprintf(stderr, "seed %lu\n", seed);
      Drops(seed, 60000 * kMs).die();
    }
    return 0;
  }
  CHECK(what == "hostile" && argc == 4);
  const uint64_t first = strtoull(argv[2], nullptr, 0), rounds = strtoull(argv[3], nullptr, 0);
  uint64_t ended = 0;
  for (uint64_t seed = first; seed != first + rounds; seed++) ended += hostile(seed);
  printf("%lu of %lu ended\n", ended, rounds);
  CHECK(ended > rounds / 5);  // two of five do
  return 0;
}
