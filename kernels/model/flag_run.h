// Runs of the flags personality: ranks of one thread each, which call one operation after the other.
#ifndef RAILHEAD_KERNELS_MODEL_FLAG_RUN_H_
#define RAILHEAD_KERNELS_MODEL_FLAG_RUN_H_

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "model/flag_heaps.h"
#include "railhead/collectives/all_to_all.h"
#include "railhead/collectives/allgather.h"
#include "railhead/collectives/allgather_ring.h"
#include "railhead/collectives/allgather_tree.h"
#include "railhead/collectives/allreduce_oneshot.h"
#include "railhead/collectives/allreduce_pull.h"
#include "railhead/collectives/allreduce_ring.h"
#include "railhead/collectives/allreduce_tree.h"
#include "railhead/collectives/allreduce_twoshot.h"
#include "railhead/collectives/barrier.h"
#include "railhead/collectives/broadcast.h"
#include "railhead/collectives/broadcast_tree.h"
#include "railhead/collectives/reduce.h"
#include "railhead/collectives/reduce_scatter.h"
#include "railhead/collectives/reduce_scatter_ring.h"
#include "railhead/collectives/reduce_scatter_tree.h"
#include "railhead/collectives/transfers.h"
#include "railhead/exchange/flag_exchange.h"

namespace railhead::model {

// Algorithms before kBroadcast use an exchange among all ranks, kBroadcast and later ones use pipes.
enum class FlagAlgorithm {
  kOneshot, kTwoshot, kPull, kBarrier, kAllGather, kAllGatherPull, kReduceScatter, kReduceScatterPull, kAllToAll, kAllToAllPull,
  kBroadcast, kReduce, kGather, kScatter, kNeighbours, kChain, kDoubleTree, kBroadcastChain, kBroadcastTree, kAllGatherRing,
  kReduceScatterChain, kReduceScatterTree, kAllGatherTree, kRing, kReduceScatterRing, kRelay,
};

struct Call {
  FlagAlgorithm algorithm;
  uint32_t count = 0;  // as the C ABI means it
  bool inPlace = false;
  Offers offers = Offers::kAll;  // pull
  int root = 0;
  RingPlan ring = {};  // of rings and chains
};

struct FlagShape {
  int worldSize = 2, reduceGroup = 2;
  uint32_t blockTiles = 2;   // of a buffer
  uint32_t windowCount = 0;  // elements of a window
  uint32_t slotTiles = 0;    // of a pipe; 0 = no pipes
  uint32_t llTiles = 0;      // of an LL pipe's slot, without its signature; 0 = no LL pipes
  uint32_t startLL = 0;      // chunks that LL pipes have already carried
  std::vector<uint8_t> order;  // of rings; empty = rank order
  uint32_t startGeneration = 0;
  std::vector<Call> calls;
  bool isSigned = true;
  bool abort = false;  // the last rank does not make the last call, and the abort word is set
  bool aborts = false;  // the abort word is set at any time; every rank makes every call
  int odd = -1;        // number of the call in which rank 0 calls oddCall instead
  bool badOffer = false;  // in the last call, a pull, rank 0 offers memory that is not in its windows
  Call oddCall = {FlagAlgorithm::kBarrier};
};

class FlagRun {
 public:
  using Elements = Tiles<Raw8>;
  using Exchange = FlagExchange<FlagMem, Raw8>;

  FlagRun(World& world, const FlagShape& shape)
      : world_(world), shape_(shape),
        heaps_(world, shape.worldSize, shape.reduceGroup, bytesOf(shape.blockTiles), shape.windowCount,
               shape.slotTiles == 0 ? 0 : kSlotHeaderBytes + bytesOf(shape.slotTiles), llSlotBytes(shape)) {
    for (int r = 0; r < shape.worldSize; r++) {
      heaps_.header(r)->generation = shape.startGeneration;
      world.memory.initial(&heaps_.header(r)->published.generation, shape.startGeneration);
      if (shape.llTiles != 0) startLL(r);
      world.addFiber(r, 0, [this, r] { rank(r); });
    }
    if (shape.odd >= 0) world.letSleepsEnd();
    if (shape.abort || shape.aborts) world.addFiber(-1, 0, [this] { abort(); });
  }

