// Mixture of experts, dispatch and combine: a rank's buffer, and the state of a dispatch in flight.
//
// Each ordered pair of ranks has two pipes: one for the tokens that go to the other rank's experts, one for the partial sums that come
// back. Slots are in the memory of the rank that reads them. A chunk fills a slot. It has a header and a row for each of at most
// chunkTokens tokens; a token is sent to a rank once, whatever the number of its experts there. In ll a slot has room for all tokens of a
// dispatch, so a dispatch is one chunk; there are two slots, so two dispatches may be in flight. In ht there are four small slots, and a
// dispatch begins with a message of counts.
#ifndef RAILHEAD_KERNELS_EP_H_
#define RAILHEAD_KERNELS_EP_H_

#include "railhead/base/target.h"
#include "railhead/exchange/flags.h"

namespace railhead {

constexpr int kEpInFlight = 2;
constexpr uint32_t kEpMaxExperts = 2048;
constexpr uint32_t kEpMaxTopk = 64;
constexpr uint16_t kNoExpert = 0xffff;

// The flags that a peer writes for this rank: offset 64 * (the peer's number) of this rank's links. All values count, and wrap.
struct alignas(64) EpLine {
  // Dispatches whose counts the peer has written here. Writer: the peer, after the counts (release). Reader: this rank (acquire). ht
  // only: in ll, tail publishes the counts.
  Flag counts;
  // Chunks of tokens that the peer has written here. Writer: the peer, after headers and rows (release). Reader: this rank (acquire).
  Flag tail;
  // Chunks of partial sums that the peer has written here. Order as for tail.
  Flag combineTail;
  // Dispatches of this rank whose counts the peer has read. Writer: the peer, after its last read (release). Reader: this rank, before it
  // writes the counts of the next dispatch but one (acquire). ht only.
  Flag countsHead;
  // Chunks of this rank's tokens, and of its partial sums, that the peer has read. Order as for countsHead: acquired before this rank
  // fills the slot again.
  Flag head, combineHead;
};
static_assert(sizeof(EpLine) == 64, "peers address lines");

// Offset 0 of a buffer. Reader and writer: its own rank, except for gaveUp. It lies here and not in the host's state, so that a replayed
// dispatch continues to count.
struct EpState {
  uint32_t dispatches;  // begun; the same for combines
  uint32_t combines;
  uint64_t masked;      // bit r: rank r is masked, it takes no part any more; bits are never cleared
  // The published copy of masked. Writer: its own rank (release). Readers: ranks that wait for it, if deaths are survived (acquire). It
  // publishes everything that this rank will ever send to the ranks it has masked.
  uint64_t gaveUp;
  uint32_t sent[kMaxWorldSize], read[kMaxWorldSize];                // chunks of tokens to, and from, each rank
  uint32_t combineSent[kMaxWorldSize], combineRead[kMaxWorldSize];  // chunks of partial sums to, and from, each rank
  // On a GPU, where counters do not lie in shared memory: as EpCounters::waitTurns. Writer: threads of its own rank (relaxed adds). Readers: ranks that
  // wait for it.
  uint32_t waitTurns;
};
constexpr uint64_t kEpStateBytes = 4096;
static_assert(sizeof(EpState) <= kEpStateBytes, "buffer layout");

// Header of a token in a slot, 64-bit words. Word 0: bits 0..31 token, 32..63 number of experts. Then a word for each expert: bits 0..31
// its local index, 32..63 its weight, as f32.
RH_FN constexpr uint32_t epHeaderBytes(uint32_t experts) { return 8 + 8 * experts; }

RH_FN constexpr uint64_t epAlign(uint64_t n) { return (n + 63) & ~uint64_t{63}; }

// What determines the sizes of a buffer; the same on all ranks.
struct EpShape {
  uint32_t worldSize;
  uint32_t maxTokens;        // of a rank, in a dispatch
  uint32_t topk;
  uint32_t maxLocal;         // the most experts of a rank
  uint64_t rowBytes;         // of a token on the wire
  uint64_t combineRowBytes;  // of a partial sum
  bool countsFirst;          // ht
  bool onGpu = false;        // its slots of ht are in the memory of GPUs
};

// The caller allocates a buffer of the size that rh_ep_buffer_size returns, which asks no daemon. So these two are constants of the
// layout and not part of a plan. alltoall has the same numbers (TestTheSizeOfABufferEqualsTheReferenceForAnyConfig compares them).
//
// Slots of ht. On a CPU a chunk stays in the cache until it is read. On a GPU the slots of a pair of ranks are one ring of positions for single
// tokens (gpu/ep_rings.h), in which all blocks have tokens under way: 64 blocks with groups of 4 tokens need 256 positions to be
// busy, and as many again while the first ones are on their way. More than a dispatch has tokens are of no use.
constexpr uint32_t kEpBulkSlots = 4;
constexpr uint64_t kEpBulkChunkBytes = 256 << 10, kEpGpuBulkChunkBytes = 2 << 20;  // of rows in a chunk, at least one row

// Offsets and strides of a buffer. Every part begins at a multiple of 64.
struct EpLayout {
  uint32_t slots, chunkTokens;
  uint64_t headerStride, rowStride, combineStride;  // of a token
  uint64_t countsStride, slotBytes, combineSlotBytes;
  uint64_t links, counts, dispatch, combine;
  uint64_t bytes;  // of the whole buffer
};

RH_FN constexpr EpLayout epLayoutOf(const EpShape& s) {
  EpLayout l = {};
  const uint64_t peers = s.worldSize - 1;
  l.rowStride = epAlign(s.rowBytes);
  l.combineStride = epAlign(s.combineRowBytes);
  l.headerStride = epHeaderBytes(s.topk < s.maxLocal ? s.topk : s.maxLocal);
  l.slots = s.countsFirst ? kEpBulkSlots : kEpInFlight;
  const uint64_t fits = (s.onGpu ? kEpGpuBulkChunkBytes : kEpBulkChunkBytes) / l.rowStride;
  const uint64_t most = s.onGpu ? s.maxTokens / kEpBulkSlots : s.maxTokens, bulk = fits < most ? fits : most;
  l.chunkTokens = s.countsFirst ? static_cast<uint32_t>(bulk < 1 ? 1 : bulk) : s.maxTokens;
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

// Counters of a rank, which others read at any time (segment.h: rhw_ep_counters). Writer: its rank, relaxed.
struct EpCounters {
  uint64_t dispatches, combines;
  uint64_t tokens, copies, flagBytes;
  uint64_t invalidIds, duplicateIds, excessTokens, nonFinite, overCapacity, lostCopies;
  uint64_t experts;
  uint64_t waitTurns;  // pieces of waits that ended without success. While it grows, its rank is alive and waits for another one
  uint64_t reserved[3];
  uint64_t payloadBytes[kMaxWorldSize], headerBytes[kMaxWorldSize], waitNs[kMaxWorldSize];
  uint64_t routed[kEpMaxExperts], received[kEpMaxExperts];
  uint64_t reserved1[304];
};

// A rank's view of a buffer. Filled in by the host. Memory of the ranks is given by a base and a stride, in rank order.
struct EpTeam {
  int rank, worldSize;
  uint32_t maxTokens, topk;
  uint32_t logical, physical;     // experts
  uint32_t maxLocal;              // the most of a rank
  bool countsFirst;
  bool dropsDead;                 // late and dead ranks are masked; else a death or a deadline breaks the group
  EpLayout layout;
  uint32_t rowBytes, combineRowBytes;
  const uint8_t* expertRank;      // [physical]
  const uint16_t* expertLocal;    // [physical] its index among the experts of its rank
  const uint16_t* replicaBegin;   // [logical + 1] into replicas
  const uint16_t* replicas;       // [physical] physical experts, ordered by their logical one
  uint16_t localExperts[kMaxWorldSize];
  const uint16_t* ownExperts;     // [localExperts[rank]] physical numbers
  char* buffers;
  uint64_t bufferStride;
  EpCounters* counters;
  int64_t timeoutNs;              // deadline of waiting for a rank
  int64_t limitNs;                // deadline of all waits of a call together, counted from the first; 0 = none
  int64_t deathCheckNs;           // with dropsDead, length of a piece of a wait; deaths are checked between pieces
  int waiterDeadlines;            // a late rank that itself waits is masked after so many deadlines
  const uint32_t* abortWord;      // low half of the group's abort word, which has code and culprit (ep_links.h)
  const char* leases;             // lease words, which the kernel marks when a rank dies
  uint64_t leaseStride;
  const char* waitTurns;          // EpCounters::waitTurns of each rank
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
  // Index among the reader's peers: a rank has no slots for itself.
  RH_FN static uint64_t place(int reader, int writer) { return static_cast<uint64_t>(writer < reader ? writer : writer - 1); }
};

// One kind of invalid input of a dispatch: how many there are, and the first one.
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

// T = maxTokens, K = topk, R = world size. A copy is a token on its way to one rank.
struct EpPlanArrays {
  uint16_t* expert;   // [T, K] physical experts, kNoExpert
  float* weight;      // [T, K]
  uint64_t* ranks;    // [T] bit r: rank r gets a copy
  uint32_t* tokenOf;  // [R, T] the token of copy i to rank r
  uint32_t* copyOf;   // [R, T] the index of token t's copy to rank r
};

// What a rank sends to which rank: a checked routing, and the index of each copy. A dispatch makes its own plan or uses one made before
// (a cached routing).
struct EpPlan : EpPlanArrays {
  uint32_t tokens;     // of this rank
  uint32_t excess;     // tokens beyond maxTokens; they are not sent
  uint64_t masked;     // ranks that were masked when the plan was made
  uint64_t maskedCopies;  // copies to them, which are lost
  uint32_t copies[kMaxWorldSize];  // to each rank
  EpProblems problems;
};

// A received row.
struct EpRowRef {
  uint32_t row;  // index in the caller's layout
  float weight;
};

// The state of a flight: free; sent; received; its combine has begun.
enum class EpPhase : uint32_t { kFree, kSent, kReceived, kAdding };

// A dispatch in flight, in the rank's private memory.
struct EpFlight : EpPlan {
  EpPlanArrays own;          // for a plan that the dispatch makes itself
  const EpPlan* cached;      // the cached plan that it uses instead; nullptr = none
  const EpFlight* other;     // the buffer's other flight
  EpPhase phase;
  bool adding;               // the combine has begun and not ended
  bool perToken;             // one row for each token, not for each expert
  bool hasRows;              // whether rows were received and had room
  uint32_t number;           // of the dispatch: EpState.dispatches after it began
  const char* rows;          // rows in wire format, rowStride apart
  uint64_t rowStride;
  uint32_t moved[kMaxWorldSize];     // copies to each rank that are written to slots
  bool pushed[kMaxWorldSize];        // whether any chunk to the rank is
  uint32_t* counts;          // [R, maxLocal] copies from each rank for each of this rank's experts
  uint32_t *nextRow, *endRow;  // [R, maxLocal] the row of the next copy from that rank, and the end of its rows
  uint32_t received[kMaxWorldSize];  // copies that each rank sends; fewer if it dies before it has sent all
  uint32_t taken[kMaxWorldSize];     // of these, taken from slots
  bool counted[kMaxWorldSize], pulled[kMaxWorldSize];  // whether the rank's counts were taken, and any of its chunks
  uint8_t* listLength;       // [R, T] local experts of a received copy
  EpRowRef* list;            // [R, T, listStride]
  uint32_t listStride;
  // The combine:
  uint32_t returned[kMaxWorldSize];  // partial sums to each rank that are written to slots
  uint32_t finished;                 // tokens of this rank that are complete
  uint64_t lostRanks;
  uint64_t lostCopies;
  uint64_t dispatchLostCopies;  // reported by the dispatch; the combine counts again
  uint64_t overCapacity;

  // Chunks go through a pipe in the order of their dispatches, and a reader tells them apart by that alone. So no chunk of this dispatch
  // is sent before all chunks of an earlier one that is still in flight. An ended dispatch has sent all of its chunks, and its plan may
  // have been overwritten by a dispatch that was refused.
  RH_FN bool waitsForOther(int rank) const { return isBehindOther() && other->moved[rank] < other->copies[rank]; }
  RH_FN bool waitsForOthersSums(int rank) const { return isBehindOther() && other->adding && other->returned[rank] < other->received[rank]; }
  RH_FN bool isBehindOther() const {
    if (mutated(Mutant::kEpNumberWithoutWrap)) return other->phase != EpPhase::kFree && number > other->number;
    return other->phase != EpPhase::kFree && static_cast<int32_t>(number - other->number) > 0;
  }

  RH_FN EpRowRef* listOf(const EpTeam& team, int source, uint32_t copy) const {
    return list + (static_cast<uint64_t>(source) * team.maxTokens + copy) * listStride;
  }
  RH_FN uint8_t& lengthOf(const EpTeam& team, int source, uint32_t copy) const {
    return listLength[static_cast<uint64_t>(source) * team.maxTokens + copy];
  }
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_EP_H_
