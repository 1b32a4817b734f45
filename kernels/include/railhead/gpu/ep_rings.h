// The slots of ht as rings of tokens. Each ordered pair of ranks has a ring of positions for tokens, and one for the partial sums that come back: as many
// as tokens fit into its slots. Copies go through a ring in their order; so does the next dispatch's. A position is filled again once its reader has given
// it back.
//
//   credit  The second half of word 0 of a header: how often the rank that writes the headers has read this position of what this rank has sent there:
//           bits 0..15 tokens, 16..31 partial sums (modulo 2^16). It lies with the headers that come from that rank, so each rank polls its own memory.
//           Writer: a thread of the reader's block, after a barrier of the block and a fence (relaxed): rows have been read, first words are 0, cells
//           are all ones again. Reader: a thread of the block that fills the position (acquire), before a barrier of its block.
//   read    The same for the reader's own blocks, in its private memory (EpCommonCall::read): what is there may be of an earlier turn, which another block
//           has yet to read. Writer: the thread that has stored the credit, after a fence of the device (relaxed). Readers: a thread that looks at the
//           position, or for sums one of the block, before a barrier behind which all threads look (acquire): rows have been read, and the credit is
//           stored before the next one.
#ifndef RAILHEAD_KERNELS_GPU_EP_RINGS_H_
#define RAILHEAD_KERNELS_GPU_EP_RINGS_H_

#include "railhead/gpu/ep_slots.h"
#include "railhead/gpu/ep_waits.h"

namespace railhead::gpu {

template <class C>
class EpRings {
 public:
  RH_FN EpRings(C& c, const EpCommonCall& call) : c_(c), team_(call.team), state_(*call.state), moving_(c.epShared().moving), read_(call.read) {}

  // By all threads of a block that moves tokens, or partial sums. A barrier follows.
  RH_FN void load(bool tokens) {
    RH_ROLLED
    for (uint32_t r = c_.threadInBlock(); r < static_cast<uint32_t>(team_.worldSize); r += c_.dataThreadsInBlock()) {
      moving_.to[r] = loaded(tokens ? state_.sent[r] : state_.summed[r]);
      moving_.from[r] = loaded(tokens ? state_.taken[r] : state_.added[r]);
      moving_.other[r] = loaded(tokens ? state_.added[r] : state_.taken[r]);
    }
  }
  // Of copy i of this dispatch: to a rank, or from it.
  RH_FN EpPosition to(int d, uint32_t i) const { return positionOf(moving_.to[d], i); }
  RH_FN EpPosition from(int s, uint32_t i) const { return positionOf(moving_.from[s], i); }
  RH_FN char* slot(int reader, int writer, const EpPosition& p) const { return team_.slot(reader, writer, p.slot); }
  RH_FN uint32_t* firstWord(int reader, int writer, const EpPosition& p) const {
    return reinterpret_cast<uint32_t*>(team_.header(slot(reader, writer, p), p.at));
  }
  RH_FN char* sum(int reader, int writer, const EpPosition& p) const { return team_.combineRow(reader, writer, p.slot, p.at); }

  // The word of a credit for what this rank sends to another one.
  RH_FN const uint32_t* creditFrom(int reader, const EpPosition& p) const { return firstWord(team_.rank, reader, p) + 1; }
  RH_FN static bool hasToken(uint32_t credit, const EpPosition& p) {
    return (credit & 0xffff) == (p.turn & 0xffff) || mutated(Mutant::kGpuEpHtCreditsIgnored);
  }
  RH_FN static bool hasSum(uint32_t credit, const EpPosition& p) {
    return credit >> 16 == (p.turn & 0xffff) || mutated(Mutant::kGpuEpHtSumCreditsIgnored);
  }
  // Gives a position back to its writer. A fence is before.
  RH_FN void giveToken(int writer, const EpPosition& p) {
    give(writer, p, p.turn + 1, readOf(moving_.other[writer], p));
    note(readAt(0, writer, p), p.turn + 1);
  }
  RH_FN void giveSum(int writer, const EpPosition& p) {
    give(writer, p, readOf(moving_.other[writer], p), p.turn + 1);
    note(readAt(1, writer, p), p.turn + 1);
  }
  // Whether what is at a position is of this turn, if it is anything.
  RH_FN bool isTokensTurn(int writer, const EpPosition& p) {
    return c_.loadFlagAcquire(readAt(0, writer, p)) == p.turn || mutated(Mutant::kGpuEpHtTurnUnchecked);
  }
  RH_FN bool isSumsTurn(int writer, const EpPosition& p) {
    return c_.loadFlagAcquire(readAt(1, writer, p)) == p.turn || mutated(Mutant::kGpuEpHtSumsTurnUnchecked);
  }

  // By one thread, after n copies.
  RH_FN void advance(EpRing* ring, uint32_t n) {
    const uint32_t all = team_.layout.chunkTokens * team_.layout.slots, behind = c_.loadState(&ring->at) + n;
    c_.storeState(&ring->turn, c_.loadState(&ring->turn) + behind / all);
    c_.storeState(&ring->at, behind % all);
  }

