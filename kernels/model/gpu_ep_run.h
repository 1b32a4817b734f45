// Runs of dispatch and combine by whole GPU kernels: ranks with several blocks of threads, which play a script (ep_script.h). Time stands still,
// so no deadline passes. Rows are floats here; the order of additions is not part of it.
#ifndef RAILHEAD_KERNELS_MODEL_GPU_EP_RUN_H_
#define RAILHEAD_KERNELS_MODEL_GPU_EP_RUN_H_

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/ep_script.h"
#include "model/gpu_ep_target.h"
#include "railhead/gpu/ep_combine_ht.h"
#include "railhead/gpu/ep_dispatch_ll.h"

namespace railhead::model {

struct GpuEpShape {
  EpScript script;
  uint32_t hidden = 4;
  // Of each step: whether it is one kernel with the next one; and of each rank's kernel, its grid.
  std::vector<bool> fused;
  std::vector<std::vector<std::pair<int, int>>> grids;  // [step][rank] blocks, threads of a block
  // Ranks that die are dropped. The host tells the others of the death of this one at any time; -1 = of none. It dies before that step, or lives.
  bool dropsDead = false;
  bool tellsLate = false;  // the host's words that a death has broken the group come with that; else they are there from the start
  int dead = -1;
  size_t diesBefore = ~size_t{0};
};

class GpuEpRun {
 public:
  GpuEpRun(World& world, const GpuEpShape& shape) : world_(world), shape_(shape), s_(shape.script) {
    world.letEndsFence();
    makeTeams();
    int threads = 1;
    for (const auto& of : shape.grids) {
      for (const auto& [blocks, blockThreads] : of) threads = std::max(threads, blocks * blockThreads);
    }
    ends_.resize(size(s_.worldSize));
    masked_.resize(size(s_.worldSize));
    sent_.resize(s_.tokens.size());
    for (int r = 0; r < s_.worldSize; r++) {
      ranks_.emplace_back();
      setUpRank(r);
      ends_[size(r)].expected = threads;
      for (int t = 0; t < threads; t++) world.addFiber(r, t, [this, r, t] { thread(r, t); });
    }
    if (shape.dead >= 0) world.addFiber(-1, 0, [this] { reportDeath(); });
  }

  std::string check() const {
    for (int r = 0; r < s_.worldSize; r++) {
      if (status_[size(r)].stop != 0) return "rank " + std::to_string(r) + " stopped";
      if (!ranks_[size(r)].wrong.empty()) return "rank " + std::to_string(r) + ": " + ranks_[size(r)].wrong;
    }
    return "";
  }

 private:
  static constexpr uint32_t kRowFloats = 8;

  struct Job {
    std::vector<int64_t> idx;
    std::vector<float> weights, x, rows, y, out, rowWeights;
    std::vector<int32_t> counts, sourceRank, sourceToken;
    std::vector<int64_t> offsets;
    uint64_t total = 0, tokens = 0;
  };
  struct Rank {
    std::vector<uint8_t> expertRank;
    std::vector<uint16_t> expertLocal, each, own, home;
    EpTeam team = {};
    std::vector<uint64_t> memory;
    gpu::EpFlightArrays flights[kEpInFlight];
    gpu::EpRankState* state;
    uint32_t* read;  // EpCommonCall::read
    std::deque<EpCell> cells;   // by dispatch
    std::deque<Job> jobs;
    std::deque<GpuTarget::Grid> grids;               // by step
    std::deque<std::deque<gpu::EpShared>> shared;
    std::string wrong;
  };

  static size_t size(int n) { return static_cast<size_t>(n); }
  uint32_t experts() const { return static_cast<uint32_t>(s_.expertRank.size()); }
  std::string of(int r) const { return " of rank " + std::to_string(r); }

  // ---- Memory ----

  void word(const void* at, size_t bytes, const std::string& name, uint64_t value = 0) {
    world_.memory.add(at, bytes, bytes, [=](size_t) { return name; });
    if (value != 0) world_.memory.initial(at, value);
  }
  void area(const void* at, uint64_t bytes, size_t unit, const std::string& name, uint64_t value = 0) {
    if (bytes == 0) return;
    world_.memory.add(at, bytes, unit, [=](size_t i) { return name + " " + std::to_string(i); });
    for (uint64_t i = 0; value != 0 && i < bytes; i += unit) world_.memory.initial(static_cast<const char*>(at) + i, value);
  }

