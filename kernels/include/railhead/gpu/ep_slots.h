// The words of a buffer (railhead/ep/ep.h) as GPU kernels use them.
//
//   first word of a header  Writer: the sender, after a barrier of its block and a fence; 0: a thread of the receiver, once it has seen the word.
//                           Reader: that thread (acquire), before a barrier of its block. It publishes the rest of the header, and the row.
//   count                   Writer: a block of the sender (relaxed). Readers: the receiver's blocks. The word is the data. Every dispatch stores all
//                           counts, so the word holds those of dispatch n - 2 or of n, and one bit of the number tells which (EpCountWord).
//   head                    Writer: control of the receiver's next kernel, at its start, behind a fence: the end of the kernel before costs nobody a
//                           fence. Readers: threads of the sender's blocks (acquire), before a slot is filled again. Headers, rows and counts have
//                           been read, and first words are 0 again. Every rank has such a kernel between receiving dispatch n and sending n + 2: the
//                           one that ends n or n + 1, since two are in flight at most.
//   cell of a partial sum   Writer: the rank of the experts (relaxed); all ones: the token's rank, after its read. Reader: a thread of the token's
//                           rank. An element that is not all ones is the data.
//
// Partial sums need no head. The rank of the experts stores to a slot of dispatch n + 2 after it has received that dispatch's copy, whose sender
// has ended the combine of n: at most two are in flight, and its kernels follow each other.
#ifndef RAILHEAD_KERNELS_GPU_EP_SLOTS_H_
#define RAILHEAD_KERNELS_GPU_EP_SLOTS_H_

#include "railhead/base/mutant.h"
#include "railhead/ep/ep.h"
#include "railhead/exchange/inbox.h"
#include "railhead/gpu/context.h"
#include "railhead/gpu/ep_call.h"

namespace railhead::gpu {

// The first word of a token's header: bits 0..19 token, 20..26 number of experts, 31 set.
struct EpFirstWord {
  static constexpr uint32_t kHere = 0x80000000u;
  RH_FN static uint32_t of(uint32_t token, uint32_t experts) { return kHere | experts << 20 | token; }
  RH_FN static uint32_t token(uint32_t word) { return word & 0xfffff; }
  RH_FN static uint32_t experts(uint32_t word) { return word >> 20 & 0x7f; }
};
// The word of an expert: bits 0..10 its local index, 11..30 the token's place among the sender's tokens of that expert, 32..63 the weight.
struct EpExpertWord {
  RH_FN static uint64_t of(uint32_t local, uint32_t place, uint32_t weight) { return (local | place << 11) | uint64_t{weight} << 32; }
  RH_FN static uint32_t local(uint64_t word) { return static_cast<uint32_t>(word) & 0x7ff; }
  RH_FN static uint32_t place(uint64_t word) { return static_cast<uint32_t>(word) >> 11 & 0xfffff; }
  RH_FN static uint32_t weight(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
};
static_assert(kEpMaxExperts <= 1 << 11 && kEpMaxTopk < 1 << 7, "words of headers");
// A count of dispatch `number`: bits 0..30 the count plus 1, 31 bit 1 of the number, which differs from that of number - 2. A new buffer has 0.
struct EpCountWord {
  RH_FN static uint32_t of(uint32_t count, uint32_t number) { return (count + 1) | turn(number); }
  RH_FN static bool isHere(uint32_t word, uint32_t number) {
    return (word & kCount) != 0 && ((word & ~kCount) == turn(number) || mutated(Mutant::kGpuEpCountsTurnUnchecked));
  }
  // Of a word that is here.
  RH_FN static uint32_t count(uint32_t word) { return (word & kCount) - 1; }