 private:
  RH_FN EpRing loaded(const EpRing& ring) { return {c_.loadState(&ring.turn), c_.loadState(&ring.at)}; }
  RH_FN EpPosition positionOf(const EpRing& ring, uint32_t i) const {
    const uint32_t each = team_.layout.chunkTokens, all = each * team_.layout.slots, n = ring.at + i, at = n % all;
    return {ring.turn + n / all, at / each & 0xf, at % each & 0xfffffff};
  }
  RH_FN uint32_t* readAt(int which, int writer, const EpPosition& p) const {
    const uint32_t each = team_.layout.chunkTokens;
    return read_ + static_cast<uint32_t>(which * team_.worldSize + writer) * uint64_t{each * team_.layout.slots} + p.slot * each + p.at;
  }
  // How often a position was read before this kernel.
  RH_FN uint32_t readOf(const EpRing& ring, const EpPosition& p) const {
    return ring.turn + (p.slot * team_.layout.chunkTokens + p.at < ring.at ? 1 : 0);
  }
  // The block that reads the position next has seen this before it stores its own credit, so that the credits are stored in their order.
  RH_FN void note(uint32_t* read, uint32_t turns) {
    if (!mutated(Mutant::kGpuEpHtCreditsUnordered)) c_.fenceDevice();
    c_.storeFlag(read, turns);
  }
  RH_FN void give(int writer, const EpPosition& p, uint32_t tokens, uint32_t sums) {
    c_.storeFlag(firstWord(writer, team_.rank, p) + 1, (tokens & 0xffff) | sums << 16);
  }

  C& c_;
  const EpTeam& team_;
  const EpRankState& state_;
  EpMoving& moving_;
  uint32_t* const read_;
};

// A block's wait when it can move nothing, by its first thread: for anything that it lacks, of any rank. So it looks at all ranks that lack something: if it
// looked at one of them, two living ranks could wait for each other, and for a dead one that neither looks at.
template <class C>
class EpStall {
 public:
  RH_FN EpStall(C& c, const EpCommonCall& call) : c_(c), call_(call) {}

  // isThere(r): whether something of rank r has come. lacking: the ranks of which something lacks. False: the comm has stopped.
  template <class IsThere>
  RH_FN bool await(uint64_t lacking, IsThere isThere) {
    uint64_t begun = 0, ending = 0, gone = 0, since = 0, waitedFrom = 0;
    RH_ROLLED
    for (;;) {
      bool any = false;
      RH_ROLLED
      for (uint64_t left = lacking; left != 0; left &= left - 1) any |= isThere(lowestBit(left));
      if (any) break;
      if (ending == 0) {
        const uint64_t began = c_.waitBegan();
        if (c_.keepWaiting()) continue;
        if (waitedFrom == 0) waitedFrom = began;
        if (!c_.survives()) {
          c_.giveUp(lacking);
          return false;
        }
      }
      const uint64_t all = mutated(Mutant::kGpuEpHtLooksAtOneRank) ? lacking & (~lacking + 1) : lacking;
      const uint64_t looked = ending != 0 ? ending : all, last = ending;
      ending = 0;
      RH_ROLLED
      for (uint64_t left = looked; left != 0; left &= left - 1) {
        const int r = lowestBit(left);
        const uint64_t bit = left & (~left + 1);
        const Seen seen = look(r, (last & bit) != 0, (begun & bit) != 0, &since);
        begun |= bit;
        if (seen == Seen::kEnd) ending |= bit;
        if (seen == Seen::kGone) gone |= bit;
      }
      if (gone == 0) continue;
      RH_UNROLL
      for (int i = 0; i < 2; i++) {
        if (static_cast<uint32_t>(gone >> 32 * i) != 0) c_.sharedOr(&c_.epShared().gone[i], static_cast<uint32_t>(gone >> 32 * i));
      }
      break;
    }
    if (waitedFrom == 0) waitedFrom = c_.waitBegan();
    RH_ROLLED
    for (uint64_t left = waitedFrom == 0 ? 0 : lacking; left != 0; left &= left - 1) epCountWait<C>(c_, call_, lowestBit(left), waitedFrom);
    c_.endWait();
    return true;
  }

 private:
  using Seen = typename EpWait<C>::Seen;

  // What was seen of a rank is in shared memory between two looks, as milliseconds after *since, the first look. They are rounded up, so aliveAt may be up to
  // 1 ms ahead of the clock.
  RH_FN Seen look(int r, bool isLast, bool began, uint64_t* since) {
    constexpr uint64_t kMs = 1000000;
    EpShared& shared = c_.epShared();
    EpPatience p;
    p.began = began;
    p.turns = shared.stalled.turns[r];
    p.since = *since;
    p.aliveAt = *since + shared.stalled.aliveMs[r] * kMs;
    const auto [seen, patience] = EpWait<C>::look(c_, call_, c_.way(), r, false, isLast, c_.beganWaiting(), p);
    p = patience;
    if (*since == 0) *since = p.since;
    shared.stalled.turns[r] = p.turns;
    shared.stalled.aliveMs[r] = p.aliveAt <= *since ? 0 : static_cast<uint32_t>((p.aliveAt - *since + kMs - 1) / kMs);
    return seen;
  }

  C& c_;
  const EpCommonCall& call_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_RINGS_H_
