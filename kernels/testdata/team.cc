// All-reduces and barriers of ranks that are threads (group.h).
//
// Usage: team MODE WORLD REDUCE_GROUP FIRST_EPOCH SPIN_NS ROUNDS SEED
//   sums     random all-reduces by every algorithm, and barriers; checks every result
//   late     a rank arrives at about the deadline of the others: a rank that gives up names another one
//   abort    the abort word is set while ranks spin or sleep
#include <math.h>

#include <atomic>

#include "group.h"
#include "host/futex.h"

using namespace railhead;

namespace {

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

void sums(const Options& o) {
  Group group(o, 60000 * kMs);
  onRanks(o.world, [&](int rank) {
    const FlagTeam& team = group.teams[static_cast<size_t>(rank)];
    std::vector<float> send(kMaxCount), recv(kMaxCount);
    const RingPlan ring = ringInRankOrder(o.world);
    const auto runs = [](host::Algorithm algorithm, const host::KernelCall& call) {
      const host::Outcome outcome = kernelOf(algorithm, host::kAllReduce)(call);
      CHECK(outcome.stop == Stop::kNone);
      return !outcome.declined;
    };
    for (int round = 0; round < o.rounds; round++) {
      const uint64_t shared = mix(o.seed ^ static_cast<uint64_t>(round));  // the same on all ranks
      maybeDelay(mix(shared + static_cast<uint64_t>(rank)));
      if (shared % 4 == 0) {
        CHECK(host::barrier(team).stop == Stop::kNone);
        continue;
      }
      const size_t count = static_cast<size_t>(shared >> 8) % (shared % 4 == 1 ? 20 : kMaxCount + 1);
      for (size_t i = 0; i < count; i++) send[i] = input(o.seed, rank, round, i);
      float* in = send.data();
      float* out = shared >> 40 & 1 ? in : recv.data();
      host::KernelCall call = callOf(team, ring, host::Type::kF32, in, out, count);
      switch (shared >> 48 & 3) {
        case 0: CHECK(runs(host::kOneshot, call)); break;
        case 1: CHECK(runs(host::kTwoshot, call)); break;
        default: {
          // Now and then some rank's buffer is in no window; then no rank may be zero-copy.
          const bool all = (shared >> 50 & 1) != 0;
          auto* window = reinterpret_cast<float*>(team.heap(rank) + kWindow);
          memcpy(window, in, count * sizeof(float));
          const bool here = all || (shared >> 52) % static_cast<uint64_t>(o.world) != static_cast<uint64_t>(rank);
          call.sendOffer = here ? kWindow : kNoOffset;
          call.recvOffer = out == in ? call.sendOffer : here ? kWindow + kMaxCount * sizeof(float) : kNoOffset;
          CHECK(runs(host::kPull, call) == all);
          if (all) {
            memcpy(out, team.heap(rank) + call.recvOffer, count * sizeof(float));
          } else {
            CHECK(runs(host::kTwoshot, call));
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
      if (rank == o.world - 1) {  // from long before the deadline to long after it
        const timespec pause = {0, static_cast<long>(mix(o.seed + static_cast<uint64_t>(round)) % (2 * timeoutNs))};
        nanosleep(&pause, nullptr);
      }
      const auto [stop, missing, difference, declined] = host::barrier(group.teams[static_cast<size_t>(rank)]);
      CHECK(stop == Stop::kNone || stop == Stop::kTimeout);
      CHECK(difference.theirs.call == 0 && !declined);
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
      if (rank == o.world - 1) {  // never arrives; sets the abort word while the others have not begun, spin or sleep
        const timespec pause = {0, static_cast<long>(mix(o.seed + static_cast<uint64_t>(round)) % 200000)};
        nanosleep(&pause, nullptr);
        __atomic_store_n(&group.abortWord, 1, __ATOMIC_RELEASE);
        host::futexWakeAll(&group.abortWord);
        return;
      }
      float data[100] = {};
      const RingPlan ring = ringInRankOrder(o.world);
      const auto run = kernelOf(round % 2 == 0 ? host::kOneshot : host::kTwoshot, host::kAllReduce);
      const auto [stop, missing, difference, declined] = run(callOf(group.teams[static_cast<size_t>(rank)], ring, host::Type::kF32, data, data, 100));
      CHECK(stop == Stop::kAborted && difference.theirs.call == 0 && !declined);
      CHECK((missing & absent) != 0 && (missing & ~all) == 0 && (missing >> rank & 1) == 0);
    });
    for (int r = 0; r < o.world; r++) CHECK(group.header(r)->published.generation.sleepers == 0);
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
    default: CHECK(!"unknown mode");
  }
  return 0;
}
