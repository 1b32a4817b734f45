// Runs of dispatch and combine: ranks of one thread each, which play a script.
#ifndef RAILHEAD_KERNELS_MODEL_EP_RUN_H_
#define RAILHEAD_KERNELS_MODEL_EP_RUN_H_

#include <deque>
#include <string>
#include <vector>

#include "model/ep_watch.h"
#include "railhead/ep/ep_combine.h"
#include "railhead/ep/ep_dispatch.h"
#include "railhead/ep/ep_plan.h"

namespace railhead::model {

class EpRun : private EpGiveUps {
 public:
  EpRun(World& world, const EpScript& script) : world_(world), script_(script), heaps_(world, script) {
    for (int r = 0; r < script.worldSize; r++) {
      ranks_.emplace_back(heaps_.team(r));
      world.addFiber(r, 0, [this, r] { rank(r); });
    }
    for (const EpDeath& d : script.deaths) {
      mayBeLost_ |= uint64_t{1} << d.rank;
      world.killBefore(d.rank, d.step, [this, d] { markDead(d); });
    }
    if (script.mayDie >= 0) {
      mayBeLost_ |= uint64_t{1} << script.mayDie;
      world.mayDie(script.mayDie, [this] { markDead({script_.mayDie, 0, true}); });
    }
    if (script.ticks != 0) mayBeLost_ = (uint64_t{1} << script.worldSize) - 1;
    if (script.dropsDead) world.letTimePass();
    if (script.leavesBefore >= 0 || script.aborts) world.addFiber(-1, 0, [this] { abort(); });
  }

  std::string check() const { return ""; }  // ranks check at once

 private:
  // The layout of received rows. Each rank chooses its own.
  enum class Layout { kPadded, kFlat, kTokens };

  // A dispatch of a rank. In the run's memory, since a fiber may be abandoned.
  struct Dispatch {
    Layout layout;
    std::vector<int64_t> route;
    std::vector<float> weights;
    std::vector<EpRow> x, result;
    std::vector<int64_t> begin;       // first row of each expert
    std::vector<uint32_t> received;   // copies from each rank, by its counts
    std::vector<EpRow> rows, y;
    std::vector<float> rowWeights, rowTopkWeights;
    std::vector<int32_t> sourceRank, sourceToken, rowTopk;
  };
  struct Rank {
    explicit Rank(const EpTeam& t) : flights{EpFlightMemory(t), EpFlightMemory(t)} {
      for (int i = 0; i < kEpInFlight; i++) flights[i].flight.other = &flights[1 - i].flight;
    }
    EpFlightMemory flights[kEpInFlight];
    int playing[kEpInFlight] = {-1, -1};  // the dispatch of each flight
    std::deque<Dispatch> dispatches;
    // For each rank that this one has given up: what it had sent there. Of a dispatch that is not listed, everything if it had begun.
    struct {
      size_t begun;
      std::vector<std::pair<int, uint32_t>> moved;  // dispatch, copies
    } sent[kMaxWorldSize];
    EpRow scratch = {};
  };

  // Partial sums are words of the model's memory, except those of a rank's own experts.
  class Rows {
   public:
    Rows(EpMem& mem, const EpRow* scratch, Dispatch& d) : mem_(mem), scratch_(reinterpret_cast<const char*>(scratch)), d_(d) {}
    void partial(const EpRowRef* list, uint32_t n, char* out) {
      EpRow sum = {};
      for (uint32_t i = 0; i < n; i++) {
        const EpRow& y = d_.y[list[i].row];
        epAdd(&sum, d_.layout == Layout::kTokens ? y : epTimes(y, list[i].weight), i == 0);
      }
      if (out == scratch_) {
        mem_.copyLocal(out, reinterpret_cast<const char*>(&sum), sizeof sum);
      } else {
        mem_.copyToSlot(out, reinterpret_cast<const char*>(&sum), sizeof sum);
      }
    }
    void finish(uint32_t token, const char* const* partials, int n, bool scaled, float factor) {
      EpRow total = {};
      for (int i = 0; i < n; i++) {
        EpRow one;
        if (partials[i] == scratch_) {
          mem_.copyLocal(reinterpret_cast<char*>(&one), partials[i], sizeof one);
        } else {
          mem_.copyFromSlot(reinterpret_cast<char*>(&one), partials[i], sizeof one);
        }
        epAdd(&total, one, i == 0);
      }
      if (scaled) epScale(&total, factor);
      d_.result[token] = total;
    }