 private:
  static constexpr uint32_t kCount = 0x7fffffff;
  RH_FN static uint32_t turn(uint32_t number) { return (number >> 1 & 1) << 31; }
};
static_assert(kEpInFlight == 2, "EpCountWord");
// An entry of a token (EpFlightArrays::entries): bits 0..15 physical expert or kNoExpert, 16..21 its rank, 22..32 its index there, 33..52 the token's
// place among this rank's tokens of that expert.
struct EpEntry {
  static constexpr uint64_t kNone = kNoExpert;
  RH_FN static uint64_t of(uint32_t physical, uint32_t rank, uint32_t local, uint32_t place) {
    return physical | uint64_t{rank} << 16 | uint64_t{local} << 22 | uint64_t{place} << 33;
  }
  RH_FN static bool isNone(uint64_t entry) { return physical(entry) == kNoExpert; }
  RH_FN static uint32_t physical(uint64_t entry) { return static_cast<uint32_t>(entry) & 0xffff; }
  RH_FN static int rank(uint64_t entry) { return static_cast<int>(static_cast<uint32_t>(entry) >> 16 & 0x3f); }
  RH_FN static uint32_t local(uint64_t entry) { return static_cast<uint32_t>(entry >> 22) & 0x7ff; }
  RH_FN static uint32_t place(uint64_t entry) { return static_cast<uint32_t>(entry >> 33); }
  RH_FN static bool isOf(uint64_t entry, int r) { return !isNone(entry) && rank(entry) == r; }
};
static_assert(kMaxWorldSize <= 64, "EpEntry");

// Addresses of a dispatch's words. Its number chooses one of two slots.
struct EpSlots {
  const EpTeam& team;
  uint32_t number;

