// Makes a plan from topk_idx: each entry is checked, mapped to one of its expert's replicas, and given a place by a prefix sum over the
// tokens, so that the same input gives the same bytes in every run.
#ifndef RAILHEAD_KERNELS_EP_PLAN_H_
#define RAILHEAD_KERNELS_EP_PLAN_H_

#include "railhead/ep/ep.h"

namespace railhead {

// The caller's routing, [tokens, topk].
struct EpRouting {
  const void* idx;
  bool wide;             // int64, else int32
  const float* weights;  // nullptr: all weights are 1
  uint32_t tokens;

  RH_FN int64_t at(uint64_t i) const {
    return wide ? static_cast<const int64_t*>(idx)[i] : int64_t{static_cast<const int32_t*>(idx)[i]};
  }
  RH_FN float weightAt(uint64_t i) const { return weights == nullptr ? 1.0f : weights[i]; }
};

// The replica of an expert that a token goes to: the first one on this rank, else one in turn, which spreads the load.
RH_FN uint16_t epReplica(const EpTeam& team, uint32_t expert, uint32_t token) {
  const uint16_t begin = team.replicaBegin[expert];
  const auto n = static_cast<uint32_t>(team.replicaBegin[expert + 1] - begin);
  for (uint32_t i = 0; i < n; i++) {
    if (team.expertRank[team.replicas[begin + i]] == team.rank) return team.replicas[begin + i];
  }
  return n == 0 ? kNoExpert : team.replicas[begin + (static_cast<uint32_t>(team.rank) + token) % n];
}

// Fills in expert and weight of token t. An entry is kNoExpert if it is out of range or repeats an expert of the token.
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

// Makes token t take no part.
RH_FN void epDropToken(const EpTeam& team, uint32_t t, EpPlan* p) {
  for (uint32_t k = 0; k < team.topk; k++) p->expert[uint64_t{t} * team.topk + k] = kNoExpert;
}

// Mask of the ranks that have experts of token t.
RH_FN uint64_t epRanksOf(const EpTeam& team, const EpPlan& p, uint32_t t) {
  uint64_t mask = 0;
  for (uint32_t k = 0; k < team.topk; k++) {
    const uint16_t e = p.expert[uint64_t{t} * team.topk + k];
    if (e != kNoExpert) mask |= uint64_t{1} << team.expertRank[e];
  }
  return mask;
}

// Indices of all copies to one rank, in the order of tokens. Ranks are independent of each other.
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

// After all tokens were mapped: finds the copies to each rank. Copies to masked ranks are lost.
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

// Starts a plan: tokens are mapped into it next.
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
