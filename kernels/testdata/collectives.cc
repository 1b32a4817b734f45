// All other collectives of ranks that are threads (group.h), in random order, over exchanges, windows and pipes.
//
// Usage: collectives WORLD REDUCE_GROUP FIRST_EPOCH SPIN_NS ROUNDS SEED
#include <algorithm>

#include "group.h"

using namespace railhead;

namespace {

enum class What { kAllGather, kReduceScatter, kAllToAll, kBroadcast, kReduce, kGather, kNeighbours, kChain, kTree, kBroadcastTree, kRings, kLast };

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

  uint64_t offer() const { return windows ? kWindow : kNoOffset; }
  bool ended(host::Outcome outcome) const {
    CHECK(outcome.stop == Stop::kNone);
    return true;
  }
  bool pulled(host::Outcome outcome, const bool& zeroCopy) const {  // a reference: the expression that calls this sets it
    CHECK(outcome.stop == Stop::kNone && zeroCopy == windows);
    return zeroCopy;
  }

  void run() const {
    const auto& i32 = host::kernels().reductions[static_cast<int>(host::Type::kI32)];
    const auto& copies = host::kernels().copies;
    const host::ReduceOp sum = {};
    const size_t bytes = count * sizeof(int32_t);
    const RingPlan plan = ringInRankOrder(o.world);
    bool zeroCopy = false;
    switch (what) {
      case What::kAllGather:
        if (!pulled(copies.allGatherPull(team, offer(), send, recv, bytes, &zeroCopy), zeroCopy)) ended(copies.allGather(team, send, recv, bytes));
        break;
      case What::kReduceScatter:
        if (!pulled(i32.reduceScatterPull(team, sum, offer(), recv, count, &zeroCopy), zeroCopy)) ended(i32.reduceScatter(team, sum, send, recv, count));
        break;
      case What::kAllToAll:
        if (!pulled(copies.allToAllPull(team, offer(), recv, bytes, &zeroCopy), zeroCopy)) ended(copies.allToAll(team, send, recv, bytes));
        break;
      case What::kBroadcast:
        if (team.rank == root) memcpy(recv, send, bytes);
        ended(copies.broadcast(team, root, recv, bytes));
        break;
      case What::kReduce: ended(i32.reduce(team, sum, root, send, recv, count)); break;
      case What::kChain: ended(i32.tree(team, sum, Tree::kChain, send, recv, count)); break;
      case What::kTree: ended(i32.tree(team, sum, Tree::kDouble, send, recv, count)); break;
      case What::kBroadcastTree:
        if (team.rank == root) memcpy(recv, send, bytes);
        ended(copies.broadcastTree(team, plan, windows ? Tree::kDouble : Tree::kChain, root, recv, bytes));
        break;
      case What::kRings:
        if (windows) {
          ended(i32.reduceScatterTree(team, sum, Tree::kChain, send, recv, count));
        } else {
          ended(copies.allGatherRing(team, plan, send, recv, bytes));
        }
        break;
      default: transfers(bytes);
    }
  }

  void transfers(size_t bytes) const {
    std::vector<Transfer> list;
    const auto add = [&](int peer, bool sends, int32_t* buffer) {
      list.push_back({peer, sends, reinterpret_cast<char*>(buffer), bytes, what == What::kGather ? team.call : sign({1, 0, 0, kNoRoot, count, 0, 0, 0}), 0, false});
    };
    for (int k = 1; k < o.world; k++) {
      const int peer = (team.rank + k) % o.world;
      const auto at = static_cast<size_t>(peer) * count;
      if (what == What::kNeighbours || peer == root) add(peer, true, what == What::kNeighbours ? send + at : send);
      if (what == What::kNeighbours || team.rank == root) add(peer, false, recv + at);
    }
    if (what == What::kNeighbours) team.call = {};
    ended(host::kernels().copies.transfers(team, list.data(), static_cast<int>(list.size())));
  }

  void check() const {
    const auto world = static_cast<size_t>(o.world), self = static_cast<size_t>(team.rank);
    for (size_t r = 0; r < world; r++) {
      for (size_t i = 0; i < count; i++) {
        const int from = static_cast<int>(r);
        switch (what) {
          case What::kAllGather: CHECK(recv[r * count + i] == input(o.seed, from, number, i)); break;
          case What::kReduceScatter: CHECK(recv[i] == total(o, number, self * count + i)); break;
          case What::kAllToAll: CHECK(recv[r * count + i] == input(o.seed, from, number, self * count + i)); break;
          case What::kChain:
          case What::kTree: CHECK(recv[i] == total(o, number, i)); break;
          case What::kRings:
            CHECK(windows ? recv[i] == total(o, number, self * count + i) : recv[r * count + i] == input(o.seed, from, number, i));
            break;
          case What::kBroadcastTree:
          case What::kBroadcast: CHECK(recv[i] == input(o.seed, root, number, i)); break;
          case What::kReduce: CHECK(team.rank != root || recv[i] == total(o, number, i)); break;
          case What::kGather: CHECK(team.rank != root || r == self || recv[r * count + i] == input(o.seed, from, number, i)); break;
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
