// Parents and children in a chain and in a double binary tree.
#ifndef RAILHEAD_KERNELS_TREE_H_
#define RAILHEAD_KERNELS_TREE_H_

#include "railhead/base/target.h"

namespace railhead {

// A rank's parent and children. Contributions go from children to parents, results from parents to children.
struct TreePlace {
  int parent;       // -1 = the root
  int children[2];
  int n;            // number of children
};

// Rank 0 is the leaf, the last rank the root: partial sums pass the ranks in rank order.
static inline TreePlace chainPlace(int rank, int worldSize) {
  return {rank + 1 < worldSize ? rank + 1 : -1, {rank - 1, -1}, rank > 0 ? 1 : 0};
}

// The first tree of a double binary tree; its root is rank 0. The level of a rank is the index of its lowest set bit; odd ranks are
// leaves. Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009); the placement by
// bits is the one that NCCL documents.
static inline TreePlace binaryTreePlace(int rank, int worldSize) {
  int bit = 1;
  while (bit < worldSize && (rank & bit) == 0) bit <<= 1;
  TreePlace place = {-1, {-1, -1}, 0};
  if (rank == 0) {
    // The root's only child is the highest power of two below worldSize.
    if (worldSize > 1) place.children[place.n++] = bit >> 1;
    return place;
  }
  const int up = (rank ^ bit) | (bit << 1);
  place.parent = up < worldSize ? up : rank ^ bit;
  int low = bit >> 1;
  if (low == 0) return place;
  place.children[place.n++] = rank - low;
  // The right child is rank + low. If that is no rank, it is the first of rank + low / 2, rank + low / 4, ... that is one.
  while (low > 0 && rank + low >= worldSize) low >>= 1;
  if (low > 0) place.children[place.n++] = rank + low;
  return place;
}

// The second tree: the first one mirrored if the number of ranks is even, shifted by one rank if it is odd. So an inner rank of one tree
// is a leaf of the other, with one exception if the number is odd.
static inline TreePlace secondTreePlace(int rank, int worldSize) {
  const auto back = [&](int r) { return r < 0 ? -1 : worldSize % 2 == 0 ? worldSize - 1 - r : (r + 1) % worldSize; };
  TreePlace place = binaryTreePlace(worldSize % 2 == 0 ? worldSize - 1 - rank : (rank - 1 + worldSize) % worldSize, worldSize);
  place.parent = back(place.parent);
  for (int& child : place.children) child = back(child);
  return place;
}

// kChain is one tree, kDouble the two trees of a double binary tree.
enum class Tree { kChain, kDouble };

static inline TreePlace placeIn(Tree tree, bool second, int rank, int worldSize) {
  if (tree == Tree::kChain) return chainPlace(rank, worldSize);
  return second ? secondTreePlace(rank, worldSize) : binaryTreePlace(rank, worldSize);
}

static inline int rootOf(Tree tree, bool second, int worldSize) {
  int root = 0;
  while (placeIn(tree, second, root, worldSize).parent >= 0) root++;
  return root;
}

// Steps from a rank to the root.
static inline int depthIn(Tree tree, bool second, int rank, int worldSize) {
  int depth = 0;
  for (int r = rank; (r = placeIn(tree, second, r, worldSize).parent) >= 0;) depth++;
  return depth;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_TREE_H_