  std::string check() const { return ""; }  // ranks check at once, since windows are used again

 private:
  static uint32_t bytesOf(uint32_t tiles) { return tiles * static_cast<uint32_t>(sizeof(Raw8)); }

  // A word of 8 bytes carries 4 bytes of data.
  static uint32_t llSlotBytes(const FlagShape& shape) {
    return shape.llTiles == 0 ? 0 : 8 * LLPipes<FlagMem>::wordsOf(bytesOf(shape.llTiles));
  }
  void startLL(int r) {
    FlagMem mem(world_);
    for (int channel = 0; channel < kMaxRingChannels; channel++) {
      const LLPipes<FlagMem> pipes(mem, heaps_.team(r), channel);
      world_.memory.initial(&pipes.tail(r).value, shape_.startLL);
      world_.memory.initial(&pipes.head(r).value, shape_.startLL);
    }
  }

  using Buffer = std::vector<uint32_t>;
  using F = FlagAlgorithm;

  // A rank's call. In the run's memory, since a fiber may be abandoned.
  struct Job {
    const Call* call;
    int operation;
    FlagTeam* team;
    Buffer send, recv;
    Buffer& out() { return call->inPlace ? send : recv; }
    const char* in() const { return reinterpret_cast<const char*>(send.data()); }
    char* to() { return reinterpret_cast<char*>(out().data()); }
  };

  void abort() {
    FlagMem mem(world_);
    mem.storeRelease(heaps_.abortWord(), 1, "");
    mem.futexWakeAll(heaps_.abortWord(), "");
  }

  void rank(int r) {
    uint32_t history = 0;
    for (size_t c = 0; c < shape_.calls.size(); c++) {
      const bool lacksARank = shape_.abort && c + 1 == shape_.calls.size();
      if (lacksARank && r == shape_.worldSize - 1) return;
      const bool odd = static_cast<int>(c) == shape_.odd && r == 0;
      jobs_.push_back({odd ? &shape_.oddCall : &shape_.calls[c], static_cast<int>(c), &heaps_.team(r), {}, {}});
      Job& job = jobs_.back();
      job.team->call = signatureOf(job, &history);
      fill(job);
      FlagMem mem(world_);
      Flags<FlagMem> flags(mem, *job.team);
      Stop stop = Stop::kNone;
      const bool isBad = shape_.badOffer && c + 1 == shape_.calls.size();
      if (!run(job, mem, flags, &stop)) {
        if (isBad && stop == Stop::kBadOffer) return abort();  // as the client does
        if (isBad && stop == Stop::kAborted) return;
        if (stop == Stop::kMismatch && shape_.odd >= 0) abort();  // as the client does
        if ((stop != Stop::kAborted || (!shape_.abort && !shape_.aborts && shape_.odd < 0)) && (stop != Stop::kMismatch || shape_.odd < 0)) world_.fail("gave up");
        return;
      }
      if (lacksARank) world_.fail("call %zu ended without one of the ranks", c);
      if (isBad) world_.fail("call %zu accepted rank 0's offer, which is not in its windows", c);
      // A root may miss a mismatch at first. The next exchange detects it on all ranks, and the last call is one.
      if (shape_.odd >= 0 && c + 1 == shape_.calls.size()) world_.fail("all calls ended although one differed");
      if (static_cast<int>(c) == shape_.odd && r != 0 && hearsFromRank0(job)) world_.fail("call %zu ended although rank 0 was in another one", c);
      if (shape_.odd < 0 || static_cast<int>(c) < shape_.odd) check(job);
    }
  }

  static bool hearsFromRank0(const Job& job) {
    switch (job.call->algorithm) {
      case F::kBroadcast:
      case F::kBroadcastChain:
      case F::kBroadcastTree:
      case F::kScatter: return job.call->root == 0;
      case F::kReduce:
      case F::kGather: return job.call->root == job.team->rank;
      default: return true;
    }
  }

  Signature signatureOf(const Job& job, uint32_t* history) const {
    if (!shape_.isSigned || job.call->algorithm == F::kNeighbours || job.call->algorithm == F::kRelay) return {};
    const Signature s = sign({static_cast<uint32_t>(job.call->algorithm) + 1, 0, 0, static_cast<uint32_t>(job.call->root), job.call->count, 0,
                              static_cast<uint32_t>(job.operation), *history});
    *history = historyAfter(s);
    return s;
  }

