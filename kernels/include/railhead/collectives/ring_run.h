// What ring all-reduce, reduce-scatter and all-gather have in common: chunks that go around the ring, on several channels at a time.
//
// One thread drives all channels of its rank. Each channel is a state machine. It proceeds when its next chunk has arrived and it has a
// credit for the chunk that it sends. If no channel can proceed, the rank waits for all of them together (flag_waits.h).
//
// A channel processes its part of the payload in rounds. A round has a slice for each position of the ring, and each step sends one chunk
// of a slice. With n ranks, in step t the rank at position p works on the slice of position p - 1 - t:
//
//   t = 0           sends its contribution
//   0 < t < n - 1   adds its contribution to the sum that arrives, and forwards it
//   t = n - 1       adds its contribution, which completes its own slice. Rounds and keeps it; if all ranks want it, sends it
//   t > n - 1       keeps the result that arrives and, except in the last step, forwards it
//
// Reduce-scatter has the steps up to n - 1, all-gather those from n - 1 on, all-reduce all of them. Partial sums are sent in the type's
// accumulators, unrounded. All ranks receive the owner's rounded result, so the bits are the same on all ranks, and in all runs of the
// same plan. They may differ from those of fold.h: a slice is added in ring order, beginning with its owner's successor.
//
// No deadlock: number the steps of a channel over all rounds. A step waits for a chunk of the previous step of another rank. Its credit
// waits for a chunk that another rank reads kPipeSlots chunks, and so at least three steps, earlier.
#ifndef RAILHEAD_KERNELS_RING_RUN_H_
#define RAILHEAD_KERNELS_RING_RUN_H_

#include "railhead/exchange/flag_waits.h"
#include "railhead/exchange/ring.h"
#include "railhead/exchange/ring_links.h"

namespace railhead {

enum class RingKind { kAllReduce, kReduceScatter, kAllGather };

// count: elements of a buffer; for reduce-scatter and all-gather, of one of the world size parts of the larger buffer.
struct RingBuffers {
  RingKind kind;
  const char* send;
  char* recv;
  size_t count;
};

// Elements needs Sum only if kReduces.
template <class Elements, class Mem, class Link, bool kReduces>
class RingChannel {
 public:
  // Channel number `channel` of `channels`. A channel without a part of the payload has ended from the start, except the first one: an
  // operation without elements sends empty chunks, which carry the signature.
  RingChannel(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, FlagWaits<Mem>& waits, const Elements& e, const RingPlan& plan,
              int channel, int channels, const RingBuffers& b)
      : e_(e), flags_(flags), b_(b), ring_(plan, channel, team.rank, team.worldSize),
        link_(mem, team, flags, waits, channel, ring_.before(), ring_.next()),
        first_(b.kind == RingKind::kAllGather ? ring_.n - 1 : 0), last_(b.kind == RingKind::kReduceScatter ? ring_.n - 1 : 2 * ring_.n - 2),
        perChunk_(static_cast<size_t>(link_.chunkBytes()) / widestTile() * e_.kElements), base_(begin(channel, channels)),
        end_(begin(channel + 1, channels)), ended_(channel >= channels || (channel > 0 && base_ == end_)) {
    beginRound();
  }

  bool ended() const { return ended_; }

  // Takes one step if it can, and then sets *moved. False: the group broke.
  bool move(bool* moved) {
    const bool in = step_ > first_, out = step_ < last_, sums = kReduces && step_ < ring_.n - 1;
    const Slice s = slice();
    if (in && !link_.arrived(s.tiles * tileBytes(step_ <= ring_.n - 1))) return flags_.stop() == Stop::kNone;
    if (out && !link_.reserve()) return true;
    if (in && mutated(Mutant::kRingReleasesBeforeItReads)) link_.release();
    if (out && mutated(Mutant::kRingSendsBeforeItWrites)) link_.send(s.tiles * tileBytes(sums));
    if (in) link_.read(s.tiles * tileBytes(step_ <= ring_.n - 1));
    work(s, in, out);
    if (out) link_.write(s.tiles * tileBytes(sums));
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
  // The slice of the current step.
  Slice slice() const {
    const int place = (ring_.place - 1 - step_ + 2 * ring_.n) % ring_.n;
    const bool all = b_.kind == RingKind::kAllReduce;
    const size_t begin = base_ + (all ? static_cast<size_t>(place) * size_ : 0), at = begin < end_ ? begin : end_;
    const size_t n = end_ - at < size_ ? end_ - at : size_;
    const size_t part = all ? 0 : static_cast<size_t>(ring_.at(place)) * b_.count;
    const size_t from = b_.kind == RingKind::kAllGather ? at : part + at, to = b_.kind == RingKind::kReduceScatter ? at : part + at;
    return {b_.send + from * e_.kBytes, b_.recv + to * e_.kBytes, n, static_cast<uint32_t>((n + e_.kElements - 1) / e_.kElements)};
  }

  void work(const Slice& s, bool in, bool out) {
    if constexpr (kReduces) {
      if (step_ <= ring_.n - 1) return reduce(s, in, out);
    }
    for (uint32_t i = 0; i < s.tiles; i += Mem::kStep) {
      const Raw raw = in ? link_.template load<Raw>(i * e_.kTileBytes, s.tiles - i) : e_.loadRaw(s.own, i, s.n);
      e_.store(s.result, i, s.n, raw);
      if (out) link_.store(i * e_.kTileBytes, raw);
    }
  }
  void reduce(const Slice& s, bool in, bool out) {
    const bool complete = step_ == ring_.n - 1;
    for (uint32_t i = 0; i < s.tiles; i += Mem::kStep) {
      auto sum = e_.widen(e_.load(s.own, i, s.n));
      if (in) {
        auto total = link_.template load<typename Elements::Sum>(i * e_.kSumBytes, s.tiles - i);
        e_.add(&total, sum);
        sum = total;
      }
      if (!complete) {
        link_.store(i * e_.kSumBytes, sum);
        continue;
      }
      const Raw raw = e_.narrow(sum);
      e_.store(s.result, i, s.n, raw);
      if (out) link_.store(i * e_.kTileBytes, raw);
    }
  }

  uint32_t tileBytes(bool sums) const { return kReduces && sums ? e_.kSumBytes : e_.kTileBytes; }
  uint32_t widestTile() const { return tileBytes(true) > tileBytes(false) ? tileBytes(true) : tileBytes(false); }

  // Where a channel's part begins. Parts have whole tiles, and as equal numbers of them as possible.
  size_t begin(int channel, int channels) const {
    if (channel >= channels) return b_.count;
    const size_t tiles = (b_.count + e_.kElements - 1) / e_.kElements;
    const size_t at = tiles * static_cast<size_t>(channel) / static_cast<size_t>(channels) * e_.kElements;
    return at < b_.count ? at : b_.count;
  }
  // The slices of a round have the same size, except the last ones of the last round.
  void beginRound() {
    step_ = first_;
    size_t share = end_ - base_;
    if (b_.kind == RingKind::kAllReduce) {
      const size_t tiles = (share + e_.kElements - 1) / e_.kElements, n = static_cast<size_t>(ring_.n);
      share = (tiles + n - 1) / n * e_.kElements;
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
  size_t base_, end_;  // of the rest of the part
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