  RH_FN char* slot(int reader, int writer) const { return team.slot(reader, writer, mutated(Mutant::kGpuEpOneSlot) ? 0 : number); }
  RH_FN uint32_t* firstWord(char* slot, uint32_t copy) const { return reinterpret_cast<uint32_t*>(team.header(slot, copy)); }
  RH_FN uint64_t* expertWord(char* slot, uint32_t copy, uint32_t i) const { return team.header(slot, copy) + 1 + i; }
  RH_FN uint32_t* counts(int reader, int writer) const { return team.counts(reader, writer, number); }
  RH_FN uint32_t* head(int writer, int reader) const { return &team.line(writer, reader).head.value; }
  RH_FN Packet* cell(int reader, int writer, uint32_t copy, uint32_t tile) const {
    return reinterpret_cast<Packet*>(team.combineRow(reader, writer, number, copy) + tile * uint64_t{16});
  }
};

RH_FN uint32_t bitsSet(uint32_t bits) {
#if defined(__CUDACC__)
  return static_cast<uint32_t>(__popc(bits));
#else
  return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
}

// Things go to the blocks in turn: the first one of this block, behind `before` others.
RH_FN uint32_t epFirstOf(uint32_t block, uint32_t before, uint32_t blocks) {
  const uint32_t skipped = before < blocks ? before : before % blocks;  // most often without a division, which takes as long as ten additions
  return block >= skipped ? block - skipped : block + blocks - skipped;
}

constexpr uint32_t kEpMaskWords = 4096, kEpCountWords = 2048, kEpGroup = 4, kEpWrittenWords = 128;

// Where a copy goes in a ring of ht: for the turn-th time to a position, which is number `at` of a slot.
struct EpPosition {
  uint32_t turn, slot : 4, at : 28;
};
static_assert(kEpBulkSlots < 1 << 4 && kEpGpuBulkChunkBytes / 64 < 1 << 28, "a position");

// Of a block of ht that moves tokens, or partial sums.
struct EpMoving {
  // Words of EpRankState, which no block changes: `to` where this rank sends (sent, or summed), `from` where it reads (taken, or added), `other` the
  // other one of taken and added.
  EpRing to[kMaxWorldSize], from[kMaxWorldSize], other[kMaxWorldSize];
  // Of the group of this rank's tokens, and each rank: where the token goes, or where its partial sum comes from.
  EpPosition places[kEpGroup * kMaxWorldSize];
  uint8_t isTurn[kEpGroup * kMaxWorldSize];  // whether what is there may be that sum
  EpPosition taken[kEpGroup];                // of the copies that the block takes
};

// Shared memory of a block of a dispatch kernel. A block sends and takes tokens in groups, which share barriers and fences.
struct EpShared {
  union {
    uint32_t masks[kEpMaskWords];       // while it sends (ep_routes.h)
    uint64_t begin[kEpMaxExperts + 1];  // while it receives: the first row of each local expert
    uint32_t largest[512];              // while it encodes: the largest magnitude of each block of elements
  };
  uint32_t totals[kEpMaxExperts + kMaxWorldSize];  // this rank's tokens so far of each physical expert, then its copies to each rank
  union {
    uint16_t home[kEpMaxExperts];           // while it sends: EpCommonCall::home
    uint32_t before[kEpCountWords];         // while it receives: [world + 1][local experts] rows of an expert from the ranks before, if they fit
  };
  uint8_t expertRank[kEpMaxExperts];        // of the physical experts, as in EpTeam
  union {
    uint16_t expertLocal[kEpMaxExperts];    // while it sends
    EpMoving moving;                        // of ht, behind that
  };
  uint32_t problems[3], firsts[3];          // invalid and duplicate entries, tokens unfit for FP8: how many, and the first one
  // Of the group of tokens that the block sends, or of copies that it takes:
  uint64_t entries[kEpGroup * kEpMaxTopk];  // as in EpFlightArrays
  uint32_t weights[kEpGroup * kEpMaxTopk];
  uint64_t to[kEpGroup];                    // bit r: rank r, which is not masked, gets the token
  uint32_t ownCopy[kEpGroup];               // if this rank does
  uint32_t held;                            // the first token whose entries these are; ~0 = none
  uint32_t firstWords[kEpGroup];            // of the headers of copies
  uint32_t rows[kEpGroup * kEpMaxTopk], listed[kEpGroup];  // where a copy goes, and how many entries that has
  uint32_t listedWeights[kEpGroup * kEpMaxTopk];
  union {
    uint64_t partial[64];  // while it receives, before rows are taken: of a sum over the local experts
    struct {
      uint32_t turns[kMaxWorldSize], aliveMs[kMaxWorldSize];
    } stalled;             // of ht: what a wait has seen of each rank (EpStall)
  };
  uint32_t received[kMaxWorldSize];         // copies from each rank
  uint32_t error, flight, number;
  uint32_t outcome;                         // of the last block, for control (EpRankState::done)
  // Of a combine: words of its flight; whether y is weighted. copies: indices of the copies of a group's tokens to each rank, of a dispatch that sends too.
  uint32_t tokens, excess, isWeighted;
  uint32_t copies[kEpGroup * kMaxWorldSize];
  uint32_t over, overRows;                  // the first local expert without room, and how many rows have none
  uint64_t masked;
  // Ranks that the block has given up in this kernel, bit r % 32 of word r / 32: it sends nothing to those of gone, or adds nothing of them; counts of
  // those of uncounted have not come.
  uint32_t gone[2], uncounted[2];
  uint32_t isLast;                          // of the kernel's blocks to end
  uint32_t hasTaken;                        // whether the block has taken rows
  // Of ht: the next copy of each rank; how many of the group can be moved, of this rank's tokens in its own word; the first tile of a partial sum that
  // lacks, its rank above bit 24.
  uint32_t next[kMaxWorldSize], ready[kMaxWorldSize], lackingCell;
  uint32_t written[kEpWrittenWords];        // bit i: row i has come (ep_repair.h)

  // How many of the first k entries of the group's token g are on rank d.
  RH_FN uint32_t expertsOn(uint32_t g, int d, uint32_t k) const {
    uint32_t n = 0;
    RH_ROLLED
    for (uint32_t j = 0; j < k; j++) n += EpEntry::isOf(entries[g * kEpMaxTopk + j], d);
    return n;
  }
  RH_FN uint64_t goneRanks() const { return gone[0] | uint64_t{gone[1]} << 32; }
  RH_FN uint64_t uncountedRanks() const { return uncounted[0] | uint64_t{uncounted[1]} << 32; }
};
static_assert(sizeof(EpShared) + sizeof(Shared) <= 48 << 10, "a block's shared memory");

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_SLOTS_H_