  bool run(Job& job, FlagMem& mem, Flags<FlagMem>& flags, Stop* stop) {
    if (job.call->algorithm < F::kBroadcast) {
      Exchange exchange(mem, *job.team, sizeof(Raw8));
      const bool ok = collective(job, exchange);
      *stop = exchange.stop();
      if (*stop == Stop::kBadOffer && exchange.missing() != 1) world_.fail("names another rank than 0 for the bad offer");
      return ok;
    }
    const bool ok = pipe(job, mem, flags);
    *stop = flags.stop();
    return ok;
  }

  bool collective(Job& job, Exchange& exchange) {
    const uint32_t n = job.call->count;
    switch (job.call->algorithm) {
      case F::kOneshot: return allReduceOneshot(exchange, Elements(), job.in(), job.to(), n);
      case F::kTwoshot: return allReduceTwoshot(exchange, Elements(), job.in(), job.to(), n);
      case F::kAllGather: return allGather(exchange, Elements(), job.in(), job.to(), n);
      case F::kReduceScatter: return reduceScatter(exchange, Elements(), job.in(), job.to(), n);
      case F::kAllToAll: return allToAll(exchange, Elements(), job.in(), job.to(), n);
      case F::kBarrier: return barrier(exchange);
      default: return pull(job, exchange);
    }
  }

  // Zero-copy. Each rank chooses which of its two windows is send and which is recv; except for kPull, recv is in no window.
  bool pull(Job& job, Exchange& exchange) {
    const Call& call = *job.call;
    const int r = job.team->rank;
    const bool second = ((mix(static_cast<uint64_t>(job.operation), static_cast<uint64_t>(r)) >> 20) & 1) != 0;
    const bool has = call.offers != Offers::kNotRank0s || r != 0, hasRecv = call.offers == Offers::kAll || r != 0;
    const bool allHave = call.offers == Offers::kAll || (call.offers == Offers::kNotRank0sRecv && call.algorithm != F::kPull);
    const uint64_t from = heaps_.window(second), to = call.inPlace ? from : heaps_.window(!second);
    const bool isBad = shape_.badOffer && r == 0 && job.operation + 1 == static_cast<int>(shape_.calls.size());
    const uint64_t offer = isBad ? badOffer(job) : has ? from : kNoOffset;
    for (size_t i = 0; has && i < job.send.size(); i++) world_.store(job.team->heap(r) + from + 4 * i, 4, job.send[i], Order::kPlain, "fill");
    bool zeroCopy = true, ok = false;
    switch (call.algorithm) {
      case F::kPull: ok = allReducePull(exchange, Elements(), offer, hasRecv ? to : kNoOffset, call.count, &zeroCopy); break;
      case F::kAllGatherPull: ok = allGatherPull(exchange, Elements(), offer, nullptr, job.to(), call.count, &zeroCopy); break;
      case F::kReduceScatterPull: ok = reduceScatterPull(exchange, Elements(), offer, job.to(), call.count, &zeroCopy); break;
      default: ok = allToAllPull(exchange, Elements(), offer, job.to(), call.count, &zeroCopy); break;
    }
    if (!ok) return false;
    if (zeroCopy != allHave) world_.fail("call %d: wrong about whether all buffers are in windows", job.operation);
    if (!zeroCopy) return fallBack(job, exchange);
    for (size_t i = 0; call.algorithm == F::kPull && i < job.out().size(); i++) {
      job.out()[i] = static_cast<uint32_t>(world_.load(job.team->heap(r) + to + 4 * i, 4, Order::kPlain, "read out"));
    }
    return true;
  }
  // Offers too near the end, beyond it, in the scratch, and in regions that do not exist.
  uint64_t badOffer(const Job& job) const {
    const uint64_t end = job.team->heapBytes, bytes = job.send.size() * 4;
    const uint64_t offers[] = {end - bytes + 4, end + 4, uint64_t{1} << 40, heaps_.window(false) - 4, uint64_t{1} << kOfferRegionShift,
                               uint64_t{kMaxRegions} << kOfferRegionShift, kNoOffset - 1};
    return offers[mix(static_cast<uint64_t>(job.operation), bytes) % (sizeof offers / sizeof *offers)];
  }
  bool fallBack(Job& job, Exchange& exchange) {
    const uint32_t n = job.call->count;
    switch (job.call->algorithm) {
      case F::kPull: return allReduceOneshot(exchange, Elements(), job.in(), job.to(), n);
      case F::kAllGatherPull: return allGather(exchange, Elements(), job.in(), job.to(), n);
      case F::kReduceScatterPull: return reduceScatter(exchange, Elements(), job.in(), job.to(), n);
      default: return allToAll(exchange, Elements(), job.in(), job.to(), n);
    }
  }

