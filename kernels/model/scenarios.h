// The scenarios. A random one makes a shape from the seed; an exhaustive one is a single small shape.
#ifndef RAILHEAD_KERNELS_MODEL_SCENARIOS_H_
#define RAILHEAD_KERNELS_MODEL_SCENARIOS_H_

#include <string.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "model/choices.h"
#include "model/ep_scenarios.h"
#include "model/flag_run.h"
#include "model/gpu_ep_scenarios.h"
#include "model/gpu_run.h"
#include "model/lane_run.h"
#include "model/packet_run.h"
#include "model/record_run.h"
#include "model/stream_run.h"

namespace railhead::model {

struct Scenario {
  const char* name;
  bool exhaustive;
  PacketShape (*packets)(Random&);  // one is set
  FlagShape (*flags)(Random&);
  const char* says;
  RecordShape (*records)(Random&) = nullptr;
  EpScript (*ep)(Random&) = nullptr;
  bool isLarge = false;  // exhaustive, with many states: only the deep run has it
  StreamShape (*streams)(Random&) = nullptr;
  GpuShape (*gpu)(Random&) = nullptr;
  LaneShape (*lanes)(Random&) = nullptr;
  GpuEpShape (*gpuEp)(Random&) = nullptr;
};

using P = PacketAlgorithm;
using F = FlagAlgorithm;

// Half of the epochs are near the wrap. 1 is the first that is used, 15 the last.
inline uint32_t anyEpoch(Random& random) { return random.oneIn(2) ? static_cast<uint32_t>(random.below(16)) : static_cast<uint32_t>(11 + random.below(5)); }

inline Offers anyOffers(Random& random) { return random.oneIn(4) ? static_cast<Offers>(1 + random.below(2)) : Offers::kAll; }

inline PacketShape anyRanks(Random& random) {
  PacketShape shape;
  shape.worldSize = 2 + random.below(4);
  shape.reduceGroup = random.oneIn(2) ? shape.worldSize : 1 + random.below(shape.worldSize);
  shape.slotTiles = static_cast<uint32_t>(1 + random.below(3));
  shape.startEpoch = anyEpoch(random);
  return shape;
}
// For cells: of two ranks, half of the runs have the kernels for two ranks.
inline PacketShape anyCellRanks(Random& random) {
  PacketShape shape = anyRanks(random);
  if (random.oneIn(3)) shape.worldSize = 2;
  shape.special = shape.worldSize == 2 && random.oneIn(2);
  if (shape.special || shape.reduceGroup > shape.worldSize) shape.reduceGroup = shape.worldSize;
  return shape;
}
inline void anyGrid(Random& random, Kernel* k) {
  k->blocks = 1 + random.below(2);
  k->blockThreads = 1 + random.below(2);
}
// 1 .. most elements, with preference for few and for `most`.
inline uint32_t anyCount(Random& random, uint32_t most) {
  if (random.oneIn(3)) return most;
  return static_cast<uint32_t>(1 + random.below(static_cast<int>(random.oneIn(2) ? most : std::min(most, 4u))));
}
// maxChunks: most chunks of data in a kernel.
inline Kernel anyKernel(Random& random, const PacketShape& shape, P algorithm, uint32_t maxChunks) {
  Kernel k = {};
  k.algorithm = algorithm;
  anyGrid(random, &k);
  k.inPlace = random.oneIn(2);
  const auto ranks = static_cast<uint32_t>(shape.worldSize);
  const uint32_t chunk = shape.slotTiles * 4 * (algorithm == P::kTwoshot || algorithm == P::kCellTwoshot ? ranks : 1);
  k.count = anyCount(random, chunk * maxChunks);
  // Ranks without a slice learn of each other by the lines of signatures only, which these runs lack.
  if (algorithm == P::kCellTwoshot && k.count < chunk) k.count = 4 * ranks * static_cast<uint32_t>(1 + random.below(static_cast<int>(shape.slotTiles)));
  if (algorithm == P::kAllGather || algorithm == P::kReduceScatter) k.inPlace = false;
  if (algorithm == P::kRMSNorm) {
    k.inPlace = false;
    k.rows = 1 + static_cast<uint32_t>(random.below(static_cast<int>(shape.slotTiles)));
    k.count = k.rows * 4;
    if (shape.slotTiles >= 2 * k.rows && random.oneIn(2)) k.count *= 2;
  }
  return k;
}
inline PacketShape kernelsOf(Random& random, PacketShape shape, const std::vector<P>& algorithms, int least, uint32_t maxChunks) {
  for (int n = least + random.below(5); n > 0; n--) {
    shape.kernels.push_back(anyKernel(random, shape, algorithms[static_cast<size_t>(random.below(static_cast<int>(algorithms.size())))], maxChunks));
  }
  return shape;
}

inline PacketShape oneshots(Random& random) { return kernelsOf(random, anyRanks(random), {P::kOneshot}, 3, 1); }
inline PacketShape twoshots(Random& random) { return kernelsOf(random, anyRanks(random), {P::kTwoshot}, 2, 1); }
inline PacketShape cellOneshots(Random& random) { return kernelsOf(random, anyCellRanks(random), {P::kCellOneshot}, 3, 1); }
inline PacketShape cellTwoshots(Random& random) { return kernelsOf(random, anyCellRanks(random), {P::kCellTwoshot}, 2, 1); }
inline PacketShape cellChunks(Random& random) { return kernelsOf(random, anyCellRanks(random), {P::kCellOneshot, P::kCellTwoshot}, 2, 4); }
inline PacketShape gpuExchanges(Random& random) {
  return kernelsOf(random, anyCellRanks(random), {P::kAllGather, P::kAllToAll, P::kReduceScatter, P::kOneshot}, 3, 3);
}
inline PacketShape rmsNorms(Random& random) { return kernelsOf(random, anyCellRanks(random), {P::kRMSNorm}, 2, 1); }
inline PacketShape mixedKernels(Random& random) {
  return kernelsOf(random, anyCellRanks(random), {P::kOneshot, P::kTwoshot, P::kCellOneshot, P::kCellTwoshot, P::kRMSNorm}, 3, 1);
}
inline PacketShape chunkedKernels(Random& random) { return kernelsOf(random, anyRanks(random), {P::kOneshot, P::kTwoshot}, 2, 3); }
// More kernels than epochs, so that slots are used again after the wrap.
inline PacketShape longStreams(Random& random) {
  PacketShape shape = anyRanks(random);
  shape.worldSize = 2 + random.below(2);
  shape.reduceGroup = shape.worldSize;
  shape.slotTiles = 2;
  for (int n = 18; n > 0; n--) {
    Kernel k = {};
    k.algorithm = P::kOneshot;
    k.blockThreads = 1 + random.below(2);
    k.count = random.oneIn(4) ? 8 : 4;
    shape.kernels.push_back(k);
  }
  return shape;
}
inline PacketShape longTwoshots(Random& random) {
  PacketShape shape = longStreams(random);
  for (Kernel& k : shape.kernels) {
    k.algorithm = P::kTwoshot;
    k.count = 4 * static_cast<uint32_t>(1 + random.below(shape.worldSize));
  }
  return shape;
}
inline PacketShape abortedKernels(Random& random) {
  PacketShape shape = mixedKernels(random);
  shape.kernels.resize(1 + static_cast<size_t>(random.below(3)), shape.kernels[0]);
  shape.abort = true;
  return shape;
}

using A = gpu::Algorithm;

inline GpuShape anyGpuRanks(Random& random) {
  GpuShape shape;
  shape.worldSize = 2 + random.below(3);
  shape.special = shape.worldSize == 2 && random.oneIn(2);
  shape.reduceGroup = shape.special || random.oneIn(2) ? shape.worldSize : 1 + random.below(shape.worldSize);
  shape.slotTiles = random.oneIn(2) ? 2 : 4;
  shape.startEpoch = anyEpoch(random);
  return shape;
}
inline GpuKernel anyGpuKernel(Random& random, const GpuShape& shape, A algorithm) {
  GpuKernel k = {};
  k.algorithm = algorithm;
  k.cells = algorithm == A::kPull || !random.oneIn(3);
  k.blocks = 1 + random.below(2);
  k.blockThreads = 1 + random.below(3);
  k.inPlace = random.oneIn(2);
  k.count = algorithm == A::kPull ? anyCount(random, shape.windowCount) : anyCount(random, shape.slotTiles * 4 * (random.oneIn(4) ? 3 : 1));
  if (random.oneIn(12)) k.count = 0;
  return k;
}
inline GpuShape gpuKernels(Random& random, const std::vector<A>& algorithms) {
  GpuShape shape = anyGpuRanks(random);
  for (int n = 2 + random.below(4); n > 0; n--) {
    shape.kernels.push_back(anyGpuKernel(random, shape, algorithms[static_cast<size_t>(random.below(static_cast<int>(algorithms.size())))]));
  }
  return shape;
}
inline GpuShape gpuMixed(Random& random) { return gpuKernels(random, {A::kOneshot, A::kTwoshot, A::kPull}); }
inline GpuShape gpuTwoshots(Random& random) { return gpuKernels(random, {A::kTwoshot}); }
inline GpuShape gpuPulls(Random& random) { return gpuKernels(random, {A::kPull}); }
// Broadcasts, and all-reduces between them.
inline GpuShape gpuBroadcasts(Random& random) {
  GpuShape shape = gpuMixed(random);
  if (random.oneIn(2)) shape.worldSize = std::max(shape.worldSize, 3);
  if (shape.worldSize > 2) shape.special = false;
  for (GpuKernel& k : shape.kernels) {
    k.broadcasts = k.algorithm != A::kTwoshot && !random.oneIn(3);
    if (k.broadcasts) k.cells = false;
  }
  return shape;
}
// In some kernel the last rank calls something else.
inline GpuShape gpuOdd(Random& random) {
  GpuShape shape = gpuMixed(random);
  shape.odd = random.below(static_cast<int>(shape.kernels.size()));
  const GpuKernel usual = shape.kernels[static_cast<size_t>(shape.odd)];
  do {
    shape.oddKernel = random.oneIn(2) ? anyGpuKernel(random, shape, static_cast<A>(1 + random.below(3))) : usual;
    shape.oddKernel.blocks = usual.blocks;
    shape.oddKernel.blockThreads = usual.blockThreads;
    if (random.oneIn(2)) shape.oddKernel.count = 1 + shape.oddKernel.count % 11;
  } while (!(shape.oddKernel != usual));
  return shape;
}
inline GpuShape gpuAborted(Random& random) {
  GpuShape shape = gpuMixed(random);
  shape.abort = true;
  return shape;
}
inline GpuShape smallGpu(std::vector<GpuKernel> kernels) {
  GpuShape shape;
  shape.slotTiles = 2;
  shape.startEpoch = 3;
  shape.windowCount = 4;
  shape.kernels = std::move(kernels);
  return shape;
}

inline FlagShape anyFlagRanks(Random& random) {
  FlagShape shape;
  shape.worldSize = 2 + random.below(4);
  shape.reduceGroup = random.oneIn(2) ? shape.worldSize : 1 + random.below(shape.worldSize);
  shape.blockTiles = static_cast<uint32_t>(shape.worldSize * (1 + random.below(2)));
  shape.windowCount = 12;
  shape.startGeneration = static_cast<uint32_t>(2 * random.below(8));
  return shape;
}
inline bool isRing(F algorithm) { return algorithm == F::kRing || algorithm == F::kReduceScatterRing || algorithm == F::kAllGatherRing; }
inline std::vector<uint8_t> anyOrder(Random& random, int worldSize) {
  std::vector<uint8_t> order(static_cast<size_t>(worldSize));
  std::iota(order.begin(), order.end(), uint8_t{0});
  for (int i = worldSize - 1; i > 0; i--) std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(random.below(i + 1))]);
  return order;
}
// Any number of channels. Mostly LL if the shape has LL pipes.
inline RingPlan anyRing(Random& random, const FlagShape& shape) {
  RingPlan plan = ringInRankOrder(shape.worldSize);
  std::copy(shape.order.begin(), shape.order.end(), plan.order);
  plan.channels = random.oneIn(3) ? 1 : 1 + random.below(kMaxRingChannels);
  if (shape.llTiles != 0 && !random.oneIn(6)) plan.protocol = RingProtocol::kLL;
  return plan;
}
inline Call anyCall(Random& random, const FlagShape& shape, F algorithm) {
  Call call = {algorithm, 0, random.oneIn(2), anyOffers(random), random.below(shape.worldSize)};
  const auto n = static_cast<uint32_t>(shape.worldSize);
  switch (algorithm) {
    case F::kBarrier: break;
    case F::kOneshot:
    case F::kTwoshot: call.count = anyCount(random, shape.blockTiles * 2 * 2); break;
    case F::kPull: call.count = anyCount(random, shape.windowCount); break;
    case F::kAllGatherPull:
    case F::kReduceScatterPull:
    case F::kAllToAllPull: call.count = anyCount(random, shape.windowCount / n); break;
    case F::kChain:
    case F::kDoubleTree:
    case F::kRelay:
    case F::kRing: call.count = anyCount(random, 40); break;  // more chunks than a pipe has slots
    default: call.count = anyCount(random, 12);
  }
  // In place needs send and recv of the same size.
  const bool sameSize = algorithm <= F::kBarrier || algorithm == F::kAllToAll || algorithm == F::kReduce || algorithm == F::kBroadcast ||
                        algorithm == F::kChain || algorithm == F::kDoubleTree || algorithm == F::kRing;
  if (!sameSize) call.inPlace = false;
  if (isRing(algorithm) || algorithm == F::kBroadcastChain || algorithm == F::kBroadcastTree || algorithm == F::kAllGatherTree) {
    call.ring = anyRing(random, shape);
  }
  return call;
}
inline FlagShape calls(Random& random, const std::vector<F>& kinds, FlagShape shape) {
  for (int n = 3 + random.below(6); n > 0; n--) {
    shape.calls.push_back(anyCall(random, shape, kinds[static_cast<size_t>(random.below(static_cast<int>(kinds.size())))]));
  }
  return shape;
}
inline FlagShape withPipes(Random& random) {
  FlagShape shape = anyFlagRanks(random);
  shape.worldSize = 2 + random.below(2);
  shape.reduceGroup = 1 + random.below(shape.worldSize);
  shape.blockTiles = static_cast<uint32_t>(shape.worldSize);
  shape.slotTiles = static_cast<uint32_t>(1 + random.below(2));
  return shape;
}
inline FlagShape oneshotCalls(Random& random) { return calls(random, {F::kOneshot}, anyFlagRanks(random)); }
inline FlagShape twoshotCalls(Random& random) { return calls(random, {F::kTwoshot}, anyFlagRanks(random)); }
inline FlagShape pullCalls(Random& random) { return calls(random, {F::kPull}, anyFlagRanks(random)); }
inline FlagShape badOfferCalls(Random& random) {
  constexpr F kinds[] = {F::kPull, F::kAllGatherPull, F::kReduceScatterPull, F::kAllToAllPull};
  FlagShape shape = pullCalls(random);
  shape.calls.push_back(anyCall(random, shape, kinds[random.below(4)]));
  Call& last = shape.calls.back();
  last.offers = Offers::kAll;
  if (last.count == 0) last.count = 1;
  shape.badOffer = true;
  return shape;
}
inline FlagShape exchangeCalls(Random& random) {
  return calls(random, {F::kAllGather, F::kAllGatherPull, F::kReduceScatter, F::kReduceScatterPull, F::kAllToAll, F::kAllToAllPull}, anyFlagRanks(random));
}
inline FlagShape mixedCalls(Random& random) {
  return calls(random, {F::kOneshot, F::kTwoshot, F::kPull, F::kBarrier, F::kAllGather, F::kReduceScatter}, anyFlagRanks(random));
}
inline FlagShape rootedCalls(Random& random) { return calls(random, {F::kBroadcast, F::kReduce}, withPipes(random)); }
inline FlagShape transferCalls(Random& random) { return calls(random, {F::kGather, F::kScatter, F::kNeighbours, F::kRelay}, withPipes(random)); }
// With reduce groups, a chain sends two sums of a tile: a slot has room for both.
inline FlagShape withTrees(Random& random) {
  FlagShape shape = withPipes(random);
  shape.worldSize = 2 + random.below(4);
  shape.reduceGroup = random.oneIn(2) ? shape.worldSize : 1 + random.below(shape.worldSize);
  shape.blockTiles = static_cast<uint32_t>(shape.worldSize);
  shape.slotTiles = 2;
  shape.order = anyOrder(random, shape.worldSize);
  return shape;
}
inline FlagShape treeCalls(Random& random) {
  return calls(random, {F::kChain, F::kDoubleTree, F::kBroadcastChain, F::kBroadcastTree, F::kAllGatherRing, F::kAllGatherTree, F::kReduceScatterChain,
                        F::kReduceScatterTree}, withTrees(random));
}
inline FlagShape everyCall(Random& random) {
  return calls(random, {F::kOneshot, F::kAllToAllPull, F::kBarrier, F::kBroadcast, F::kReduce, F::kGather, F::kScatter, F::kNeighbours}, withPipes(random));
}
inline FlagShape abortedCalls(Random& random) {
  FlagShape shape = mixedCalls(random);
  shape.calls.resize(1 + static_cast<size_t>(random.below(3)), shape.calls[0]);
  shape.abort = true;
  return shape;
}
inline FlagShape abortedTransfers(Random& random) {
  FlagShape shape = transferCalls(random);
  shape.calls.resize(static_cast<size_t>(random.below(3)), shape.calls[0]);
  shape.calls.push_back(anyCall(random, shape, F::kNeighbours));
  shape.abort = true;
  return shape;
}
// Rings on several channels, and other users of their pipes, in turn.
inline FlagShape withRings(Random& random) {
  FlagShape shape = withPipes(random);
  shape.worldSize = 2 + random.below(3);
  shape.reduceGroup = shape.worldSize;
  shape.blockTiles = static_cast<uint32_t>(shape.worldSize);
  shape.order = anyOrder(random, shape.worldSize);
  return shape;
}
inline FlagShape withLLRings(Random& random) {
  FlagShape shape = withRings(random);
  shape.llTiles = static_cast<uint32_t>(1 + random.below(2));
  shape.startLL = static_cast<uint32_t>(random.below(16));
  return shape;
}
inline FlagShape ringCalls(Random& random) {
  FlagShape shape = withRings(random);
  shape.slotTiles = 2;
  return calls(random, {F::kRing, F::kRing, F::kReduceScatterRing, F::kAllGatherRing, F::kDoubleTree, F::kNeighbours}, shape);
}
inline FlagShape llRingCalls(Random& random) { return calls(random, {F::kRing, F::kReduceScatterRing, F::kAllGatherRing}, withLLRings(random)); }
inline FlagShape abortedRings(Random& random) {
  FlagShape shape = llRingCalls(random);
  shape.calls.resize(1 + static_cast<size_t>(random.below(3)), shape.calls[0]);
  shape.abort = true;
  return shape;
}
// Somewhere rank 0 calls something else, or the same with another count or root. The last call is an exchange.
inline FlagShape oneOddCall(Random& random, const std::vector<F>& kinds, FlagShape shape) {
  shape = calls(random, kinds, shape);
  shape.calls.push_back({F::kBarrier});
  shape.odd = random.below(static_cast<int>(shape.calls.size()) - 1);
  const Call& usual = shape.calls[static_cast<size_t>(shape.odd)];
  do {
    shape.oddCall = random.oneIn(3) ? anyCall(random, shape, kinds[static_cast<size_t>(random.below(static_cast<int>(kinds.size())))]) : usual;
    if (random.oneIn(3)) shape.oddCall.count += 1;
    if (random.oneIn(3)) shape.oddCall.root = random.below(shape.worldSize);
  } while (shape.oddCall.algorithm == usual.algorithm && shape.oddCall.count == usual.count && shape.oddCall.root == usual.root);
  return shape;
}
inline FlagShape oddCalls(Random& random) {
  return oneOddCall(random, {F::kOneshot, F::kBarrier, F::kAllGather, F::kBroadcast, F::kReduce, F::kGather, F::kScatter}, withPipes(random));
}
inline FlagShape oddTrees(Random& random) {
  return oneOddCall(random, {F::kChain, F::kDoubleTree, F::kBroadcastChain, F::kBroadcastTree, F::kReduceScatterChain, F::kReduceScatterTree, F::kAllGatherTree}, withTrees(random));
}
inline FlagShape oddRings(Random& random) {
  return oneOddCall(random, {F::kRing, F::kReduceScatterRing, F::kAllGatherRing, F::kOneshot, F::kBarrier}, withLLRings(random));
}

