// A dispatch of a rank and its combine, for tests of what they do when other ranks fail (gpu_ep_faults.cc).
#ifndef RAILHEAD_KERNELS_TESTDATA_GPU_EP_CALLS_H_
#define RAILHEAD_KERNELS_TESTDATA_GPU_EP_CALLS_H_

#include <string.h>

#include <random>

#include "ep_gpu.h"

namespace {

constexpr uint32_t kTokens = 12, kTopk = 2, kHidden = 24;
constexpr uint64_t kMs = 1000000;
constexpr TestGrid kGrid = {2, kOnDevice ? 64 : 3};

EpPlacement placement(int world, uint32_t experts) {
  EpPlacement p = {};
  p.world = world;
  p.maxTokens = kTokens;
  p.topk = kTopk;
  p.logical = experts;
  for (uint32_t e = 0; e < experts; e++) {
    p.logicalOf.push_back(static_cast<uint16_t>(e));
    p.rankOf.push_back(static_cast<uint8_t>(e % static_cast<uint32_t>(world)));
  }
  p.format = {host::Type::kF32, host::Type::kF32, host::Type::kF32, host::EpScale::kF32, 0, kHidden};
  p.dropsInvalid = true;
  return p;
}

// A dispatch of a rank, and its combine.
struct Calls {
  SharedArray<int32_t> idx;
  SharedArray<float> x, rows, out, weights;
  SharedArray<int32_t> sourceRank, sourceToken, topkIdx, counts;
  SharedArray<uint64_t> totals = SharedArray<uint64_t>(2);
  PinnedArray<EpCell> cell = PinnedArray<EpCell>(1);
  EpDispatchCall dispatch = {};
  EpCombineCall combine = {};

  Calls(EpGpuRanks& ranks, int r, uint32_t experts, uint64_t timeoutNs) {
    cell[0] = {};
    cell[0].flight = -1;
    for (uint32_t i = 0; i < kTokens * kTopk; i++) idx.push_back(static_cast<int32_t>((i + static_cast<uint32_t>(r)) % experts));
    x.assign(kTokens * kHidden, static_cast<float>(r + 1));
    out.resize(x.size());
    static_cast<EpCommonCall&>(dispatch) = static_cast<EpCommonCall&>(combine) = ranks.common(r, cell.data(), timeoutNs);
    dispatch.steps = combine.steps = kEpSends | kEpReceives;
    dispatch.dropsInvalid = true;
    dispatch.routing = {idx.data(), false, nullptr, kTokens};
    dispatch.x = reinterpret_cast<const char*>(x.data());
    const uint64_t most = static_cast<uint64_t>(dispatch.team.worldSize) * kTokens * kTopk;
    room(EpRowLayout::kFlat, most, most);
    combine.yRows = dispatch.receive.x;
    combine.outRows = reinterpret_cast<char*>(out.data());
  }
  void room(EpRowLayout layout, uint64_t capacity, uint64_t all) {
    rows.resize(all * kHidden);
    sourceRank.resize(all);
    sourceToken.resize(all);
    weights.resize(all);
    topkIdx.resize(all * kTopk);
    counts.resize(dispatch.team.localExperts[dispatch.team.rank]);
    EpReceive& to = dispatch.receive;
    to.layout = layout;
    to.alignment = 1;
    to.capacity = capacity;
    to.x = reinterpret_cast<char*>(rows.data());
    to.counts = counts.data();
    to.sourceRank = sourceRank.data();
    to.sourceToken = sourceToken.data();
    to.weights = layout == EpRowLayout::kTokens ? nullptr : weights.data();
    to.topkIdx = layout == EpRowLayout::kTokens ? topkIdx.data() : nullptr;
    to.rows = &totals[0];
    to.tokens = &totals[1];
    combine.yRows = to.x;
  }
};


// missing: a rank that it must name; 0 = none.
void stopped(const Group& group, int r, Stop why, uint64_t missing) {
  const Status& s = group.status[static_cast<size_t>(r)];
  if (s.stop != static_cast<uint32_t>(why) || (s.missing & missing) != missing) {
    fprintf(stderr, "rank %d stopped with %u, missing %#lx, instead of %u, %#lx\n", r, s.stop, s.missing, static_cast<uint32_t>(why), missing);
    CHECK(!"wrong report");
  }
}

struct Dice {
  std::mt19937_64 random;
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random() % n); }
};

}  // namespace

#endif  // RAILHEAD_KERNELS_TESTDATA_GPU_EP_CALLS_H_
