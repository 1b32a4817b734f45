// A rank that progresses by one block a while before each deadline of the others (group.h). The bound of an operation ends it.
//
// Usage: drip SPIN_NS
#include <atomic>

#include "group.h"
#include "host/futex.h"
#include "host/mem.h"
#include "railhead/exchange/flag_waits.h"

using namespace railhead;

namespace {

constexpr int64_t kTimeoutNs = 200 * kMs, kLimitNs = 4 * kTimeoutNs, kPauseNs = kTimeoutNs / 4;
constexpr int kBlocks = 1000;  // without the bound: 50 s
constexpr int64_t kMostNs = kBlocks * kPauseNs / 3;

// Rank 0 runs an operation. Rank 1 is this thread, which writes rank 1's flag as far as rank 0 has come. Returns how long it took.
template <class Run>
int64_t drip(Group* group, const Flag& seen, uint32_t ahead, Flag* flag, Run run) {
  std::atomic<bool> over{false};
  host::Outcome outcome;
  const int64_t began = host::nowNs();
  onRanks(2, [&](int rank) {
    if (rank == 0) {
      outcome = run();
      over = true;
      return;
    }
    const timespec pause = {0, kPauseNs};
    while (!over) {
      nanosleep(&pause, nullptr);
      __atomic_store_n(&flag->value, __atomic_load_n(&seen.value, __ATOMIC_ACQUIRE) + ahead, __ATOMIC_RELEASE);
      host::futexWakeAll(&flag->value);
    }
  });
  CHECK(outcome.stop == Stop::kTimeout && outcome.missing == 2 && group->waiting[0] == 2);
  return host::nowNs() - began;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  const Options o = {2, 2, 0, atoll(argv[1]), 1, 0};
  {
    Group group(o, kTimeoutNs);
    group.teams[0].limitNs = kLimitNs;
    std::vector<float> data(kBlocks * group.teams[0].blockBytes / sizeof(float));
    const RingPlan ring = ringInRankOrder(o.world);
    const int64_t took = drip(&group, group.header(0)->published.generation, 0, &group.header(1)->published.generation, [&] {
      return kernelOf(host::kOneshot, host::kAllReduce)(
          callOf(group.teams[0], ring, host::Type::kF32, data.data(), data.data(), data.size()));
    });
    CHECK(took < kMostNs);
  }
  {
    Group group(o, kTimeoutNs);
    group.teams[0].limitNs = kLimitNs;
    std::vector<char> data(kBlocks * kSlotBytes);
    Transfer receive = {1, false, data.data(), data.size(), {}, 0, false};
    host::Mem mem;
    Flags<host::Mem> flags(mem, group.teams[0]);
    const Pipes<host::Mem> pipes(mem, group.teams[0], flags);
    const int64_t took = drip(&group, pipes.head(1, 0), 1, &pipes.tail(1, 0), [&] {
      return host::transfers(group.teams[0], &receive, 1);
    });
    CHECK(took < kMostNs);
  }
  {
    // A flag that is reached whenever this rank waits for it, and not when it looks again: each wait ends at once.
    Group group(o, kTimeoutNs);
    group.teams[0].limitNs = kLimitNs;
    host::Mem mem;
    Flags<host::Mem> flags(mem, group.teams[0]);
    FlagWaits<host::Mem> waits(mem, group.teams[0], flags);
    Flag& tail = Pipes<host::Mem>(mem, group.teams[0], flags).tail(1, 0);
    tail.value = 1;
    const int64_t began = host::nowNs();
    bool ended = false;
    while (!ended && host::nowNs() - began < kMostNs) {
      waits.clear();
      waits.add(tail, 1, 1);
      ended = !waits.wait();
    }
    CHECK(ended && flags.stop() == Stop::kTimeout && flags.missing() == 2 && group.waiting[0] == 2);
  }
  return 0;
}
