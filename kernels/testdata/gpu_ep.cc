// MoE dispatch and combine by the GPU kernels, against the CPU's: the same calls with the same inputs, then every byte of the outputs and every
// word of the reports is compared.
//
//   gpu_ep run WORLD FIRST ROUNDS SEED   random buffers, routings and calls; FIRST: the number of the last dispatch before
//
// Compiled with -DRH_ON_DEVICE it runs kernels/cuda/ep.cu, compiled for the GPU, on streams of one GPU (gpu_runner.h).
#pragma GCC optimize("fp-contract=off")  // as in host/isa_*.cc

#include <stdio.h>
#include <string.h>

#include <thread>

#include "ep_draw.h"
#include "host/ep_rows.h"

namespace {

struct Isa {
  static constexpr int kVectorBytes = 16;
};
constexpr host::EpRowKernels kRows = host::EpRowsOf<Isa>::set();

class Round {
 public:
  Round(int world, uint32_t first, uint64_t seed) : dice_(seed), values_(seed), placement_(drawPlacement(dice_, world)) {
    if (world > 2 && dice_.oneIn(4)) placement_.masked = uint64_t{1} << dice_.below(static_cast<uint32_t>(world));
    first_ = first;
    dropsDead_ = dice_.oneIn(3);
    drawCalls();
    invalidAt_ = placement_.dropsInvalid || !dice_.oneIn(3) ? jobs_.size() : dice_.below(static_cast<uint32_t>(jobs_.size()));
    for (size_t d = 0; d < jobs_.size(); d++) {
      jobs_[d] = std::vector<Job>(static_cast<size_t>(world));
      for (int r = 0; r < world; r++) drawJob(r, d, &jobs_[d][static_cast<size_t>(r)]);
    }
  }

  void play() {
    playOnCpu();
    playOnGpu();
    for (size_t d = 0; d < jobs_.size(); d++) {
      for (int r = 0; r < placement_.world; r++) {
        if (isHere(r)) compare(d, r);
      }
    }
  }

 private:
  bool isHere(int r) const { return (placement_.masked >> r & 1) == 0; }
  Job& job(size_t d, int r) { return jobs_[d][static_cast<size_t>(r)]; }

  // ---- Drawing ----

  // Mostly calls in order, with up to two dispatches in flight; some that are refused.
  void drawCalls() {
    const size_t dispatches = 2 + dice_.below(5);
    jobs_.resize(dispatches);
    std::vector<int> state(dispatches, 0);  // 0 new, 1 sent, 2 received, 3 its combine has begun, 4 ended
    const auto inFlight = [&] {
      size_t n = 0;
      for (const int s : state) n += s > 0 && s < 4;
      return n;
    };
    while (state.back() != 4) {
      if (dice_.oneIn(6)) calls_.push_back({refused(state), odd_});
      size_t d = 0;
      while (state[d] == 4) d++;
      // The first or, if it may, the second of those that have not ended.
      if (d + 1 < dispatches && dice_.oneIn(2) && inFlight() < 3) {
        if (state[d] > state[d + 1] || (state[d] == 3 && state[d + 1] == 2)) d++;
      }
      advance(d, &state[d], d > 0 && state[d - 1] != 4, d > 0 && state[d - 1] == 1);
    }
  }
  void advance(size_t d, int* state, bool second, bool otherSent) {
    const bool isEarlierAdding = second && *state == 2;
    switch (*state) {
      case 0:
        calls_.push_back({otherSent || dice_.oneIn(2) ? Step::kSend : Step::kDispatch, d});
        *state = calls_.back().step == Step::kSend ? 1 : 2;
        return;
      case 1:
        if (dice_.oneIn(3)) calls_.push_back({Step::kLook, d});
        calls_.push_back({Step::kReceive, d});
        *state = 2;
        return;
      case 2:
        if (!second && dice_.oneIn(5)) {
          calls_.push_back({Step::kRelease, d});
          *state = 4;
          return;
        }
        calls_.push_back({isEarlierAdding || dice_.oneIn(2) ? Step::kCombineSend : Step::kCombine, d});
        *state = calls_.back().step == Step::kCombine ? 4 : 3;
        return;
      default:
        if (second) return;
        calls_.push_back({Step::kCombineReceive, d});
        *state = 4;
    }
  }
  // A call that is out of order. odd_: its dispatch.
  Step refused(const std::vector<int>& state) {
    odd_ = dice_.below(static_cast<uint32_t>(state.size()));
    switch (state[odd_]) {
      case 0:
      case 4: {
        const Step steps[] = {Step::kLook, Step::kReceive, Step::kCombine, Step::kCombineSend, Step::kCombineReceive, Step::kRelease};
        return steps[dice_.below(6)];
      }
      case 1: {
        const Step steps[] = {Step::kDispatch, Step::kSend, Step::kCombine, Step::kCombineSend, Step::kCombineReceive, Step::kRelease};
        return steps[dice_.below(6)];
      }
      case 2: {
        const Step steps[] = {Step::kDispatch, Step::kSend, Step::kLook, Step::kReceive, Step::kCombineReceive};
        return steps[dice_.below(5)];
      }
      default: {
        const Step steps[] = {Step::kDispatch, Step::kSend, Step::kLook, Step::kReceive, Step::kCombine, Step::kCombineSend, Step::kRelease};
        return steps[dice_.below(7)];
      }
    }
  }