// Two ranks of one thread.
inline PacketShape smallKernels(uint32_t startEpoch, uint32_t slotTiles, std::vector<Kernel> kernels) {
  PacketShape shape;
  shape.slotTiles = slotTiles;
  shape.startEpoch = startEpoch;
  shape.kernels = std::move(kernels);
  return shape;
}
inline Call smallRing(F algorithm, uint32_t count, RingProtocol protocol) {
  Call call = {algorithm, count};
  call.ring = ringInRankOrder(2);
  call.ring.protocol = protocol;
  return call;
}
inline FlagShape smallCalls(uint32_t startGeneration, std::vector<Call> calls) {
  FlagShape shape;
  shape.startGeneration = startGeneration;
  shape.isSigned = false;  // fewer states; other runs have signatures
  shape.calls = std::move(calls);
  for (const Call& c : shape.calls) {
    if (c.algorithm == F::kPull) shape.windowCount = 4;
    if (c.algorithm >= F::kBroadcast) shape.slotTiles = 1;
    if (c.ring.protocol == RingProtocol::kLL) shape.llTiles = 1;
  }
  return shape;
}

// The group may be aborted at any time.
template <class Shape>
Shape withAbort(Shape shape) {
  shape.aborts = true;
  return shape;
}
inline RecordShape anyRecords(Random& random) {
  RecordShape shape;
  shape.records = static_cast<uint64_t>(1 + random.below(2));
  shape.operations = static_cast<uint64_t>(2 + random.below(4));
  shape.readers = 1 + random.below(2);
  shape.reads = 1 + random.below(3);
  if (random.oneIn(4)) shape.start = 0xfffffffe;
  return shape;
}

