// The order in which contributions are added: a left fold in rank order within each group of reduceGroup consecutive ranks, then a left
// fold over the groups' sums, then one rounding to the element type. Every algorithm that promises reproducible bits calls this.
#ifndef RAILHEAD_KERNELS_FOLD_H_
#define RAILHEAD_KERNELS_FOLD_H_

#include <type_traits>

#include "railhead/base/target.h"

namespace railhead {

// Whether the code of an addition is to exist once, not once for each rank of a batch: on a GPU, where the reduction is chosen at run time.
template <class Elements, class = void>
constexpr bool kRollsFold = false;
template <class Elements>
constexpr bool kRollsFold<Elements, std::void_t<decltype(Elements::kRolled)>> = Elements::kRolled;

// As addTiles, one tile after the other. The tiles move through raw[0], so that they stay in registers.
template <class Elements, int kBatch>
RH_FN void addRolled(const Elements& e, typename Elements::Raw (&raw)[kBatch], int count, bool begin, typename Elements::Sum* sum) {
  RH_ROLLED
  for (int i = 0; i < count; i++) {
    const typename Elements::Sum next = e.widen(raw[0]);
    if (i == 0 && begin) {
      *sum = next;
    } else {
      e.add(sum, next);
    }
    RH_UNROLL
    for (int k = 0; k + 1 < kBatch; k++) raw[k] = raw[k + 1];
  }
}

// Whether Elements takes the tiles of all ranks one after the other, take(r, raw), and reduces them in one call, fold(worldSize, reduceGroup),
// in the order of foldRanks: on a CPU, where raw refers to memory.
template <class Elements, class = void>
constexpr bool kFoldsAtOnce = false;
template <class Elements>
constexpr bool kFoldsAtOnce<Elements, std::void_t<decltype(Elements::kFoldsAtOnce)>> = Elements::kFoldsAtOnce;

// Adds the first count tiles to *sum, in order. If begin is set, the first of them replaces *sum.
template <class Elements, int kBatch, bool kFull>
RH_FN void addTiles(const Elements& e, const typename Elements::Raw (&raw)[kBatch], int count, bool begin,
                    typename Elements::Sum* sum) {
  RH_UNROLL
  for (int i = 0; i < kBatch; i++) {
    if (!kFull && i >= count) continue;
    if (i == 0 && begin) {
      *sum = e.widen(raw[i]);
    } else {
      e.add(sum, e.widen(raw[i]));
    }
  }
}

// foldRanks of tiles that are values.
template <int kBatch, class Elements, class Gather>
RH_FN bool foldTiles(const Elements& e, int worldSize, int reduceGroup, Gather gather, typename Elements::Raw* out) {
  using Sum = typename Elements::Sum;
  Sum total = {}, group = {};
  RH_ROLLED
  for (int groupBegin = 0; groupBegin < worldSize; groupBegin += reduceGroup) {
    const int groupEnd = groupBegin + reduceGroup < worldSize ? groupBegin + reduceGroup : worldSize;
    RH_ROLLED
    for (int first = groupBegin; first < groupEnd; first += kBatch) {
      typename Elements::Raw raw[kBatch];
      const int count = groupEnd - first < kBatch ? groupEnd - first : kBatch;
      if (!gather(first, count, raw)) return false;
      if constexpr (kRollsFold<Elements>) {
        addRolled(e, raw, count, first == groupBegin, &group);
      } else if (count == kBatch) {
        addTiles<Elements, kBatch, true>(e, raw, count, first == groupBegin, &group);
      } else {
        addTiles<Elements, kBatch, false>(e, raw, count, first == groupBegin, &group);
      }
    }
    if (groupBegin == 0) {
      total = group;
    } else {
      e.add(&total, group);
    }
  }
  *out = e.narrow(total);
  return true;
}

// Elements widens, folds (adds, multiplies, compares: the reduction) and rounds tiles of a type. gather(first, count, raw) writes the
// tiles of ranks first .. first + count - 1 to raw, with count <= kBatch, and returns false if the group is broken. *out is valid if
// foldRanks returns true.
template <int kBatch, class Elements, class Gather>
RH_FN bool foldRanks(const Elements& e, int worldSize, int reduceGroup, Gather gather, typename Elements::Raw* out) {
  if constexpr (kFoldsAtOnce<Elements>) {
    static_assert(kBatch == 1);
    for (int r = 0; r < worldSize; r++) {
      typename Elements::Raw raw[1];
      if (!gather(r, 1, raw)) return false;
      e.take(r, raw[0]);
    }
    *out = e.fold(worldSize, reduceGroup);
    return true;
  } else {
    return foldTiles<kBatch>(e, worldSize, reduceGroup, gather, out);
  }
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FOLD_H_
