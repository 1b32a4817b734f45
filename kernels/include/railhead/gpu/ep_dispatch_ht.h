// The rows of a dispatch of ht: a block sends its tokens and takes copies from all ranks, whichever can proceed. So a block never waits for one thing
// while another one can be moved, and no grid can deadlock: of the tokens that a rank has not sent, the earliest one needs positions whose copies have all
// been sent, and taking them waits for nothing else.
#ifndef RAILHEAD_KERNELS_GPU_EP_DISPATCH_HT_H_
#define RAILHEAD_KERNELS_GPU_EP_DISPATCH_HT_H_

#include "railhead/gpu/ep_receive.h"
#include "railhead/gpu/ep_rings.h"

namespace railhead::gpu {

template <class C>
class EpMover {
 public:
  RH_FN EpMover(C& c, const EpDispatchCall& call, EpReceiver<C, true>& receiver)
      : c_(c), call_(call), team_(call.team), receiver_(receiver), shared_(c.epShared()), arrays_(call.flights[shared_.flight]), rings_(c, call),
        stall_(c, call), token_(c.block()), tokens_(receiver.ownTokens()), world_(static_cast<uint32_t>(team_.worldSize)) {}

  // By all threads of the block, after a barrier. False: the comm has stopped.
  RH_FN bool run() {
    rings_.load(true);
    receiver_.takeOwnTokens();
    c_.dataAll(true);
    startTaking();
    loadGroup();
    RH_ROLLED
    for (;;) {
      look();
      bool moves = false, isLeft = token_ < tokens_;
      if (shared_.ready[team_.rank] != 0 && token_ < tokens_) {
        sendGroup(shared_.ready[team_.rank]);
        moves = true;
      }
      RH_ROLLED
      for (int s = 0; s < team_.worldSize; s++) {
        if (!isPeer(s) || shared_.next[s] >= shared_.received[s]) continue;
        isLeft = true;
        if (shared_.ready[s] == 0) continue;
        take(s, shared_.ready[s]);
        moves = true;
      }
      if (!isLeft) return true;
      if (!moves && !await()) return false;
    }
  }

 private:
  RH_FN bool isPeer(int r) const { return r != team_.rank && (shared_.masked >> r & 1) == 0; }
  RH_FN bool isGone(int r) const { return (shared_.goneRanks() >> r & 1) != 0; }
  RH_FN uint32_t group() const { return receiver_.groupOf(token_, tokens_); }
  RH_FN uint32_t memberOf(uint32_t i, uint32_t g) const { return receiver_.memberOf(i, g); }
  // Ranks that get token g of the group from here.
  RH_FN uint64_t peersOf(uint32_t g) const { return shared_.to[g] & ~(shared_.masked | shared_.goneRanks() | uint64_t{1} << team_.rank); }
  RH_FN EpPosition sentTo(int d, uint32_t g) const { return shared_.moving.places[g * kMaxWorldSize + static_cast<uint32_t>(d)]; }

