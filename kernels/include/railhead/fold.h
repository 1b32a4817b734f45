// The one order in which contributions are added: a left fold in rank order within each group of reduceGroup
// consecutive ranks, then a left fold over the groups' sums. Every algorithm that promises the same bits uses it.
#ifndef RAILHEAD_KERNELS_FOLD_H_
#define RAILHEAD_KERNELS_FOLD_H_

namespace railhead {

// Contribution(r) gives rank r's tile; Tile needs operator+= in the accumulator's type.
template <class Tile, class Contribution>
inline Tile foldRanks(int worldSize, int reduceGroup, Contribution contribution) {
  Tile total = contribution(0);
  int rank = 1;
  for (; rank < reduceGroup; rank++) total += contribution(rank);
  while (rank < worldSize) {
    const int end = rank + reduceGroup < worldSize ? rank + reduceGroup : worldSize;
    Tile group = contribution(rank++);
    for (; rank < end; rank++) group += contribution(rank);
    total += group;
  }
  return total;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FOLD_H_
