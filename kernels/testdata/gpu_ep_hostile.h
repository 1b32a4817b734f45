// A rank among others that have filled its buffer with anything (gpu_ep_faults.cc).
#ifndef RAILHEAD_KERNELS_TESTDATA_GPU_EP_HOSTILE_H_
#define RAILHEAD_KERNELS_TESTDATA_GPU_EP_HOSTILE_H_

#include "gpu_ep_calls.h"

namespace {

// What another rank may have written: half of the words are plausible.
void fillBuffer(Dice& dice, const EpTeam& t) {
  char* own = t.base(t.rank);
  for (uint64_t at = t.layout.links; at < t.layout.combine; at += 4) {
    const uint32_t w = static_cast<uint32_t>(dice.random()) >> dice.below(32);
    memcpy(own + at, &w, 4);
  }
  for (int s = 0; s < t.worldSize; s++) {
    if (s == t.rank) continue;
    t.line(t.rank, s).head.value = 0;
    for (uint32_t number = 0; number < 2; number++) {
      uint32_t* counts = t.counts(t.rank, s, number);
      for (uint32_t e = 0; e <= t.localExperts[t.rank]; e++) {
        counts[e] = EpCountWord::of(dice.below(4) == 0 ? static_cast<uint32_t>(dice.random()) >> 1 : dice.below(kTokens + 3), 1);
      }
    }
    for (uint32_t slot = 0; slot < t.layout.slots; slot++) {
      for (uint32_t i = 0; i < t.layout.chunkTokens; i++) {
        auto* header = reinterpret_cast<uint32_t*>(t.header(t.slot(t.rank, s, slot), i));
        *header |= EpFirstWord::kHere;
        if (dice.below(2) == 0) *header = EpFirstWord::of(dice.below(kTokens), dice.below(4));
        for (uint32_t k = 0; epHeaderBytes(k + 1) <= t.layout.headerStride; k++) {
          const uint64_t word = EpExpertWord::of(dice.below(t.localExperts[t.rank] + 1), dice.below(kTokens + 3), 0);
          if (dice.below(2) == 0) memcpy(t.header(t.slot(t.rank, s, slot), i) + 1 + k, &word, sizeof word);
        }
        // The credit beside it (gpu/ep_rings.h): of the first turns, or anything.
        if (t.countsFirst && dice.below(8) != 0) header[1] = dice.below(3) | dice.below(3) << 16;
      }
    }
  }
  for (uint64_t at = t.layout.combine; at < t.layout.bytes; at += 8) {
    const uint64_t w = dice.random();
    memcpy(own + at, &w, 8);
  }
}

// Rows of the rank's own tokens: one for each of its experts that a token has, or one for each token that has any.
uint32_t ownRows(const Calls& calls, EpRowLayout layout) {
  const EpTeam& t = calls.dispatch.team;
  uint32_t rows = 0;
  for (uint32_t token = 0; token < kTokens; token++) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < kTopk; k++) {
      const int32_t* experts = calls.idx.data() + token * kTopk;
      n += t.expertRank[experts[k]] == t.rank && (k == 0 || experts[k] != experts[0]);
    }
    rows += layout == EpRowLayout::kTokens && n != 0 ? 1 : n;
  }
  return rows;
}

bool hostile(uint64_t seed) {
  Dice dice{std::mt19937_64(seed)};
  constexpr int kWorld = 3, kRank = 1;
  EpPlacement p = placement(kWorld, 1 + dice.below(9));
  p.countsFirst = dice.below(2) == 0;
  if (p.countsFirst) p.chunkTokens = 1;  // fewer positions than copies, so that credits count
  EpGpuRanks ranks(p, 0);
  Calls calls(ranks, kRank, p.logical, 20 * kMs);
  const EpTeam& t = calls.dispatch.team;
  fillBuffer(dice, t);
  const uint32_t local = t.localExperts[kRank];
  const auto layout = static_cast<EpRowLayout>(dice.below(3));
  // Room for what the clamped counts may ask for, or less.
  const uint64_t most = layout == EpRowLayout::kTokens ? kWorld * kTokens : uint64_t{kWorld} * kTokens * (local + 1);
  const uint64_t capacity = layout == EpRowLayout::kPadded ? 1 + dice.below(kWorld * kTokens) : dice.below(3) == 0 ? dice.below(20) : most;
  calls.room(layout, capacity, layout == EpRowLayout::kPadded ? capacity * local : capacity);
  onRanks(1, [&](int) { ranks.dispatch(&calls.dispatch, kGrid); });
  ranks.checkGuards();
  const Status& s = ranks.group().status[kRank];
  if (s.stop != 0 || calls.cell[0].dispatched.error != EpError::kNone) return false;
  uint32_t own = 0;
  for (size_t row = 0; row < calls.sourceRank.size() && layout != EpRowLayout::kPadded; row++) {
    if (row >= calls.cell[0].dispatched.rows || calls.sourceRank[row] != kRank) continue;
    own++;
    for (uint32_t i = 0; i < kHidden; i++) CHECK(calls.rows[row * kHidden + i] == 2);
  }
  CHECK(layout == EpRowLayout::kPadded || own == ownRows(calls, layout));
  onRanks(1, [&](int) { ranks.combine(&calls.combine, kGrid); });
  ranks.checkGuards();
  return s.stop == 0 && calls.cell[0].combined.error == EpError::kNone;
}

}  // namespace

#endif  // RAILHEAD_KERNELS_TESTDATA_GPU_EP_HOSTILE_H_
