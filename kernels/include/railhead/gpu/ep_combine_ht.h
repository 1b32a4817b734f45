// The combine of ht: while a rank receives, its blocks send partial sums of the copies that it has received, and add those of all ranks for their own
// tokens, whichever can proceed, for the reason that ep_dispatch_ht.h gives. Its send phase only notes what is to be added.
#ifndef RAILHEAD_KERNELS_GPU_EP_COMBINE_HT_H_
#define RAILHEAD_KERNELS_GPU_EP_COMBINE_HT_H_

#include "railhead/gpu/ep_combine_ll.h"

namespace railhead::gpu {

template <class T, class C>
class EpCombineHtKernel : public EpCombineKernel<T, C, true> {
 public:
  RH_FN EpCombineHtKernel(C& c, const EpCombineCall& call) : Base(c, call), rings_(c, call), stall_(c, call) {}

  RH_FN void run() { epRun(c_, call_, *this); }

  // Of epRun().
  RH_FN void prepare() {
    if (c_.threadInBlock() != 0) return;
    Base::decide();
    if (!Base::does(kEpSends)) shared_.isWeighted = (c_.loadState(&Base::flight().weighted) | c_.loadState(&Base::flight().perToken)) != 0;
  }
  RH_FN bool data() {
    const auto error = static_cast<EpError>(shared_.error);
    if (Base::reports()) Base::report(error);
    if (error != EpError::kNone || !Base::does(kEpReceives)) return true;
    yType_ = call_.y;
    if (!Base::does(kEpSends)) {
      y_ = reinterpret_cast<const char*>(static_cast<uintptr_t>(c_.loadState(&Base::flight().yRows)));
      yType_ = static_cast<EpType>(c_.loadState(&Base::flight().y));
    }
    rings_.load(false);
    Base::loadReceived();
    withEpType(yType_, [&](auto y) { this->template addOwn<decltype(y)>(); });
    return move();
  }

 private:
  using Base = EpCombineKernel<T, C, true>;
  using Base::c_;
  using Base::call_;
  using Base::shared_;
  using Base::team_;
  using Base::y_;
  static constexpr uint32_t kNone = ~0u;

  RH_FN bool isPeer(int r) const { return r != team_.rank && !Base::isMasked(r); }
  RH_FN bool isGone(int r) const { return (shared_.goneRanks() >> r & 1) != 0; }
  RH_FN uint32_t all() const { return shared_.tokens + shared_.excess; }
  RH_FN uint32_t group() const { return token_ < all() ? Base::groupOf(token_, all()) : 0; }
  // Ranks whose partial sums the group's token g needs, and those of them that send one.
  RH_FN uint64_t neededOf(uint32_t g) const { return shared_.to[g] & ~(shared_.masked | shared_.goneRanks()); }
  RH_FN uint64_t awaitedOf(uint32_t g) const { return neededOf(g) & ~(uint64_t{1} << team_.rank); }
  RH_FN bool awaits(uint32_t g, int r) const { return (awaitedOf(g) >> r & 1) != 0; }
  static constexpr RH_FN uint32_t at(uint32_t g, int r) { return g * kMaxWorldSize + static_cast<uint32_t>(r); }

  RH_FN bool move() {
    const auto result = Base::resultOf();
    token_ = c_.block();
    startSending();
    c_.dataAll(true);
    if (token_ < all()) Base::loadCopies(token_, group(), shared_.tokens);
    RH_ROLLED
    for (;;) {
      const uint32_t n = seek();
      bool moves = false, isLeft = token_ < all();
      if (n != 0) {
        bool good = true;
        withEpType(result.type, [&](auto out) { good = this->template addNext<decltype(out)>(result, n); });
        if (!good) return false;
        moves = true;
      }
      RH_ROLLED
      for (int s = 0; s < team_.worldSize; s++) {
        if (!sendsTo(s)) continue;
        isLeft = true;
        if (shared_.ready[s] == 0) continue;
        send(s, shared_.ready[s]);
        moves = true;
      }
      if (!isLeft) return true;
      if (!moves && !await()) return false;
    }
  }
  RH_FN bool sendsTo(int s) const { return isPeer(s) && shared_.next[s] < shared_.received[s]; }
  // As EpMover::startTaking.
  RH_FN void startSending() {
    if (c_.threadInBlock() != 0) return;
    const uint32_t blocks = c_.dataBlocks();
    uint32_t before = shared_.tokens;
    RH_ROLLED
    for (int s = 0; s < team_.worldSize; s++) {
      shared_.next[s] = (c_.block() + blocks - before % blocks) % blocks;
      if (!isPeer(s)) continue;
      before += shared_.received[s];
      if (Base::reports()) EpCounting<C>(c_, team_).returned(s, shared_.received[s]);
    }
  }