  // Copies of all ranks in turn, one for each block, behind the blocks that have tokens of this rank. A barrier follows.
  RH_FN void startTaking() {
    if (c_.threadInBlock() != 0) return;
    const uint32_t blocks = c_.dataBlocks();
    uint32_t before = tokens_;
    RH_ROLLED
    for (int s = 0; s < team_.worldSize; s++) {
      shared_.next[s] = (c_.block() + blocks - before % blocks) % blocks;
      if (isPeer(s)) before += shared_.received[s];
    }
  }
  // What this kernel, or an earlier one, has noted of the group. Barriers before and behind.
  RH_FN void loadGroup() {
    if (token_ >= tokens_) return;
    const uint32_t n = group();
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < n * team_.topk; j += c_.dataThreadsInBlock()) {
      const uint32_t g = j / team_.topk, k = j - g * team_.topk;
      const uint64_t at = uint64_t{memberOf(token_, g)} * team_.topk + k;
      shared_.entries[g * kEpMaxTopk + k] = c_.loadState(arrays_.entries + at);
      shared_.weights[g * kEpMaxTopk + k] = c_.loadState(reinterpret_cast<const uint32_t*>(arrays_.weights) + at);
    }
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < n * world_; j += c_.dataThreadsInBlock()) {
      const uint32_t g = j / world_, r = j - g * world_, t = memberOf(token_, g);
      const uint64_t to = c_.loadState(arrays_.ranks + t);
      if (r == 0) shared_.to[g] = to;
      if ((to >> r & 1) == 0) continue;
      shared_.moving.places[g * kMaxWorldSize + r] = rings_.to(static_cast<int>(r), c_.loadState(arrays_.copyOf + r * uint64_t{team_.maxTokens} + t));
    }
  }

  // Finds how many of the group's tokens have all their positions, and how many copies of each rank have come. Barriers before and behind.
  RH_FN void look() {
    c_.dataAll(true);
    const uint32_t step = c_.dataThreadsInBlock(), sends = token_ < tokens_ ? group() : 0;
    RH_ROLLED
    for (uint32_t r = c_.threadInBlock(); r < world_; r += step) {
      const int s = static_cast<int>(r);
      shared_.ready[r] = s == team_.rank ? sends : isPeer(s) && shared_.next[r] < shared_.received[r] ? receiver_.groupOf(shared_.next[r], shared_.received[r]) : 0;
    }
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < 2 * kEpGroup * world_; j += step) {
      const uint32_t which = j / world_, g = which / 2;
      const int r = static_cast<int>(j - which * world_);
      if (which % 2 == 0) {
        if (g < sends && (peersOf(g) >> r & 1) != 0 && !hasCredit(r, g)) c_.sharedMin(&shared_.ready[team_.rank], g);
      } else if (isPeer(r)) {
        const uint32_t copy = memberOf(shared_.next[r], g);
        if (copy < shared_.received[r] && !isGone(r) && !isHere(r, copy)) c_.sharedMin(&shared_.ready[r], g);
      }
    }
    c_.dataAll(true);
  }
  RH_FN bool hasCredit(int d, uint32_t g) {
    const EpPosition p = sentTo(d, g);
    const uint32_t* at = rings_.creditFrom(d, p);
    return rings_.hasToken(c_.loadFlagAcquire(at), p);
  }
  // Relaxed: take() loads the word again.
  RH_FN bool isHere(int s, uint32_t copy) {
    const EpPosition p = rings_.from(s, copy);
    return rings_.isTokensTurn(s, p) && (c_.loadFlag(rings_.firstWord(team_.rank, s, p)) & EpFirstWord::kHere) != 0;
  }

  // The first n tokens of the group.
  RH_FN void sendGroup(uint32_t n) {
    if (mutated(Mutant::kGpuEpHeaderBeforeRow)) publish(n);
    writeHeaders(n);
    copyRows(n);
    if (!mutated(Mutant::kGpuEpHtPublishesAlone)) c_.dataAll(true);
    if (!mutated(Mutant::kGpuEpHeaderBeforeRow)) publish(n);
    c_.dataAll(true);  // the group has been read
    token_ += n * c_.dataBlocks();
    loadGroup();
    c_.dataAll(true);
  }
  RH_FN void writeHeaders(uint32_t n) {
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n * team_.topk; i += c_.dataThreadsInBlock()) {
      const uint32_t g = i / team_.topk, k = i - g * team_.topk;
      const uint64_t entry = shared_.entries[g * kEpMaxTopk + k];
      if (EpEntry::isNone(entry) || (peersOf(g) >> EpEntry::rank(entry) & 1) == 0) continue;
      const EpPosition p = sentTo(EpEntry::rank(entry), g);
      char* slot = rings_.slot(EpEntry::rank(entry), team_.rank, p);
      c_.storeSlotWord(team_.header(slot, p.at) + 1 + shared_.expertsOn(g, EpEntry::rank(entry), k),
                       EpExpertWord::of(EpEntry::local(entry), EpEntry::place(entry), shared_.weights[g * kEpMaxTopk + k]));
    }
  }
  RH_FN void copyRows(uint32_t n) {
    const uint32_t bytes = team_.rowBytes;
    RH_ROLLED
    for (uint32_t g = 0; g < n; g++) {
      if (peersOf(g) == 0) continue;
      const char* row = receiver_.ownRow(memberOf(token_, g));
      const bool isEven = epIsEven(row, bytes);
      const auto load = [&](uint32_t, uint32_t at) { return isEven ? loadTile<true>(row + at, 16) : loadBytes(row + at, bytes - at < 16 ? bytes - at : 16); };
      epForTiles(c_, bytes, isEven, load, [&](uint32_t at, uint32_t tiles, uint32_t step, const Raw16* raw) {
        RH_ROLLED
        for (uint64_t left = peersOf(g); left != 0; left &= left - 1) {
          const int d = lowestBit(left);
          const EpPosition p = sentTo(d, g);
          char* out = team_.row(rings_.slot(d, team_.rank, p), p.at);
          RH_UNROLL
          for (uint32_t q = 0; q < kEpTiles; q++) {
            if (q < tiles) c_.storeSlotTile(out + at + q * step, raw[q]);
          }
        }
      });
    }
  }
  // The barrier before it orders the block's stores before the fence.
  RH_FN void publish(uint32_t n) {
    bool isFenced = false;
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n * world_; i += c_.dataThreadsInBlock()) {
      const uint32_t g = i / world_;
      const int d = static_cast<int>(i - g * world_);
      if ((peersOf(g) >> d & 1) == 0) continue;
      if (!isFenced) c_.fence();
      isFenced = true;
      const EpPosition p = sentTo(d, g);
      c_.storeFlag(rings_.firstWord(d, team_.rank, p), EpFirstWord::of(memberOf(token_, g), shared_.expertsOn(g, d, team_.topk)));
    }
  }

  // The next n copies of rank s of this block, which have come; of a rank that was given up they may be missing.
  RH_FN void take(int s, uint32_t n) {
    const uint32_t first = shared_.next[s];
    c_.dataAll(true);  // all have read it
    RH_ROLLED
    for (uint32_t g = c_.threadInBlock(); g < n; g += c_.dataThreadsInBlock()) {
      const EpPosition p = rings_.from(s, memberOf(first, g));
      shared_.moving.taken[g] = p;
      uint32_t* at = rings_.firstWord(team_.rank, s, p);
      const bool isTurn = rings_.isTokensTurn(s, p);  // before the word: of a rank that was given up, another block may yet take the turn before
      const uint32_t word = c_.loadFlagAcquire(at);
      const bool hasCome = isTurn && (word & EpFirstWord::kHere) != 0;
      shared_.firstWords[g] = hasCome ? word : 0;
      if (hasCome) c_.storeFlag(at, 0);
    }
    if (c_.threadInBlock() == 0) shared_.next[s] = memberOf(first, n);
    c_.dataAll(true);
    if (mutated(Mutant::kGpuEpHtGivesBackEarly)) giveBack(s, first, n);
    receiver_.takeHere(s, first, n);
    c_.dataAll(true);
    if (!mutated(Mutant::kGpuEpHtGivesBackEarly)) giveBack(s, first, n);
  }
  RH_FN void giveBack(int s, uint32_t first, uint32_t n) {
    if (c_.threadInBlock() >= n || isGone(s)) return;
    c_.fence();
    RH_ROLLED
    for (uint32_t g = c_.threadInBlock(); g < n; g += c_.dataThreadsInBlock()) rings_.giveToken(s, rings_.from(s, memberOf(first, g)));
  }

  // Nothing can be moved. False: the comm has stopped. A barrier is before and behind.
  RH_FN bool await() {
    bool good = true;
    if (c_.threadInBlock() == 0) {
      const bool hasToken = token_ < tokens_;
      uint64_t credits = hasToken ? peersOf(0) : 0, copies = 0;
      RH_ROLLED
      for (uint64_t left = credits; left != 0; left &= left - 1) {
        if (hasCredit(lowestBit(left), 0)) credits &= ~(left & (~left + 1));
      }
      RH_ROLLED
      for (int r = 0; r < team_.worldSize; r++) copies |= isPeer(r) && takes(r) ? uint64_t{1} << r : 0;
      // If the token's last credit has come since look(), it is sent now: the copies that lack may come only behind it.
      const bool canSend = hasToken && credits == 0 && !mutated(Mutant::kGpuEpHtWaitsBeforeItSends);
      good = canSend || (credits | copies) == 0 || stall_.await(credits | copies, [&](int r) {
        return ((copies >> r & 1) != 0 && isHere(r, shared_.next[r])) || ((credits >> r & 1) != 0 && hasCredit(r, 0));
      });
    }
    return c_.dataAll(good);
  }
  RH_FN bool takes(int s) const { return shared_.next[s] < shared_.received[s]; }

  C& c_;
  const EpDispatchCall& call_;
  const EpTeam& team_;
  EpReceiver<C, true>& receiver_;
  EpShared& shared_;
  const EpFlightArrays& arrays_;
  EpRings<C> rings_;
  EpStall<C> stall_;
  uint32_t token_;  // of this rank, the next one of the block
  const uint32_t tokens_, world_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_DISPATCH_HT_H_