   private:
    EpMem& mem_;
    const char* scratch_;
    Dispatch& d_;
  };

  void gaveUp(int r, int s) override {
    world_.mark();
    Rank& rank = ranks_[static_cast<size_t>(r)];
    auto& sent = rank.sent[s];
    sent.begun = rank.dispatches.size();
    for (int i = 0; i < kEpInFlight; i++) {
      if (rank.playing[i] >= 0) sent.moved.push_back({rank.playing[i], rank.flights[i].flight.moved[s]});
    }
  }
  // Copies of a dispatch that rank s had sent to rank r when it gave up rank r.
  uint32_t sentBefore(int s, int r, int dispatch) const {
    const auto& sent = ranks_[static_cast<size_t>(s)].sent[r];
    for (const auto& [number, copies] : sent.moved) {
      if (number == dispatch) return copies;
    }
    return static_cast<size_t>(dispatch) < sent.begun ? static_cast<uint32_t>(epCopies(script_, dispatch, s, r).size()) : 0;
  }
  // What a rank sends before it gives up another one arrives.
  void checkFollowed(int r, int number, const EpFlight& f, uint64_t followed) {
    for (; followed != 0; followed &= followed - 1) {
      const int s = lowestBit(followed);
      const uint32_t sent = sentBefore(s, r, number);
      if (f.taken[s] != sent) world_.fail("dispatch %d: %u copies from rank %d, which had sent %u when it gave up this one", number, f.taken[s], s, sent);
    }
  }

  void markDead(const EpDeath& d) {
    FlagMem mem(world_);
    if (d.marksLease) {
      mem.storeRelaxed(heaps_.lease(d.rank), d.leaves ? 0 : kLeaseOwnerDied | 7, "");
    } else {
      mem.storeRelaxed(heaps_.abortWord(), kAbortRankDead | static_cast<uint32_t>(d.rank) << kAbortCulpritShift, "");
    }
  }
  void abort() {
    FlagMem mem(world_);
    mem.storeRelease(heaps_.abortWord(), 1, "");
    mem.futexWakeAll(heaps_.abortWord(), "");
  }

  void rank(int r) {
    for (size_t i = 0; i < script_.steps.size(); i++) {
      if (static_cast<int>(i) == script_.leavesBefore && r == script_.worldSize - 1) return;
      EpMem mem(world_, heaps_.counters(), heaps_.turns());
      WatchedLinks links(world_, mem, heaps_, r, *this);
      if (play(r, script_.steps[i], mem, links)) {
        if (cannotEnd(i)) world_.fail("received dispatch %d, which one of the ranks has not sent", script_.steps[i].dispatch);
        continue;
      }
      if ((script_.leavesBefore < 0 && !script_.aborts) || links.stop() != Stop::kAborted) world_.fail("gave up");
      return;
    }
  }
  bool cannotEnd(size_t step) const {
    if (script_.leavesBefore < 0 || script_.steps[step].call != EpCall::kReceive) return false;
    for (size_t i = static_cast<size_t>(script_.leavesBefore); i < step; i++) {
      if (script_.steps[i].call == EpCall::kSend && script_.steps[i].dispatch == script_.steps[step].dispatch) return true;
    }
    return false;
  }

