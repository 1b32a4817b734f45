// All-reduce over a tree: partial sums go up to the root in chunks, results come down.
//
// There are two kinds of tree. The chain ("ring": from rank 0 to the last one, and back) has the partial sums of the fold in fold.h, so
// the result has the same bits. The double binary tree ("tree") sends its chunks over its two trees in turn, and adds in tree order (own,
// left child, right child), which is the same on all ranks and in all runs.
//
// Chunks are numbered. In step s, a rank sends chunk s up and receives chunk s - 2 * depth, of the same tree, from above. It arrives then
// if every step takes equally long. So a rank runs ahead of the root, and the pipes are full. Up and down use different pipes, since two
// ranks may be child and parent in one tree and parent and child in the other.
//
// No deadlock: number each action by its step. A chunk on its way up waits for the same step of the ranks below, a chunk on its way down
// for an earlier step of the parent, a credit for an earlier step of the reader. So waits form no cycle.
#ifndef RAILHEAD_KERNELS_ALLREDUCE_TREE_H_
#define RAILHEAD_KERNELS_ALLREDUCE_TREE_H_

#include "railhead/base/tree.h"
#include "railhead/collectives/partial_sums.h"
#include "railhead/exchange/pipes.h"

namespace railhead {

template <class Elements, class Mem>
class TreeReduction {
 public:
  TreeReduction(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, Tree tree, const char* send, char* recv, size_t count)
      : mem_(mem), team_(team), pipes_(mem, team, flags),
        results_(mem, team, flags, mutated(Mutant::kTreeResultsShareAPipe) ? kMessages : kResults), e_(e), partial_(mem, team, e, tree, pipes_.chunkBytes()),
        send_(send), recv_(recv), count_(count) {
    flags.announce();
    const int n = team.worldSize;
    for (int t = 0; t < 2; t++) {
      places_[t] = placeIn(tree, t != 0, team.rank, n);
      lags_[t] = 2 * static_cast<size_t>(depthIn(tree, t != 0, team.rank, n));
    }
    perChunk_ = partial_.perChunk();
  }

  // Returns false when the group broke.
  bool run() {
    const size_t chunks = count_ == 0 ? 1 : (count_ + perChunk_ - 1) / perChunk_;
    const size_t last = lags_[0] > lags_[1] ? lags_[0] : lags_[1];
    for (size_t step = 0; step < chunks + last; step++) {
      const size_t lag = lags_[step % 2];
      if (step < chunks && !up(step)) return false;
      if (step >= lag && step - lag < chunks && !down(step - lag)) return false;
    }
    return true;
  }

 private:
  using Raw = typename Elements::Raw;
  using Sum = typename Elements::Sum;

  struct Chunk {
    const TreePlace& place;
    size_t at, n;     // byte offset in the buffers, elements
    uint32_t tiles;
  };
  Chunk chunk(size_t number) const {
    const size_t base = number * perChunk_, n = count_ - base < perChunk_ ? count_ - base : perChunk_;
    return {places_[number % 2], base * e_.kBytes, n, static_cast<uint32_t>((n + e_.kElements - 1) / e_.kElements)};
  }

  bool up(size_t number) {
    const Chunk c = chunk(number);
    const char* in[2] = {nullptr, nullptr};
    for (int k = 0; k < c.place.n; k++) {
      in[k] = pipes_.receive(c.place.children[k]);
      if (in[k] == nullptr || !pipes_.agrees(in[k], team_.call, c.place.children[k])) return false;
    }
    char* out = nullptr;
    if (c.place.parent >= 0) {
      out = pipes_.reserve(c.place.parent);
      if (out == nullptr) return false;
      pipes_.writeHeader(out, team_.call, c.n);
    }
    if (mutated(Mutant::kTreeReleasesBeforeItAdds)) releaseChildren(c.place);
    for (uint32_t i = 0; i < c.tiles; i += Mem::kStep) {
      const Sum sum = partial_.add(c.place, in, i, c.tiles - i, e_.load(send_ + c.at, i, c.n), out);
      if (out == nullptr) e_.store(recv_ + c.at, i, c.n, e_.narrow(sum));
    }
    if (!mutated(Mutant::kTreeReleasesBeforeItAdds)) releaseChildren(c.place);
    if (out != nullptr) pipes_.send(c.place.parent);
    return true;
  }

  void releaseChildren(const TreePlace& place) {
    for (int k = 0; k < place.n; k++) pipes_.release(place.children[k]);
  }

  bool down(size_t number) {
    const Chunk c = chunk(number);
    const char* in = nullptr;
    if (c.place.parent >= 0) {
      in = results_.receive(c.place.parent);
      if (in == nullptr || !results_.agrees(in, team_.call, c.place.parent)) return false;
      for (uint32_t i = 0; i < c.tiles; i += Mem::kStep) e_.store(recv_ + c.at, i, c.n, result(c, in, i));
    }
    for (int k = 0; k < c.place.n; k++) {
      char* out = results_.reserve(c.place.children[k]);
      if (out == nullptr) return false;
      results_.writeHeader(out, team_.call, c.n);
      for (uint32_t i = 0; i < c.tiles; i += Mem::kStep) mem_.storeSlotTile(out + kSlotHeaderBytes + i * e_.kTileBytes, result(c, in, i));
      results_.send(c.place.children[k]);
    }
    if (in != nullptr) results_.release(c.place.parent);
    return true;
  }
  // A tile of the result: from the parent's slot, or on the root from recv.
  Raw result(const Chunk& c, const char* in, uint32_t i) {
    if (in == nullptr) return e_.loadRaw(recv_ + c.at, i, c.n);
    return mem_.template loadSlotTile<Raw>(in + kSlotHeaderBytes + i * e_.kTileBytes, c.tiles - i);
  }

  Mem& mem_;
  const FlagTeam& team_;
  Pipes<Mem> pipes_, results_;
  const Elements& e_;
  PartialSums<Elements, Mem> partial_;
  const char* send_;
  char* recv_;
  const size_t count_;
  TreePlace places_[2];
  size_t perChunk_, lags_[2];
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLREDUCE_TREE_H_
