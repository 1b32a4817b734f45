// All other collectives of ranks that are threads (group.h), in random order, over exchanges, windows and pipes.
//
// Usage: collectives WORLD REDUCE_GROUP FIRST_EPOCH SPIN_NS ROUNDS SEED
#include <algorithm>

#include "group.h"

using namespace railhead;

namespace {

enum class What {
  kAllGather, kReduceScatter, kAllToAll, kBroadcast, kReduce, kGather, kScatter, kNeighbours, kChain, kTree, kBroadcastTree, kChainScatter, kTreeScatter, kRing, kLast
};

// Integers, which wrap, so the order of additions does not matter: this tests who receives what.
int32_t input(uint64_t seed, int rank, int round, size_t i) {
  return static_cast<int32_t>(mix(mix(seed + static_cast<uint64_t>(rank)) + static_cast<uint64_t>(round) * 100000 + i));
}
int32_t total(const Options& o, int round, size_t i) {
  uint32_t sum = 0;
  for (int r = 0; r < o.world; r++) sum += static_cast<uint32_t>(input(o.seed, r, round, i));
  return static_cast<int32_t>(sum);
}

struct Round {
  const Options& o;
  FlagTeam& team;
  int number;
  What what;
  bool windows;
  int root;
  size_t count;  // of a part
  int32_t *send, *recv;

  // Runs the operation. False: the algorithm declined it.
  bool runs(host::Algorithm algorithm, host::Collective collective) const {
    const RingPlan ring = ringInRankOrder(o.world);
    host::KernelCall call = callOf(team, ring, host::Type::kI32, send, recv, count);
    call.root = root;
    call.sendOffer = windows ? kWindow : kNoOffset;
    call.reproducible = true;
    const host::Outcome outcome = kernelOf(algorithm, collective)(call);
    CHECK(outcome.stop == Stop::kNone && (!outcome.declined || (algorithm == host::kPull && !windows)));
    return !outcome.declined;
  }
  void pullsOrCopies(host::Collective collective) const {
    CHECK(runs(host::kPull, collective) == windows);
    if (!windows) CHECK(runs(host::kOneshot, collective));
  }

  void run() const {
    switch (what) {
      case What::kAllGather: pullsOrCopies(host::kAllGather); break;
      case What::kReduceScatter: pullsOrCopies(host::kReduceScatter); break;
      case What::kAllToAll: pullsOrCopies(host::kAllToAll); break;
      case What::kBroadcast: runs(host::kPipe, host::kBroadcast); break;
      case What::kReduce: runs(host::kPipe, host::kReduce); break;
      case What::kGather: runs(host::kPipe, host::kGather); break;
      case What::kScatter: runs(host::kPipe, host::kScatter); break;
      case What::kChain: runs(host::kRing, host::kAllReduce); break;
      case What::kTree: runs(host::kTree, host::kAllReduce); break;
      case What::kBroadcastTree: runs(windows ? host::kTree : host::kRing, host::kBroadcast); break;
      case What::kChainScatter: runs(host::kRing, host::kReduceScatter); break;
      case What::kTreeScatter: runs(host::kTree, host::kReduceScatter); break;
      case What::kRing: runs(windows ? host::kTree : host::kRing, host::kAllGather); break;
      default: transfers();
    }
  }

  void transfers() const {
    std::vector<Transfer> list;
    const auto add = [&](int peer, bool sends, int32_t* buffer) {
      list.push_back({peer, sends, reinterpret_cast<char*>(buffer), count * sizeof(int32_t), sign({1, 0, 0, kNoRoot, count, 0, 0, 0}), 0, false});
    };
    for (int k = 1; k < o.world; k++) {
      const int peer = (team.rank + k) % o.world;
      const auto at = static_cast<size_t>(peer) * count;
      add(peer, true, send + at);
      add(peer, false, recv + at);
    }
    team.call = {};
    CHECK(host::transfers(team, list.data(), static_cast<int>(list.size())).stop == Stop::kNone);
  }

  void check() const {
    const auto world = static_cast<size_t>(o.world), self = static_cast<size_t>(team.rank);
    for (size_t r = 0; r < world; r++) {
      for (size_t i = 0; i < count; i++) {
        const int from = static_cast<int>(r);
        switch (what) {
          case What::kRing:
          case What::kAllGather: CHECK(recv[r * count + i] == input(o.seed, from, number, i)); break;
          case What::kChainScatter:
          case What::kTreeScatter:
          case What::kReduceScatter: CHECK(recv[i] == total(o, number, self * count + i)); break;
          case What::kAllToAll: CHECK(recv[r * count + i] == input(o.seed, from, number, self * count + i)); break;
          case What::kChain:
          case What::kTree: CHECK(recv[i] == total(o, number, i)); break;
          case What::kBroadcastTree:
          case What::kBroadcast: CHECK(recv[i] == input(o.seed, root, number, i)); break;
          case What::kReduce: CHECK(team.rank != root || recv[i] == total(o, number, i)); break;
          case What::kGather: CHECK(team.rank != root || recv[r * count + i] == input(o.seed, from, number, i)); break;
          case What::kScatter: CHECK(recv[i] == input(o.seed, root, number, self * count + i)); break;
          default: CHECK(r == self || recv[r * count + i] == input(o.seed, from, number, self * count + i));
        }
      }
    }
  }
};

void rank(const Options& o, FlagTeam& team) {
  std::vector<int32_t> own(2 * kMaxCount);
  uint32_t history = 0;
  for (int n = 0; n < o.rounds; n++) {
    const uint64_t shared = mix(o.seed ^ static_cast<uint64_t>(n));  // the same on all ranks
    maybeDelay(mix(shared + static_cast<uint64_t>(team.rank)));
    const bool windows = (shared >> 40 & 1) != 0;
    int32_t* memory = windows ? reinterpret_cast<int32_t*>(team.heap(team.rank) + kWindow) : own.data();
    Round round = {o, team, n, static_cast<What>(shared % static_cast<uint64_t>(What::kLast)), windows,
                   static_cast<int>((shared >> 8) % static_cast<uint64_t>(o.world)),
                   static_cast<size_t>(shared >> 16) % (kMaxCount / static_cast<size_t>(o.world)), memory, memory + kMaxCount};
    for (size_t i = 0; i < round.count * static_cast<size_t>(o.world); i++) round.send[i] = input(o.seed, team.rank, n, i);
    std::fill_n(round.recv, kMaxCount, -1);
    team.call = sign({1 + static_cast<uint32_t>(round.what), 0, 0, kNoRoot, round.count, 0, static_cast<uint32_t>(n), history});
    history = historyAfter(team.call);
    round.run();
    round.check();
    CHECK(__atomic_load_n(team.waitingFor, __ATOMIC_RELAXED) == 0);  // a rank that waits for none says so
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 7);
  const Options o = {atoi(argv[1]), atoi(argv[2]), static_cast<uint32_t>(strtoul(argv[3], nullptr, 0)), atoll(argv[4]), atoi(argv[5]),
                     strtoull(argv[6], nullptr, 0)};
  Group group(o, 60000 * kMs);
  onRanks(o.world, [&](int r) { rank(o, group.teams[static_cast<size_t>(r)]); });
  return 0;
}
