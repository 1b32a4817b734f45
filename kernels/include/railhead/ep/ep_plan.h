// What becomes of each entry of topk_idx: checked, sent to one of the expert's replicas, and given a place by a prefix sum over the
// tokens, so that the same input gives the same bytes on every run.
#ifndef RAILHEAD_KERNELS_EP_PLAN_H_
#define RAILHEAD_KERNELS_EP_PLAN_H_

#include "railhead/ep/ep.h"

namespace railhead {

// The caller's routing, [tokens, topk].
struct EpRouting {
  const void* idx;
  bool wide;             // int64, else int32
  const float* weights;  // nullptr: all 1
  uint32_t tokens;

  RH_FN int64_t at(uint64_t i) const {
    return wide ? static_cast<const int64_t*>(idx)[i] : int64_t{static_cast<const int32_t*>(idx)[i]};
  }
  RH_FN float weightAt(uint64_t i) const { return weights == nullptr ? 1.0f : weights[i]; }
};

// Of the replicas of an expert: the first on this rank, else one by turns, so that a busy expert's load is spread.
RH_FN uint16_t epReplica(const EpTeam& team, uint32_t expert, uint32_t token) {
  const uint16_t begin = team.replicaBegin[expert];
  const auto n = static_cast<uint32_t>(team.replicaBegin[expert + 1] - begin);
  for (uint32_t i = 0; i < n; i++) {
    if (team.expertRank[team.replicas[begin + i]] == team.rank) return team.replicas[begin + i];
  }
  return n == 0 ? kNoExpert : team.replicas[begin + (static_cast<uint32_t>(team.rank) + token) % n];
}

// Fills expert and weight of token t. An entry that is out of range, or an expert's second in a token, is none.
RH_FN void epMapToken(const EpTeam& team, const EpRouting& in, uint32_t t, EpPlan* p) {
  const uint64_t base = uint64_t{t} * team.topk;
  for (uint32_t k = 0; k < team.topk; k++) {
    const int64_t id = in.at(base + k);
    uint16_t physical = kNoExpert;
    if (id < -1 || id >= static_cast<int64_t>(team.logical)) {
      p->problems.invalidIds.note(t, k, id);
    } else if (id >= 0) {
      bool twice = false;
      for (uint32_t j = 0; j < k; j++) twice = twice || in.at(base + j) == id;
      if (twice) {
        p->problems.duplicateIds.note(t, k, id);
      } else {
        physical = epReplica(team, static_cast<uint32_t>(id), t);
      }
    }
    p->expert[base + k] = physical;
    p->weight[base + k] = in.weightAt(base + k);
  }
}

// A token that takes no part.
RH_FN void epDropToken(const EpTeam& team, uint32_t t, EpPlan* p) {
  for (uint32_t k = 0; k < team.topk; k++) p->expert[uint64_t{t} * team.topk + k] = kNoExpert;
}

// Ranks that token t has experts on.
RH_FN uint64_t epRanksOf(const EpTeam& team, const EpPlan& p, uint32_t t) {
  uint64_t mask = 0;
  for (uint32_t k = 0; k < team.topk; k++) {
    const uint16_t e = p.expert[uint64_t{t} * team.topk + k];
    if (e != kNoExpert) mask |= uint64_t{1} << team.expertRank[e];
  }
  return mask;
}

// Places of all copies to one rank. Ranks are independent of each other; tokens of a rank keep their order.
RH_FN void epPlaceCopiesTo(const EpTeam& team, int rank, EpPlan* p) {
  const uint64_t base = static_cast<uint64_t>(rank) * team.maxTokens;
  uint32_t n = 0;
  for (uint32_t t = 0; t < p->tokens; t++) {
    if ((p->ranks[t] >> rank & 1) == 0) continue;
    p->tokenOf[base + n] = t;
    p->copyOf[base + t] = n++;
  }
  p->copies[rank] = n;
}

// After every token was mapped: who gets what. Copies for masked ranks are lost.
RH_FN void epPlace(const EpTeam& team, EpPlan* p) {
  p->masked = team.state()->masked;
  p->maskedCopies = 0;
  for (uint32_t t = 0; t < p->tokens; t++) {
    const uint64_t ranks = epRanksOf(team, *p, t);
    p->ranks[t] = ranks & ~p->masked;
    p->maskedCopies += static_cast<uint64_t>(__builtin_popcountll(ranks & p->masked));
  }
  for (int r = 0; r < team.worldSize; r++) epPlaceCopiesTo(team, r, p);
}

// A plan of the flight's own, before tokens are mapped into it.
RH_FN void epNewPlan(const EpTeam& team, uint32_t tokens, EpPlan* p) {
  p->problems = {};
  p->excess = tokens > team.maxTokens ? tokens - team.maxTokens : 0;
  p->tokens = tokens - p->excess;
  if (p->excess == 0) return;
  p->problems.excessTokens.note(team.maxTokens, 0, tokens);
  p->problems.excessTokens.count = p->excess;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_EP_PLAN_H_
