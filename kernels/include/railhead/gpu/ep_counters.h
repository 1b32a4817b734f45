// What the kernels of dispatch and combine count of a buffer, if the team has counters: words of the rank's own memory, of which no thread waits for
// one. The host adds them to the rank's counters (segment.h). Waits are counted by epCountWait (ep_waits.h).
#ifndef RAILHEAD_KERNELS_GPU_EP_COUNTERS_H_
#define RAILHEAD_KERNELS_GPU_EP_COUNTERS_H_

#include "railhead/gpu/ep_slots.h"

namespace railhead::gpu {

template <class C>
class EpCounting {
 public:
  RH_FN EpCounting(C& c, const EpTeam& team) : c_(c), team_(team), to_(team.counters) {}

  // A dispatch that was sent. By the data threads of one block, whose totals are those of all tokens.
  RH_FN void sent(uint32_t tokens, uint32_t excess) {
    if (to_ == nullptr) return;
    const uint32_t* totals = c_.epShared().totals;
    RH_ROLLED
    for (uint32_t p = c_.threadInBlock(); p < team_.physical; p += c_.dataThreadsInBlock()) {
      const int r = c_.epShared().expertRank[p];
      if (totals[p] == 0 || isMasked(r)) continue;
      add(&to_->routed[p], totals[p]);
      if (r != team_.rank) add(&to_->headerBytes[r], uint64_t{8} * totals[p]);
    }
    RH_ROLLED
    for (int r = static_cast<int>(c_.threadInBlock()); r < team_.worldSize; r += static_cast<int>(c_.dataThreadsInBlock())) {
      if (isMasked(r)) continue;
      const uint32_t n = totals[team_.physical + static_cast<uint32_t>(r)];
      add(&to_->copies, n);
      if (r == team_.rank) continue;
      add(&to_->headerBytes[r], uint64_t{8} * n);
      add(&to_->payloadBytes[r], uint64_t{n} * team_.rowBytes);
      add(&to_->flagBytes, 4 * (1 + uint64_t{team_.localExperts[r]}));
    }
    if (c_.threadInBlock() != 0) return;
    add(&to_->tokens, tokens);
    const uint32_t* problems = c_.epShared().problems;
    add(&to_->invalidIds, problems[0]);
    add(&to_->duplicateIds, problems[1]);
    add(&to_->nonFinite, problems[2]);
    add(&to_->excessTokens, excess);
  }
  // Rows of a local expert, which its thread alone counts.
  RH_FN void rows(uint32_t local, uint64_t n) {
    if (to_ != nullptr) add(&to_->received[team_.ownExperts[local]], n);
  }
  // Rows without room that the counts tell.
  RH_FN void overCapacity(uint64_t n) {
    if (to_ != nullptr) add(&to_->overCapacity, n);
  }
  // By control: a dispatch that was received, and of one that may lose ranks, rows without room.
  RH_FN void received(uint32_t dropped) {
    if (to_ == nullptr) return;
    add(&to_->dispatches, 1);
    add(&to_->overCapacity, dropped);
    add(&to_->flagBytes, 4 * (static_cast<uint64_t>(team_.worldSize) - 1));
  }
  // Partial sums that go back to another rank, by one thread.
  RH_FN void returned(int rank, uint32_t copies) {
    if (to_ != nullptr) add(&to_->payloadBytes[rank], uint64_t{copies} * team_.combineRowBytes);
  }
  // By control.
  RH_FN void combined(uint64_t lostCopies) {
    if (to_ == nullptr) return;
    add(&to_->combines, 1);
    add(&to_->lostCopies, lostCopies);
  }

 private:
  RH_FN bool isMasked(int r) const { return (c_.epShared().masked >> r & 1) != 0; }
  RH_FN void add(uint64_t* to, uint64_t n) {
    if (n != 0) c_.add(to, n);
  }

  C& c_;
  const EpTeam& team_;
  EpCounters* to_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_COUNTERS_H_
