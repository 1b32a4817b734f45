// Buffers of MoE dispatch and combine of the ranks of a GPU: their memory, and the launches of a rank.
#ifndef RAILHEAD_KERNELS_TESTDATA_EP_GPU_H_
#define RAILHEAD_KERNELS_TESTDATA_EP_GPU_H_

#include <memory>
#include <vector>

#include "ep_cpu.h"
#include "gpu_group.h"
#include "railhead/gpu/ep_combine_ht.h"
#include "railhead/gpu/ep_cached_plan.h"
#include "railhead/gpu/ep_dispatch_ll.h"
#include "railhead/gpu/ep_encode.h"
#if !defined(RH_ON_DEVICE)
#include "gpu_threads.h"
#endif

namespace {

template <class T>
using SharedArray = std::vector<T, SharedAllocator<T>>;
template <class T>
using PinnedArray = std::vector<T, PinnedAllocator<T>>;

// A call with RH_EP_DEAD_DROP.
inline void letDrop(EpCommonCall* call, uint64_t timeoutNs = 60000000000) {
  call->team.dropsDead = true;
  call->team.timeoutNs = static_cast<int64_t>(timeoutNs);
  call->team.waiterDeadlines = 4;
  call->call.team.timeoutNs = 5000000;  // of a piece
  call->call.team.limitNs = 4 * timeoutNs + 60000000000;
}

class EpGpuRanks {
 public:
  static constexpr uint64_t kGuard = 256;

  // first: the number of the last dispatch before.
  EpGpuRanks(const EpPlacement& p, uint32_t first) : placement_(onGpu(p)), group_(p.world) {
    for (int r = 0; r < p.world; r++) ranks_.push_back(std::make_unique<Rank>());
    for (int r = 0; r < p.world; r++) setUp(r, first);
  }
  ~EpGpuRanks() { freeShared(buffers_, bufferBytes_); }
  EpGpuRanks(const EpGpuRanks&) = delete;
  EpGpuRanks& operator=(const EpGpuRanks&) = delete;

  Group& group() { return group_; }
  // The parts of a call that are the same for all.
  EpCommonCall common(int r, EpCell* cell, uint64_t timeoutNs = kOnDevice ? 5000000000 : 60000000000) {
    Rank& rank = *ranks_[static_cast<size_t>(r)];
    EpCommonCall call = {};
    call.call = group_.call(r, timeoutNs);
    call.call.call.operation = 15;
    call.team = rank.team;
    call.state = rank.state.data();
    for (int i = 0; i < kEpInFlight; i++) call.flights[i] = rank.flights[i];
    call.format = formatOf(placement_.format);
    call.home = rank.home.data();
    call.read = rank.read.data();
    call.cell = cell;
    call.flight = &cell->flight;
    call.counts = true;
    return call;
  }
  const EpTeam& team(int r) const { return ranks_[static_cast<size_t>(r)]->team; }
  const railhead::EpCounters& counters(int r) const { return ranks_[static_cast<size_t>(r)]->counters[0]; }
  EpRankState& state(int r) { return ranks_[static_cast<size_t>(r)]->state[0]; }

