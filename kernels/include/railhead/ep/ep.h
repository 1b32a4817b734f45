// Mixture of experts, dispatch and combine: the buffer that each rank has, and what the ranks keep of a dispatch in flight.
//
// Between each two ranks there are two pipes, each with slots in the memory of the rank that reads them: one carries a rank's tokens
// to the experts of the other, one the partial sums back. A chunk fills a slot: a header and a row for each of at most chunkTokens
// tokens, each token once, whatever the number of its experts there. In ll a slot has room for all tokens of a dispatch and there
// are two; a dispatch is one chunk, so two may be in flight. In ht there are four small slots, and a dispatch begins with a message of counts.
#ifndef RAILHEAD_KERNELS_EP_H_
#define RAILHEAD_KERNELS_EP_H_

#include "railhead/base/target.h"
#include "railhead/exchange/flags.h"

namespace railhead {

constexpr int kEpInFlight = 2;
constexpr uint32_t kEpMaxExperts = 2048;
constexpr uint32_t kEpMaxTopk = 64;
constexpr uint16_t kNoExpert = 0xffff;

// What one rank says to another; byte 64 * (number of the other) of the links of the rank that reads. All values count and wrap.
struct alignas(64) EpLine {
  // Dispatches whose counts the peer has written here. Writer: the peer, behind the counts (release). Reader: this rank (acquire).
  // ht only: in ll tail publishes the counts.
  Flag counts;
  // Chunks of tokens that the peer has written here. Writer: the peer, behind headers and rows (release). Reader: this rank (acquire).
  Flag tail;
  // Chunks of partial sums that the peer has written here. As tail.
  Flag combineTail;
  // Dispatches of this rank whose counts the peer has read. Writer: the peer, behind its last read (release). Reader: this rank,
  // before it writes the counts of the next but one (acquire). ht only.
  Flag countsHead;
  // Chunks of this rank's tokens, and of its partial sums, that the peer has read; as countsHead, before it fills the slot again.
  Flag head, combineHead;
};
static_assert(sizeof(EpLine) == 64, "peers address lines");

// Byte 0 of a buffer. Reader and writer: its own rank, but for gaveUp. It lies here and not with the caller, so that a replayed dispatch
// goes on counting.
struct EpState {
  uint32_t dispatches;  // begun
  uint32_t combines;
  uint64_t masked;      // bit r: rank r takes no part any more; bits are only ever set
  // The same for the others. Writer: its own rank (release). Readers: ranks that wait for it, where ranks may be given up
  // (acquire). It publishes all that this rank has published to those it gives up.
  uint64_t gaveUp;
  uint32_t sent[kMaxWorldSize], read[kMaxWorldSize];                // chunks of tokens to, and from, each rank
  uint32_t combineSent[kMaxWorldSize], combineRead[kMaxWorldSize];  // chunks of partial sums
};
constexpr uint64_t kEpStateBytes = 4096;
static_assert(sizeof(EpState) <= kEpStateBytes, "buffer layout");

// Head of a token in a slot, in 64-bit words: token | number of experts << 32, then for each expert local index | weight's bits << 32.
RH_FN constexpr uint32_t epHeaderBytes(uint32_t experts) { return 8 + 8 * experts; }

RH_FN constexpr uint64_t epAlign(uint64_t n) { return (n + 63) & ~uint64_t{63}; }

// What the sizes of a buffer follow from; the same on all ranks.
struct EpShape {
  uint32_t worldSize;
  uint32_t maxTokens;        // of a rank, in a dispatch
  uint32_t topk;
  uint32_t maxLocal;         // most experts that a rank holds
  uint64_t rowBytes;         // of a token on the wire
  uint64_t combineRowBytes;  // of a partial sum
  bool countsFirst;          // ht
};

// The caller allocates a buffer of the size that rh_ep_buffer_size says, which asks no daemon. So these two are constants of the
// layout, and no plan has them. alltoall has the same (TestTheSizeOfABufferIsTheReferencesForAnyConfig holds them equal).
constexpr uint32_t kEpBulkSlots = 4;            // of ht
constexpr uint64_t kEpBulkChunkBytes = 262144;  // of rows in a chunk of ht, at least one row

// Where things lie in a buffer, from its begin. Every part begins at a multiple of 64.
struct EpLayout {
  uint32_t slots, chunkTokens;
  uint64_t headerStride, rowStride, combineStride;  // of a token
  uint64_t countsStride, slotBytes, combineSlotBytes;
  uint64_t links, counts, dispatch, combine;
  uint64_t bytes;  // of all
};

RH_FN constexpr EpLayout epLayoutOf(const EpShape& s) {
  EpLayout l = {};
  const uint64_t peers = s.worldSize - 1;
  l.rowStride = epAlign(s.rowBytes);
  l.combineStride = epAlign(s.combineRowBytes);
  l.headerStride = epHeaderBytes(s.topk < s.maxLocal ? s.topk : s.maxLocal);
  l.slots = s.countsFirst ? kEpBulkSlots : kEpInFlight;
  const uint64_t fits = kEpBulkChunkBytes / l.rowStride;
  const uint64_t bulk = fits < 1 ? 1 : fits < s.maxTokens ? fits : s.maxTokens;
  l.chunkTokens = s.countsFirst ? static_cast<uint32_t>(bulk) : s.maxTokens;
  l.countsStride = epAlign(4 * (1 + uint64_t{s.maxLocal}));
  l.slotBytes = epAlign(l.chunkTokens * l.headerStride) + l.chunkTokens * l.rowStride;
  l.combineSlotBytes = l.chunkTokens * l.combineStride;
  l.links = kEpStateBytes;
  l.counts = l.links + sizeof(EpLine) * s.worldSize;
  l.dispatch = l.counts + kEpInFlight * peers * l.countsStride;
  l.combine = l.dispatch + peers * l.slots * l.slotBytes;
  l.bytes = l.combine + peers * l.slots * l.combineSlotBytes;
  return l;
}

// Counters of a rank, in memory that others read at any time (wire.h: rhw_ep_counters). Writer: its rank, relaxed.
struct EpCounters {
  uint64_t dispatches, combines;
  uint64_t tokens, copies, flagBytes;
  uint64_t invalidIds, duplicateIds, excessTokens, nonFinite, overCapacity, lostCopies;
  uint64_t experts;
  uint64_t waitTurns;  // pieces of waits that were in vain: while it moves, its rank lives and is kept by another one
  uint64_t reserved[3];
  uint64_t payloadBytes[kMaxWorldSize], headerBytes[kMaxWorldSize], waitNs[kMaxWorldSize];
  uint64_t routed[kEpMaxExperts], received[kEpMaxExperts];
  uint64_t reserved1[304];
};

// What a rank needs to know of a buffer. Filled by the host. What every rank has lies at equal distances, rank 0's first.
struct EpTeam {
  int rank, worldSize;
  uint32_t maxTokens, topk;
  uint32_t logical, physical;     // experts
  uint32_t maxLocal;              // most of a rank
  bool countsFirst;
  bool dropsDead;                 // else a death, or a deadline, breaks the group
  EpLayout layout;
  uint32_t rowBytes, combineRowBytes;
  const uint8_t* expertRank;      // [physical]
  const uint16_t* expertLocal;    // [physical] its number among the experts of its rank
  const uint16_t* replicaBegin;   // [logical + 1] into replicas
  const uint16_t* replicas;       // [physical] physical experts, ordered by their logical one
  uint16_t localExperts[kMaxWorldSize];
  const uint16_t* ownExperts;     // [localExperts[rank]] physical numbers
  char* buffers;
  uint64_t bufferStride;
  EpCounters* counters;
  int64_t timeoutNs;              // of waiting for a rank
  int64_t deathCheckNs;           // where deaths are survived, waits are cut into pieces so long, and deaths looked for between them
  int waiterDeadlines;            // a rank that is late because it waits itself is given up after so many deadlines
  const uint32_t* abortWord;      // low half of the group's, which has code and culprit (ep_links.h)
  const char* leases;             // words: what the kernel marks when a rank dies
  uint64_t leaseStride;
  const char* waitTurns;          // words of the ranks' counters
  uint64_t waitTurnsStride;

