// Which ranks and experts this rank's tokens go to, and the place of each token among those of a rank or an expert: the number of earlier tokens
// that go there. Every block computes all of it from topk_idx, so blocks need not wait for each other. Places come from bit masks: bit t of an
// expert's mask is token t of the pass. They are the same in every run, since setting bits has no order. A pass has as many tokens as the masks of
// all experts and ranks have bits for.
#ifndef RAILHEAD_KERNELS_GPU_EP_ROUTES_H_
#define RAILHEAD_KERNELS_GPU_EP_ROUTES_H_

#include "railhead/ep/ep_plan.h"
#include "railhead/gpu/ep_slots.h"

namespace railhead::gpu {

template <class C>
class EpRoutes {
 public:
  RH_FN EpRoutes(C& c, const EpDispatchCall& call) : c_(c), call_(call), team_(call.team) {
    const uint32_t most = kEpMaskWords / things(), enough = (tokens() + 31) / 32;
    words_ = enough < 1 ? 1 : enough < most ? enough : most;
  }

  // Tokens that take part, unless their routing is invalid.
  RH_FN uint32_t tokens() const { return call_.routing.tokens < team_.maxTokens ? call_.routing.tokens : team_.maxTokens; }
  RH_FN uint32_t excess() const { return call_.routing.tokens - tokens(); }