  void encode(EpEncodeCall* call, TestGrid grid) {
    switch (call->format.in) {
      case EpType::kF32: return encode<F32>("rh_ep_encode_f32", call, grid);
      case EpType::kBF16: return encode<BF16>("rh_ep_encode_bf16", call, grid);
      case EpType::kF16: return encode<F16>("rh_ep_encode_f16", call, grid);
      default: return encode<E4M3>("rh_ep_encode_fp8_e4m3", call, grid);
    }
  }
  // Memory of a plan of so many tokens of a rank, poisoned. It lives as long as the ranks.
  EpCachedPlan planFor(int r, uint32_t tokens) {
    Rank& rank = *ranks_[static_cast<size_t>(r)];
    const EpTeam& t = rank.team;
    const uint64_t n = tokens < t.maxTokens ? tokens : t.maxTokens, world = static_cast<uint64_t>(t.worldSize);
    EpCachedPlan plan;
    rank.take(&plan.idx, n * t.topk);
    rank.take(&plan.weights, n * t.topk);
    rank.take(&plan.entries, n * t.topk);
    rank.take(&plan.ranks, n);
    rank.take(&plan.copyOf, world * n);
    rank.take(&plan.totals, t.physical + world + 4);
    return plan;
  }
  // Makes the plan of the call's routing, whose copy the call uses afterwards.
  void plan(EpDispatchCall* call, TestGrid grid) {
    EpDispatchCall make = *call;
    for (EpFlightArrays& f : make.flights) f.unfit = nullptr;
    run("rh_ep_plan", &make, grid, [](auto& c, auto& with) { EpPlanKernel<std::decay_t<decltype(c)>>(c, with).run(); });
    call->routing = {call->plan.idx, true, call->plan.weights, call->routing.tokens};
  }
  void dispatch(EpDispatchCall* call, TestGrid grid) {
    if (placement_.countsFirst) {
      run("rh_ep_dispatch_ht", call, grid, [](auto& c, auto& with) { EpDispatchHtKernel<std::decay_t<decltype(c)>>(c, with).run(); });
    } else {
      const char* name = call->team.dropsDead ? "rh_ep_dispatch_ll" : call->plan.idx != nullptr ? "rh_ep_dispatch_ll_planned" : "rh_ep_dispatch_ll_plain";
      run(name, call, grid, [](auto& c, auto& with) { EpDispatchKernel<std::decay_t<decltype(c)>>(c, with).run(); });
    }
  }
  void combine(EpCombineCall* call, TestGrid grid) {
    switch (placement_.format.combine) {
      case host::Type::kF32: return combine<F32>("f32", call, grid);
      case host::Type::kBF16: return combine<BF16>("bf16", call, grid);
      default: return combine<F16>("f16", call, grid);
    }
  }
  void release(EpCommonCall* call, TestGrid grid) {
    run("rh_ep_release", call, grid, [](auto& c, auto& with) { EpReleaseKernel<std::decay_t<decltype(c)>>(c, with).run(); });
  }

  // Between dispatches nothing but counts is left in the slots.
  void checkQuiet() const {
    for (int r = 0; r < placement_.world; r++) {
      const EpTeam& t = team(r);
      const uint64_t peers = static_cast<uint64_t>(t.worldSize - 1);
      for (uint64_t slot = 0; slot < peers * t.layout.slots; slot++) {
        char* first = t.base(r) + t.layout.dispatch + slot * t.layout.slotBytes;
        for (uint32_t i = 0; i < t.layout.chunkTokens; i++) CHECK(word(reinterpret_cast<char*>(t.header(first, i))) == 0);
      }
      for (uint64_t at = t.layout.combine; at < t.layout.bytes; at += 4) CHECK(word(t.base(r) + at) == 0xffffffffu);
    }
    checkGuards();
  }
  void checkGuards() const {
    for (int r = 0; r < placement_.world; r++) {
      for (uint64_t at = team(r).layout.bytes; at < team(r).bufferStride; at += 4) CHECK(word(team(r).base(r) + at) == 0xa5a5a5a5u);
    }
  }

  static EpRowFormat formatOf(const host::EpRowFormat& f) {
    return {static_cast<EpType>(f.in), static_cast<EpType>(f.wire), static_cast<EpScaling>(f.scale), f.staticScale, f.hidden};
  }

 private:
  static EpPlacement onGpu(EpPlacement p) {
    p.onGpu = true;
    return p;
  }
  struct Rank {
    std::unique_ptr<EpTables<SharedAllocator>> tables;
    SharedArray<uint16_t> home;
    SharedArray<uint32_t> read;
    EpTeam team;
    EpFlightArrays flights[kEpInFlight];
    SharedArray<EpRankState> state = SharedArray<EpRankState>(1);
    SharedArray<railhead::EpCounters> counters = SharedArray<railhead::EpCounters>(1);
    std::vector<SharedArray<uint64_t>> memory;