  void makeTeams() {
    const auto world = static_cast<uint32_t>(s_.worldSize);
    uint32_t locals[kMaxWorldSize] = {}, maxLocal = 0;
    for (const uint8_t r : s_.expertRank) maxLocal = std::max(maxLocal, ++locals[r]);
    const uint32_t rowBytes = shape_.hidden * 4;
    layout_ = epLayoutOf({world, s_.maxTokens, s_.topk, maxLocal, rowBytes, rowBytes, s_.countsFirst});
    if (s_.countsFirst) {  // few positions, so that credits are scarce
      layout_.slots = 1 + s_.chunkTokens % 2;
      layout_.chunkTokens = s_.chunkTokens;
      layout_.slotBytes = epAlign(layout_.chunkTokens * layout_.headerStride) + layout_.chunkTokens * layout_.rowStride;
      layout_.combineSlotBytes = layout_.chunkTokens * layout_.combineStride;
      layout_.combine = layout_.dispatch + (world - 1) * layout_.slots * layout_.slotBytes;
      layout_.bytes = layout_.combine + (world - 1) * layout_.slots * layout_.combineSlotBytes;
    }
    gpuLayout_ = gpu::layoutOf(s_.worldSize, 32);
    heapStride_ = (gpuLayout_.bytes + 127) / 128 * 128;
    bufferStride_ = (layout_.bytes + 127) / 128 * 128;
    heaps_.resize(world * heapStride_ / 8 + 16);
    buffers_.resize(world * bufferStride_ / 8 + 16);
    status_.resize(world);
    maxLocal_ = maxLocal;
  }
  static char* aligned(std::vector<uint64_t>& v) { return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(v.data()) + 127) / 128 * 128); }
  char* heaps() { return aligned(heaps_); }
  char* buffers() { return aligned(buffers_); }
  gpu::GpuState* gpuState(int r) { return reinterpret_cast<gpu::GpuState*>(heaps() + heapStride_ * size(r)); }

  void setUpRank(int r) {
    setUpTeam(r);
    setUpState(r);
    setUpBuffer(r);
    setUpPrivate(r);
    Rank& rank = ranks_[size(r)];
    for (size_t d = 0; d < s_.tokens.size(); d++) {
      rank.cells.push_back({});
      rank.cells.back().flight = -1;
      word(&rank.cells.back().flight, 4, "cell" + of(r), 0xffffffff);
      rank.jobs.emplace_back();
      setUpJob(r, static_cast<int>(d), &rank.jobs.back());
    }
    for (size_t k = 0; k < s_.steps.size(); k++) {
      const auto [blocks, threads] = shape_.grids[k][size(r)];
      rank.grids.push_back({blocks, threads, std::vector<GpuTarget::Block>(size(blocks))});
      rank.shared.emplace_back(size(blocks));
      for (int b = 0; b < blocks; b++) {
        GpuTarget::Block& block = rank.grids.back().block[size(b)];
        block.data.expected = threads - (b + 1 == blocks && blocks * threads > 1 ? 1 : 0);
        block.good.resize(size(threads));
      }
    }
  }
  void setUpTeam(int r) {
    Rank& rank = ranks_[size(r)];
    EpTeam& t = rank.team;
    t.rank = r;
    t.worldSize = s_.worldSize;
    t.maxTokens = s_.maxTokens;
    t.topk = s_.topk;
    t.logical = t.physical = experts();
    t.maxLocal = maxLocal_;
    t.layout = layout_;
    t.rowBytes = t.combineRowBytes = shape_.hidden * 4;
    for (uint16_t e = 0; e < experts(); e++) {
      rank.expertRank.push_back(s_.expertRank[e]);
      rank.expertLocal.push_back(t.localExperts[s_.expertRank[e]]++);
      if (s_.expertRank[e] == r) rank.own.push_back(e);
      rank.each.push_back(e);
    }
    rank.each.push_back(static_cast<uint16_t>(experts()));
    t.expertRank = rank.expertRank.data();
    t.expertLocal = rank.expertLocal.data();
    t.replicaBegin = t.replicas = rank.each.data();
    t.ownExperts = rank.own.data();
    for (uint32_t e = 0; e < experts(); e++) rank.home.push_back(gpu::epHomeOf(t, e));
    t.buffers = buffers();
    t.bufferStride = bufferStride_;
  }
  // The words of control.
  void setUpState(int r) {
    gpu::GpuState* s = gpuState(r);
    word(&s->device.begun, 8, "begun" + of(r));
    word(&s->device.collectives, 8, "collectives" + of(r));
    word(&s->device.history, 8, "history" + of(r));
    word(&s->device.clash, 8, "clash" + of(r));
    word(&s->device.holder, 4, "holder" + of(r));
    word(&s->device.left, 4, "left" + of(r));
    word(&s->published, 4, "published" + of(r));
    word(&s->lines, 4, "lines" + of(r));
    word(&s->start.cellEpoch, 4, "cell epoch" + of(r));
    word(&s->start.packetEpoch, 4, "packet epoch" + of(r));
    word(&s->start.flagEpoch, 4, "flag epoch" + of(r));
    word(&s->start.stop, 4, "stop" + of(r));
    word(&s->arrived, 4, "arrived blocks" + of(r));
    // Control looks at lines, and finds nothing.
    area(heaps() + heapStride_ * size(r) + gpuLayout_.linesOffset, 2 * size(s_.worldSize) * 64, 8, "line" + of(r));
    for (size_t b = 0; b < 2; b++) {
      gpu::Status::Abort& abort = status_[size(r)].abort[b];
      // Time stands still, so that a wait ends a piece only because the host has told of a death: as it seems, of none first.
      const bool isTold = shape_.dropsDead && !shape_.tellsLate;
      word(&abort.word, 4, "abort" + of(r), isTold);
      word(&abort.onlyDeaths, 4, "only deaths" + of(r), isTold);
      word(&abort.dead[0], 4, "dead" + of(r));
    }
    addStatus(world_, &status_[size(r)], of(r));
  }
  void reportDeath() {
    for (int r = 0; r < s_.worldSize; r++) {
      for (size_t b = 0; b < 2; b++) {
        gpu::Status::Abort& abort = status_[size(r)].abort[b];
        if (r != shape_.dead) world_.store(&abort.dead[0], 4, uint64_t{1} << shape_.dead, Order::kRelaxed, "death");
        if (!shape_.tellsLate) continue;
        world_.store(&abort.onlyDeaths, 4, 1, Order::kRelease, "death");
        world_.store(&abort.word, 4, 1, Order::kRelease, "death");
      }
    }
  }
  void setUpBuffer(int r) {
    const EpTeam& t = ranks_[size(r)].team;
    const uint32_t start = s_.start & GpuTarget::kMeetingMask;
    word(&t.state()->dispatches, 4, "ep dispatches" + of(r), start);
    word(&t.state()->combines, 4, "ep combines" + of(r));
    word(&t.state()->masked, 8, "ep masked" + of(r));
    word(&t.state()->gaveUp, 4, "ep gave up" + of(r));
    word(reinterpret_cast<const char*>(&t.state()->gaveUp) + 4, 4, "ep gave up high" + of(r));
    word(&t.state()->waitTurns, 4, "ep turns" + of(r));
    for (int w = 0; w < s_.worldSize; w++) {
      if (w == r) continue;
      word(&t.line(r, w).head.value, 4, "ep head" + of(r), start);
      for (uint32_t n = 0; n < 2; n++) area(t.counts(r, w, n), 4 * (1 + uint64_t{t.localExperts[r]}), 4, "ep count" + of(r));
      for (uint32_t n = 0; n < layout_.slots; n++) {
        char* slot = t.slot(r, w, n);
        for (uint32_t i = 0; i < layout_.chunkTokens; i++) {
          word(t.header(slot, i), 4, "ep header" + of(r));
          word(reinterpret_cast<char*>(t.header(slot, i)) + 4, 4, "ep credit" + of(r));
          area(t.header(slot, i) + 1, layout_.headerStride - 8, 8, "ep expert" + of(r));
          area(t.row(slot, i), tileBytes(), 8, "ep row" + of(r));
          area(t.combineRow(r, w, n, i), tileBytes(), 8, "ep sum" + of(r), ~uint64_t{0});
        }
      }
    }
  }
  uint64_t tileBytes() const { return (shape_.hidden * 4 + 15) / 16 * 16; }

  template <class T>
  T* take(char** at, uint64_t n, const std::string& name) {
    T* p = reinterpret_cast<T*>(*at);
    *at += (n * sizeof(T) + 15) / 16 * 16;
    area(p, n * sizeof(T), sizeof(T), name);
    return p;
  }
  // The words that only this rank's kernels use.
  void setUpPrivate(int r) {
    Rank& rank = ranks_[size(r)];
    const uint64_t world = size(s_.worldSize), tokens = s_.maxTokens, lists = std::min<uint64_t>(s_.topk, maxLocal_);
    const uint64_t words = tokens * (8 + 3 * s_.topk + layout_.combineStride / 8) + world * tokens * (4 + lists) + 8 * world + world * layout_.slots * layout_.chunkTokens + 64;
    rank.memory.resize(kEpInFlight * words + sizeof(gpu::EpRankState) / 8 + 64);
    char* at = aligned(rank.memory);
    rank.state = reinterpret_cast<gpu::EpRankState*>(at);
    at += (sizeof(gpu::EpRankState) + 63) / 64 * 64;
    for (int i = 0; i < kEpInFlight; i++) {
      area(&rank.state->flights[i], offsetof(gpu::EpFlightState, problems), 8, "flight" + of(r));
      const std::string name = of(r);
      gpu::EpFlightArrays& f = rank.flights[i];
      f = {};
      f.ranks = take<uint64_t>(&at, tokens, "ranks" + name);
      f.entries = take<uint64_t>(&at, tokens * s_.topk, "entries" + name);
      f.weights = reinterpret_cast<float*>(take<uint32_t>(&at, tokens * s_.topk, "weights" + name));
      f.copyOf = take<uint32_t>(&at, world * tokens, "copy of" + name);
      f.copies = take<uint32_t>(&at, world, "copies" + name);
      f.received = take<uint32_t>(&at, world, "received" + name);
      f.own = take<uint32_t>(&at, 1u + rank.team.localExperts[r], "own counts" + name);
      f.lengths = take<uint32_t>(&at, world * tokens, "lengths" + name);
      f.lists = take<uint64_t>(&at, world * tokens * lists, "lists" + name);
      f.sums = reinterpret_cast<char*>(take<uint64_t>(&at, tokens * layout_.combineStride / 8, "own sums" + name));
    }
    word(&rank.state->done, 4, "done blocks" + of(r));
    word(&rank.state->dropped, 4, "dropped" + of(r));
    word(&rank.state->received, 4, "received dispatch" + of(r));
    word(&rank.state->owesHeads, 4, "owed heads" + of(r));
    word(&rank.state->ended, 8, "ended" + of(r));
    word(&rank.state->endedBlocks, 4, "ended blocks" + of(r));
    word(&rank.state->missing, 4, "missing copies" + of(r));
    rank.read = take<uint32_t>(&at, 2 * world * layout_.slots * layout_.chunkTokens, "reads" + of(r));
    area(rank.state->sent, 4 * sizeof rank.state->sent, 4, "ring" + of(r));
    area(rank.state->verdicts, 4 * size(s_.worldSize), 4, "verdict" + of(r));
    if (at > reinterpret_cast<char*>(rank.memory.data() + rank.memory.size())) world_.fail("too little private memory");
  }

  static float element(int dispatch, int r, uint32_t token, uint32_t i) {
    return static_cast<float>(1 + mix(mix(static_cast<uint64_t>(dispatch) + 1, static_cast<uint64_t>(r)), token * kRowFloats + i) % 61);
  }
  uint32_t tokensOf(int dispatch, int r) const { return s_.tokens[size(dispatch)][size(r)]; }
  void setUpJob(int r, int d, Job* j) {
    for (uint32_t t = 0; t < tokensOf(d, r); t++) {
      const std::vector<int32_t> route = epRoute(s_, d, r, t);
      for (uint32_t k = 0; k < s_.topk; k++) {
        j->idx.push_back(route[k]);
        j->weights.push_back(epWeight(s_, d, r, t, k));
      }
      for (uint32_t i = 0; i < shape_.hidden; i++) j->x.push_back(element(d, r, t, i));
    }
    const uint32_t local = ranks_[size(r)].team.localExperts[r];
    const uint64_t rows = size(s_.worldSize) * s_.maxTokens * std::min(s_.topk, local);
    j->rows.assign(rows * shape_.hidden, -1);
    j->rowWeights.assign(rows, -1);
    j->sourceRank.assign(rows, -1);
    j->sourceToken.assign(rows, -1);
    j->out.assign(j->x.size(), -1);
    j->counts.assign(local + 1u, -1);
    j->offsets.assign(local + 2u, -1);
  }

  // ---- Playing ----

  void thread(int r, int t) {
    Rank& rank = ranks_[size(r)];
    for (size_t k = 0; k < s_.steps.size(); k++) {
      if (k > 0 && shape_.fused[k - 1]) continue;
      if (r == shape_.dead && k >= shape_.diesBefore) return;
      const auto [blocks, threads] = shape_.grids[k][size(r)];
      if (t < blocks * threads) kernel(r, t, k);
      world_.meet(ends_[size(r)], true);
      if (t == 0) rank.wrong += afterStep(r, k);
      if (t == 0 && !rank.wrong.empty()) world_.fail("%s", rank.wrong.c_str());
      world_.meet(ends_[size(r)], true);
      if (status_[size(r)].stop != 0 || !rank.wrong.empty()) return;
    }
  }
  void kernel(int r, int t, size_t k) {
    Rank& rank = ranks_[size(r)];
    const EpStep& step = s_.steps[k];
    Job& j = rank.jobs[size(step.dispatch)];
    gpu::EpCommonCall common = {};
    common.call.team = {heaps(), heapStride_, r, s_.worldSize, s_.worldSize, 1, 32, uint64_t{1} << 60, uint64_t{1} << 60, &status_[size(r)]};
    common.call.call = {15u, 0, 0, kNoRoot, 0, 0, 0, 0};
    common.call.root = -1;
    common.call.stream = 1;
    common.team = rank.team;
    common.team.dropsDead = shape_.dropsDead;
    common.team.timeoutNs = int64_t{1} << 40;
    common.team.waiterDeadlines = 4;
    common.state = rank.state;
    for (int i = 0; i < kEpInFlight; i++) common.flights[i] = rank.flights[i];
    common.format = {gpu::EpType::kF32, gpu::EpType::kF32, gpu::EpScaling::kF32, 0, shape_.hidden};
    common.home = rank.home.data();
    common.read = rank.read;
    common.team.countsFirst = s_.countsFirst;
    common.cell = &rank.cells[size(step.dispatch)];
    common.flight = &common.cell->flight;
    common.counts = true;
    const bool fused = shape_.fused[k];
    const char* memory = reinterpret_cast<const char*>(rank.memory.data());
    const char* state = reinterpret_cast<const char*>(rank.team.state());
    GpuEpTarget::Private own = {memory, memory + rank.memory.size() * 8}, words = {state, state + kEpStateBytes};
    switch (step.call) {
      case EpCall::kSend:
      case EpCall::kReceive: {
        gpu::EpDispatchCall call = {};
        static_cast<gpu::EpCommonCall&>(call) = common;
        call.steps = step.call == EpCall::kReceive ? gpu::kEpReceives : gpu::kEpSends | (fused ? gpu::kEpReceives : 0);
        call.dropsInvalid = true;
        call.routing = {j.idx.data(), true, j.weights.data(), tokensOf(step.dispatch, r)};
        call.x = reinterpret_cast<const char*>(j.x.data());
        EpReceive& to = call.receive;
        to.layout = EpRowLayout::kFlat;
        to.alignment = 1;
        to.capacity = j.rowWeights.size();
        to.x = reinterpret_cast<char*>(j.rows.data());
        to.counts = j.counts.data();
        to.offsets = j.offsets.data();
        to.weights = j.rowWeights.data();
        to.sourceRank = j.sourceRank.data();
        to.sourceToken = j.sourceToken.data();
        to.rows = &j.total;
        to.tokens = &j.tokens;
        GpuEpContext c(call.call, GpuEpTarget(world_, rank.grids[k], rank.shared[k], own, words, t));
        if (s_.countsFirst) return gpu::EpDispatchHtKernel<GpuEpContext>(c, call).run();
        gpu::EpDispatchKernel<GpuEpContext>(c, call).run();
        return;
      }
      case EpCall::kCombineSend:
      case EpCall::kCombineReceive: {
        gpu::EpCombineCall call = {};
        static_cast<gpu::EpCommonCall&>(call) = common;
        call.steps = step.call == EpCall::kCombineReceive ? gpu::kEpReceives : gpu::kEpSends | (fused ? gpu::kEpReceives : 0);
        call.renormalizes = s_.renormalize;
        call.y = call.out = gpu::EpType::kF32;
        call.yRows = reinterpret_cast<const char*>(j.y.data());
        call.outRows = reinterpret_cast<char*>(j.out.data());
        GpuEpContext c(call.call, GpuEpTarget(world_, rank.grids[k], rank.shared[k], own, words, t));
        if (s_.countsFirst) return gpu::EpCombineHtKernel<gpu::F32, GpuEpContext>(c, call).run();
        gpu::EpCombineKernel<gpu::F32, GpuEpContext>(c, call).run();
        return;
      }
      case EpCall::kRelease: {
        GpuEpContext c(common.call, GpuEpTarget(world_, rank.grids[k], rank.shared[k], own, words, t));
        gpu::EpReleaseKernel<GpuEpContext>(c, common).run();
        return;
      }
    }
  }

  // ---- Checking ----

  std::string afterStep(int r, size_t k) {
    const EpStep& step = s_.steps[k];
    const EpCall last = shape_.fused[k] ? static_cast<EpCall>(static_cast<int>(step.call) + 1) : step.call;
    const EpCell& cell = ranks_[size(r)].cells[size(step.dispatch)];
    if (status_[size(r)].stop != 0) return "";
    if (shape_.dead >= 0) {
      if (const std::string wrong = checkFollowing(r, k); !wrong.empty()) return wrong;
    }
    const EpReport& report = last <= EpCall::kReceive ? cell.dispatched : cell.combined;
    if (report.error != EpError::kNone) return "call " + std::to_string(k) + " was refused: " + std::to_string(static_cast<int>(report.error));
    if (last == EpCall::kReceive) return checkRows(r, step.dispatch, report);
    return last == EpCall::kCombineReceive ? checkSums(r, step.dispatch, report) : "";
  }
  // What a rank has sent before it gives up another one arrives there. A kernel that only receives, and waits for nothing else, must not give up the
  // sender.
  std::string checkFollowing(int r, size_t k) {
    const EpStep& step = s_.steps[k];
    const uint64_t before = masked_[size(r)], now = newest(&ranks_[size(r)].team.state()->masked);
    masked_[size(r)] = now;
    if (step.call == EpCall::kSend && !s_.countsFirst && (now >> shape_.dead & 1) == 0) sent_[size(step.dispatch)] |= uint64_t{1} << r;
    if (r != shape_.dead || step.call != EpCall::kReceive) return "";
    const uint64_t wrong = now & ~before & sent_[size(step.dispatch)];
    return wrong == 0 ? "" : "has given up ranks " + std::to_string(wrong) + ", which have sent all";
  }
  uint64_t newest(const void* p) const { return world_.memory.at(world_.memory.find(p, 8)).newest().value; }
  uint64_t rowsFrom(int s, int r, int d) const {
    uint64_t n = 0;
    for (uint32_t t = 0; t < tokensOf(d, s); t++) {
      for (const int32_t e : epRoute(s_, d, s, t)) n += e >= 0 && s_.expertRank[size(e)] == r;
    }
    return n;
  }
  // Of the ranks that are lost, the counts of some have not come: the rows are right without those.
  std::string checkRows(int r, int d, const EpReport& report) {
    std::string wrong = std::to_string(report.rows) + " rows";
    for (uint64_t without = 0; without < uint64_t{1} << s_.worldSize; without++) {
      uint64_t rows = 0;
      for (int s = 0; s < s_.worldSize; s++) rows += (without >> s & 1) != 0 ? 0 : rowsFrom(s, r, d);
      if ((without & ~report.lostRanks) != 0 || rows != report.rows) continue;
      wrong = checkRowsWithout(r, d, report, without);
      if (wrong.empty()) return "";
    }
    return wrong;
  }
  // The rows of each local expert, in the order of ranks and tokens. Makes the experts' outputs of them.
  std::string checkRowsWithout(int r, int d, const EpReport& report, uint64_t without) {
    Rank& rank = ranks_[size(r)];
    Job& j = rank.jobs[size(d)];
    j.y.assign(j.rows.size(), 0);
    size_t row = 0;
    std::set<std::pair<int, uint32_t>> here;
    for (uint32_t local = 0; local < rank.own.size(); local++) {
      if (j.offsets[local] != static_cast<int64_t>(row)) return "expert " + std::to_string(local) + " begins elsewhere";
      for (int s = 0; s < s_.worldSize; s++) {
        for (uint32_t t = 0; t < tokensOf(d, s) && (without >> s & 1) == 0; t++) {
          const std::vector<int32_t> route = epRoute(s_, d, s, t);
          for (uint32_t k = 0; k < s_.topk; k++) {
            if (route[k] != rank.own[local]) continue;
            const bool isMissing = (report.lostRanks >> s & 1) != 0 && j.sourceRank[row] == -1 && j.rowWeights[row] == 0;
            if (!isMissing && (j.sourceRank[row] != s || j.sourceToken[row] != static_cast<int32_t>(t) || j.rowWeights[row] != epWeight(s_, d, s, t, k))) {
              return "row " + std::to_string(row) + " is of another token";
            }
            for (uint32_t i = 0; i < shape_.hidden; i++) {
              const float x = j.rows[row * shape_.hidden + i];
              if (x != (isMissing ? 0 : element(d, s, t, i))) return "row " + std::to_string(row) + ", element " + std::to_string(i) + " is " + std::to_string(x);
              if (!isMissing) here.insert({s, t});
              j.y[row * shape_.hidden + i] = x * static_cast<float>(rank.own[local] + 1);
            }
            row++;
          }
        }
      }
    }
    if (report.tokens != here.size() || j.tokens != here.size()) {
      return std::to_string(report.tokens) + " tokens reported, " + std::to_string(j.tokens) + " told, instead of " + std::to_string(here.size());
    }
    return j.total == row ? "" : std::to_string(j.total) + " rows instead of " + std::to_string(row);
  }
  // Each token's sum lacks any of the lost ranks.
  std::string checkSums(int r, int d, const EpReport& report) {
    const uint64_t lostRanks = report.lostRanks;
    const Job& j = ranks_[size(r)].jobs[size(d)];
    for (uint32_t t = 0; t < tokensOf(d, r); t++) {
      bool found = false;
      for (uint64_t lost = 0; lost < uint64_t{1} << s_.worldSize && !found; lost++) found = (lost & ~lostRanks) == 0 && isSumWithout(r, d, t, lost);
      if (found && (isSumWithout(r, d, t, 0) || report.lostCopies > 0)) continue;
      return "dispatch " + std::to_string(d) + ", token " + std::to_string(t) + ": " + std::to_string(j.out[t * shape_.hidden]) + ", lost ranks " + std::to_string(lostRanks);
    }
    return "";
  }
  bool isSumWithout(int r, int d, uint32_t t, uint64_t lost) const {
    const Job& j = ranks_[size(r)].jobs[size(d)];
    const std::vector<int32_t> route = epRoute(s_, d, r, t);
    float factor = 0, all = 0, kept = 0;  // integers, so that sums are exact
    for (uint32_t k = 0; k < s_.topk; k++) {
      if (route[k] < 0) continue;
      const float weight = epWeight(s_, d, r, t, k);
      all += weight;
      if ((lost >> s_.expertRank[size(route[k])] & 1) != 0) continue;
      kept += weight;
      factor += weight * static_cast<float>(route[k] + 1);
    }
    const float scale = s_.renormalize && kept != all && kept != 0 ? all / kept : 1;
    for (uint32_t i = 0; i < shape_.hidden; i++) {
      if (j.out[t * shape_.hidden + i] != factor * element(d, r, t, i) * scale) return false;
    }
    return true;
  }

  World& world_;
  const GpuEpShape& shape_;
  const EpScript& s_;
  EpLayout layout_;
  gpu::Layout gpuLayout_;
  uint64_t heapStride_, bufferStride_;
  uint32_t maxLocal_;
  std::vector<uint64_t> heaps_, buffers_;
  std::vector<gpu::Status> status_;
  std::vector<Barrier> ends_;
  std::deque<Rank> ranks_;
  std::vector<uint64_t> masked_, sent_;  // by rank: which it has masked; by dispatch: which have sent all to the rank that is given up
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_GPU_EP_RUN_H_
