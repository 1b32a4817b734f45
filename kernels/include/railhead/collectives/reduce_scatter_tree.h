// Reduce-scatter over a tree: partial sums of every part go up to the root, which sends each result to the part's owner.
//
// As in allreduce_tree.h, the tree is a chain ("ring"), which passes the ranks in rank order and gives the bits of fold.h, or the double
// binary tree ("tree"), which sends its chunks over its two trees in turn.
#ifndef RAILHEAD_KERNELS_REDUCE_SCATTER_TREE_H_
#define RAILHEAD_KERNELS_REDUCE_SCATTER_TREE_H_

#include "railhead/base/tree.h"
#include "railhead/collectives/partial_sums.h"
#include "railhead/exchange/pipes.h"

namespace railhead {

// As reduceScatter. Chunks are numbered, the parts in turn. In step s, a rank sends chunk s up, then receives chunk s - lag from the root
// if it owns that chunk. The lag is even if there are two trees, so that both chunks are of the same tree.
//
// No deadlock: number each action by its step. A chunk on its way up waits for the same step of the ranks below, its credit for an
// earlier step of the parent. A result waits for its chunk's step on the root: an earlier step, or on the root itself the same one. The
// credit of a result waits until the owner has read the chunk four before it on that pipe. That was at least 4 n - lag steps ago, where n
// is the world size and lag <= 2 * depth < 2 n.
template <class Elements, class Mem>
class ReduceScatterTree {
 public:
  ReduceScatterTree(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, Tree tree, const char* send, char* recv, size_t count)
      : mem_(mem), team_(team), pipes_(mem, team, flags), results_(mem, team, flags, kResults), e_(e), partial_(mem, team, e, tree, pipes_.chunkBytes()),
        send_(send), recv_(recv), count_(count), perChunk_(partial_.perChunk()) {
    flags.announce();
    const int n = team.worldSize;
    for (int t = 0; t < 2; t++) {
      places_[t] = placeIn(tree, t != 0, team.rank, n);
      roots_[t] = rootOf(tree, t != 0, n);
      const auto depth = static_cast<size_t>(depthIn(tree, t != 0, team.rank, n));
      lags_[t] = tree == Tree::kChain ? depth : 2 * depth;
    }
  }

  // Returns false when the group broke.
  bool run() {
    const size_t perPart = count_ == 0 ? 1 : (count_ + perChunk_ - 1) / perChunk_;
    const size_t chunks = perPart * static_cast<size_t>(team_.worldSize), last = lags_[0] > lags_[1] ? lags_[0] : lags_[1];
    for (size_t step = 0; step < chunks + last; step++) {
      const size_t lag = lags_[step % 2];
      if (step < chunks && !pass(chunk(step))) return false;
      if (step >= lag && step - lag < chunks && !take(chunk(step - lag))) return false;
    }
    return true;
  }

 private:
  using Raw = typename Elements::Raw;

  struct Chunk {
    const TreePlace& place;
    int root, owner;
    size_t at, n;  // byte offset in a part, elements
    uint32_t tiles;
  };
  Chunk chunk(size_t number) const {
    const auto n = static_cast<size_t>(team_.worldSize);
    const size_t base = number / n * perChunk_, left = count_ - base, size = left < perChunk_ ? left : perChunk_;
    const size_t tiles = (size + e_.kElements - 1) / e_.kElements;
    return {places_[number % 2], roots_[number % 2], static_cast<int>(number % n), base * e_.kBytes, size, static_cast<uint32_t>(tiles)};
  }

  bool pass(const Chunk& c) {
    const bool last = c.place.parent < 0, keep = last && c.owner == team_.rank;
    const char* in[2] = {nullptr, nullptr};
    for (int k = 0; k < c.place.n; k++) {
      in[k] = pipes_.receive(c.place.children[k]);
      if (in[k] == nullptr || !pipes_.agrees(in[k], team_.call, c.place.children[k])) return false;
    }
    char* out = nullptr;
    if (!keep) {
      out = last ? results_.reserve(c.owner) : pipes_.reserve(c.place.parent);
      if (out == nullptr) return false;
      pipes_.writeHeader(out, team_.call, c.n);
    }
    const char* part = send_ + static_cast<size_t>(c.owner) * count_ * e_.kBytes + c.at;
    for (uint32_t i = 0; i < c.tiles; i += Mem::kStep) {
      const auto sum = partial_.add(c.place, in, i, c.tiles - i, e_.load(part, i, c.n), last ? nullptr : out);
      if (keep) {
        e_.store(recv_ + c.at, i, c.n, e_.narrow(sum));
      } else if (last) {
        mem_.storeSlotTile(out + kSlotHeaderBytes + i * e_.kTileBytes, e_.narrow(sum));
      }
    }
    for (int k = 0; k < c.place.n; k++) pipes_.release(c.place.children[k]);
    if (last && !keep) results_.send(c.owner);
    if (!last) pipes_.send(c.place.parent);
    return true;
  }

  bool take(const Chunk& c) {
    if (c.owner != team_.rank || c.root == team_.rank) return true;
    const char* in = results_.receive(c.root);
    if (in == nullptr || !results_.agrees(in, team_.call, c.root)) return false;
    for (uint32_t i = 0; i < c.tiles; i += Mem::kStep) {
      e_.store(recv_ + c.at, i, c.n, mem_.template loadSlotTile<Raw>(in + kSlotHeaderBytes + i * e_.kTileBytes, c.tiles - i));
    }
    results_.release(c.root);
    return true;
  }

  Mem& mem_;
  const FlagTeam& team_;
  Pipes<Mem> pipes_, results_;
  const Elements& e_;
  PartialSums<Elements, Mem> partial_;
  TreePlace places_[2];
  int roots_[2];
  size_t lags_[2];
  const char* send_;
  char* recv_;
  const size_t count_, perChunk_;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_REDUCE_SCATTER_TREE_H_