// Grids of the ranks differ; of an all-to-all too, which a kernel of all ranks would refuse.
inline LaneRound anyRound(Random& random, const LaneShape& shape, LaneKind kind) {
  LaneRound round = {};
  round.kind = kind;
  round.root = random.below(shape.worldSize);
  round.lanes = 1 + static_cast<uint32_t>(random.below(2));
  round.bytes = 4 * static_cast<uint32_t>(random.below(kind == LaneKind::kReduce ? 14 : 18));
  for (int r = 0; r < shape.worldSize; r++) {
    round.blocks.push_back(1 + random.below(2));
    round.blockThreads.push_back(1 + random.below(2));
    for (int to = 0; to < shape.worldSize && (kind == LaneKind::kGroup || kind == LaneKind::kOdd); to++) {
      for (int n = to == r || random.oneIn(3) ? 0 : 1 + random.below(2); n > 0; n--) {
        round.transfers.push_back({r, to, 4 * static_cast<uint32_t>(random.below(14)), 1 + static_cast<uint32_t>(random.below(2))});
      }
    }
  }
  return round;
}
inline LaneShape anyLanes(Random& random, const std::vector<LaneKind>& kinds, int least) {
  LaneShape shape;
  shape.worldSize = 2 + random.below(2);
  shape.reduceGroup = 1 + random.below(shape.worldSize);
  shape.start = static_cast<uint32_t>(random.below(16));
  for (int n = least + random.below(3); n > 0; n--) {
    shape.rounds.push_back(anyRound(random, shape, kinds[static_cast<size_t>(random.below(static_cast<int>(kinds.size())))]));
  }
  return shape;
}
inline LaneShape laneGroups(Random& random) { return anyLanes(random, {LaneKind::kGroup}, 1); }
inline LaneShape laneReductions(Random& random) { return anyLanes(random, {LaneKind::kReduce}, 1); }
inline LaneShape lanesInPlace(Random& random) { return anyLanes(random, {LaneKind::kAllToAll}, 1); }
inline LaneShape lanesMixed(Random& random) { return anyLanes(random, {LaneKind::kGroup, LaneKind::kReduce, LaneKind::kAllToAll}, 2); }
inline LaneShape lanesOdd(Random& random) {
  LaneShape shape = anyLanes(random, {LaneKind::kGroup, LaneKind::kReduce}, 0);
  shape.rounds.push_back(anyRound(random, shape, LaneKind::kOdd));
  return shape;
}
inline LaneShape lanesAborted(Random& random) {
  LaneShape shape = lanesMixed(random);
  shape.aborts = true;
  return shape;
}

