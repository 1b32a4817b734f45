// Reduce-scatter over a chain ("ring"): partial sums of every part pass all ranks in their order, so that the bits are those of
// fold.h; the last rank sends each part to its owner.
#ifndef RAILHEAD_KERNELS_REDUCE_SCATTER_CHAIN_H_
#define RAILHEAD_KERNELS_REDUCE_SCATTER_CHAIN_H_

#include "railhead/partial_sums.h"
#include "railhead/pipes.h"
#include "railhead/tree.h"

namespace railhead {

// As reduceScatter. Chunks are numbered through, the parts in turn; step s of a rank is chunk s on its way along the chain, then
// chunk s - lag, where this rank owns it, from the last rank. The lag is at most the distance to that rank and less than the
// chunks that the pipes between hold, so nothing waits in a circle.
template <class Elements, class Mem>
class ReduceScatterChain {
 public:
  ReduceScatterChain(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, const char* send, char* recv, size_t count)
      : mem_(mem), team_(team), pipes_(mem, team, flags), results_(mem, team, flags, kResults), e_(e), partial_(mem, team, e, Tree::kChain),
        place_(chainPlace(team.rank, team.worldSize)), send_(send), recv_(recv), count_(count), perChunk_(partial_.perChunk(pipes_.chunkBytes())) {
    flags.announce();
  }

  // Returns false when the group broke.
  bool run() {
    const size_t perPart = count_ == 0 ? 1 : (count_ + perChunk_ - 1) / perChunk_;
    const size_t chunks = perPart * static_cast<size_t>(team_.worldSize), lag = static_cast<size_t>(team_.worldSize - 1 - team_.rank);
    for (size_t step = 0; step < chunks + lag; step++) {
      if (step < chunks && !pass(chunk(step))) return false;
      if (step >= lag && !take(chunk(step - lag))) return false;
    }
    return true;
  }

 private:
  using Raw = typename Elements::Raw;
  static constexpr uint32_t kTileBytes = Mem::template tileBytes<Raw>();

  struct Chunk {
    int owner;
    size_t at, n;  // bytes from the begin of a part, elements
    uint32_t tiles;
  };
  Chunk chunk(size_t number) const {
    const auto n = static_cast<size_t>(team_.worldSize);
    const size_t base = number / n * perChunk_, left = count_ - base, size = left < perChunk_ ? left : perChunk_;
    const size_t tiles = (size + Elements::kElements - 1) / Elements::kElements;
    return {static_cast<int>(number % n), base * Elements::kBytes, size, static_cast<uint32_t>(tiles)};
  }

  bool pass(const Chunk& c) {
    const bool last = place_.parent < 0, keep = last && c.owner == team_.rank;
    const char* in[2] = {nullptr, nullptr};
    if (place_.n > 0) {
      in[0] = pipes_.receive(place_.children[0]);
      if (in[0] == nullptr || !pipes_.agrees(in[0], team_.call, place_.children[0])) return false;
    }
    char* out = nullptr;
    if (!keep) {
      out = last ? results_.reserve(c.owner) : pipes_.reserve(place_.parent);
      if (out == nullptr) return false;
      pipes_.writeHeader(out, team_.call, c.n);
    }
    const char* part = send_ + static_cast<size_t>(c.owner) * count_ * Elements::kBytes + c.at;
    for (uint32_t i = 0; i < c.tiles; i++) {
      const auto sum = partial_.add(place_, in, i, e_.load(part, i, c.n), last ? nullptr : out);
      if (keep) {
        e_.store(recv_ + c.at, i, c.n, e_.narrow(sum));
      } else if (last) {
        mem_.storeSlotTile(out + kSlotHeaderBytes + i * kTileBytes, e_.narrow(sum));
      }
    }
    if (place_.n > 0) pipes_.release(place_.children[0]);
    if (last && !keep) results_.send(c.owner);
    if (!last) pipes_.send(place_.parent);
    return true;
  }

  bool take(const Chunk& c) {
    const int last = team_.worldSize - 1;
    if (c.owner != team_.rank || team_.rank == last) return true;
    const char* in = results_.receive(last);
    if (in == nullptr || !results_.agrees(in, team_.call, last)) return false;
    for (uint32_t i = 0; i < c.tiles; i++) {
      e_.store(recv_ + c.at, i, c.n, mem_.template loadSlotTile<Raw>(in + kSlotHeaderBytes + i * kTileBytes));
    }
    results_.release(last);
    return true;
  }

  Mem& mem_;
  const FlagTeam& team_;
  Pipes<Mem> pipes_, results_;
  const Elements& e_;
  PartialSums<Elements, Mem> partial_;
  const TreePlace place_;
  const char* send_;
  char* recv_;
  const size_t count_, perChunk_;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_REDUCE_SCATTER_CHAIN_H_