  bool play(int r, const EpStep& step, EpMem& mem, WatchedLinks& links) {
    const EpTeam& team = heaps_.team(r);
    Rank& rank = ranks_[static_cast<size_t>(r)];
    EpFlight& f = rank.flights[step.dispatch % kEpInFlight].flight;
    if (step.call == EpCall::kSend) begin(r, step.dispatch, &f);
    Dispatch& d = rank.dispatches[static_cast<size_t>(step.dispatch)];
    EpDispatch<EpMem, WatchedLinks> dispatch(mem, team, links, f);
    Rows rows(mem, &rank.scratch, d);
    EpCombine<EpMem, Rows, WatchedLinks> combine(mem, team, links, f, rows, reinterpret_cast<char*>(&rank.scratch), script_.renormalize);
    switch (step.call) {
      case EpCall::kSend: return dispatch.send();
      case EpCall::kReceive: {
        if (asksForCounts(r, step.dispatch) && !dispatch.awaitCounts()) return false;
        if (!dispatch.awaitCounts()) return false;
        const EpOutput out = layOut(r, step.dispatch, f, &d);
        if (!dispatch.receive(out)) return false;
        f.phase = EpPhase::kReceived;
        checkFollowed(r, step.dispatch, f, links.followed());
        checkRows(r, step.dispatch, f, d);
        compute(r, &d);
        return true;
      }
      case EpCall::kCombineSend: combine.send(); return true;
      case EpCall::kCombineReceive:
        if (!combine.receive()) return false;
        f.phase = EpPhase::kFree;
        checkResults(r, step.dispatch, f, d);
        return true;
      case EpCall::kRelease: f.phase = EpPhase::kFree; return true;
    }
    return true;
  }

  bool asksForCounts(int r, int dispatch) const {
    return (mix(mix(script_.seed, static_cast<uint64_t>(r)), static_cast<uint64_t>(dispatch)) >> 20 & 1) != 0;
  }
  uint32_t tokensOf(int dispatch, int r) const { return script_.tokens[static_cast<size_t>(dispatch)][static_cast<size_t>(r)]; }

  // Starts a dispatch as the client does.
  void begin(int r, int number, EpFlight* f) {
    const EpTeam& team = heaps_.team(r);
    Rank& rank = ranks_[static_cast<size_t>(r)];
    Dispatch& d = rank.dispatches.emplace_back();
    rank.playing[number % kEpInFlight] = number;
    d.layout = static_cast<Layout>(mix(script_.seed + 5, static_cast<uint64_t>(number * 8 + r)) % 3);
    f->tokens = tokensOf(number, r);
    for (uint32_t t = 0; t < f->tokens; t++) {
      for (const int32_t e : epRoute(script_, number, r, t)) d.route.push_back(e);
      for (uint32_t k = 0; k < team.topk; k++) d.weights.push_back(epWeight(script_, number, r, t, k));
      d.x.push_back(epToken(number, r, t));
    }
    d.result.resize(f->tokens);
    const EpRouting routing = {d.route.data(), true, d.weights.data(), f->tokens};
    for (uint32_t t = 0; t < f->tokens; t++) epMapToken(team, routing, t, f);
    epPlace(team, f);
    for (int q = 0; q < team.worldSize; q++) {
      f->moved[q] = f->taken[q] = f->received[q] = f->returned[q] = 0;
      f->pushed[q] = f->pulled[q] = f->counted[q] = false;
    }
    f->finished = 0;
    f->lostRanks = f->masked;
    f->lostCopies = f->maskedCopies;
    f->overCapacity = 0;
    f->number = ++team.state()->dispatches;
    f->phase = EpPhase::kSent;
    f->rows = reinterpret_cast<const char*>(d.x.data());
    f->rowStride = sizeof(EpRow);
  }