  bool pipe(Job& job, FlagMem& mem, Flags<FlagMem>& flags) {
    const FlagTeam& team = *job.team;
    const Call& call = *job.call;
    const bool root = team.rank == call.root;
    switch (call.algorithm) {
      case F::kBroadcast: {
        if (root) job.out() = job.send;
        return broadcast(mem, team, flags, call.root, job.to(), uint64_t{call.count} * 4);
      }
      case F::kBroadcastChain:
      case F::kBroadcastTree: {
        if (root) job.out() = job.send;
        const Tree tree = call.algorithm == F::kBroadcastChain ? Tree::kChain : Tree::kDouble;
        return broadcastTree(mem, team, flags, tree, call.ring, call.root, job.to(), uint64_t{call.count} * 4);
      }
      case F::kChain:
      case F::kDoubleTree: {
        const Tree tree = call.algorithm == F::kChain ? Tree::kChain : Tree::kDouble;
        const Elements e;
        return TreeReduction<Elements, FlagMem>(mem, team, flags, e, tree, job.in(), job.to(), call.count).run();
      }
      case F::kReduceScatterChain:
      case F::kReduceScatterTree: {
        const Tree tree = call.algorithm == F::kReduceScatterChain ? Tree::kChain : Tree::kDouble;
        const Elements e;
        return ReduceScatterTree<Elements, FlagMem>(mem, team, flags, e, tree, job.in(), job.to(), call.count).run();
      }
      case F::kAllGatherTree: return allGatherTree(mem, team, flags, call.ring, job.in(), job.to(), uint64_t{call.count} * 4);
      case F::kAllGatherRing: return allGatherRing(mem, team, flags, Elements(), call.ring, job.in(), job.to(), call.count);
      case F::kRing: return allReduceRing(mem, team, flags, Elements(), call.ring, job.in(), job.to(), call.count);
      case F::kReduceScatterRing: return reduceScatterRing(mem, team, flags, Elements(), call.ring, job.in(), job.to(), call.count);
      case F::kReduce: return reduce(mem, team, flags, Elements(), call.root, job.in(), job.to(), call.count);
      case F::kRelay: return relay(job, mem, flags);
      default: {
        std::vector<Transfer>& list = transfers_.emplace_back(transfersOf(job));
        return Transfers<FlagMem>(mem, team, flags, list.data(), static_cast<int>(list.size())).run();
      }
    }
  }

  // Gather, scatter: between the root and all other ranks. Neighbours: two messages to every other rank and two from it.
  std::vector<Transfer> transfersOf(Job& job) {
    const FlagTeam& team = *job.team;
    const Call& call = *job.call;
    const uint64_t part = uint64_t{call.count} * 4;
    std::vector<Transfer> list;
    const auto add = [&](int peer, bool sends, const char* buffer, uint64_t number) {
      Signature s = team.call;
      if (call.algorithm == F::kNeighbours) s = sign({100, 0, 0, kNoRoot, call.count + number, 0, 0, 0});
      list.push_back({peer, sends, const_cast<char*>(buffer), part, s, 0, false});
    };
    const auto slice = [&](const char* of, int r) { return of + static_cast<uint64_t>(r) * part; };
    for (int k = 1; k < team.worldSize; k++) {
      const int r = (team.rank + k) % team.worldSize;
      if (call.algorithm == F::kNeighbours) {
        for (uint64_t m = 0; m < 2; m++) {
          const bool first = (mix(static_cast<uint64_t>(r), static_cast<uint64_t>(team.rank)) & 1) != 0;
          add(r, first, slice(first ? job.in() : job.to(), static_cast<int>(m) * team.worldSize + r), m);
          add(r, !first, slice(first ? job.to() : job.in(), static_cast<int>(m) * team.worldSize + r), m);
        }
      } else if (team.rank == call.root) {
        const bool scatters = call.algorithm == F::kScatter;
        add(r, scatters, slice(scatters ? job.in() : job.to(), r), 0);
      } else if (r == call.root) {
        add(r, call.algorithm == F::kGather, call.algorithm == F::kGather ? job.in() : job.to(), 0);
      }
    }
    return list;
  }

