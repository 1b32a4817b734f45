// What tests of MoE dispatch and combine draw at random: buffers, and the inputs and outputs of dispatches.
#ifndef RAILHEAD_KERNELS_TESTDATA_EP_DRAW_H_
#define RAILHEAD_KERNELS_TESTDATA_EP_DRAW_H_

#include <random>
#include <vector>

#include "ep_gpu.h"
#include "ep_values.h"

namespace {

struct Dice {
  std::mt19937_64 random;
  explicit Dice(uint64_t seed) : random(seed) {}
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random() % n); }
  bool oneIn(uint32_t n) { return below(n) == 0; }
};

// What a call does. In the order of the calls of a dispatch.
enum class Step { kDispatch, kSend, kLook, kReceive, kCombine, kCombineSend, kCombineReceive, kRelease };
struct Play {
  Step step;
  size_t dispatch;
};

// Memory that a call writes to; poisoned.
struct Outputs {
  SharedArray<char> x, scales, out;
  SharedArray<int32_t> counts, lookCounts, sourceRank, sourceToken, topkIdx;
  SharedArray<int64_t> offsets;
  SharedArray<float> weights, topkWeights;
  SharedArray<uint64_t> totals;  // rows, tokens, tokens of a look
  PinnedArray<EpCell> cell;
  std::vector<EpReport> reports;  // of each call, in order
};

template <class T>
void poison(SharedArray<T>* array, uint64_t n) {
  array->resize(n);
  if (n != 0) memset(static_cast<void*>(array->data()), 0xa5, n * sizeof(T));
}

// A dispatch of a rank.
struct Job {
  uint32_t tokens;
  bool wide, weighted, hasWeights, hasAdd;
  bool isCached;           // on the GPU the dispatch has a cached routing
  EpCachedPlan plan = {};  // that one
  SharedArray<int64_t> wideIdx;
  SharedArray<int32_t> idx;
  SharedArray<float> weights;
  SharedArray<char> x, scales, y, add;
  uint64_t xAt, yAt, outAt;  // offsets of unaligned rows
  EpRowLayout layout;
  uint32_t alignment;
  uint64_t capacity, enough;
  host::Type yType, outType;
  bool wants[8];
  Outputs cpu, gpu;
};

EpPlacement drawPlacement(Dice& dice, int world) {
  EpPlacement p = {};
  p.world = world;
  const uint32_t tokens[] = {1, 2, 5, 33, 70};
  const uint32_t hiddens[] = {1, 4, 7, 8, 16, 33, 128, 129, 300};
  p.maxTokens = tokens[dice.below(5)];
  p.logical = dice.oneIn(4) ? 1 + dice.below(300) : 1 + dice.below(12);
  const bool manyExperts = dice.oneIn(8);  // so many that a dispatch takes several passes (ep_routes.h)
  if (manyExperts) {
    p.maxTokens = 70;
    p.logical = 1400 + dice.below(648);
  }
  p.topk = 1 + dice.below(dice.oneIn(6) ? kEpMaxTopk : 8);
  for (uint32_t e = 0; e < p.logical; e++) {
    for (uint32_t copies = !manyExperts && dice.oneIn(3) ? 1 + dice.below(3) : 1; copies > 0; copies--) {
      p.logicalOf.push_back(static_cast<uint16_t>(e));
      p.rankOf.push_back(static_cast<uint8_t>(dice.oneIn(3) ? 0 : dice.below(static_cast<uint32_t>(world))));
    }
  }
  const host::Type sums[] = {host::Type::kF32, host::Type::kBF16, host::Type::kF16};
  host::EpRowFormat& f = p.format;
  f.in = dice.oneIn(5) ? host::Type::kE4M3 : sums[dice.below(3)];
  f.wire = f.in == host::Type::kE4M3 || dice.oneIn(3) ? host::Type::kE4M3 : dice.oneIn(2) ? f.in : sums[dice.below(3)];
  f.combine = sums[dice.below(3)];
  f.scale = static_cast<host::EpScale>(dice.below(3));
  f.staticScale = 0.37f;
  f.hidden = manyExperts ? 1 + dice.below(4) : hiddens[dice.below(9)];
  p.countsFirst = dice.oneIn(2);
  if (p.countsFirst && !dice.oneIn(4)) p.chunkTokens = 1 + dice.below(4);
  p.dropsInvalid = !dice.oneIn(3);
  p.renormalizes = dice.oneIn(2);
  return p;
}

}  // namespace

#endif  // RAILHEAD_KERNELS_TESTDATA_EP_DRAW_H_