  void fill(SharedArray<char>* to, uint64_t at, host::Type type, uint64_t rows, uint32_t each, bool finite) {
    poison(to, at + rows * each * bytesOf(type) + 1);
    for (uint64_t i = 0; i < rows; i++) {
      const Row row = values_.row(type, each, dice_.oneIn(2) ? Style::kAny : Style::kModest, finite);
      if (each > 0) memcpy(to->data() + at + i * each * bytesOf(type), row.p(), each * bytesOf(type));
    }
  }

  void drawRouting(size_t d, Job* j) {
    const bool mustBeValid = !placement_.dropsInvalid && d != invalidAt_;
    const uint32_t topk = placement_.topk, style = dice_.below(4);
    for (uint32_t t = 0; t < j->tokens; t++) {
      for (uint32_t k = 0; k < topk; k++) {
        int64_t id = style == 0 ? 0 : static_cast<int64_t>(dice_.below(placement_.logical));
        if (style == 1) id = (t + k) % placement_.logical;
        if (dice_.oneIn(8)) id = -1;
        if (!mustBeValid && dice_.oneIn(10)) id = dice_.oneIn(2) ? placement_.logical + dice_.below(3) : -2 - int64_t{dice_.below(1000000)};
        if (mustBeValid) {
          for (uint32_t i = 0; i < k; i++) {
            if (j->wideIdx[uint64_t{t} * topk + i] == id) id = -1;
          }
        }
        j->wideIdx.push_back(id);
        j->idx.push_back(static_cast<int32_t>(id));
        j->weights.push_back(dice_.oneIn(8) ? 0.0f : floatOf(0x3c000000u + dice_.below(0x3000000)));
      }
    }
    if (d == invalidAt_) {  // on every rank
      j->wideIdx[0] = placement_.logical;
      j->idx[0] = static_cast<int32_t>(placement_.logical);
    }
  }

