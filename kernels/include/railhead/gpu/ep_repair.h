// Rows of a rank that was given up after its counts had come. Rows that have not come become 0, without a source, as EpDispatch::dropMissing does on a
// CPU. The last block that ends finds them: all others have then noted which copies have come.
#ifndef RAILHEAD_KERNELS_GPU_EP_REPAIR_H_
#define RAILHEAD_KERNELS_GPU_EP_REPAIR_H_

#include "railhead/gpu/ep_places.h"

namespace railhead::gpu {

template <class C>
class EpRepair {
 public:
  // By all threads of the block, after a barrier.
  RH_COLD static void clearMissing(typename C::TargetType target, const EpDispatchCall& call, Way way) {
    C c(target, call.call, way);
    EpRepair repair(c, call);
    RH_ROLLED
    for (int s = 0; s < call.team.worldSize; s++) {
      if (c.loadOwn(&call.state->verdicts[s]) == (kEpTaken | kEpGone) && !mutated(Mutant::kGpuEpMissingNotCleared)) repair.clearFrom(s);
    }
  }
  // By control, after all blocks have ended. lostRanks: those that are masked now.
  RH_COLD static void report(typename C::TargetType target, const EpDispatchCall& call, Way way, uint32_t flight, uint64_t lostRanks) {
    C c(target, call.call, way);
    EpFlightState& f = call.state->flights[flight];
    EpReport* to = &call.cell->dispatched;
    to->tokens -= c.loadOwn(&call.state->missing);
    if (call.receive.tokens != nullptr) *call.receive.tokens = to->tokens;
    c.storeState(&f.hasRows, uint64_t{to->tokens > 0 && to->rows > 0});
    to->lostRanks = lostRanks | c.loadState(&f.masked);
    to->lostCopies = c.loadState(&f.maskedCopies);
    RH_ROLLED
    for (uint64_t left = to->lostRanks; left != 0; left &= left - 1) to->lostCopies += c.loadState(call.flights[flight].copies + lowestBit(left));
  }

 private:
  RH_FN EpRepair(C& c, const EpDispatchCall& call)
      : c_(c), call_(call), team_(call.team), to_(call.receive), shared_(c.epShared()), arrays_(call.flights[shared_.flight]), places_(c, call) {}

  RH_FN uint32_t listStride() const { return team_.topk < team_.maxLocal ? team_.topk : team_.maxLocal; }
  RH_FN uint64_t indexOf(int s, uint32_t copy) const { return static_cast<uint32_t>(s) * uint64_t{team_.maxTokens} + copy; }
  RH_FN uint32_t lengthOf(int s, uint32_t copy) { return c_.loadState(arrays_.lengths + indexOf(s, copy)); }

  RH_FN void clearFrom(int s) {
    const uint32_t n = shared_.received[s];
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n; i += c_.dataThreadsInBlock()) {
      if (lengthOf(s, i) == kEpMissing) c_.addOne(&call_.state->missing);
    }
    if (to_.layout == EpRowLayout::kTokens) {
      const uint64_t before = places_.tokensBefore(s);
      RH_ROLLED
      for (uint32_t i = 0; i < n; i++) {
        if (lengthOf(s, i) == kEpMissing) clearRow(before + i);
      }
      return;
    }
    const uint32_t local = team_.localExperts[team_.rank];
    RH_ROLLED
    for (uint32_t e = 0; e < local; e++) {
      const uint32_t rows = places_.rowsFrom(s, e);
      RH_ROLLED
      for (uint32_t first = 0; first < rows; first += kPart) clearPart(s, e, first, rows - first < kPart ? rows - first : kPart);
    }
  }
  static constexpr uint32_t kPart = 32 * kEpWrittenWords;

  // Of the rows of expert e from rank s, number `first` and the n - 1 that follow.
  RH_FN void clearPart(int s, uint32_t e, uint32_t first, uint32_t n) {
    const uint64_t row = places_.firstRowFrom(s, e) + first;
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < kEpWrittenWords; i += c_.dataThreadsInBlock()) shared_.written[i] = 0;
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < shared_.received[s]; i += c_.dataThreadsInBlock()) {
      const uint32_t length = lengthOf(s, i);
      RH_ROLLED
      for (uint32_t k = 0; length != kEpMissing && k < length; k++) {
        const auto at = static_cast<uint32_t>(c_.loadState(arrays_.lists + indexOf(s, i) * listStride() + k));
        if (at != kEpNoRow && at >= row && at - row < n) c_.sharedOr(&shared_.written[(at - row) / 32], 1u << (at - row) % 32);
      }
    }
    c_.dataAll(true);
    const bool isPadded = to_.layout == EpRowLayout::kPadded;
    RH_ROLLED
    for (uint32_t i = 0; i < n; i++) {
      const bool hasRoom = !isPadded || row + i - shared_.begin[e] < to_.capacity;
      if ((shared_.written[i / 32] >> i % 32 & 1) == 0 && hasRoom) clearRow(row + i);
    }
  }

  RH_FN void clearRow(uint64_t row) {
    const uint32_t data = call_.format.dataBytes(), scales = to_.scales == nullptr ? 0 : call_.format.scaleBytes(), thread = c_.threadInBlock();
    const uint32_t step = c_.dataThreadsInBlock();
    RH_ROLLED
    for (uint32_t i = thread; i < data; i += step) to_.x[row * data + i] = 0;
    RH_ROLLED
    for (uint32_t i = thread; i < scales; i += step) to_.scales[row * scales + i] = 0;
    RH_ROLLED
    for (uint32_t k = thread; to_.layout == EpRowLayout::kTokens && k < team_.topk; k += step) {
      if (to_.topkIdx != nullptr) to_.topkIdx[row * team_.topk + k] = -1;
      if (to_.topkWeights != nullptr) to_.topkWeights[row * team_.topk + k] = 0;
    }
    if (thread != 0) return;
    if (to_.weights != nullptr) to_.weights[row] = 0;
    if (to_.sourceRank != nullptr) to_.sourceRank[row] = -1;
    if (to_.sourceToken != nullptr) to_.sourceToken[row] = -1;
  }

  C& c_;
  const EpDispatchCall& call_;
  const EpTeam& team_;
  const EpReceive& to_;
  EpShared& shared_;
  const EpFlightArrays& arrays_;
  EpPlaces<C> places_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_REPAIR_H_
