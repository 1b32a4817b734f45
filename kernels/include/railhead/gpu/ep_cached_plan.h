// Makes the plan of a cached routing (EpCachedPlan), with the source that a dispatch computes it with (ep_routes.h). Every block makes all masks, and
// stores a part of the plan. What x decides, whether a token is unfit for FP8, is no part of it.
#ifndef RAILHEAD_KERNELS_GPU_EP_CACHED_PLAN_H_
#define RAILHEAD_KERNELS_GPU_EP_CACHED_PLAN_H_

#include "railhead/gpu/ep_control.h"
#include "railhead/gpu/ep_routes.h"

namespace railhead::gpu {

// The call's `routing` is the caller's; its flights have no array of unfit tokens.
template <class C>
class EpPlanKernel {
 public:
  RH_FN EpPlanKernel(C& c, const EpDispatchCall& call) : c_(c), call_(call), team_(call.team), plan_(call.plan), shared_(c.epShared()), routes_(c, call, false) {}

  RH_FN void run() { epRun(c_, call_, *this); }

  // Of epRun().
  RH_FN void prepare() {}
  RH_FN void look() {}
  RH_FN void repair() {}
  RH_FN bool settles(uint64_t) const { return false; }
  RH_FN void last(uint32_t, uint64_t) {}
  RH_FN bool data() {
    if (c_.threadInBlock() == 0) shared_.flight = 0;
    routes_.prepare(routes_.loadEarly());
    c_.dataAll(true);
    routes_.markFirst();
    c_.dataAll(true);
    uint32_t first = 0, behind;
    RH_ROLLED
    do {
      behind = routes_.endOfPass(first);
      if (first != 0) routes_.nextPass(first);
      store(first, behind);
      c_.dataAll(true);
      routes_.endPass();
      c_.dataAll(true);
      first = behind;
    } while (first < routes_.tokens());
    if (c_.block() == 0) storeTotals();
    return true;
  }

 private:
  RH_FN uint32_t world() const { return static_cast<uint32_t>(team_.worldSize); }

  // Of the tokens from `first` on: a block takes tokens in turn. Blocks need not have the same number of data threads.
  RH_FN void store(uint32_t first, uint32_t behind) {
    const uint32_t blocks = c_.dataBlocks(), mine = first + c_.block() < behind ? (behind - first - c_.block() + blocks - 1) / blocks : 0;
    const auto tokenOf = [&](uint32_t i) { return first + c_.block() + i * blocks; };
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < mine * team_.topk; i += c_.dataThreadsInBlock()) {
      const uint32_t t = tokenOf(i / team_.topk), k = i % team_.topk;
      const uint64_t at = uint64_t{t} * team_.topk + k;
      const int64_t expert = call_.routing.at(at);
      plan_.idx[at] = expert;
      plan_.weights[at] = call_.routing.weightAt(at);
      plan_.entries[at] = routes_.entry(t, k, expert);
    }
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < mine * world(); i += c_.dataThreadsInBlock()) {
      const uint32_t t = tokenOf(i / world()), r = i % world();
      plan_.copyOf[r * uint64_t{routes_.tokens()} + t] = routes_.copyTo(t, static_cast<int>(r));
    }
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < mine; i += c_.dataThreadsInBlock()) {
      const uint32_t t = tokenOf(i);
      uint64_t to = 0;
      RH_ROLLED
      for (int r = 0; r < team_.worldSize; r++) to |= routes_.goesTo(t, r) ? uint64_t{1} << r : 0;
      plan_.ranks[t] = to;
    }
  }
  // After the last pass.
  RH_FN void storeTotals() {
    const uint32_t things = team_.physical + world();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < things; i += c_.dataThreadsInBlock()) plan_.totals[i] = shared_.totals[i];
    if (c_.threadInBlock() != 0) return;
    RH_ROLLED
    for (uint32_t i = 0; i < 2; i++) {
      plan_.totals[things + i] = shared_.problems[i];
      plan_.totals[things + 2 + i] = shared_.firsts[i];
    }
  }

  C& c_;
  const EpDispatchCall& call_;
  const EpTeam& team_;
  const EpCachedPlan& plan_;
  EpShared& shared_;
  EpRoutes<C> routes_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_CACHED_PLAN_H_