  // Each rank sends to the one before it. The root receives at the same time, the others receive first. So the root sleeps on two flags,
  // of which one does not move before the root has gone on because of the other.
  bool relay(Job& job, FlagMem& mem, Flags<FlagMem>& flags) {
    const int n = job.team->worldSize, r = job.team->rank;
    const uint64_t bytes = uint64_t{job.call->count} * 4;
    const Signature s = sign({100, 0, 0, kNoRoot, job.call->count, 0, 0, 0});
    std::vector<Transfer>& list = transfers_.emplace_back();
    list.push_back({(r + 1) % n, false, job.to(), bytes, s, 0, false});
    list.push_back({(r + n - 1) % n, true, const_cast<char*>(job.in()), bytes, s, 0, false});
    const bool root = r == job.call->root;
    if (root && job.operation % 2 != 0) std::swap(list[0], list[1]);
    if (root) return Transfers<FlagMem>(mem, *job.team, flags, list.data(), 2).run();
    return Transfers<FlagMem>(mem, *job.team, flags, &list[0], 1).run() && Transfers<FlagMem>(mem, *job.team, flags, &list[1], 1).run();
  }

  // How many parts of call.count elements the buffers have.
  size_t sendParts(const Job& job) const {
    const auto n = static_cast<size_t>(shape_.worldSize);
    switch (job.call->algorithm) {
      case F::kReduceScatter:
      case F::kReduceScatterPull:
      case F::kReduceScatterChain:
      case F::kReduceScatterTree:
      case F::kReduceScatterRing:
      case F::kAllToAll:
      case F::kAllToAllPull:
      case F::kScatter: return n;
      case F::kNeighbours: return 2 * n;
      default: return 1;
    }
  }
  size_t recvParts(const Job& job) const {
    const auto n = static_cast<size_t>(shape_.worldSize);
    switch (job.call->algorithm) {
      case F::kAllGather:
      case F::kAllGatherPull:
      case F::kAllGatherRing:
      case F::kAllGatherTree:
      case F::kAllToAll:
      case F::kAllToAllPull:
      case F::kGather: return n;
      case F::kNeighbours: return 2 * n;
      default: return 1;
    }
  }
  void fill(Job& job) {
    job.send.resize(sendParts(job) * job.call->count);
    job.recv.resize(recvParts(job) * job.call->count);
    for (size_t i = 0; i < job.send.size(); i++) job.send[i] = contribution(job.operation, job.team->rank, i);
  }

  void check(Job& job) {
    const int r = job.team->rank;
    if (job.call->algorithm == F::kRing || job.call->algorithm == F::kReduceScatterRing) return checkRing(job);
    for (size_t i = 0; i < job.out().size(); i++) {
      uint32_t want;
      if (expected(job, r, i, &want) && job.out()[i] != want) {
        world_.fail("call %d, element %zu: %u instead of %u", job.operation, i, job.out()[i], want);
      }
    }
  }
  // The result must be a sum in ring order, in either direction, that ends with the owner. The owner is this rank if every rank has a
  // part of its own. Otherwise it is any rank, but all ranks must have the same sum.
  void checkRing(const Job& job) {
    const bool all = job.call->algorithm == F::kRing;
    const int r = job.team->rank;
    auto& results = ringResults_[job.operation];
    results.resize(job.call->count);
    for (size_t i = 0; i < job.call->count; i++) {
      const uint32_t got = all ? const_cast<Job&>(job).out()[i] : job.recv[i];
      bool found = false;
      for (int owner = all ? 0 : r; owner < (all ? shape_.worldSize : r + 1); owner++) {
        for (int way = 0; way < 2; way++) found = found || got == ringSum(job, owner, way, all ? i : static_cast<size_t>(r) * job.call->count + i);
      }
      if (!found) world_.fail("call %d, element %zu: %u is not a sum in ring order", job.operation, i, got);
      if (all && results[i] != 0 && results[i] != got) world_.fail("call %d, element %zu: %u, another rank has %u", job.operation, i, got, results[i]);
      results[i] = got;
    }
  }
  uint32_t ringSum(const Job& job, int owner, int channel, size_t i) const {
    const RingPlace ring(job.call->ring, channel, owner, shape_.worldSize);
    uint32_t sum = 0;
    for (int k = 1; k <= ring.n; k++) sum = sum * (k == 1 ? 0 : 31) + contribution(job.operation, ring.at(ring.place + k - ring.n), i);
    return sum;
  }

