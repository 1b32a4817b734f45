// Scripts of dispatches and combines.
#ifndef RAILHEAD_KERNELS_MODEL_EP_SCENARIOS_H_
#define RAILHEAD_KERNELS_MODEL_EP_SCENARIOS_H_

#include "model/choices.h"
#include "model/ep_run.h"

namespace railhead::model {

inline EpScript anyEpRanks(Random& random, bool countsFirst) {
  EpScript s;
  s.worldSize = random.oneIn(2) ? 2 : 3 + random.below(2);
  s.countsFirst = countsFirst;
  s.maxTokens = static_cast<uint32_t>(1 + random.below(countsFirst ? 8 : 4));
  s.topk = static_cast<uint32_t>(1 + random.below(3));
  s.chunkTokens = static_cast<uint32_t>(1 + random.below(2));
  for (int n = 1 + random.below(2 * s.worldSize); n > 0; n--) {
    s.expertRank.push_back(static_cast<uint8_t>(random.below(s.worldSize)));
  }
  // Dispatches are numbered with 32 bits.
  s.start = random.oneIn(4) ? 0xfffffff8u + static_cast<uint32_t>(random.below(8)) : static_cast<uint32_t>(random.below(16));
  s.seed = random.next();
  s.renormalize = random.oneIn(2);
  return s;
}
inline void addEpStep(EpScript* s, EpCall call, int dispatch) { s->steps.push_back({call, dispatch}); }
inline void addEpDispatch(Random& random, EpScript* s) {
  std::vector<uint32_t> tokens;
  for (int r = 0; r < s->worldSize; r++) {
    tokens.push_back(random.oneIn(3) ? s->maxTokens : static_cast<uint32_t>(random.below(static_cast<int>(s->maxTokens) + 1)));
  }
  addEpStep(s, EpCall::kSend, static_cast<int>(s->tokens.size()));
  s->tokens.push_back(tokens);
}

// Any order of calls that the interface allows: at most two dispatches in flight, which are received, combined and ended in order.
inline EpScript epCalls(Random& random, EpScript s, int dispatches, bool inFlight) {
  struct Flight {
    int dispatch;
    EpCall last;
  };
  std::vector<Flight> open;
  while (static_cast<int>(s.tokens.size()) < dispatches || !open.empty()) {
    const bool maySend = static_cast<int>(s.tokens.size()) < dispatches && open.size() < (inFlight ? kEpInFlight : 1);
    if (maySend && (open.empty() || !random.oneIn(3))) {
      open.push_back({static_cast<int>(s.tokens.size()), EpCall::kSend});
      addEpDispatch(random, &s);
      continue;
    }
    // Advances the earlier flight, or the later one if it is behind.
    const bool mayLater = open.size() == 2 && open[1].last < open[0].last && open[1].last < EpCall::kCombineSend;
    Flight& f = open[mayLater && random.oneIn(2) ? 1 : 0];
    const bool released = f.last == EpCall::kReceive && &f == &open[0] && random.oneIn(5);
    f.last = released ? EpCall::kRelease : static_cast<EpCall>(static_cast<int>(f.last) + 1);
    addEpStep(&s, f.last, f.dispatch);
    if (f.last >= EpCall::kCombineReceive) open.erase(open.begin());
  }
  return s;
}

inline EpScript epLowLatency(Random& random) { return epCalls(random, anyEpRanks(random, false), 2 + random.below(3), false); }
inline EpScript epBulk(Random& random) { return epCalls(random, anyEpRanks(random, true), 1 + random.below(3), false); }
inline EpScript epInFlight(Random& random) {
  const bool countsFirst = random.oneIn(2);
  return epCalls(random, anyEpRanks(random, countsFirst), 3 + random.below(3), true);
}
inline EpScript anyEpCalls(Random& random) {
  const bool countsFirst = random.oneIn(2);
  return epCalls(random, anyEpRanks(random, countsFirst), 1 + random.below(3), random.oneIn(2));
}
inline EpScript epAbort(Random& random) {
  EpScript s = anyEpCalls(random);
  s.dropsDead = random.oneIn(3);
  s.leavesBefore = random.below(static_cast<int>(s.steps.size()));
  return s;
}
inline EpScript epDeath(Random& random) {
  EpScript s = anyEpCalls(random);
  s.dropsDead = true;
  const int first = random.below(s.worldSize), deaths = s.worldSize > 2 && random.oneIn(4) ? 2 : 1;
  for (int i = 0; i < deaths; i++) {
    // The abort word names the first death only, so later ones are marked in leases.
    s.deaths.push_back({(first + i) % s.worldSize, 1 + random.below(40 << random.below(5)), i > 0 || random.oneIn(2), random.oneIn(3)});
  }
  return s;
}
// One token, to an expert of the other rank.
inline EpScript smallEp(bool countsFirst, bool combined) {
  EpScript s;
  s.countsFirst = countsFirst;
  s.expertRank = {1};
  s.tokens = {{1, 0}};
  addEpStep(&s, EpCall::kSend, 0);
  addEpStep(&s, EpCall::kReceive, 0);
  if (combined) {
    addEpStep(&s, EpCall::kCombineSend, 0);
    addEpStep(&s, EpCall::kCombineReceive, 0);
  }
  return s;
}
// Any calls, or few, so that a rank often starts when the other one has given it up already.
inline EpScript epLate(Random& random) {
  EpScript s = random.oneIn(2) ? smallEp(random.oneIn(2), random.oneIn(2)) : anyEpCalls(random);
  s.dropsDead = true;
  s.ticks = 1 + random.below(3);
  if (random.oneIn(2)) s.limitTicks = s.ticks + random.below(3);
  return s;
}
inline EpScript smallAbortedEp() {
  EpScript s = smallEp(false, false);
  s.aborts = true;
  return s;
}
inline EpScript smallDyingEp(int rank, bool countsFirst, bool combined) {
  EpScript s = smallEp(countsFirst, combined);
  s.dropsDead = true;
  s.mayDie = rank;
  return s;
}

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_EP_SCENARIOS_H_
