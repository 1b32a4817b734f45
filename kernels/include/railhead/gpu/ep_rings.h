// The slots of ht as rings of tokens. Each ordered pair of ranks has a ring of positions for tokens, and one for the partial sums that come back: as many
// as tokens fit into its slots. Copies go through a ring in their order; so does the next dispatch's. A position is filled again once its reader has given
// it back.
//
//   credit  The second half of word 0 of a header: how often the rank that writes the headers has read this position of what this rank has sent there:
//           bits 0..15 tokens, 16..31 partial sums (modulo 2^16). It lies with the headers that come from that rank, so each rank polls its own memory.
//           Writer: a thread of the reader's block, after a barrier of the block and a fence (relaxed): rows have been read, first words are 0, cells
//           are all ones again. Reader: a thread of the block that fills the position (acquire), before a barrier of its block.
//   read    The same for the reader's own blocks, in its private memory (EpCommonCall::read): what is there may be of an earlier turn, which another block
//           has yet to read. Writer and order as of the credit. Readers: threads that look at the position (acquire).
#ifndef RAILHEAD_KERNELS_GPU_EP_RINGS_H_
#define RAILHEAD_KERNELS_GPU_EP_RINGS_H_

#include "railhead/gpu/ep_slots.h"
#include "railhead/gpu/ep_waits.h"

namespace railhead::gpu {

// Where a copy goes: for the turn-th time to a position, which is number `at` of a slot.
struct EpPosition {
  uint32_t turn, slot, at;
};

template <class C>
class EpRings {
 public:
  RH_FN EpRings(C& c, const EpCommonCall& call) : c_(c), team_(call.team), state_(*call.state), read_(call.read) {}

  // Of copy i of this dispatch in a ring.
  RH_FN EpPosition positionOf(const EpRing& ring, uint32_t i) {
    const uint32_t each = team_.layout.chunkTokens, all = each * team_.layout.slots, n = c_.loadState(&ring.at) + i, at = n % all;
    return {c_.loadState(&ring.turn) + n / all, at / each, at % each};
  }
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
    c_.storeFlag(readAt(0, writer, p), p.turn + 1);
    give(writer, p, p.turn + 1, readOf(state_.added[writer], p));
  }
  RH_FN void giveSum(int writer, const EpPosition& p) {
    c_.storeFlag(readAt(1, writer, p), p.turn + 1);
    give(writer, p, readOf(state_.taken[writer], p), p.turn + 1);
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
  RH_FN uint32_t* readAt(int which, int writer, const EpPosition& p) const {
    const uint32_t each = team_.layout.chunkTokens;
    return read_ + static_cast<uint32_t>(which * team_.worldSize + writer) * uint64_t{each * team_.layout.slots} + p.slot * each + p.at;
  }
  // How often a position was read before this kernel.
  RH_FN uint32_t readOf(const EpRing& ring, const EpPosition& p) {
    return c_.loadState(&ring.turn) + (p.slot * team_.layout.chunkTokens + p.at < c_.loadState(&ring.at) ? 1 : 0);
  }
  RH_FN void give(int writer, const EpPosition& p, uint32_t tokens, uint32_t sums) {
    c_.storeFlag(firstWord(writer, team_.rank, p) + 1, (tokens & 0xffff) | sums << 16);
  }

  C& c_;
  const EpTeam& team_;
  const EpRankState& state_;
  uint32_t* const read_;
};

// A block's wait when it can move nothing: its first thread polls what is lacking.
template <class C>
class EpStall {
 public:
  RH_FN EpStall(C& c, const EpCommonCall& call) : c_(c), wait_(c, call, 0) {}

  // isThere(r): whether something of rank r has come. lacking: the ranks of which something lacks. False: the comm has stopped. By the first thread.
  template <class IsThere>
  RH_FN bool await(uint64_t lacking, IsThere isThere) {
    wait_.startFor(lowestBit(lacking));
    RH_ROLLED
    for (;;) {
      bool any = false;
      RH_ROLLED
      for (uint64_t left = lacking; left != 0; left &= left - 1) any |= isThere(lowestBit(left));
      if (any) break;
      if (wait_.goesOn()) continue;
      if (!wait_.isGone()) return false;
      const uint32_t r = static_cast<uint32_t>(lowestBit(lacking));
      c_.sharedOr(&c_.epShared().gone[r / 32], 1u << r % 32);
      break;
    }
    c_.endWait();
    return true;
  }

 private:
  C& c_;
  EpWait<C> wait_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_RINGS_H_