  // Called after awaitCounts().
  EpOutput layOut(int r, int number, const EpFlight& f, Dispatch* d) {
    const EpTeam& team = heaps_.team(r);
    const uint64_t world = static_cast<uint64_t>(team.worldSize), each = world * team.maxTokens;
    uint64_t rows = 0;
    for (int s = 0; s < team.worldSize; s++) {
      d->received.push_back(f.received[s]);
      const auto sent = static_cast<uint32_t>(epCopies(script_, number, s, r).size());
      if (f.received[s] != sent && !(f.received[s] == 0 && isLost(r, s))) {
        world_.fail("dispatch %d: %u copies from rank %d instead of %u", number, f.received[s], s, sent);
      }
      if (d->layout == Layout::kTokens) rows += f.received[s];
    }
    for (uint32_t e = 0; e < team.localExperts[r] && d->layout != Layout::kTokens; e++) {
      d->begin.push_back(static_cast<int64_t>(rows));
      for (int s = 0; s < team.worldSize; s++) rows += f.counts[static_cast<uint64_t>(s) * team.maxLocal + e];
      if (d->layout == Layout::kPadded) rows = (e + 1) * each;
    }
    return outputOf(team, d, rows, d->layout == Layout::kPadded ? each : rows);
  }
  static EpOutput outputOf(const EpTeam& team, Dispatch* d, uint64_t rows, uint64_t capacity) {
    d->rows.resize(rows, EpRow{{0xdead, 0xdead}});
    d->rowWeights.resize(rows, -1);
    d->sourceRank.resize(rows, -7);
    d->sourceToken.resize(rows, -7);
    d->rowTopk.resize(rows * team.topk, -7);
    d->rowTopkWeights.resize(rows * team.topk, -7);
    EpOutput out = {};
    out.perToken = d->layout == Layout::kTokens;
    out.padded = d->layout == Layout::kPadded;
    out.capacity = capacity;
    out.begin = d->begin.data();
    out.dataBytes = sizeof(EpRow);
    out.x = reinterpret_cast<char*>(d->rows.data());
    out.weights = out.perToken ? nullptr : d->rowWeights.data();
    out.sourceRank = d->sourceRank.data();
    out.sourceToken = d->sourceToken.data();
    out.topkIdx = d->rowTopk.data();
    out.topkWeights = d->rowTopkWeights.data();
    return out;
  }

  // Whether rank r has masked rank s, and may have.
  bool isLost(int r, int s) { return (mayBeLost_ & heaps_.team(r).state()->masked) >> s & 1; }

  // Every counted row is whole, or empty and from a lost rank.
  void checkRows(int r, int number, const EpFlight& f, const Dispatch& d) {
    if (d.layout == Layout::kTokens) {
      size_t row = 0;
      for (int s = 0; s < script_.worldSize; s++) {
        if (d.received[static_cast<size_t>(s)] == 0) continue;
        for (const uint32_t t : epCopies(script_, number, s, r)) checkRow(r, number, d, row++, s, t, -1);
      }
      return;
    }
    const auto& own = heaps_.team(r).ownExperts;
    for (uint32_t e = 0; e < heaps_.team(r).localExperts[r]; e++) {
      auto row = static_cast<size_t>(d.begin[e]);
      for (int s = 0; s < script_.worldSize; s++) {
        if (d.received[static_cast<size_t>(s)] == 0) continue;
        for (const uint32_t t : epCopies(script_, number, s, r)) {
          const std::vector<int32_t> route = epRoute(script_, number, s, t);
          for (uint32_t k = 0; k < script_.topk; k++) {
            if (route[k] == own[e]) checkRow(r, number, d, row++, s, t, static_cast<int>(k));
          }
        }
      }
    }
    if (f.overCapacity != 0) world_.fail("dispatch %d: %lu rows beyond the capacity", number, f.overCapacity);
  }
  // k: index of the row's expert in topk_idx; -1: a row of all the rank's experts.
  void checkRow(int r, int number, const Dispatch& d, size_t row, int s, uint32_t t, int k) {
    const bool isEmpty = d.sourceRank[row] == -1 && isLost(r, s);
    const EpRow want = isEmpty ? EpRow{} : epToken(number, s, t);
    if (!(d.rows[row] == want)) {
      world_.fail("dispatch %d, row %zu: %#x %#x instead of %#x %#x, token %u of rank %d", number, row, d.rows[row].w[0],
                  d.rows[row].w[1], want.w[0], want.w[1], t, s);
    }
    const int32_t source = isEmpty ? -1 : s, token = isEmpty ? -1 : static_cast<int32_t>(t);
    if (d.sourceRank[row] != source || d.sourceToken[row] != token) {
      world_.fail("dispatch %d, row %zu: of token %d of rank %d instead of %d of %d", number, row, d.sourceToken[row],
                  d.sourceRank[row], token, source);
    }
    if (k < 0) return checkExperts(r, number, d, row, s, t, isEmpty);
    const double got = d.rowWeights[row], weight = isEmpty ? 0 : epWeight(script_, number, s, t, static_cast<uint32_t>(k));
    if (got != weight) world_.fail("dispatch %d, row %zu: weight %g instead of %g", number, row, got, weight);
  }
  void checkExperts(int r, int number, const Dispatch& d, size_t row, int s, uint32_t t, bool isEmpty) {
    const EpTeam& team = heaps_.team(r);
    size_t at = row * team.topk;
    const std::vector<int32_t> route = epRoute(script_, number, s, t);
    for (uint32_t i = 0; i < team.topk && !isEmpty; i++) {
      if (route[i] < 0 || team.expertRank[route[i]] != r) continue;
      if (d.rowTopk[at] != team.expertLocal[route[i]] || d.rowTopkWeights[at] != epWeight(script_, number, s, t, i)) {
        world_.fail("dispatch %d, row %zu: wrong expert %d", number, row, d.rowTopk[at]);
      }
      at++;
    }
    for (; at < (row + 1) * team.topk; at++) {
      if (d.rowTopk[at] != -1 || d.rowTopkWeights[at] != 0) {
        world_.fail("dispatch %d, row %zu: expert %d too many", number, row, d.rowTopk[at]);
      }
    }
  }

