// Which ranks and experts this rank's tokens go to, and the place of each token among those of a rank or an expert: the number of earlier tokens
// that go there. Every block computes all of it from topk_idx, so blocks need not wait for each other. Places come from bit masks: bit t of an
// expert's mask is token t of the pass. They are the same in every run, since setting bits has no order. A pass has as many tokens as the masks of
// all experts and ranks have bits for.
//
// With the plan of a cached routing all of that has been done: a dispatch has one pass, and makes no masks. Only if a token is unfit for FP8, which depends
// on x, everything is computed again from the plan's copy of topk_idx.
#ifndef RAILHEAD_KERNELS_GPU_EP_ROUTES_H_
#define RAILHEAD_KERNELS_GPU_EP_ROUTES_H_

#include "railhead/ep/ep_plan.h"
#include "railhead/gpu/ep_slots.h"

namespace railhead::gpu {

template <class C>
class EpRoutes {
 public:
  // plans: uses the call's plan, if it has one.
  RH_FN EpRoutes(C& c, const EpDispatchCall& call, bool plans) : c_(c), call_(call), team_(call.team), isPlanned_(C::kPlans && plans && call.plan.idx != nullptr) {
    const uint32_t most = kEpMaskWords / things(), enough = (tokens() + 31) / 32;
    words_ = enough < 1 ? 1 : enough < most ? enough : most;
  }

  // Tokens that take part, unless their routing is invalid.
  RH_FN uint32_t tokens() const { return call_.routing.tokens < team_.maxTokens ? call_.routing.tokens : team_.maxTokens; }
  RH_FN uint32_t excess() const { return call_.routing.tokens - tokens(); }

  // What an entry needs of memory.
  struct Input {
    int64_t expert;
    uint32_t firstUnfit, secondUnfit;  // of the token, in each flight
  };
  // Of a logical and a physical expert.
  struct Place {
    uint16_t home, local;
    uint8_t rank;
  };
  // Those whose numbers are the thread's.
  struct Early {
    Place place;
    Input input;
    uint32_t planned;  // word of EpCachedPlan::totals
  };
  RH_FN Early loadEarly() {
    const uint32_t i = c_.threadInBlock(), n = tokens() < passTokens() ? tokens() : passTokens();
    if (isPlanned()) return {loadPlace(i), {}, i < plannedWords() ? call_.plan.totals[i] : 0};
    return {loadPlace(i), i < n * team_.topk ? loadInput(i) : Input{}, 0};
  }
  // What can be done before the call is decided. Barriers before and behind.
  RH_FN void prepare(const Early& early) {
    early_ = early.input;
    hasEarly_ = !isPlanned();
    storePlace(c_.threadInBlock(), early.place);
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock() + c_.dataThreadsInBlock(); i < team_.physical || i < team_.logical; i += c_.dataThreadsInBlock()) {
      storePlace(i, loadPlace(i));
    }
    if (isPlanned()) return prepareFromPlan(early.planned);
    clear();
  }