  RH_FN char* base(int r) const { return buffers + static_cast<uint64_t>(r) * bufferStride; }
  RH_FN const uint32_t* leaseOf(int r) const { return reinterpret_cast<const uint32_t*>(leases + static_cast<uint64_t>(r) * leaseStride); }
  RH_FN const uint64_t* waitTurnsOf(int r) const {
    return reinterpret_cast<const uint64_t*>(waitTurns + static_cast<uint64_t>(r) * waitTurnsStride);
  }
  RH_FN EpState* state() const { return stateOf(rank); }
  RH_FN EpState* stateOf(int r) const { return reinterpret_cast<EpState*>(base(r)); }
  // The line in rank reader's buffer that rank writer writes.
  RH_FN EpLine& line(int reader, int writer) const { return reinterpret_cast<EpLine*>(base(reader) + layout.links)[writer]; }
  RH_FN uint32_t* counts(int reader, int writer, uint32_t dispatch) const {
    const uint64_t parity = dispatch % kEpInFlight;
    return reinterpret_cast<uint32_t*>(base(reader) + layout.counts + (parity * peers() + place(reader, writer)) * layout.countsStride);
  }
  RH_FN char* slot(int reader, int writer, uint32_t chunk) const {
    return base(reader) + layout.dispatch + (place(reader, writer) * layout.slots + chunk % layout.slots) * layout.slotBytes;
  }
  RH_FN uint64_t* header(char* slot, uint32_t i) const { return reinterpret_cast<uint64_t*>(slot + i * layout.headerStride); }
  RH_FN char* row(char* slot, uint32_t i) const { return slot + epAlign(layout.chunkTokens * layout.headerStride) + i * layout.rowStride; }
  RH_FN char* combineRow(int reader, int writer, uint32_t chunk, uint32_t i) const {
    const uint64_t slot = place(reader, writer) * layout.slots + chunk % layout.slots;
    return base(reader) + layout.combine + slot * layout.combineSlotBytes + i * layout.combineStride;
  }