  // The expected element i of rank r's result. False: undefined.
  bool expected(const Job& job, int r, size_t i, uint32_t* want) const {
    const Call& call = *job.call;
    const size_t n = call.count, part = i / n, at = i % n, self = static_cast<size_t>(r);
    const int o = job.operation;
    switch (call.algorithm) {
      case F::kAllGather:
      case F::kAllGatherRing:
      case F::kAllGatherTree:
      case F::kAllGatherPull: *want = contribution(o, static_cast<int>(part), at); return true;
      case F::kAllToAll:
      case F::kAllToAllPull: *want = contribution(o, static_cast<int>(part), self * n + at); return true;
      case F::kReduceScatter:
      case F::kReduceScatterPull:
      case F::kReduceScatterChain: *want = reference(o, shape_.worldSize, shape_.reduceGroup, self * n + at); return true;
      case F::kBroadcastChain:
      case F::kBroadcastTree:
      case F::kBroadcast: *want = contribution(o, call.root, i); return true;
      case F::kDoubleTree: *want = treeSum(o, i / treeChunk() % 2 != 0, i); return true;
      case F::kReduceScatterTree:
        *want = treeSum(o, (at / treeChunk() * static_cast<size_t>(shape_.worldSize) + self) % 2 != 0, self * n + at);
        return true;
      case F::kReduce: *want = reference(o, shape_.worldSize, shape_.reduceGroup, i); return r == call.root;
      case F::kGather: *want = contribution(o, static_cast<int>(part), at); return r == call.root && part != self;
      case F::kScatter: *want = contribution(o, call.root, self * n + at); return r != call.root;
      case F::kNeighbours: {
        const auto from = static_cast<int>(part % static_cast<size_t>(shape_.worldSize));
        const size_t k = part / static_cast<size_t>(shape_.worldSize);
        *want = contribution(o, from, (k * static_cast<size_t>(shape_.worldSize) + self) * n + at);
        return from != r;
      }
      case F::kRelay: *want = contribution(o, (r + 1) % shape_.worldSize, i); return true;
      case F::kBarrier: return false;
      default: *want = reference(o, shape_.worldSize, shape_.reduceGroup, i); return true;
    }
  }

  // Elements of a chunk.
  size_t treeChunk() const { return shape_.slotTiles * Elements::kElements; }
  // Element i as the double tree adds it (own, left child, right child), from the root of the tree that its chunk uses.
  uint32_t treeSum(int operation, bool second, size_t i) const {
    return below(operation, second, rootOf(Tree::kDouble, second, shape_.worldSize), i);
  }
  uint32_t below(int operation, bool second, int r, size_t i) const {
    const TreePlace place = placeIn(Tree::kDouble, second, r, shape_.worldSize);
    uint32_t sum = contribution(operation, r, i);
    for (int k = 0; k < place.n; k++) sum = sum * 31 + below(operation, second, place.children[k], i);
    return sum;
  }

  World& world_;
  const FlagShape& shape_;
  FlagHeaps heaps_;
  std::deque<Job> jobs_;
  std::deque<std::vector<Transfer>> transfers_;
  std::map<int, Buffer> ringResults_;  // by operation
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_FLAG_RUN_H_
