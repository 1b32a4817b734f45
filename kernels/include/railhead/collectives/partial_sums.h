// Partial sums along a chain or up a tree: a rank adds its contribution to those that it receives.
#ifndef RAILHEAD_KERNELS_PARTIAL_SUMS_H_
#define RAILHEAD_KERNELS_PARTIAL_SUMS_H_

#include "railhead/base/tree.h"
#include "railhead/exchange/pipes.h"

namespace railhead {

// They are sent in the type's accumulators, unrounded. Along a chain they are those of the fold in fold.h. With reduce groups, a chain
// sends two sums: of the complete groups, and of the current group.
template <class Elements, class Mem>
class PartialSums {
 public:
  using Raw = typename Elements::Raw;
  using Sum = typename Elements::Sum;

  // chunkBytes: of a slot's data.
  PartialSums(Mem& mem, const FlagTeam& team, const Elements& e, Tree tree, uint32_t chunkBytes)
      : mem_(mem), team_(team), e_(e), chain_(tree == Tree::kChain),
        grouped_(chain_ && team.reduceGroup > 1 && team.reduceGroup < team.worldSize), tiles_(chunkBytes / ((grouped_ ? 2 : 1) * e.kSumBytes)) {}

  // Elements of a chunk.
  size_t perChunk() const { return static_cast<size_t>(tiles_) * e_.kElements; }

  // Adds the children's partial sums of tile i, which are in the slots `in`, and this rank's contribution. Stores the sum in the slot
  // `out` if there is one, and returns it. On the root it is the reduction. `tiles`: of the chunk, from tile i on.
  Sum add(const TreePlace& place, const char* const (&in)[2], uint32_t i, uint32_t tiles, const Raw& contribution, char* out) {
    Sum total = e_.widen(contribution), group = total;
    if (!chain_) {
      for (int k = 0; k < place.n; k++) e_.add(&total, load(in[k], i, tiles, false));
    } else if (grouped_) {
      addGrouped(in[0], i, tiles, &total, &group);
    } else if (place.n > 0) {
      total = followed(load(in[0], i, tiles, false), total);
    }
    if (out == nullptr) return total;
    mem_.storeSlotTile(at(out, i, false), total);
    if (grouped_) mem_.storeSlotTile(at(out, i, true), group);
    return total;
  }

 private:
  // The sums of groups lie behind all totals.
  char* at(const char* slot, uint32_t i, bool ofGroup) const {
    return const_cast<char*>(slot) + kSlotHeaderBytes + (ofGroup ? tiles_ + i : i) * e_.kSumBytes;
  }
  Sum load(const char* slot, uint32_t i, uint32_t tiles, bool ofGroup) { return mem_.template loadSlotTile<Sum>(at(slot, i, ofGroup), tiles); }
  Sum followed(Sum first, const Sum& second) {
    e_.add(&first, second);
    return first;
  }
  // total: of the complete groups. They include this rank's own if it is the last rank of its group.
  void addGrouped(const char* in, uint32_t i, uint32_t tiles, Sum* total, Sum* group) {
    const int within = team_.rank % team_.reduceGroup, number = team_.rank / team_.reduceGroup;
    const bool ends = within == team_.reduceGroup - 1 || team_.rank == team_.worldSize - 1;
    if (within > 0) *group = followed(load(in, i, tiles, true), *group);
    if (number > 0) *total = load(in, i, tiles, false);
    if (ends && !mutated(Mutant::kTreeForgetsTheGroup)) *total = number > 0 ? followed(*total, *group) : *group;
  }

  Mem& mem_;
  const FlagTeam& team_;
  const Elements& e_;
  const bool chain_, grouped_;
  const uint32_t tiles_;  // of a chunk
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_PARTIAL_SUMS_H_