  void drawJob(int r, size_t d, Job* j) {
    const EpPlacement& p = placement_;
    const host::EpRowFormat& f = p.format;
    const bool mayBeInvalid = p.dropsInvalid;
    j->tokens = dice_.oneIn(4) ? (mayBeInvalid ? p.maxTokens + dice_.below(3) : p.maxTokens) : dice_.below(p.maxTokens + 1);
    if (d == invalidAt_ && j->tokens == 0) j->tokens = 1;
    j->wide = dice_.oneIn(2);
    j->hasWeights = !dice_.oneIn(4);
    j->isCached = dice_.oneIn(3);
    j->weighted = dice_.oneIn(3);
    j->hasAdd = dice_.oneIn(2);
    drawRouting(d, j);
    const bool isFP8 = f.wire == host::Type::kE4M3;
    j->xAt = dice_.oneIn(2) ? 0 : dice_.below(16);
    fill(&j->x, j->xAt, f.in, j->tokens, f.hidden, isFP8 && (!mayBeInvalid || !dice_.oneIn(3)));
    const uint32_t columns = epScaleColumns(f);
    fill(&j->scales, 0, f.scale == host::EpScale::kF32 ? host::Type::kF32 : host::Type::kU8, j->tokens, columns, true);
    if (f.scale == host::EpScale::kUE8M0 && !mayBeInvalid) {
      for (char& c : j->scales) c = static_cast<char>(c & 0x7f);
    }
    const host::Type sums[] = {host::Type::kF32, host::Type::kBF16, host::Type::kF16};
    j->yType = sums[dice_.below(3)];
    j->outType = sums[dice_.below(3)];
    j->layout = static_cast<EpRowLayout>(dice_.below(3));
    j->alignment = dice_.below(9);
    uint32_t local = 0;
    for (const uint8_t rank : p.rankOf) local += rank == r;
    const uint64_t n = static_cast<uint64_t>(p.world) * p.maxTokens;
    const uint64_t most = p.topk < local ? p.topk : local;
    j->enough = j->layout == EpRowLayout::kFlat ? n * most + uint64_t{j->alignment} * local : n;
    j->capacity = dice_.oneIn(3) ? dice_.below(static_cast<uint32_t>(j->enough) + 1) : j->enough;
    const uint64_t rows = j->layout == EpRowLayout::kPadded ? j->enough * local : j->enough;
    j->yAt = dice_.oneIn(2) ? 0 : dice_.below(16);
    j->outAt = dice_.oneIn(2) ? 0 : dice_.below(16);
    fill(&j->y, j->yAt, j->yType, rows < 400 ? rows : 400, f.hidden, false);  // rows beyond are bytes of the poison
    j->y.resize(j->yAt + rows * f.hidden * bytesOf(j->yType) + 1, static_cast<char>(0x3c));
    fill(&j->add, j->outAt, j->outType, j->tokens, f.hidden, false);
    for (bool& w : j->wants) w = !dice_.oneIn(4);
    for (Outputs* o : {&j->cpu, &j->gpu}) {
      poison(&o->x, j->outAt + rows * f.hidden * bytesOf(f.wire) + 64);
      poison(&o->scales, rows * epScaleBytes(f) + 64);
      poison(&o->out, j->outAt + j->tokens * uint64_t{f.hidden} * bytesOf(j->outType) + 64);
      poison(&o->counts, local + 1);
      poison(&o->lookCounts, local + 1);
      poison(&o->offsets, local + 2);
      poison(&o->weights, rows + 1);
      poison(&o->sourceRank, rows + 1);
      poison(&o->sourceToken, rows + 1);
      poison(&o->topkIdx, rows * p.topk + 1);
      poison(&o->topkWeights, rows * p.topk + 1);
      poison(&o->totals, 4);
      o->cell.resize(1);
      o->cell[0] = {};
      o->cell[0].flight = -1;
    }
  }

  // ---- Calls ----

  static EpRouting routingOf(const Job& j) {
    return {j.wide ? static_cast<const void*>(j.wideIdx.data()) : j.idx.data(), j.wide, j.hasWeights ? j.weights.data() : nullptr, j.tokens};
  }
  static EpReceive receiveOf(const Job& j, Outputs* o, uint64_t capacity) {
    EpReceive to = {};
    to.cell = o->cell.data();
    to.layout = j.layout;
    to.alignment = j.alignment;
    to.capacity = capacity;
    to.x = o->x.data() + j.outAt;
    if (j.wants[0]) to.scales = o->scales.data();
    if (j.wants[1]) to.counts = o->counts.data();
    if (j.wants[2]) to.offsets = o->offsets.data();
    if (j.wants[3] && j.layout != EpRowLayout::kTokens) to.weights = o->weights.data();
    if (j.wants[4]) to.sourceRank = o->sourceRank.data();
    if (j.wants[5]) to.sourceToken = o->sourceToken.data();
    if (j.wants[6] && j.layout == EpRowLayout::kTokens) to.topkIdx = o->topkIdx.data();
    if (j.wants[7] && j.layout == EpRowLayout::kTokens) to.topkWeights = o->topkWeights.data();
    to.rows = &o->totals[0];
    to.tokens = &o->totals[1];
    return to;
  }
  static bool isOfDispatch(Step s) { return s <= Step::kReceive; }