    template <class T>
    void take(T** at, uint64_t n) {
      memory.emplace_back((n * sizeof(T) + 7) / 8 + 8, 0xa5a5a5a5a5a5a5a5u);
      *at = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.back().data()) + 63) / 64 * 64);
    }
  };

  static uint32_t word(const char* p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
  }

  template <class T>
  void encode(const char* name, EpEncodeCall* call, TestGrid grid) {
    run(name, call, grid, [](auto& c, auto& with) { EpEncodeKernel<T, std::decay_t<decltype(c)>>(c, with).run(); });
  }
  template <class T>
  void combine(const std::string& type, EpCombineCall* call, TestGrid grid) {
    if (placement_.countsFirst) {
      run("rh_ep_combine_ht_" + type, call, grid, [](auto& c, auto& with) { EpCombineHtKernel<T, std::decay_t<decltype(c)>>(c, with).run(); });
    } else {
      run("rh_ep_combine_ll_" + type, call, grid, [](auto& c, auto& with) { EpCombineKernel<T, std::decay_t<decltype(c)>>(c, with).run(); });
    }
  }
  template <class C, class Body>
  void run(const std::string& name, C* call, TestGrid grid, Body body) {
#if defined(RH_ON_DEVICE)
    (void)body;
    launch(call->team.rank, name, reinterpret_cast<Call*>(call), grid);
#else
    (void)name;
    runGrid({grid.blocks, grid.threads}, [&](ThreadTarget target) {
      ThreadContext c(call->call, target);
      body(c, *call);
    });
#endif
  }

  void setUp(int r, uint32_t first) {
    Rank& rank = *ranks_[static_cast<size_t>(r)];
    EpTeam& t = rank.team;
    rank.tables = std::make_unique<EpTables<SharedAllocator>>(placement_, r, &t);
    for (uint32_t e = 0; e < t.logical; e++) rank.home.push_back(epHomeOf(t, e));
    t.bufferStride += kGuard;
    if (r == 0) {
      bufferBytes_ = t.bufferStride * static_cast<uint64_t>(placement_.world);
      buffers_ = allocateShared(bufferBytes_);
      memset(buffers_, 0xa5, bufferBytes_);
    }
    t.buffers = buffers_;
    memset(t.base(r), 0, t.layout.combine);
    memset(t.base(r) + t.layout.combine, 0xff, t.layout.bytes - t.layout.combine);
    t.state()->dispatches = first;
    t.state()->masked = placement_.masked;
    for (int w = 0; w < t.worldSize; w++) t.line(r, w).head.value = first;
    rank.read.assign(2 * static_cast<size_t>(t.worldSize) * t.layout.slots * t.layout.chunkTokens, 0);
    memset(static_cast<void*>(rank.state.data()), 0, sizeof(EpRankState));
    memset(static_cast<void*>(rank.counters.data()), 0, sizeof(railhead::EpCounters));
    t.counters = rank.counters.data();
    const uint64_t world = static_cast<uint64_t>(t.worldSize), tokens = t.maxTokens;
    const bool plain = formatOf(placement_.format).isPlain();
    for (EpFlightArrays& f : rank.flights) {
      f = {};
      rank.take(&f.ranks, tokens);
      rank.take(&f.entries, tokens * t.topk);
      rank.take(&f.weights, tokens * t.topk);
      rank.take(&f.copyOf, world * tokens);
      rank.take(&f.copies, world);
      rank.take(&f.received, world);
      rank.take(&f.own, 1u + t.localExperts[r]);
      rank.take(&f.lengths, world * tokens);
      rank.take(&f.lists, world * tokens * (t.topk < t.maxLocal ? t.topk : t.maxLocal));
      rank.take(&f.sums, tokens * t.layout.combineStride);
      if (!plain) rank.take(&f.encoded, tokens * t.layout.rowStride);
      if (placement_.format.wire == host::Type::kE4M3) rank.take(&f.unfit, tokens);
    }
  }

  const EpPlacement placement_;
  Group group_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  char* buffers_ = nullptr;
  uint64_t bufferBytes_ = 0;
};

}  // namespace

#endif  // RAILHEAD_KERNELS_TESTDATA_EP_GPU_H_