  // Before the first pass. Counts invalid input in EpShared. A barrier follows.
  RH_FN void clear() {
    EpShared& s = c_.epShared();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < things(); i += c_.dataThreadsInBlock()) s.totals[i] = 0;
    if (c_.threadInBlock() != 0) return;
    RH_ROLLED
    for (int i = 0; i < 3; i++) {
      s.problems[i] = 0;
      s.firsts[i] = ~0u;
    }
  }
  RH_FN void countProblems() {
    const uint32_t n = tokens() * team_.topk;
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n; i += c_.dataThreadsInBlock()) {
      uint32_t problem = kNone;
      const uint32_t t = i / team_.topk, k = i - t * team_.topk;
      checkedEntry(t, k, &problem);
      if (problem != kNone) note(problem, t * kEpMaxTopk + k);
      if (k == 0 && unfit(t) != 0 && hasRanks(t)) note(kUnfit, t);
    }
  }
  RH_FN bool areThereProblems() {
    const EpShared& s = c_.epShared();
    return excess() != 0 || (s.problems[kInvalid] | s.problems[kTwice] | s.problems[kUnfit]) != 0;
  }
  // By one thread, after a barrier.
  RH_FN EpProblems problems() {
    const EpShared& s = c_.epShared();
    EpProblems p = {};
    EpProblem* const kinds[] = {&p.invalidIds, &p.duplicateIds};
    RH_ROLLED
    for (int i = 0; i < 2; i++) {
      if (s.problems[i] == 0) continue;
      const uint32_t t = s.firsts[i] / kEpMaxTopk, k = s.firsts[i] % kEpMaxTopk;
      *kinds[i] = {s.problems[i], t, k, call_.routing.at(uint64_t{t} * team_.topk + k)};
    }
    if (s.problems[kUnfit] != 0) {
      const uint32_t u = unfit(s.firsts[kUnfit]);
      p.nonFinite = {s.problems[kUnfit], s.firsts[kUnfit], EpUnfit::element(u), static_cast<int64_t>(EpUnfit::what(u))};
    }
    if (excess() != 0) p.excessTokens = {excess(), team_.maxTokens, 0, static_cast<int64_t>(call_.routing.tokens)};
    return p;
  }

  // ---- Passes ----

  RH_FN uint32_t passTokens() const { return 32 * words_; }
  // The tokens from `first` on, a multiple of passTokens(). Barriers before and behind.
  RH_FN void beginPass(uint32_t first) {
    EpShared& s = c_.epShared();
    first_ = first;
    const uint32_t n = tokens() - first < passTokens() ? tokens() - first : passTokens();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < things() * words_; i += c_.dataThreadsInBlock()) s.masks[i] = 0;
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n * team_.topk; i += c_.dataThreadsInBlock()) {
      const uint32_t at = i / team_.topk, t = first + at;
      const uint32_t e = entry(t, i - at * team_.topk);
      if (e == kNoExpert) continue;
      c_.sharedOr(&s.masks[e * words_ + at / 32], 1u << at % 32);
      c_.sharedOr(&s.masks[rankThing(team_.expertRank[e]) * words_ + at / 32], 1u << at % 32);
    }
    c_.dataAll(true);
  }
  // Barriers before and behind.
  RH_FN void endPass() {
    EpShared& s = c_.epShared();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < things(); i += c_.dataThreadsInBlock()) s.totals[i] = throughPass(i);
  }

  // Of tokens up to the end of this pass.
  RH_FN uint32_t tokensOf(uint32_t physical) { return throughPass(physical); }
  RH_FN uint32_t copiesTo(int rank) { return throughPass(rankThing(rank)); }
  // The expert of an entry of a token, or kNoExpert.
  RH_FN uint32_t entry(uint32_t t, uint32_t k) {
    uint32_t ignored = kNone;
    return unfit(t) != 0 ? kNoExpert : checkedEntry(t, k, &ignored);
  }
  // Of a token of this pass.
  RH_FN uint32_t placeOf(uint32_t t, uint32_t physical) { return place(t - first_, physical); }
  RH_FN uint32_t copyTo(uint32_t t, int rank) { return place(t - first_, rankThing(rank)); }
  RH_FN bool goesTo(uint32_t t, int rank) {
    const uint32_t at = t - first_;
    return (c_.epShared().masks[rankThing(rank) * words_ + at / 32] >> at % 32 & 1) != 0;
  }

 private:
  static constexpr uint32_t kInvalid = 0, kTwice = 1, kUnfit = 2, kNone = 3;

  // Experts, then ranks.
  RH_FN uint32_t things() const { return team_.physical + static_cast<uint32_t>(team_.worldSize); }
  RH_FN uint32_t rankThing(int rank) const { return team_.physical + static_cast<uint32_t>(rank); }

  RH_FN uint32_t unfit(uint32_t t) {
    const uint32_t* of = call_.flights[c_.epShared().flight].unfit;
    return of == nullptr ? 0 : c_.loadState(of + t);
  }
  RH_FN bool hasRanks(uint32_t t) {
    uint32_t ignored = kNone;
    RH_ROLLED
    for (uint32_t k = 0; k < team_.topk; k++) {
      if (checkedEntry(t, k, &ignored) != kNoExpert) return true;
    }
    return false;
  }
  // As epMapToken of ep_plan.h.
  RH_FN uint32_t checkedEntry(uint32_t t, uint32_t k, uint32_t* problem) {
    const uint64_t base = uint64_t{t} * team_.topk;
    const int64_t id = call_.routing.at(base + k);
    if (id < 0 || id >= static_cast<int64_t>(team_.logical)) {
      if (id != -1) *problem = kInvalid;
      return kNoExpert;
    }
    RH_ROLLED
    for (uint32_t j = 0; j < k; j++) {
      if (call_.routing.at(base + j) != id) continue;
      *problem = kTwice;
      return kNoExpert;
    }
    return epReplica(team_, static_cast<uint32_t>(id), t);
  }
  RH_FN void note(uint32_t problem, uint32_t first) {
    EpShared& s = c_.epShared();
    c_.sharedAdd(&s.problems[problem], 1);
    c_.sharedMin(&s.firsts[problem], first);
  }

  RH_FN uint32_t throughPass(uint32_t thing) {
    const EpShared& s = c_.epShared();
    uint32_t n = s.totals[thing];
    RH_ROLLED
    for (uint32_t w = 0; w < words_; w++) n += bitsSet(s.masks[thing * words_ + w]);
    return n;
  }
  RH_FN uint32_t place(uint32_t at, uint32_t thing) {
    const EpShared& s = c_.epShared();
    const uint32_t* mask = &s.masks[thing * words_];
    uint32_t n = s.totals[thing] + bitsSet(mask[at / 32] & ((1u << at % 32) - 1));
    RH_ROLLED
    for (uint32_t w = 0; w < at / 32; w++) n += bitsSet(mask[w]);
    return n;
  }

  C& c_;
  const EpDispatchCall& call_;
  const EpTeam& team_;
  uint32_t words_, first_ = 0;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_ROUTES_H_
