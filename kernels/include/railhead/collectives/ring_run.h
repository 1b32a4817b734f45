// What ring all-reduce, reduce-scatter and all-gather have in common: chunks that go around, on several channels at a time.
//
// One thread drives all channels of its rank. Each is a state machine that goes on when the chunk that it needs has come and it
// has a credit for the one it makes of it; where none can go on, the rank waits for all that they lack together (flag_waits.h).
//
// A channel's part of the payload goes around in rounds, a slice for each place of the ring in a round, a chunk for each slice
// and step. Of n ranks, in step t the rank at place p works on the slice of place p - 1 - t:
//
//   t = 0           sends its contribution
//   0 < t < n - 1   adds its contribution to what comes, and sends it on
//   t = n - 1       adds its contribution: its own slice is complete. It rounds and keeps it; where all want it, sends it
//   t > n - 1       keeps the result that comes and, but in the last step, sends it on
//
// Reduce-scatter are the steps to n - 1, all-gather those from n - 1 on, all-reduce is all of them. Partial sums travel in the
// type's accumulators, unrounded. Everybody gets the owner's rounded result, so the bits are the same on all ranks, and on all
// runs of the same plan. They need not be those of fold.h: the contributions to a slice are added in the order of the ring,
// beginning behind its owner.
//
// No deadlock: number the steps of a channel through. A step waits for the chunk of the step before of another rank, and for
// the credit of a chunk that another rank reads kPipeSlots chunks, and so at least three steps, earlier.
#ifndef RAILHEAD_KERNELS_RING_RUN_H_
#define RAILHEAD_KERNELS_RING_RUN_H_

#include "railhead/exchange/flag_waits.h"
#include "railhead/exchange/ring.h"
#include "railhead/exchange/ring_links.h"

namespace railhead {

enum class RingKind { kAllReduce, kReduceScatter, kAllGather };

// count is in elements: of a buffer, or (reduce-scatter, all-gather) of one of the world size parts of the larger one.
struct RingBuffers {
  RingKind kind;
  const char* send;
  char* recv;
  size_t count;
};

// Elements need sums only where kReduces.
template <class Elements, class Mem, class Link, bool kReduces>
class RingChannel {
 public:
  // Channel number `channel` of so many; one without a part of the payload has ended at once, but for the first: an operation
  // without elements sends chunks without elements, which carry the signature.
  RingChannel(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, FlagWaits<Mem>& waits, const Elements& e, const RingPlan& plan,
              int channel, int channels, const RingBuffers& b)
      : e_(e), flags_(flags), b_(b), ring_(plan, channel, team.rank, team.worldSize),
        link_(mem, team, flags, waits, channel, ring_.before(), ring_.next()),
        first_(b.kind == RingKind::kAllGather ? ring_.n - 1 : 0), last_(b.kind == RingKind::kReduceScatter ? ring_.n - 1 : 2 * ring_.n - 2),
        perChunk_(static_cast<size_t>(link_.chunkBytes()) / widestTile() * Elements::kElements), base_(begin(channel, channels)),
        end_(begin(channel + 1, channels)), ended_(channel >= channels || (channel > 0 && base_ == end_)) {
    beginRound();
  }

  bool ended() const { return ended_; }

  // Goes one step, if it can; *moved is then true. False: the group broke.
  bool move(bool* moved) {
    const bool in = step_ > first_, out = step_ < last_, sums = kReduces && step_ < ring_.n - 1;
    const Slice s = slice();
    if (in && !link_.arrived(s.tiles * tileBytes(step_ <= ring_.n - 1))) return flags_.stop() == Stop::kNone;
    if (out && !link_.reserve()) return true;
    if (in && mutated(Mutant::kRingReleasesBeforeItReads)) link_.release();
    if (out && mutated(Mutant::kRingSendsBeforeItWrites)) link_.send(s.tiles * tileBytes(sums));
    work(s, in, out);
    if (in && !mutated(Mutant::kRingReleasesBeforeItReads)) link_.release();
    if (out && !mutated(Mutant::kRingSendsBeforeItWrites)) link_.send(s.tiles * tileBytes(sums));
    *moved = true;
    if (step_++ == last_) endRound();
    return true;
  }

 private:
  using Raw = typename Elements::Raw;

  struct Slice {
    const char* own;  // this rank's contribution
    char* result;
    size_t n;         // elements
    uint32_t tiles;
  };
  // Of the step.
  Slice slice() const {
    const int place = (ring_.place - 1 - step_ + 2 * ring_.n) % ring_.n;
    const bool all = b_.kind == RingKind::kAllReduce;
    const size_t begin = base_ + (all ? static_cast<size_t>(place) * size_ : 0), at = begin < end_ ? begin : end_;
    const size_t n = end_ - at < size_ ? end_ - at : size_;
    const size_t part = all ? 0 : static_cast<size_t>(ring_.at(place)) * b_.count;
    const size_t from = b_.kind == RingKind::kAllGather ? at : part + at, to = b_.kind == RingKind::kReduceScatter ? at : part + at;
    return {b_.send + from * Elements::kBytes, b_.recv + to * Elements::kBytes, n, static_cast<uint32_t>((n + Elements::kElements - 1) / Elements::kElements)};
  }

