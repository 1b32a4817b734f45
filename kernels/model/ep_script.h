// What ranks do in a run of dispatches and combines, and the expected results, computed without the protocol.
#ifndef RAILHEAD_KERNELS_MODEL_EP_SCRIPT_H_
#define RAILHEAD_KERNELS_MODEL_EP_SCRIPT_H_

#include <stdint.h>
#include <string.h>

#include <vector>

#include "model/memory.h"

namespace railhead::model {

constexpr uint32_t kEpRowWords = 2;

struct EpRow {
  uint32_t w[kEpRowWords];
};
inline bool operator==(const EpRow& a, const EpRow& b) { return a.w[0] == b.w[0] && a.w[1] == b.w[1]; }

enum class EpCall { kSend, kReceive, kCombineSend, kCombineReceive, kRelease };

struct EpStep {
  EpCall call;
  int dispatch;
};

struct EpDeath {
  int rank;
  int step;           // of its fiber
  bool marksLease;    // else the group's abort word names it
  bool leaves = false;  // with marksLease: it drops its lease, as a rank whose session was closed
};

struct EpScript {
  int worldSize = 2;
  bool countsFirst = false;  // ht
  uint32_t maxTokens = 1, topk = 1;
  uint32_t chunkTokens = 1;         // ht
  std::vector<uint8_t> expertRank;  // of each expert
  uint32_t start = 0;               // number of dispatches, and of chunks, before the first one
  std::vector<EpStep> steps;        // every rank's
  std::vector<std::vector<uint32_t>> tokens;  // [dispatch][rank]
  uint64_t seed = 0;                // of routes, weights and layouts
  bool dropsDead = false, renormalize = false;
  int leavesBefore = -1;            // the last rank stops before this step, and the abort word is set
  int ticks = 0;                    // deadline of waiting for a rank; 0 = none
  int limitTicks = 0;               // the same of all waits of a call together
  std::vector<EpDeath> deaths;
  int mayDie = -1;                  // a rank that may die before any of its steps
  bool aborts = false;              // the abort word is set at any time; no rank stops by itself
};

// The experts of a token in the order of topk_idx; -1 = none.
inline std::vector<int32_t> epRoute(const EpScript& s, int dispatch, int rank, uint32_t token) {
  const auto experts = static_cast<uint32_t>(s.expertRank.size());
  const uint64_t h = mix(mix(s.seed + static_cast<uint64_t>(dispatch), static_cast<uint64_t>(rank)), token);
  std::vector<int32_t> route(s.topk, -1);
  for (uint32_t k = 0; k < s.topk; k++) {
    // Consecutive experts, so that they differ.
    if (k < experts && mix(h, k) % 5 != 0) route[k] = static_cast<int32_t>((h / 7 + k) % experts);
  }
  if (h % 3 == 0 && s.topk > 1 && route[0] >= 0) {
    const int32_t first = route[0];
    route[0] = route[1];
    route[1] = first;
  }
  return route;
}
inline float epWeight(const EpScript& s, int dispatch, int rank, uint32_t token, uint32_t k) {
  const uint64_t which = mix(s.seed + static_cast<uint64_t>(dispatch) * 64 + k, static_cast<uint64_t>(rank));
  return static_cast<float>(1 + mix(which, token) % 7);
}
// A token's row; no word is 0, which is what a lost row has.
inline EpRow epToken(int dispatch, int rank, uint32_t token) {
  EpRow row;
  for (uint32_t w = 0; w < kEpRowWords; w++) {
    const uint64_t which = mix(static_cast<uint64_t>(dispatch) + 1, static_cast<uint64_t>(rank));
    row.w[w] = static_cast<uint32_t>(mix(which, token * kEpRowWords + w)) | 1;
  }
  return row;
}
// An expert's output.
inline EpRow epExpert(uint32_t expert, const EpRow& x) {
  return {{x.w[0] * 17 + expert + 1, x.w[1] * 17 + expert + 1}};
}
inline EpRow epTimes(const EpRow& a, float weight) {
  const auto n = static_cast<uint32_t>(weight);
  return {{a.w[0] * n, a.w[1] * n}};
}
// Neither commutative nor associative.
inline void epAdd(EpRow* sum, const EpRow& term, bool first) {
  for (uint32_t w = 0; w < kEpRowWords; w++) sum->w[w] = first ? term.w[w] : sum->w[w] * 31 + term.w[w];
}
// Any factor changes any sum, 0 included. So a factor that is infinite or no number shows too.
inline void epScale(EpRow* sum, float factor) {
  uint32_t bits;
  memcpy(&bits, &factor, sizeof bits);
  for (uint32_t& w : sum->w) w = w * 41 + bits;
}

// Whether rank `to` gets a copy of the token: it has at least one of its experts.
inline bool epGoesTo(const EpScript& s, int dispatch, int from, uint32_t token, int to) {
  for (const int32_t e : epRoute(s, dispatch, from, token)) {
    if (e >= 0 && s.expertRank[static_cast<size_t>(e)] == to) return true;
  }
  return false;
}
inline std::vector<uint32_t> epCopies(const EpScript& s, int dispatch, int from, int to) {
  std::vector<uint32_t> tokens;
  for (uint32_t t = 0; t < s.tokens[static_cast<size_t>(dispatch)][static_cast<size_t>(from)]; t++) {
    if (epGoesTo(s, dispatch, from, t, to)) tokens.push_back(t);
  }
  return tokens;
}

// The result of a token if the ranks in `lost` have contributed nothing.
inline EpRow epResult(const EpScript& s, int dispatch, int rank, uint32_t token, uint64_t lost) {
  const std::vector<int32_t> route = epRoute(s, dispatch, rank, token);
  const EpRow x = epToken(dispatch, rank, token);
  EpRow total = {};
  bool firstRank = true;
  float all = 0, kept = 0;
  for (int r = 0; r < s.worldSize; r++) {
    EpRow partial = {};
    bool first = true;
    for (uint32_t k = 0; k < s.topk; k++) {
      if (route[k] < 0 || s.expertRank[static_cast<size_t>(route[k])] != r) continue;
      const float weight = epWeight(s, dispatch, rank, token, k);
      all += weight;
      if ((lost >> r & 1) != 0) continue;
      kept += weight;
      epAdd(&partial, epTimes(epExpert(static_cast<uint32_t>(route[k]), x), weight), first);
      first = false;
    }
    if (first) continue;
    epAdd(&total, partial, firstRank);
    firstRank = false;
  }
  if (s.renormalize && kept != all && kept != 0) epScale(&total, all / kept);
  return total;
}

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_EP_SCRIPT_H_