 private:
  RH_FN uint64_t peers() const { return static_cast<uint64_t>(worldSize - 1); }
  // A rank has no slots for itself.
  RH_FN static uint64_t place(int reader, int writer) { return static_cast<uint64_t>(writer < reader ? writer : writer - 1); }
};

// The first of a kind of what is wrong with a dispatch's input, and how many there are.
struct EpProblem {
  uint64_t count;
  uint32_t token, k;
  int64_t value;

  RH_FN void note(uint32_t t, uint32_t atK, int64_t v) {
    if (count++ == 0) {
      token = t;
      k = atK;
      value = v;
    }
  }
};

struct EpProblems {
  EpProblem invalidIds, duplicateIds, excessTokens, nonFinite;

  RH_FN uint64_t count() const { return invalidIds.count + duplicateIds.count + excessTokens.count + nonFinite.count; }
};

// T = maxTokens, K = topk, R = world size, L = list.
struct EpPlanArrays {
  uint16_t* expert;   // [T, K] physical experts, kNoExpert
  float* weight;      // [T, K]
  uint64_t* ranks;    // [T] bit r: a copy goes to rank r
  uint32_t* tokenOf;  // [R, T] token of copy i to rank r
  uint32_t* copyOf;   // [R, T] number of token t's copy to rank r
};

// What a rank sends where: routing that was checked, and a place for each copy of a token. A dispatch makes its own, or takes one
// that was made before (a cached routing).
struct EpPlan : EpPlanArrays {
  uint32_t tokens;     // of this rank
  uint32_t excess;     // tokens beyond the most that there can be; they take no part
  uint64_t masked;     // ranks that took no part when it was made
  uint64_t maskedCopies;  // to them
  uint32_t copies[kMaxWorldSize];  // to each rank
  EpProblems problems;
};

// A received row and its weight.
struct EpRowRef {
  uint32_t row;  // in the caller's layout
  float weight;
};

// How far a dispatch in flight has come.
enum class EpPhase : uint32_t { kFree, kSent, kReceived, kAdding };

// A dispatch in flight, in the rank's private memory.
struct EpFlight : EpPlan {
  EpPlanArrays own;          // of a plan that the dispatch makes itself
  const EpPlan* cached;      // the plan made before that it uses in place of that; nullptr
  const EpFlight* other;     // the buffer's other one
  EpPhase phase;
  bool adding;               // the combine has begun and not ended
  bool perToken;             // the layout of the rows
  bool hasRows;              // any was received, and there was room for it
  uint32_t number;           // of the dispatch, EpState.dispatches at its begin
  const char* rows;          // on the wire, rowStride apart
  uint64_t rowStride;
  uint32_t moved[kMaxWorldSize];     // of the copies to each rank, those written into slots
  bool pushed[kMaxWorldSize];        // whether any chunk was
  uint32_t* counts;          // [R, maxLocal] copies for each of this rank's experts from each rank
  uint32_t *nextRow, *endRow;  // [R, maxLocal] the row for the next copy from that rank, and the one behind its last
  uint32_t received[kMaxWorldSize];  // copies that each rank sends; smaller where it died over it
  uint32_t taken[kMaxWorldSize];     // of those, taken from slots
  bool counted[kMaxWorldSize], pulled[kMaxWorldSize];  // whether its counts, and any chunk, were
  uint8_t* listLength;       // [R, T] local experts of a received copy
  EpRowRef* list;            // [R, T, listStride]
  uint32_t listStride;
  // Of its combine.
  uint32_t returned[kMaxWorldSize];  // partial sums written into slots
  uint32_t finished;                 // tokens of this rank that are complete
  uint64_t lostRanks;
  uint64_t lostCopies;
  uint64_t dispatchLostCopies;  // that the dispatch has reported; the combine counts anew
  uint64_t overCapacity;

  // Chunks go through a pipe in the order of their dispatches, and a reader knows them by that alone: none of this one may go
  // before all of an earlier one that is still in flight. One that has ended has moved everything, and its plan may have been written
  // over by a dispatch that was refused.
  RH_FN bool waitsForOther(int rank) const { return isBehindOther() && other->moved[rank] < other->copies[rank]; }
  RH_FN bool waitsForOthersSums(int rank) const { return isBehindOther() && other->adding && other->returned[rank] < other->received[rank]; }
  RH_FN bool isBehindOther() const { return other->phase != EpPhase::kFree && static_cast<int32_t>(number - other->number) > 0; }

  RH_FN EpRowRef* listOf(const EpTeam& team, int source, uint32_t copy) const {
    return list + (static_cast<uint64_t>(source) * team.maxTokens + copy) * listStride;
  }
  RH_FN uint8_t& lengthOf(const EpTeam& team, int source, uint32_t copy) const {
    return listLength[static_cast<uint64_t>(source) * team.maxTokens + copy];
  }
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_EP_H_
