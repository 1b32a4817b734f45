// Scripts of dispatches and combines by GPU kernels.
#ifndef RAILHEAD_KERNELS_MODEL_GPU_EP_SCENARIOS_H_
#define RAILHEAD_KERNELS_MODEL_GPU_EP_SCENARIOS_H_

#include <utility>

#include "model/choices.h"
#include "model/ep_scenarios.h"
#include "model/gpu_ep_run.h"

namespace railhead::model {

// Two phases in one kernel or in two; any grid of up to two blocks of three threads.
inline GpuEpShape withGrids(Random& random, EpScript script) {
  GpuEpShape shape;
  shape.hidden = random.oneIn(2) ? 4 : static_cast<uint32_t>(1 + random.below(8));
  const std::vector<EpStep>& steps = script.steps;
  for (size_t k = 0; k < steps.size(); k++) {
    const bool isPair = k + 1 < steps.size() && steps[k + 1].dispatch == steps[k].dispatch &&
                        ((steps[k].call == EpCall::kSend && steps[k + 1].call == EpCall::kReceive) ||
                         (steps[k].call == EpCall::kCombineSend && steps[k + 1].call == EpCall::kCombineReceive));
    shape.fused.push_back(isPair && random.oneIn(2));
    shape.grids.emplace_back();
    for (int r = 0; r < script.worldSize; r++) shape.grids.back().push_back({1 + random.below(2), 1 + random.below(3)});
  }
  shape.script = std::move(script);
  return shape;
}
inline EpScript anyGpuEpRanks(Random& random, bool countsFirst = false) {
  EpScript s = anyEpRanks(random, countsFirst);
  if (s.worldSize > 3) s.worldSize = 3;
  for (uint8_t& r : s.expertRank) r = static_cast<uint8_t>(r % s.worldSize);
  if (s.maxTokens > 3) s.maxTokens = 3;
  return s;
}
inline GpuEpShape gpuEpCalls(Random& random) { return withGrids(random, epCalls(random, anyGpuEpRanks(random), 1 + random.below(3), false)); }
inline GpuEpShape gpuEpInFlight(Random& random) { return withGrids(random, epCalls(random, anyGpuEpRanks(random), 3 + random.below(3), true)); }

// Each rank has more tokens for the others than a ring has positions.
inline EpScript crowded(Random& random, EpScript s, int world) {
  s.worldSize = world;
  s.expertRank.clear();
  for (int r = world - 1; r >= 0; r--) s.expertRank.push_back(static_cast<uint8_t>(r));
  s.topk = static_cast<uint32_t>(world);
  s.maxTokens = 3 + static_cast<uint32_t>(random.below(2));
  return s;
}
inline GpuEpShape gpuEpHt(Random& random) {
  EpScript s = anyGpuEpRanks(random, true);
  if (random.oneIn(2)) s = crowded(random, s, 2);
  return withGrids(random, epCalls(random, s, 1 + random.below(4), random.oneIn(2)));
}

// A rank is given up at any time. It has died before one of its kernels, or lives and goes on.
inline GpuEpShape gpuEpDeath(Random& random) {
  const bool ht = random.oneIn(2);
  EpScript s = anyGpuEpRanks(random, ht);
  if (ht && random.oneIn(2)) s = crowded(random, s, 2 + random.below(2));
  GpuEpShape shape = withGrids(random, epCalls(random, s, 1 + random.below(3), random.oneIn(2)));
  shape.dropsDead = true;
  shape.tellsLate = random.oneIn(2);
  shape.dead = random.below(shape.script.worldSize);
  if (random.oneIn(2)) shape.diesBefore = static_cast<size_t>(random.below(static_cast<int>(shape.script.steps.size())));
  return shape;
}

// One token to an expert of the other rank, by one thread a rank, which is control too.
inline GpuEpShape smallGpuEp() {
  GpuEpShape shape;
  shape.script = smallEp(false, false);
  shape.fused = {true, false};
  shape.grids.assign(2, {{1, 1}, {1, 1}});
  return shape;
}

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_GPU_EP_SCENARIOS_H_