  void playOnCpu() {
    EpCpuRanks ranks(placement_, kRows);
    for (int r = 0; r < placement_.world; r++) {
      const EpTeam& team = ranks.buffer(r)->team;
      team.state()->dispatches = first_;
      for (int w = 0; w < placement_.world; w++) team.line(r, w).counts.value = team.line(r, w).countsHead.value = first_;
    }
    std::vector<std::thread> threads;
    for (int r = 0; r < placement_.world; r++) {
      if (!isHere(r)) continue;
      threads.emplace_back([this, &ranks, r] {
        for (const Play& play : calls_) callOnCpu(ranks.buffer(r), r, play);
      });
    }
    for (std::thread& t : threads) t.join();
    for (int r = 0; r < placement_.world; r++) counters_.push_back(*ranks.buffer(r)->team.counters);
  }
  void callOnCpu(host::EpBuffer* b, int r, const Play& play) {
    Job& j = job(play.dispatch, r);
    Outputs* o = &j.cpu;
    EpCell* cell = o->cell.data();
    const EpReceive to = receiveOf(j, o, j.capacity), again = receiveOf(j, o, j.enough);
    const EpSend send = {cell, routingOf(j), nullptr, j.x.data() + j.xAt, j.scales.data()};
    const char* add = j.hasAdd ? j.add.data() + j.outAt : nullptr;
    const host::EpCombineSend sums = {cell, {j.yType, j.outType, j.weighted, j.y.data() + j.yAt, add, o->out.data() + j.outAt}};
    const auto note = [&] { o->reports.push_back(isOfDispatch(play.step) ? cell->dispatched : cell->combined); };
    EpError error = EpError::kNone;
    switch (play.step) {
      case Step::kDispatch:
        if (b->earliest(EpPhase::kSent) != nullptr) {
          cell->dispatched = {};
          cell->dispatched.error = EpError::kOtherNotReceived;
          break;
        }
        error = host::epSend(b, send);
        if (error == EpError::kNone) error = host::epReceive(b, to);
        break;
      case Step::kSend: host::epSend(b, send); break;
      case Step::kLook:
        if (host::epAwaitCounts(b, cell) != EpError::kNone) break;
        for (uint32_t e = 0; e < b->localExperts(); e++) o->lookCounts[e] = static_cast<int32_t>(b->rowsOf(*b->flightOf(*cell), e));
        o->totals[2] = b->tokensOf(*b->flightOf(*cell));
        break;
      case Step::kReceive: error = host::epReceive(b, to); break;
      case Step::kCombine: {
        const EpFlight* f = b->flightOf(*cell);
        if (f != nullptr && epIsNextToCombine(*f, EpPhase::kAdding) != EpError::kNone) {
          cell->combined = {};
          cell->combined.error = EpError::kEarlierToCombine;
          break;
        }
        if (host::epCombineSend(b, sums) == EpError::kNone) host::epCombineReceive(b, cell);
        break;
      }
      case Step::kCombineSend: host::epCombineSend(b, sums); break;
      case Step::kCombineReceive: host::epCombineReceive(b, cell); break;
      case Step::kRelease: host::epRelease(b, cell, false); break;
    }
    note();
    if (error != EpError::kNoRoom) return;
    host::epReceive(b, again);
    note();
  }