inline StreamShape anyStreams(Random& random) {
  StreamShape shape;
  shape.streams = 2 + random.below(3);
  shape.operations = 1 + random.below(4);
  shape.ordered = random.oneIn(2);
  return shape;
}

inline Scenario gpuEpScenario(const char* name, GpuEpShape (*make)(Random&), const char* says, bool exhaustive = false) {
  Scenario s = {name, exhaustive, nullptr, nullptr, says};
  s.isLarge = exhaustive;
  s.gpuEp = make;
  return s;
}

inline const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {"packets-oneshot", false, oneshots, nullptr, "2 to 5 ranks, kernels of one chunk"},
      {"packets-twoshot", false, twoshots, nullptr, "2 to 5 ranks, slices that may be short or empty"},
      {"cells-rmsnorm", false, rmsNorms, nullptr, "rows assigned to blocks"},
      {"cells-oneshot", false, cellOneshots, nullptr, "2 to 5 ranks, kernels of one chunk, some data all ones"},
      {"cells-twoshot", false, cellTwoshots, nullptr, "the same in slices"},
      {"cells-chunks", false, cellChunks, nullptr, "several chunks of cells in a kernel"},
      {"packets-exchanges", false, gpuExchanges, nullptr, "all-gather, all-to-all and reduce-scatter, in one chunk or several"},
      {"packets-mixed", false, mixedKernels, nullptr, "kernels of all algorithms, sizes and grids in turn"},
      {"packets-chunks", false, chunkedKernels, nullptr, "several chunks in a kernel"},
      {"packets-long", false, longStreams, nullptr, "more kernels than there are epochs"},
      {"packets-long-twoshot", false, longTwoshots, nullptr, "the same with slices"},
      {"packets-abort", false, abortedKernels, nullptr, "a rank never calls; all others leave when the group is aborted"},
      {"gpu-mixed", false, nullptr, nullptr, "whole kernels with signatures and counters: cells, packets and windows in turn", nullptr, nullptr, false, nullptr, gpuMixed},
      {"gpu-twoshot", false, nullptr, nullptr, "whole two-shots, also with ranks that own no slice", nullptr, nullptr, false, nullptr, gpuTwoshots},
      {"gpu-broadcast", false, nullptr, nullptr, "whole kernels of broadcasts in one or several chunks and between windows, and of all-reduces", nullptr, nullptr, false, nullptr, gpuBroadcasts},
      {"gpu-pull", false, nullptr, nullptr, "whole kernels between windows", nullptr, nullptr, false, nullptr, gpuPulls},
      {"gpu-odd", false, nullptr, nullptr, "a rank calls something else: every rank stops and says so", nullptr, nullptr, false, nullptr, gpuOdd},
      {"gpu-abort", false, nullptr, nullptr, "a rank never calls; all others leave when the host aborts", nullptr, nullptr, false, nullptr, gpuAborted},
      gpuEpScenario("gpu-ep", gpuEpCalls, "dispatch and combine of 2 or 3 ranks with several blocks and threads, one after the other"),
      gpuEpScenario("gpu-ep-in-flight", gpuEpInFlight, "the same with two dispatches in flight, their phases in any order"),
      gpuEpScenario("gpu-ep-ht", gpuEpHt, "ht: rings of few positions, one or two dispatches in flight"),
      gpuEpScenario("gpu-ep-death", gpuEpDeath, "a rank is given up at any time: it has died, or lives and goes on"),
      gpuEpScenario("gpu-ep-all", [](Random&) { return smallGpuEp(); }, "every run of a dispatch of one token by one thread a rank", true),
      {"flags-oneshot", false, nullptr, oneshotCalls, "2 to 5 ranks"},
      {"flags-twoshot", false, nullptr, twoshotCalls, "2 to 5 ranks"},
      {"flags-pull", false, nullptr, pullCalls, "windows, in place and not"},
      {"flags-bad-offer", false, nullptr, badOfferCalls, "a rank offers memory that is not in its windows: all ranks leave and name it"},
      {"flags-exchanges", false, nullptr, exchangeCalls, "all-gather, reduce-scatter and all-to-all, staged and between windows"},
      {"flags-rooted", false, nullptr, rootedCalls, "broadcast and reduce over pipes, roots in turn"},
      {"flags-transfers", false, nullptr, transferCalls, "gather, scatter, messages between all neighbours at the same time, and from each rank to the next"},
      {"flags-trees", false, nullptr, treeCalls, "chains, rings and double trees of 2 to 5 ranks"},
      {"flags-rings", false, nullptr, ringCalls, "rings of 2 to 4 ranks in any order on 1 to 4 channels, and trees and messages in turn"},
      {"flags-rings-ll", false, nullptr, llRingCalls, "the same with the LL protocol, over the wrap of its marks"},
      {"flags-rings-odd", false, nullptr, oddRings, "a rank calls something else among rings and exchanges"},
      {"flags-rings-abort", false, nullptr, abortedRings, "a rank never calls a ring; all others leave when the group is aborted"},
      {"flags-every", false, nullptr, everyCall, "exchanges and pipes in turn"},
      {"flags-odd", false, nullptr, oddCalls, "a rank calls something else: no rank hangs, and none passes the next exchange"},
      {"flags-trees-odd", false, nullptr, oddTrees, "the same among chains and trees"},
      {"flags-mixed", false, nullptr, mixedCalls, "all algorithms and barriers in turn"},
      {"flags-abort", false, nullptr, abortedCalls, "a rank never calls; all others leave when the group is aborted"},
      {"records", false, nullptr, nullptr, "a flight record that is overwritten while others read it", anyRecords},
      {"records-all", true, nullptr, nullptr, "every run of two operations in one record, which is read once",
       [](Random&) { return RecordShape{}; }},
      {"lanes-groups", false, nullptr, nullptr, "sends and receives of 2 or 3 ranks at the same time", nullptr, nullptr, false, nullptr, nullptr, laneGroups},
      {"lanes-reduce", false, nullptr, nullptr, "reductions to a root", nullptr, nullptr, false, nullptr, nullptr, laneReductions},
      {"lanes-in-place", false, nullptr, nullptr, "all-to-alls in place", nullptr, nullptr, false, nullptr, nullptr, lanesInPlace},
      {"lanes-mixed", false, nullptr, nullptr, "all of them in turn, over the wrap of counts", nullptr, nullptr, false, nullptr, nullptr, lanesMixed},
      {"lanes-odd", false, nullptr, nullptr, "a rank's sends are something else", nullptr, nullptr, false, nullptr, nullptr, lanesOdd},
      {"lanes-abort", false, nullptr, nullptr, "an abort at any time", nullptr, nullptr, false, nullptr, nullptr, lanesAborted},
      {"streams", false, nullptr, nullptr, "a rank's streams take its state and give it back, in an order or not", nullptr, nullptr, false, anyStreams},
      {"streams-all", true, nullptr, nullptr, "every run of two streams with two operations each", nullptr, nullptr, false,
       [](Random&) { return StreamShape{}; }},
      {"ep-ll", false, nullptr, nullptr, "dispatch and combine of 2 to 4 ranks, one after the other", nullptr, epLowLatency},
      {"ep-ht", false, nullptr, nullptr, "the same in chunks of 1 or 2 tokens", nullptr, epBulk},
      {"ep-in-flight", false, nullptr, nullptr, "two dispatches in flight, their phases in any order", nullptr, epInFlight},
      {"ep-abort", false, nullptr, nullptr, "a rank never calls dispatch or combine; all others leave when the group is aborted", nullptr, epAbort},
      {"ep-death", false, nullptr, nullptr, "one or two ranks die anywhere; the others continue and report what is lost", nullptr, epDeath},
      {"ep-late", false, nullptr, nullptr, "ranks mask each other although none is dead", nullptr, epLate},
      {"ep-all-ll", true, nullptr, nullptr, "every run of a dispatch of one token", nullptr, [](Random&) { return smallEp(false, false); }},
      {"ep-all-ht", true, nullptr, nullptr, "the same with counts first", nullptr, [](Random&) { return smallEp(true, false); }},
      {"ep-all-combine", true, nullptr, nullptr, "every run of a dispatch of one token and its combine", nullptr, [](Random&) { return smallEp(false, true); }},
      {"ep-all-abort", true, nullptr, nullptr, "the same as ep-all-ll, with an abort before any step", nullptr, [](Random&) { return smallAbortedEp(); }},
      {"ep-all-sender-dies", true, nullptr, nullptr, "the same, and the sender may die before any step", nullptr, [](Random&) { return smallDyingEp(0, false, false); }},
      {"ep-all-receiver-dies", true, nullptr, nullptr, "the same for the receiver", nullptr, [](Random&) { return smallDyingEp(1, false, false); }},
      {"ep-all-ht-sender-dies", true, nullptr, nullptr, "a sender with counts first may die", nullptr, [](Random&) { return smallDyingEp(0, true, false); }, true},
      {"ep-all-ht-receiver-dies", true, nullptr, nullptr, "its receiver may die", nullptr, [](Random&) { return smallDyingEp(1, true, false); }, true},
      {"ep-all-combine-sender-dies", true, nullptr, nullptr, "a sender may die before any step, also of a combine", nullptr, [](Random&) { return smallDyingEp(0, false, true); }, true},
      {"ep-all-combine-receiver-dies", true, nullptr, nullptr, "the same for the receiver", nullptr, [](Random&) { return smallDyingEp(1, false, true); }, true},
      {"packets-all-tile", true, [](Random&) { return smallKernels(3, 1, {{P::kOneshot, 4}}); }, nullptr, "every run of one oneshot of one tile"},
      {"packets-all-abort", true, [](Random&) { return withAbort(smallKernels(3, 1, {{P::kOneshot, 4}, {P::kOneshot, 3}})); }, nullptr,
       "every run of two oneshots of a tile, with an abort before any step", nullptr, nullptr, true},
      {"packets-all-abort-twoshot", true, [](Random&) { return withAbort(smallKernels(3, 2, {{P::kTwoshot, 8}, {P::kTwoshot, 4}})); }, nullptr, "the same for two twoshots", nullptr, nullptr, true},
      {"packets-all-two", true, [](Random&) { return smallKernels(3, 2, {{P::kOneshot, 8}, {P::kOneshot, 7}}); }, nullptr,
       "every run of two oneshots of two tiles"},
      {"packets-all-three", true, [](Random&) { return smallKernels(3, 2, {{P::kOneshot, 8}, {P::kOneshot, 4}, {P::kOneshot, 8}}); }, nullptr,
       "every run of three oneshots"},
      {"packets-all-twoshot", true, [](Random&) { return smallKernels(3, 2, {{P::kTwoshot, 8}, {P::kTwoshot, 4}}); }, nullptr,
       "every run of a twoshot of two tiles and one of one, which leaves a slice empty"},
      {"packets-all-wrap", true, [](Random&) { return smallKernels(13, 1, {{P::kOneshot, 1}, {P::kOneshot, 1}, {P::kOneshot, 1}, {P::kOneshot, 1}}); }, nullptr,
       "every run of the epochs 14, 15, 2 and 3"},
      {"packets-all-chunks", true, [](Random&) { return smallKernels(3, 2, {{P::kOneshot, 12}, {P::kOneshot, 8}}); }, nullptr,
       "every run of a oneshot of two chunks and one after it"},
      {"cells-all-tile", true, [](Random&) { return smallKernels(3, 1, {{P::kCellOneshot, 4}}); }, nullptr, "every run of one oneshot of one cell"},
      {"cells-all-three", true, [](Random&) { return smallKernels(3, 1, {{P::kCellOneshot, 4}, {P::kCellOneshot, 3}, {P::kCellOneshot, 4}}); }, nullptr,
       "every run of three oneshots of a cell"},
      {"cells-all-chunks", true, [](Random&) { return smallKernels(3, 1, {{P::kCellOneshot, 12}}); }, nullptr, "every run of a oneshot of three chunks"},
      {"cells-all-twoshot", true, [](Random&) { return smallKernels(3, 1, {{P::kCellTwoshot, 8}, {P::kCellTwoshot, 8}}); }, nullptr,
       "every run of two twoshots of a cell a rank"},
      {"cells-all-abort", true, [](Random&) { return withAbort(smallKernels(3, 1, {{P::kCellOneshot, 4}, {P::kCellOneshot, 3}})); }, nullptr,
       "every run of two oneshots of a cell, with an abort before any step", nullptr, nullptr, true},
      {"flags-abort-transfers", false, nullptr, abortedTransfers, "the same for messages between neighbours"},
      {"flags-all-1", true, nullptr, [](Random&) { return smallCalls(4, {{F::kOneshot, 2}}); }, "every run of one oneshot, with sleep and wake"},
      {"flags-all-2", true, nullptr, [](Random&) { return smallCalls(14, {{F::kOneshot, 2}, {F::kOneshot, 2}}); }, "every run of two oneshots over the wrap"},
      {"flags-all-twoshot", true, nullptr, [](Random&) { return smallCalls(4, {{F::kTwoshot, 4}}); }, "every run of a twoshot of two tiles"},
      {"flags-all-barriers", true, nullptr, [](Random&) { return smallCalls(12, {{F::kBarrier}, {F::kBarrier}}); }, "every run of two barriers"},
      {"flags-all-pull", true, nullptr, [](Random&) { return smallCalls(4, {{F::kPull, 2}}); }, "every run of a pull of one element a rank"},
      {"flags-all-broadcast", true, nullptr, [](Random&) { return smallCalls(4, {{F::kBroadcast, 2}, {F::kBroadcast, 2, false, Offers::kAll, 1}}); }, "every run of two broadcasts of a chunk"},
      {"flags-all-chain", true, nullptr, [](Random&) { return smallCalls(4, {{F::kChain, 2}}); }, "every run of a chunk up and down a chain"},
      {"flags-all-ring", true, nullptr, [](Random&) { return smallCalls(4, {smallRing(F::kReduceScatterRing, 2, RingProtocol::kSimple)}); }, "every run of a ring reduce-scatter"},
      {"flags-all-ring-ll", true, nullptr, [](Random&) { return smallCalls(4, {smallRing(F::kAllGatherRing, 0, RingProtocol::kLL)}); }, "every run of an LL chunk that is a signature: sleep and wake", nullptr, nullptr, true},
      {"flags-all-abort", true, nullptr, [](Random&) { return withAbort(smallCalls(4, {{F::kOneshot, 2}})); }, "every run of one oneshot, with an abort before any step"},
      {"flags-all-abort-pull", true, nullptr, [](Random&) { return withAbort(smallCalls(4, {{F::kPull, 1}})); }, "the same for a pull of one element", nullptr, nullptr, true},
      {"flags-all-abort-broadcast", true, nullptr, [](Random&) { return withAbort(smallCalls(4, {{F::kBroadcast, 2}})); }, "the same for a broadcast"},
      {"flags-all-abort-ring", true, nullptr, [](Random&) { return withAbort(smallCalls(4, {smallRing(F::kReduceScatterRing, 2, RingProtocol::kSimple)})); }, "the same for a ring"},
      {"flags-all-abort-transfer", true, nullptr, [](Random&) { return withAbort(smallCalls(4, {{F::kGather, 2}})); }, "the same for a message"},
      {"flags-all-transfer", true, nullptr, [](Random&) { return smallCalls(4, {{F::kGather, 2}}); }, "every run of a message"},
  };
  return all;
}

inline const Scenario* findScenario(const char* name) {
  for (const Scenario& s : scenarios()) {
    if (strcmp(s.name, name) == 0) return &s;
  }
  return nullptr;
}

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_SCENARIOS_H_