  // Finds how many of the next copies of each rank have a position for their sums. Returns how many of the group's tokens have all their sums here. Barriers
  // before and behind.
  RH_FN uint32_t seek() {
    const uint32_t step = c_.dataThreadsInBlock(), world = static_cast<uint32_t>(team_.worldSize), n = group();
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < world; j += step) {
      const int r = static_cast<int>(j);
      shared_.ready[r] = r == team_.rank ? n : sendsTo(r) ? Base::groupOf(shared_.next[r], shared_.received[r]) : 0;
    }
    if (c_.threadInBlock() == 0) shared_.lackingCell = kNone;
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < n * world; j += step) {
      const uint32_t g = j / world;
      const int r = static_cast<int>(j - g * world);
      if (awaits(g, r)) shared_.moving.isTurn[at(g, r)] = isTurn(g, r);
    }
    c_.dataAll(true);  // the tiles are loaded behind that
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < kEpGroup * world; j += step) {
      const int s = static_cast<int>(j / kEpGroup);
      const uint32_t g = j % kEpGroup, copy = Base::memberOf(shared_.next[s], g);
      if (sendsTo(s) && copy < shared_.received[s] && !isGone(s) && !hasCredit(s, copy)) c_.sharedMin(&shared_.ready[s], g);
    }
    findLacking(n);
    c_.dataAll(true);
    return shared_.ready[team_.rank];
  }
  RH_FN bool hasCredit(int s, uint32_t copy) {
    const EpPosition p = rings_.to(s, copy);
    return rings_.hasSum(c_.loadFlagAcquire(rings_.creditFrom(s, p)), p);
  }
  RH_FN bool isTurn(uint32_t g, int r) { return rings_.isSumsTurn(r, shared_.moving.places[at(g, r)]); }
  // Each thread looks at the tiles that it adds. Tokens behind one that lacks something cannot be added, so it looks at them no more. n: tokens of the group.
  RH_FN void findLacking(uint32_t n) {
    uint64_t ranks = 0;
    RH_ROLLED
    for (uint32_t g = 0; g < n; g++) ranks |= awaitedOf(g);
    RH_ROLLED
    for (uint64_t left = ranks; left != 0; left &= left - 1) {
      const int r = lowestBit(left);
      RH_ROLLED
      for (uint32_t g = 0; g < n; g++) {
        if (!awaits(g, r) || shared_.moving.isTurn[at(g, r)] != 0) continue;
        if (c_.threadInBlock() == 0) lacks(g, r, 0);
        n = g;
      }
      RH_ROLLED
      for (uint32_t i = c_.threadInBlock(); i < Base::tiles() && n != 0; i += c_.dataThreadsInBlock()) n = findLackingTile(r, i, n);
    }
  }
  // Tile i of all tokens at once. Returns how many of the n tokens may have all their sums here.
  RH_FN uint32_t findLackingTile(int r, uint32_t i, uint32_t n) {
    Packet p[kEpGroup];
    RH_UNROLL
    for (uint32_t g = 0; g < kEpGroup; g++) {
      if (g < n && awaits(g, r)) p[g] = c_.loadPacket(Base::cellOf(Base::addedSum(r, g), i));
    }
    RH_UNROLL
    for (uint32_t g = 0; g < kEpGroup; g++) {
      if (g >= n || !awaits(g, r) || !Base::isLate(p[g])) continue;
      lacks(g, r, i);
      n = g;
    }
    return n;
  }
  RH_FN void lacks(uint32_t g, int r, uint32_t tile) {
    if (g == 0 || !mutated(Mutant::kGpuEpHtAddsTooMany)) c_.sharedMin(&shared_.ready[team_.rank], g);
    if (g == 0) c_.sharedMin(&shared_.lackingCell, static_cast<uint32_t>(r) << 24 | tile);
  }

  // Adds the next n tokens, and gives the positions of their sums back. False, in all threads of the block: the comm has stopped.
  template <class Out>
  RH_FN bool addNext(const typename Base::Result& result, uint32_t n) {
    bool good = true;
    if (mutated(Mutant::kGpuEpHtSumsGivenBackEarly)) giveBack(n);
    RH_ROLLED
    for (uint32_t g = 0; g < n; g++) {
      if (good) good = this->template addToken<Out>(result, g, Base::memberOf(token_, g), neededOf(g));
    }
    if (!c_.dataAll(good)) return false;
    if (!mutated(Mutant::kGpuEpHtSumsGivenBackEarly)) giveBack(n);
    token_ += n * c_.dataBlocks();
    if (token_ < all()) Base::loadCopies(token_, group(), shared_.tokens);
    return true;
  }
  RH_FN void giveBack(uint32_t n) {
    const uint32_t world = static_cast<uint32_t>(team_.worldSize);
    bool isFenced = false;
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < n * world; j += c_.dataThreadsInBlock()) {
      const uint32_t g = j / world;
      const int r = static_cast<int>(j - g * world);
      if (!awaits(g, r)) continue;
      if (!isFenced) c_.fence();
      isFenced = true;
      rings_.giveSum(r, shared_.moving.places[at(g, r)]);
    }
  }

  // The sums of the next n copies of rank s of this block. Those of a rank that was given up are dropped.
  RH_FN void send(int s, uint32_t n) {
    const uint32_t first = shared_.next[s];
    if (!isGone(s)) withEpType(yType_, [&](auto y) { this->template sendSumsOf<decltype(y)>(s, first, n); });
    c_.dataAll(true);
    if (c_.threadInBlock() == 0) shared_.next[s] = Base::memberOf(first, n);
    c_.dataAll(true);
  }

  // Nothing can be moved. False: the comm has stopped.
  RH_FN bool await() {
    bool good = true;
    if (c_.threadInBlock() == 0) {
      const uint32_t cell = shared_.lackingCell;
      const int from = cell == kNone ? -1 : static_cast<int>(cell >> 24);
      uint64_t credits = 0;
      RH_ROLLED
      for (int s = 0; s < team_.worldSize; s++) credits |= sendsTo(s) ? uint64_t{1} << s : 0;
      const uint64_t lacking = credits | (from < 0 ? 0 : uint64_t{1} << from);
      good = stall_.await(lacking, [&](int r) {
        if ((credits >> r & 1) != 0 && hasCredit(r, shared_.next[r])) return true;
        return r == from && isTurn(0, r) && !Base::isLate(c_.loadPacket(Base::cellOf(Base::addedSum(r, 0), cell & 0xffffff)));
      });
    }
    return c_.dataAll(good);
  }

  EpRings<C> rings_;
  EpStall<C> stall_;
  EpType yType_ = EpType::kF32;
  uint32_t token_ = 0;  // of this rank, the first one of the block's group
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_COMBINE_HT_H_