  // Ranks run ahead of each other, but on a device all begin a call together. With ht, a rank whose rows had no room holds up the others until it
  // receives again: it has not sent its own.
  void playOnGpu() {
    EpGpuRanks ranks(placement_, first_);
    std::vector<Dice> grids;
    for (int r = 0; r < placement_.world; r++) grids.emplace_back(static_cast<uint64_t>(r) + 7);
    const auto call = [&](int r, const Play& play, bool again) {
      Dice& dice = grids[static_cast<size_t>(r)];
      // Also more blocks than tokens, which share the work in another way.
      const uint32_t blocks = 1 + dice.below(dice.oneIn(3) ? 12 : 3);
      if (isHere(r)) callOnGpu(ranks, r, play, {blocks, (1 + dice.below(4)) * (kOnDevice ? 32 : 1)}, again);
    };
    const auto note = [&](int r, const Play& play) { return isHere(r) && noteOnGpu(r, play); };
    if (kOnDevice) {
      for (const Play& play : calls_) {
        for (int r = 0; r < placement_.world; r++) call(r, play, false);
        uint64_t left = (uint64_t{1} << placement_.world) - 1, again = 0;
        while (left != 0) {
          for (int r = 0; r < placement_.world; r++) {
            const uint64_t bit = uint64_t{1} << r;
            if ((left & bit) == 0 || !hasEnded(r)) continue;
            left &= ~bit;
            if (!note(r, play) || (again & bit) != 0) continue;
            call(r, play, true);
            again |= bit;
            left |= bit;
          }
        }
      }
    } else {
      onRanks(placement_.world, [&](int r) {
        for (const Play& play : calls_) {
          call(r, play, false);
          if (!note(r, play)) continue;
          call(r, play, true);
          note(r, play);
        }
      });
    }
    for (int r = 0; r < placement_.world; r++) {
      const Status& s = ranks.group().status[static_cast<size_t>(r)];
      if (s.stop != 0) fprintf(stderr, "rank %d stopped with %u, missing %#lx\n", r, s.stop, s.missing);
      CHECK(s.stop == 0);
    }
    for (int r = 0; r < placement_.world; r++) compareCounters(r, ranks.counters(r));
    if (placement_.masked == 0) {
      ranks.checkQuiet();
    } else {
      ranks.checkGuards();
    }
  }
  // After a call. Whether rows had no room, so that it is to be made again.
  bool noteOnGpu(int r, const Play& play) {
    Outputs& o = job(play.dispatch, r).gpu;
    o.reports.push_back(isOfDispatch(play.step) ? o.cell[0].dispatched : o.cell[0].combined);
    return o.reports.back().error == EpError::kNoRoom;
  }
  // again: receives what had no room.
  void callOnGpu(EpGpuRanks& ranks, int r, const Play& play, TestGrid grid, bool again) {
    Job& j = job(play.dispatch, r);
    Outputs* o = &j.gpu;
    EpCell* cell = o->cell.data();
    EpCommonCall common = ranks.common(r, cell);
    if (dropsDead_) letDrop(&common);
    EpDispatchCall dispatch = {};
    static_cast<EpCommonCall&>(dispatch) = common;
    dispatch.dropsInvalid = placement_.dropsInvalid;
    dispatch.routing = routingOf(j);
    dispatch.x = j.x.data() + j.xAt;
    dispatch.receive = receiveOf(j, o, again ? j.enough : j.capacity);
    const uint32_t dispatchSteps[] = {kEpSends | kEpReceives, kEpSends, kEpLooks, kEpReceives};
    if (isOfDispatch(play.step)) {
      dispatch.steps = again ? kEpReceives : dispatchSteps[static_cast<int>(play.step)];
      if (play.step == Step::kLook) {
        dispatch.receive.counts = o->lookCounts.data();
        dispatch.receive.tokens = &o->totals[2];
      }
      if ((dispatch.steps & kEpSends) != 0 && !dispatch.format.isPlain()) {
        EpEncodeCall encode = {};
        static_cast<EpCommonCall&>(encode) = common;
        encode.counts = false;
        encode.tokens = j.tokens;
        encode.x = dispatch.x;
        encode.scales = j.scales.data();
        ranks.encode(&encode, grid);
      }
      if ((dispatch.steps & kEpSends) != 0 && j.isCached) usePlan(ranks, r, &j, grid, &dispatch);
      return ranks.dispatch(&dispatch, grid);
    }
    EpCombineCall combine = {};
    static_cast<EpCommonCall&>(combine) = common;
    combine.weighted = j.weighted;
    combine.renormalizes = placement_.renormalizes;
    combine.y = static_cast<EpType>(j.yType);
    combine.yRows = j.y.data() + j.yAt;
    if (play.step != Step::kCombineReceive) {
      combine.out = static_cast<EpType>(j.outType);
      combine.add = j.hasAdd ? j.add.data() + j.outAt : nullptr;
      combine.outRows = o->out.data() + j.outAt;
    }
    combine.steps = play.step == Step::kCombine ? kEpSends | kEpReceives : play.step == Step::kCombineSend ? kEpSends : kEpReceives;
    EpCommonCall release = common;
    if (play.step == Step::kRelease) {
      ranks.release(&release, grid);
    } else {
      ranks.combine(&combine, grid);
    }
  }

