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
  // Ranks whose partial sums the block's next token still needs.
  RH_FN uint64_t neededOf(uint64_t ranks) const { return ranks & ~(shared_.masked | shared_.goneRanks()); }

  RH_FN bool move() {
    const auto result = Base::resultOf();
    token_ = c_.block();
    startSending();
    c_.dataAll(true);
    if (token_ < all()) Base::loadCopies(token_, 1, shared_.tokens);
    RH_ROLLED
    for (;;) {
      const bool isThere = seek();
      bool moves = false, isLeft = token_ < all();
      if (isThere) {
        bool good = true;
        withEpType(result.type, [&](auto out) { good = this->template addNext<decltype(out)>(result); });
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

  // Finds how many of the next copies of each rank have a position for their sums. Returns whether the next token's sums are there. Barriers before and
  // behind.
  RH_FN bool seek() {
    const uint32_t step = c_.dataThreadsInBlock();
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t r = c_.threadInBlock(); r < static_cast<uint32_t>(team_.worldSize); r += step) {
      shared_.ready[r] = sendsTo(static_cast<int>(r)) ? Base::groupOf(shared_.next[r], shared_.received[r]) : 0;
    }
    if (c_.threadInBlock() == 0) shared_.lackingCell = kNone;
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < kEpGroup * static_cast<uint32_t>(team_.worldSize); j += step) {
      const int s = static_cast<int>(j / kEpGroup);
      const uint32_t g = j % kEpGroup, copy = Base::memberOf(shared_.next[s], g);
      if (sendsTo(s) && copy < shared_.received[s] && !isGone(s) && !hasCredit(s, copy)) c_.sharedMin(&shared_.ready[s], g);
    }
    if (token_ < all()) findLacking();
    c_.dataAll(true);
    return token_ < all() && shared_.lackingCell == kNone;
  }
  RH_FN bool hasCredit(int s, uint32_t copy) {
    const EpPosition p = rings_.positionOf(call_.state->summed[s], copy);
    return rings_.hasSum(c_.loadFlagAcquire(rings_.creditFrom(s, p)), p);
  }
  RH_FN bool isTurn(int r) { return rings_.isSumsTurn(r, rings_.positionOf(call_.state->added[r], shared_.copies[r])); }
  // Each thread looks at the tiles that it adds.
  RH_FN void findLacking() {
    RH_ROLLED
    for (uint64_t left = neededOf(shared_.to[0]) & ~(uint64_t{1} << team_.rank); left != 0; left &= left - 1) {
      const auto r = static_cast<uint32_t>(lowestBit(left));
      char* row = Base::addedSum(static_cast<int>(r), shared_.copies[r]);
      if (!isTurn(static_cast<int>(r))) c_.sharedMin(&shared_.lackingCell, r << 24);
      RH_ROLLED
      for (uint32_t i = c_.threadInBlock(); i < Base::tiles(); i += c_.dataThreadsInBlock()) {
        if (!Base::isLate(c_.loadPacket(Base::cellOf(row, i)))) continue;
        c_.sharedMin(&shared_.lackingCell, r << 24 | i);
        break;
      }
    }
  }

  // Adds the next token, and gives the positions of its sums back. False, in all threads of the block: the comm has stopped.
  template <class Out>
  RH_FN bool addNext(const typename Base::Result& result) {
    const uint64_t here = neededOf(shared_.to[0]);
    if (mutated(Mutant::kGpuEpHtSumsGivenBackEarly)) giveBack(here);
    if (!c_.dataAll(this->template addToken<Out>(result, 0, token_, here))) return false;
    if (!mutated(Mutant::kGpuEpHtSumsGivenBackEarly)) giveBack(here);
    token_ += c_.dataBlocks();
    c_.dataAll(true);
    if (token_ < all()) Base::loadCopies(token_, 1, shared_.tokens);
    return true;
  }
  RH_FN void giveBack(uint64_t here) {
    bool isFenced = false;
    RH_ROLLED
    for (uint32_t r = c_.threadInBlock(); r < static_cast<uint32_t>(team_.worldSize); r += c_.dataThreadsInBlock()) {
      if (static_cast<int>(r) == team_.rank || (here >> r & 1) == 0) continue;
      if (!isFenced) c_.fence();
      isFenced = true;
      rings_.giveSum(static_cast<int>(r), rings_.positionOf(call_.state->added[r], shared_.copies[r]));
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
        return r == from && isTurn(r) && !Base::isLate(c_.loadPacket(Base::cellOf(Base::addedSum(r, shared_.copies[r]), cell & 0xffffff)));
      });
    }
    return c_.dataAll(good);
  }

  EpRings<C> rings_;
  EpStall<C> stall_;
  EpType yType_ = EpType::kF32;
  uint32_t token_ = 0;  // of this rank, the next one of the block
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_COMBINE_HT_H_
