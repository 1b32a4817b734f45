// The words of a buffer (railhead/ep/ep.h) as GPU kernels use them. None needs a number: a word that has not come is 0, or all ones in a partial sum,
// and its reader puts that back. So marks never recur, and any number of captured or eager dispatches may follow each other.
//
//   first word of a header  Writer: the sender, after a barrier of its block and a fence; 0: the receiver, after a barrier of the block that
//                           takes the token. Readers: all threads of that block (acquire). It publishes the rest of the header, and the row.
//   count, plus 1           Writer: a block of the sender (relaxed); 0: control of the receiver. Readers: the receiver's blocks. It is the data.
//   head                    Writer: control of the receiver, after all its blocks have ended, and a fence. Readers: threads of the sender's blocks
//                           (acquire), before a slot is filled again. Headers, rows and counts have been read, and are 0 again.
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

// Shared memory of a block of a dispatch kernel.
constexpr uint32_t kEpMaskWords = 4096;
struct EpShared {
  union {
    uint32_t masks[kEpMaskWords];       // while it sends (ep_routes.h)
    uint64_t begin[kEpMaxExperts + 1];  // while it receives: the first row of each local expert
    uint32_t largest[512];              // while it encodes: the largest magnitude of each block of elements
  };
  uint32_t totals[kEpMaxExperts + kMaxWorldSize];  // this rank's tokens so far of each physical expert, then its copies to each rank
  uint32_t problems[3], firsts[3];                 // invalid and duplicate entries, tokens unfit for FP8: how many, and the first one
  uint64_t entries[kEpMaxTopk];                    // of the token that the block sends, as in EpFlightArrays
  uint32_t weights[kEpMaxTopk];
  uint32_t rows[kEpMaxTopk], listed;               // of the copy that the block receives: where it goes, and how many entries that has
  uint32_t received[kMaxWorldSize];                // copies from each rank
  uint32_t error, flight, number;
  uint32_t over;                                   // the first local expert without room
  uint64_t masked;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_SLOTS_H_