  void work(const Slice& s, bool in, bool out) {
    if constexpr (kReduces) {
      if (step_ <= ring_.n - 1) return reduce(s, in, out);
    }
    for (uint32_t i = 0; i < s.tiles; i++) {
      const Raw raw = in ? link_.template load<Raw>(i) : e_.loadRaw(s.own, i, s.n);
      e_.store(s.result, i, s.n, raw);
      if (out) link_.store(i, raw);
    }
  }
  void reduce(const Slice& s, bool in, bool out) {
    const bool complete = step_ == ring_.n - 1;
    for (uint32_t i = 0; i < s.tiles; i++) {
      auto sum = e_.widen(e_.load(s.own, i, s.n));
      if (in) {
        auto total = link_.template load<typename Elements::Sum>(i);
        e_.add(&total, sum);
        sum = total;
      }
      if (!complete) {
        link_.store(i, sum);
        continue;
      }
      const Raw raw = e_.narrow(sum);
      e_.store(s.result, i, s.n, raw);
      if (out) link_.store(i, raw);
    }
  }

  static constexpr uint32_t tileBytes(bool sums) {
    if constexpr (kReduces) {
      if (sums) return sizeof(typename Elements::Sum);
    }
    return sizeof(Raw);
  }
  static constexpr uint32_t widestTile() { return tileBytes(true) > tileBytes(false) ? tileBytes(true) : tileBytes(false); }

  // Where a channel's part begins: whole tiles, as many in each part as can be.
  size_t begin(int channel, int channels) const {
    if (channel >= channels) return b_.count;
    const size_t tiles = (b_.count + Elements::kElements - 1) / Elements::kElements;
    const size_t at = tiles * static_cast<size_t>(channel) / static_cast<size_t>(channels) * Elements::kElements;
    return at < b_.count ? at : b_.count;
  }
  // The slices of a round are as large as each other, but for the last ones of the last round.
  void beginRound() {
    step_ = first_;
    size_t share = end_ - base_;
    if (b_.kind == RingKind::kAllReduce) {
      const size_t tiles = (share + Elements::kElements - 1) / Elements::kElements, n = static_cast<size_t>(ring_.n);
      share = (tiles + n - 1) / n * Elements::kElements;
    }
    size_ = share < perChunk_ ? share : perChunk_;
  }
  void endRound() {
    base_ += b_.kind == RingKind::kAllReduce ? size_ * static_cast<size_t>(ring_.n) : size_;
    ended_ = base_ >= end_;
    if (!ended_) beginRound();
  }

  const Elements& e_;
  Flags<Mem>& flags_;
  const RingBuffers& b_;
  const RingPlace ring_;
  Link link_;
  const int first_, last_;  // steps
  const size_t perChunk_;
  size_t base_, end_;  // of what is left of the part
  bool ended_;
  size_t size_ = 0;    // of the round's slices
  int step_ = 0;
};

// Returns false when the group broke.
template <class Link, bool kReduces, class Elements, class Mem>
bool runRingOver(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, const RingPlan& plan, const RingBuffers& b) {
  FlagWaits<Mem> waits(mem, team, flags);
  using Channel = RingChannel<Elements, Mem, Link, kReduces>;
  const int n = ringChannels(plan, team.worldSize);
  Channel channels[kMaxRingChannels] = {{mem, team, flags, waits, e, plan, 0, n, b}, {mem, team, flags, waits, e, plan, 1, n, b},
                                        {mem, team, flags, waits, e, plan, 2, n, b}, {mem, team, flags, waits, e, plan, 3, n, b}};
  flags.announce();
  for (;;) {
    bool moved = false, ended = true;
    waits.clear();
    for (Channel& c : channels) {
      if (c.ended()) continue;
      if (!c.move(&moved)) return false;
      ended = ended && c.ended();
    }
    if (ended) return true;
    if (!moved && !waits.wait()) return false;
  }
}
template <bool kReduces, class Elements, class Mem>
bool runRing(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, const Elements& e, const RingPlan& plan, const RingBuffers& b) {
  if (plan.protocol == RingProtocol::kLL) return runRingOver<LLLink<Mem>, kReduces>(mem, team, flags, e, plan, b);
  return runRingOver<SimpleLink<Mem>, kReduces>(mem, team, flags, e, plan, b);
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_RING_RUN_H_