  // Computes the experts' outputs, as the caller does.
  void compute(int r, Dispatch* d) {
    const EpTeam& team = heaps_.team(r);
    d->y.resize(d->rows.size());
    for (size_t row = 0; row < d->rows.size() && d->layout == Layout::kTokens; row++) {
      for (size_t i = row * team.topk; i < (row + 1) * team.topk && d->rowTopk[i] >= 0; i++) {
        const EpRow y = epExpert(team.ownExperts[d->rowTopk[i]], d->rows[row]);
        epAdd(&d->y[row], epTimes(y, d->rowTopkWeights[i]), i == row * team.topk);
      }
    }
    for (size_t e = 0; e < d->begin.size(); e++) {
      const size_t end = e + 1 < d->begin.size() ? static_cast<size_t>(d->begin[e + 1]) : d->rows.size();
      for (auto row = static_cast<size_t>(d->begin[e]); row < end; row++) d->y[row] = epExpert(team.ownExperts[e], d->rows[row]);
    }
  }

  // Every token has the sum of all ranks, except of those that were lost and reported.
  void checkResults(int r, int number, const EpFlight& f, const Dispatch& d) {
    uint64_t lostCopies = 0;
    for (uint32_t t = 0; t < tokensOf(number, r); t++) {
      const uint64_t lost = f.lostRanks & mayBeLost_;
      bool right = false;
      for (uint64_t some = lost;; some = (some - 1) & lost) {
        right = d.result[t] == epResult(script_, number, r, t, some);
        if (right) lostCopies += copiesTo(some, number, r, t);
        if (right || some == 0) break;
      }
      const EpRow want = epResult(script_, number, r, t, 0);
      if (!right) {
        const EpRow& got = d.result[t];
        world_.fail("combine %d, token %u: %#x %#x instead of %#x %#x; lost ranks %#lx", number, t, got.w[0], got.w[1], want.w[0],
                    want.w[1], lost);
      }
    }
    if (f.lostCopies != lostCopies) world_.fail("combine %d: %lu copies lost and not %lu", number, f.lostCopies, lostCopies);
    if ((f.lostRanks & ~mayBeLost_) != 0) world_.fail("combine %d: ranks %#lx are lost and should not be", number, f.lostRanks);
  }
  uint64_t copiesTo(uint64_t ranks, int number, int r, uint32_t t) const {
    uint64_t n = 0;
    for (int to = 0; to < script_.worldSize; to++) n += (ranks >> to & 1) != 0 && epGoesTo(script_, number, r, t, to);
    return n;
  }

  World& world_;
  const EpScript& script_;
  EpHeaps heaps_;
  std::deque<Rank> ranks_;
  uint64_t mayBeLost_ = 0;  // ranks that may die or be masked
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_EP_RUN_H_