  // The plan is made once, with a grid of its own, for all calls of the job. Then the caller's arrays are overwritten.
  static void usePlan(EpGpuRanks& ranks, int r, Job* j, TestGrid grid, EpDispatchCall* call) {
    if (j->plan.idx == nullptr) {
      call->plan = j->plan = ranks.planFor(r, j->tokens);
      ranks.plan(call, grid);
      while (kOnDevice && !hasEnded(r)) std::this_thread::yield();
      poison(&j->wideIdx, j->wideIdx.size());
      poison(&j->idx, j->idx.size());
      poison(&j->weights, j->weights.size());
    }
    call->plan = j->plan;
    call->routing = {j->plan.idx, true, j->plan.weights, j->tokens};
  }

  // ---- Comparing ----

  static bool same(const EpProblem& a, const EpProblem& b) { return a.count == b.count && a.token == b.token && a.k == b.k && a.value == b.value; }
  static bool same(const EpReport& a, const EpReport& b) {
    return a.error == b.error && a.stop == b.stop && a.missing == b.missing && a.lostRanks == b.lostRanks && a.lostCopies == b.lostCopies &&
           a.overCapacity == b.overCapacity && a.wantedBy == b.wantedBy && a.wanted == b.wanted && a.capacity == b.capacity && a.rows == b.rows &&
           a.tokens == b.tokens && a.number == b.number && same(a.problems.invalidIds, b.problems.invalidIds) &&
           same(a.problems.duplicateIds, b.problems.duplicateIds) && same(a.problems.excessTokens, b.problems.excessTokens) &&
           same(a.problems.nonFinite, b.problems.nonFinite);
  }
  static void print(const EpReport& r) {
    fprintf(stderr, "  error %u, number %u, rows %lu, tokens %lu, wanted %lu, over %lu, lost %lx %lu, problems %lu\n",
            static_cast<unsigned>(r.error), r.number, r.rows, r.tokens, r.wanted, r.overCapacity, r.lostRanks, r.lostCopies, r.problems.count());
  }
  template <class T>
  void same(const char* what, size_t d, int r, const SharedArray<T>& a, const SharedArray<T>& b) {
    CHECK(a.size() == b.size());
    if (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0) return;
    const char *x = reinterpret_cast<const char*>(a.data()), *y = reinterpret_cast<const char*>(b.data());
    size_t at = 0;
    while (x[at] == y[at]) at++;
    fprintf(stderr, "%s of dispatch %zu, rank %d: byte %zu of %zu differs: %02x on the CPU, %02x on the GPU\n", what, d, r, at, a.size() * sizeof(T),
            static_cast<unsigned char>(x[at]), static_cast<unsigned char>(y[at]));
    CHECK(!"outputs differ");
  }
  // All but flags, which the GPU has fewer of, waits, and copies that were lost with a release.
  void compareCounters(int r, const EpCounters& gpu) {
    const EpCounters& cpu = counters_[static_cast<size_t>(r)];
    const uint64_t pairs[][2] = {{cpu.dispatches, gpu.dispatches}, {cpu.combines, gpu.combines}, {cpu.tokens, gpu.tokens}, {cpu.copies, gpu.copies},
                                 {cpu.invalidIds, gpu.invalidIds}, {cpu.duplicateIds, gpu.duplicateIds}, {cpu.excessTokens, gpu.excessTokens},
                                 {cpu.nonFinite, gpu.nonFinite}, {cpu.overCapacity, gpu.overCapacity}};
    bool equal = memcmp(cpu.routed, gpu.routed, sizeof cpu.routed) == 0 && memcmp(cpu.received, gpu.received, sizeof cpu.received) == 0 &&
                 memcmp(cpu.payloadBytes, gpu.payloadBytes, sizeof cpu.payloadBytes) == 0 && memcmp(cpu.headerBytes, gpu.headerBytes, sizeof cpu.headerBytes) == 0;
    for (const auto& pair : pairs) equal = equal && pair[0] == pair[1];
    if (equal) return;
    for (const auto& pair : pairs) fprintf(stderr, "  %lu on the CPU, %lu on the GPU\n", pair[0], pair[1]);
    for (int p = 0; p < placement_.world; p++) {
      fprintf(stderr, "  to rank %d payload %lu and %lu, headers %lu and %lu\n", p, cpu.payloadBytes[p], gpu.payloadBytes[p], cpu.headerBytes[p], gpu.headerBytes[p]);
    }
    fprintf(stderr, "rank %d\n", r);
    CHECK(!"counters differ");
  }
  void compare(size_t d, int r) {
    Job& j = job(d, r);
    CHECK(j.cpu.reports.size() == j.gpu.reports.size());
    for (size_t i = 0; i < j.cpu.reports.size(); i++) {
      const EpReport &a = j.cpu.reports[i], &b = j.gpu.reports[i];
      if (same(a, b)) continue;
      fprintf(stderr, "report %zu of dispatch %zu, rank %d; the CPU's, then the GPU's:\n", i, d, r);
      print(a);
      print(b);
      CHECK(!"reports differ");
    }
    same("x", d, r, j.cpu.x, j.gpu.x);
    same("scales", d, r, j.cpu.scales, j.gpu.scales);
    same("counts", d, r, j.cpu.counts, j.gpu.counts);
    same("counts of a look", d, r, j.cpu.lookCounts, j.gpu.lookCounts);
    same("offsets", d, r, j.cpu.offsets, j.gpu.offsets);
    same("weights", d, r, j.cpu.weights, j.gpu.weights);
    same("source_rank", d, r, j.cpu.sourceRank, j.gpu.sourceRank);
    same("source_token", d, r, j.cpu.sourceToken, j.gpu.sourceToken);
    same("topk_idx", d, r, j.cpu.topkIdx, j.gpu.topkIdx);
    same("topk_weights", d, r, j.cpu.topkWeights, j.gpu.topkWeights);
    same("totals", d, r, j.cpu.totals, j.gpu.totals);
    same("out", d, r, j.cpu.out, j.gpu.out);
  }

  Dice dice_;
  Values values_;
  EpPlacement placement_;
  uint32_t first_;
  std::vector<EpCounters> counters_;  // of the ranks on the CPU
  std::vector<Play> calls_;
  size_t odd_ = 0, invalidAt_ = 0;
  bool dropsDead_ = false;  // nobody dies, and the CPU's ranks do not look
  std::vector<std::vector<Job>> jobs_;  // [dispatch][rank]
};

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 4);
  const std::string what = argv[1];
  const int world = atoi(argv[2]);
  CHECK(what == "run" && argc == 6);
  const auto first = static_cast<uint32_t>(strtoul(argv[3], nullptr, 0));
  const uint64_t rounds = strtoull(argv[4], nullptr, 0), seed = strtoull(argv[5], nullptr, 0);
  for (uint64_t n = 0; n < rounds; n++) {
    if (getenv("SHOW_SEEDS") != nullptr) fprintf(stderr, "round %lu\n", n);
    Round(world, first, mix(seed + n)).play();
  }
  printf("%lu rounds\n", rounds);
  return 0;
}