  // Makes the masks of the first pass, and counts invalid input of all tokens. A barrier follows; behind that computeInstead() if lacks().
  RH_FN void markFirst() {
    if (isPlanned()) return lookForUnfit();
    mark(0, true);
    RH_ROLLED
    for (uint32_t i = passTokens() * team_.topk + c_.threadInBlock(); i < tokens() * team_.topk; i += c_.dataThreadsInBlock()) {
      const uint32_t t = i / team_.topk;
      look(t, i - t * team_.topk);
    }
  }
  // Whether the plan does not serve: a token is unfit.
  RH_FN bool lacks() const { return isPlanned() && c_.epShared().problems[kUnfit] != 0; }
  // As without a plan, up to markFirst(). Barriers before and behind.
  RH_FN void computeInstead() {
    isPlanned_ = false;
    computeAll(c_, call_, c_.way());
  }
  // The pass of the tokens from `first` on. Barriers before and behind.
  RH_FN void nextPass(uint32_t first) {
    first_ = first;
    clearMasks();
    c_.dataAll(true);
    mark(first, false);
    c_.dataAll(true);
  }
  // Barriers before and behind.
  RH_FN void endPass() {
    if (isPlanned()) return;
    EpShared& s = c_.epShared();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < things(); i += c_.dataThreadsInBlock()) s.totals[i] = throughPass(i);
  }

  // After markFirst() and a barrier.
  RH_FN bool areThereProblems() {
    const EpShared& s = c_.epShared();
    return excess() != 0 || (s.problems[kInvalid] | s.problems[kTwice] | s.problems[kUnfit]) != 0;
  }
  // By one thread.
  RH_FN void storeProblems(EpProblems* to) {
    *to = {};
    if (areThereProblems()) describe(c_, call_, to);
  }

  // Tokens of a pass that masks are made for.
  RH_FN uint32_t passTokens() const { return 32 * words_; }
  // Behind the last token of the pass that begins with `first`.
  RH_FN uint32_t endOfPass(uint32_t first) const { return isPlanned() || tokens() - first < passTokens() ? tokens() : first + passTokens(); }
  // Whether all tokens are in one pass.
  RH_FN bool isOnlyPass() const { return isPlanned() || tokens() <= passTokens(); }
  RH_FN bool isPlanned() const { return C::kPlans && isPlanned_; }
  // After computeInstead().
  RH_FN bool isComputedInstead() const { return C::kPlans && !isPlanned_ && call_.plan.idx != nullptr; }
  // Of tokens up to the end of this pass.
  RH_FN uint32_t tokensOf(uint32_t physical) { return throughPass(physical); }
  RH_FN uint32_t copiesTo(int rank) { return throughPass(rankThing(rank)); }
  RH_FN int64_t id(uint32_t t, uint32_t k) const { return call_.routing.at(uint64_t{t} * team_.topk + k); }
  // What entry() needs of memory: with a plan the entry itself, else the expert.
  RH_FN int64_t wanted(uint64_t at) const { return isPlanned() ? static_cast<int64_t>(call_.plan.entries[at]) : call_.routing.at(at); }
  // The entry of a token of this pass that asks for this expert.
  RH_FN uint64_t entry(uint32_t t, uint32_t k, int64_t expert) {
    if (isPlanned()) return static_cast<uint64_t>(expert);
    const uint32_t* problems = c_.epShared().problems;
    if (!isExpert(expert) || (problems[kUnfit] != 0 && unfit(t) != 0)) return EpEntry::kNone;
    if (problems[kTwice] != 0 && isRepeated(t, k, expert)) return EpEntry::kNone;
    const uint32_t e = homeOf(static_cast<uint32_t>(expert), t);
    if (e == kNoExpert) return EpEntry::kNone;
    const EpShared& s = c_.epShared();
    return EpEntry::of(e, s.expertRank[e], s.expertLocal[e], place(t - first_, e));
  }
  RH_FN uint32_t copyTo(uint32_t t, int rank) {
    return isPlanned() ? call_.plan.copyOf[static_cast<uint32_t>(rank) * uint64_t{tokens()} + t] : place(t - first_, rankThing(rank));
  }
  RH_FN bool goesTo(uint32_t t, int rank) {
    if (isPlanned()) return (call_.plan.ranks[t] >> rank & 1) != 0;
    const uint32_t at = t - first_;
    return (c_.epShared().masks[rankThing(rank) * words_ + at / 32] >> at % 32 & 1) != 0;
  }

 private:
  static constexpr uint32_t kInvalid = 0, kTwice = 1, kUnfit = 2;

  // Experts, then ranks.
  RH_FN uint32_t things() const { return team_.physical + static_cast<uint32_t>(team_.worldSize); }
  RH_FN uint32_t rankThing(int rank) const { return team_.physical + static_cast<uint32_t>(rank); }

  // Of the entry whose number is i. The flight is not known yet.
  RH_FN Input loadInput(uint32_t i) {
    const uint32_t t = i / team_.topk;
    const uint32_t *first = call_.flights[0].unfit, *second = call_.flights[1].unfit;
    return {call_.routing.at(i), first == nullptr ? 0 : c_.loadState(first + t), second == nullptr ? 0 : c_.loadState(second + t)};
  }
  RH_FN Place loadPlace(uint32_t i) const {
    return {i < team_.logical ? call_.home[i] : kNoExpert, i < team_.physical ? team_.expertLocal[i] : uint16_t{0},
            i < team_.physical ? team_.expertRank[i] : uint8_t{0}};
  }
  RH_FN void storePlace(uint32_t i, const Place& p) {
    if (i >= kEpMaxExperts) return;
    EpShared& s = c_.epShared();
    s.home[i] = p.home;
    s.expertRank[i] = p.rank;
    s.expertLocal[i] = p.local;
  }
  RH_FN bool isExpert(int64_t expert) const { return expert >= 0 && expert < static_cast<int64_t>(team_.logical); }
  RH_FN uint32_t unfit(uint32_t t) { return unfitOf(c_, call_, t); }
  RH_FN uint32_t homeOf(uint32_t logical, uint32_t t) { return homeOf(c_, team_, logical, t); }
  RH_FN bool isRepeated(uint32_t t, uint32_t k, int64_t expert) const { return countBefore(call_, t, k, expert) != 0; }

  RH_FN void clear() {
    EpShared& s = c_.epShared();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < things(); i += c_.dataThreadsInBlock()) s.totals[i] = 0;
    clearMasks();
    if (c_.threadInBlock() != 0) return;
    RH_ROLLED
    for (int i = 0; i < 3; i++) {
      s.problems[i] = 0;
      s.firsts[i] = ~0u;
    }
  }

  // ---- A plan ----

  RH_FN uint32_t plannedWords() const { return things() + 4; }
  // early: the word whose number is the thread's.
  RH_FN void prepareFromPlan(uint32_t early) {
    EpShared& s = c_.epShared();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < plannedWords(); i += c_.dataThreadsInBlock()) {
      const uint32_t word = i == c_.threadInBlock() ? early : call_.plan.totals[i], at = i - things();
      (i < things() ? s.totals[i] : at < 2 ? s.problems[at] : s.firsts[at - 2]) = word;
    }
    if (c_.threadInBlock() != 0) return;
    s.problems[kUnfit] = 0;
    s.firsts[kUnfit] = ~0u;
  }
  RH_FN void lookForUnfit() {
    if (call_.flights[0].unfit == nullptr) return;
    RH_ROLLED
    for (uint32_t t = c_.threadInBlock(); t < tokens(); t += c_.dataThreadsInBlock()) {
      if (unfit(t) != 0) c_.sharedOr(&c_.epShared().problems[kUnfit], 1);
    }
  }
  RH_COLD static void computeAll(typename C::TargetType target, const EpDispatchCall& call, Way way) {
    C c(target, call.call, way);
    EpRoutes routes(c, call, false);
    c.dataAll(true);  // all have seen that the plan lacks something
    routes.clear();
    c.dataAll(true);
    routes.markFirst();
    c.dataAll(true);
  }

  RH_FN void clearMasks() {
    EpShared& s = c_.epShared();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < things() * words_; i += c_.dataThreadsInBlock()) s.masks[i] = 0;
  }
  RH_FN void mark(uint32_t first, bool notes) {
    const uint32_t n = tokens() - first < passTokens() ? tokens() - first : passTokens();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n * team_.topk; i += c_.dataThreadsInBlock()) {
      const uint32_t at = i / team_.topk, k = i - at * team_.topk;
      const bool isEarly = hasEarly_ && first == 0 && i == c_.threadInBlock();
      const uint32_t unfitness = !isEarly ? unfit(first + at) : c_.epShared().flight == 0 ? early_.firstUnfit : early_.secondUnfit;
      markEntry(isEarly ? early_.expert : id(first + at, k), unfitness != 0, first + at, k, at, notes);
    }
  }
  RH_FN void markEntry(int64_t expert, bool isUnfit, uint32_t t, uint32_t k, uint32_t at, bool notes) {
    const uint32_t e = isExpert(expert) && !isUnfit ? homeOf(static_cast<uint32_t>(expert), t) : kNoExpert;
    if (e == kNoExpert) {
      if (notes) look(t, k);
      return;
    }
    EpShared& s = c_.epShared();
    const uint32_t bit = 1u << at % 32;
    // An entry finds its bit set if another entry of the token is the same: then one of them is one too many.
    if ((c_.sharedOr(&s.masks[e * words_ + at / 32], bit) & bit) == 0) {
      c_.sharedOr(&s.masks[rankThing(s.expertRank[e]) * words_ + at / 32], bit);
    } else if (notes) {
      noteSecond(c_, call_, t, expert);
    }
  }
  RH_FN void look(uint32_t t, uint32_t k) { look(c_, call_, t, k); }

  // ---- Invalid input: out of line ----

  using Target = typename C::TargetType;

  RH_COLD static uint32_t inTurn(const EpTeam& team, uint32_t logical, uint32_t t) { return epReplica(team, logical, t); }
  // As epReplica.
  RH_FN static uint32_t homeOf(Target& target, const EpTeam& team, uint32_t logical, uint32_t t) {
    const uint32_t e = target.epShared().home[logical];
    return e == kEpInTurn ? inTurn(team, logical, t) : e;
  }
  // How many of the token's first k entries are this expert.
  RH_COLD static uint32_t countBefore(const EpDispatchCall& call, uint32_t t, uint32_t k, int64_t expert) {
    uint32_t n = 0;
    RH_ROLLED
    for (uint32_t j = 0; j < k; j++) n += call.routing.at(uint64_t{t} * call.team.topk + j) == expert;
    return n;
  }
  RH_FN static void note(Target& target, uint32_t problem, uint32_t first) {
    EpShared& s = target.epShared();
    target.sharedAdd(&s.problems[problem], 1);
    target.sharedMin(&s.firsts[problem], first);
  }
  // Where the token asks for this expert for the second time.
  RH_COLD static void noteSecond(Target target, const EpDispatchCall& call, uint32_t t, int64_t expert) {
    uint32_t n = 0;
    RH_ROLLED
    for (uint32_t k = 0; k < call.team.topk; k++) {
      if (call.routing.at(uint64_t{t} * call.team.topk + k) != expert || ++n != 2) continue;
      note(target, kTwice, t * kEpMaxTopk + k);
    }
  }
  // Counts what is wrong with an entry, as epMapToken of ep_plan.h; with a token's first one, whether the token is unfit.
  RH_COLD static void look(Target target, const EpDispatchCall& call, uint32_t t, uint32_t k) {
    const EpTeam& team = call.team;
    const int64_t expert = call.routing.at(uint64_t{t} * team.topk + k), logical = team.logical;
    if (expert < 0 || expert >= logical) {
      if (expert != -1) note(target, kInvalid, t * kEpMaxTopk + k);
    } else if (countBefore(call, t, k, expert) != 0) {
      note(target, kTwice, t * kEpMaxTopk + k);
    }
    if (k != 0 || unfitOf(target, call, t) == 0) return;
    bool hasRanks = false;
    RH_ROLLED
    for (uint32_t j = 0; j < team.topk; j++) {
      const int64_t other = call.routing.at(uint64_t{t} * team.topk + j);
      hasRanks |= other >= 0 && other < logical && homeOf(target, team, static_cast<uint32_t>(other), t) != kNoExpert;
    }
    if (hasRanks) note(target, kUnfit, t);
  }
  RH_FN static uint32_t unfitOf(Target& target, const EpDispatchCall& call, uint32_t t) {
    const uint32_t* of = call.flights[target.epShared().flight].unfit;
    return of == nullptr ? 0 : target.loadState(of + t);
  }
  RH_COLD static void describe(Target target, const EpDispatchCall& call, EpProblems* to) {
    const EpShared& s = target.epShared();
    EpProblem* const kinds[] = {&to->invalidIds, &to->duplicateIds};
    RH_ROLLED
    for (int i = 0; i < 2; i++) {
      if (s.problems[i] == 0) continue;
      const uint32_t t = s.firsts[i] / kEpMaxTopk, k = s.firsts[i] % kEpMaxTopk;
      *kinds[i] = {s.problems[i], t, k, call.routing.at(uint64_t{t} * call.team.topk + k)};
    }
    if (s.problems[kUnfit] != 0) {
      const uint32_t u = unfitOf(target, call, s.firsts[kUnfit]);
      to->nonFinite = {s.problems[kUnfit], s.firsts[kUnfit], EpUnfit::element(u), static_cast<int64_t>(EpUnfit::what(u))};
    }
    const uint32_t most = call.team.maxTokens;
    if (call.routing.tokens > most) to->excessTokens = {call.routing.tokens - most, most, 0, static_cast<int64_t>(call.routing.tokens)};
  }

  // Tokens of the passes before. In the first pass the totals are not read, so that they may change at its end before all have computed places.
  RH_FN uint32_t totalBefore(uint32_t thing) const { return first_ == 0 ? 0 : c_.epShared().totals[thing]; }
  RH_FN uint32_t throughPass(uint32_t thing) {
    const EpShared& s = c_.epShared();
    if (isPlanned()) return s.totals[thing];
    uint32_t n = totalBefore(thing);
    RH_ROLLED
    for (uint32_t w = 0; w < words_; w++) n += bitsSet(s.masks[thing * words_ + w]);
    return n;
  }
  RH_FN uint32_t place(uint32_t at, uint32_t thing) {
    const EpShared& s = c_.epShared();
    const uint32_t* mask = &s.masks[thing * words_];
    uint32_t n = totalBefore(thing) + bitsSet(mask[at / 32] & ((1u << at % 32) - 1));
    RH_ROLLED
    for (uint32_t w = 0; w < at / 32; w++) n += bitsSet(mask[w]);
    return n;
  }

  C& c_;
  const EpDispatchCall& call_;
  const EpTeam& team_;
  bool isPlanned_, hasEarly_ = false;
  uint32_t words_, first_ = 0;
  Input early_ = {};  // of the entry whose number is the thread's
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_ROUTES_H_
