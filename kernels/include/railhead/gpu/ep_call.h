// What the host passes to the GPU kernels of MoE dispatch and combine, and a rank's private memory, which only its kernels use. The buffer that
// other ranks write to has the layout of railhead/ep/ep.h; ep_slots.h says what its words are on a GPU.
//
//   rh_ep_encode_<type>     makes rows in wire format of x, where x is not sent as it is; before the dispatch, on the same stream
//   rh_ep_plan              makes the plan of a cached routing, for any number of dispatches
//   rh_ep_dispatch_ll       sends, receives, or both
//   rh_ep_dispatch_ll_planned, rh_ep_dispatch_ll_plain   the same, faster, without EpTeam::dropsDead; plain: and without a plan
//   rh_ep_combine_ll_<type> adds, receives, or both; the type is that of partial sums
//   rh_ep_dispatch_ht, rh_ep_combine_ht_<type>  the same for EpTeam::countsFirst. Sending is a promise, but for the counts of a dispatch: rows and sums
//                           go in both directions at once while it receives. So x, y and what else they read stay until then
//   rh_ep_release           ends a received dispatch without a combine
//
// Any grid of up to kMaxBlocks blocks of 32 to kMaxThreads threads, which may differ between ranks and between calls. All blocks of all ranks must be
// resident at once: with 512 threads a multiprocessor holds one block (registers). Before the first kernel the buffer is zero, but its partial sums are
// all ones; EpRankState is zero, and the flight of a cell -1. If the comm stops in a kernel (Status), the report of its call means nothing.
#ifndef RAILHEAD_KERNELS_GPU_EP_CALL_H_
#define RAILHEAD_KERNELS_GPU_EP_CALL_H_

#include "railhead/ep/ep_calls.h"
#include "railhead/gpu/launch.h"

namespace railhead::gpu {

// The values of rh_dtype that rows have.
enum class EpType : uint32_t { kF32 = 0, kBF16 = 1, kF16 = 3, kE4M3 = 4 };
RH_FN constexpr uint32_t epBytesOf(EpType t) { return t == EpType::kF32 ? 4 : t == EpType::kE4M3 ? 1 : 2; }

// The values of railhead.h's RH_EP_SCALE_...
enum class EpScaling : uint32_t { kF32, kUE8M0, kStatic };

// A row on the wire, as in host/ep_row_kernels.h: the elements; then, with a scale for each block, zeros up to a multiple of 4, and the scales.
struct EpRowFormat {
  EpType in, wire;
  EpScaling scaling;  // if wire is kE4M3
  float staticScale;
  uint32_t hidden;

  static constexpr uint32_t kBlock = 128;  // elements that share a scale
  RH_FN uint32_t dataBytes() const { return hidden * epBytesOf(wire); }
  RH_FN uint32_t columns() const { return wire == EpType::kE4M3 && scaling != EpScaling::kStatic ? (hidden + kBlock - 1) / kBlock : 0; }
  RH_FN uint32_t scaleBytes() const { return columns() * (scaling == EpScaling::kF32 ? 4 : 1); }
  RH_FN uint32_t scaleOffset() const { return columns() == 0 ? dataBytes() : (dataBytes() + 3) / 4 * 4; }
  RH_FN uint32_t rowBytes() const { return scaleOffset() + scaleBytes(); }
  // Whether x is sent as it is, without rh_ep_encode.
  RH_FN bool isPlain() const { return in == wire && wire != EpType::kE4M3; }
};

// Why a token is unfit for FP8; 0 = it is fit.
struct EpUnfit {
  // The first element that is not finite, and the value of EpProblems::nonFinite for it.
  RH_FN static uint32_t of(uint32_t element, uint32_t what) { return 0x80000000u | element << 2 | what; }
  RH_FN static uint32_t element(uint32_t unfit) { return unfit >> 2 & 0x1ffff; }
  RH_FN static uint32_t what(uint32_t unfit) { return unfit & 3; }
};

constexpr uint32_t kEpNoRow = ~0u;    // an expert that got no row
constexpr uint32_t kEpMissing = ~0u;  // length of the list of a copy that has not come

// An expert has several replicas, none of them on this rank: tokens go to them in turn (epReplica).
constexpr uint16_t kEpInTurn = 0xfffe;
RH_ANYWHERE uint16_t epHomeOf(const EpTeam& team, uint32_t logical) {
  const uint16_t begin = team.replicaBegin[logical];
  const auto n = static_cast<uint32_t>(team.replicaBegin[logical + 1] - begin);
  for (uint32_t i = 0; i < n; i++) {
    if (team.expertRank[team.replicas[begin + i]] == team.rank) return team.replicas[begin + i];
  }
  return n == 0 ? kNoExpert : n == 1 ? team.replicas[begin] : kEpInTurn;
}

// Arrays of a dispatch in flight. T = maxTokens, K = topk, R = world size, L = list stride: the most experts that a token has on a rank.
struct EpFlightArrays {
  uint64_t* ranks;    // [T] bit r: rank r has a copy
  uint64_t* entries;  // [T, K] an EpEntry (ep_slots.h) each
  float* weights;     // [T, K]
  uint32_t* copyOf;   // [R, T] index of token t's copy to rank r
  uint32_t* copies;   // [R] copies to each rank
  uint32_t* received; // [R] copies from each rank
  uint32_t* own;      // [1 + local experts] copies of this rank to itself, then its tokens of each expert
  uint32_t* lengths;  // [R, T] entries of a received copy's list, or kEpMissing; this rank's own are in the order of tokens
  uint64_t* lists;    // [R, T, L] bits 0..31 row or kEpNoRow, 32..63 weight
  char* encoded;      // [T] rows in wire format, rowStride apart; nullptr: x is sent as it is
  char* sums;         // [T] partial sums of this rank's own experts, combineStride apart
  uint32_t* unfit;    // [T] an EpUnfit for each token; nullptr: none is looked for
};

// The plan of a cached routing: a copy of the routing, and what a dispatch computes of it. The names are those of EpFlightArrays. Writer: rh_ep_plan.
// Readers: the dispatches behind it on the stream. Ranks that are masked are in it. T = tokens of the routing, at most maxTokens.
struct EpCachedPlan {
  int64_t* idx;       // [T, K] as given; nullptr: there is no plan
  float* weights;     // [T, K]
  uint64_t* entries;  // [T, K]
  uint64_t* ranks;    // [T]
  uint32_t* copyOf;   // [R, T]
  uint32_t* totals;   // [P + R + 4] tokens of each of the P physical experts; copies to each rank; EpShared::problems and ::firsts of invalid ids, duplicates
};

// A dispatch in flight. Writer: control, at the end of a kernel; or, of the words that only a later kernel reads, a thread of a block.
struct EpFlightState {
  // Every block reads them before it decides about a call, and control stores them after all blocks have ended: relaxed. A block's loads have returned
  // before it ends.
  uint64_t phase;  // an EpPhase
  uint64_t number;
  uint64_t tokens, excess;
  uint64_t perToken, hasRows;
  uint64_t rows;                       // address of x
  uint64_t masked, maskedCopies;       // ranks that were masked when it was sent, and the copies to them, which are lost
  uint64_t outRows, add, out;          // of its combine: addresses, and an EpType
  uint64_t yRows, y, weighted;         // the same; ht only
  uint64_t plan;                       // address of EpCachedPlan::idx of its cached routing; 0 = none. Reader: the host
  EpProblems problems;
};

// Of a ring of ht (ep_rings.h): where the next copy goes. Writer: control.
struct EpRing {
  uint32_t turn, at;
};

// A buffer's words on its own rank. Zero at first.
struct EpRankState {
  EpFlightState flights[kEpInFlight];
  // Of the running kernel, both set back to 0 by control. done: bits 0..15 blocks that have ended their part, 16..23 the EpError of the call, 24..31
  // that of its receive phase. One thread of each block adds 1, that of the last block the errors too, after a barrier; control reads it until all have.
  // Only if control reads what blocks have stored (settles() of the kernel) there are fences before the one and behind the other. dropped: if ranks may
  // be lost, rows without room, or lost copies (relaxed adds; control reads it after done and its fence).
  uint32_t done, dropped;
  // The newest dispatch that this rank has received; whether the next kernel must yet store it to the others' heads (ep_slots.h). Writer and reader: control.
  uint32_t received, owesHeads;
  uint64_t ended;  // address of the cell of the dispatch that ended last; 0 = none has. Writer: control. Reader: the host, while no kernel runs
  // If late and dead ranks are dropped (EpTeam::dropsDead); of the running kernel, set back to 0 by control. endedBlocks: those that have taken all that
  // they take; the last one then clears rows that have not come (ep_repair.h). missing: copies that have not. verdicts: of each rank, see ep_waits.h.
  uint32_t endedBlocks, missing;
  uint32_t verdicts[kMaxWorldSize];
  // Until when a wait for each rank has been counted (epCountWait), in units of 1,024 ns. Writers: threads of blocks, by compare-and-swap.
  uint32_t waitedUntil[kMaxWorldSize];
  // In ht, of each other rank: tokens that were sent there and taken from there, partial sums that were sent there and added from there.
  EpRing sent[kMaxWorldSize], taken[kMaxWorldSize], summed[kMaxWorldSize], added[kMaxWorldSize];
};

struct EpCommonCall {
  Call call;  // its team, signature and stream; other words are not used
  EpTeam team;
  EpRankState* state;
  EpFlightArrays flights[kEpInFlight];
  EpRowFormat format;
  uint32_t* read;        // ht: [2, R, positions of a ring] how often this rank has read what was there, tokens and partial sums (ep_rings.h). Zero at first
  const uint16_t* home;  // [logical] the physical expert that this rank's tokens of a logical one go to, kNoExpert, or kEpInTurn
  EpCell* cell;     // its reports, which kernels read only when a rank was given up: it may be pinned memory of the host. Its flight is not used, but
  int32_t* flight;  // this word of the device's memory, which every block reads
  bool counts;      // of a dispatch that sends: it is a collective of the comm, unless it is refused or a rank is masked
};

// What a dispatch kernel does. kEpLooks: waits for the counts, and takes nothing.
constexpr uint32_t kEpSends = 1, kEpReceives = 2, kEpLooks = 4;

struct EpDispatchCall : EpCommonCall {
  uint32_t steps;
  bool dropsInvalid;
  EpRouting routing;
  EpCachedPlan plan;  // of a cached routing, whose copy `routing` is then. rh_ep_plan makes it of `routing`
  const char* x;      // if it is sent as it is
  EpReceive receive;  // its cell is not used
};

struct EpEncodeCall : EpCommonCall {
  uint32_t tokens;
  const char *x, *scales;
};

struct EpCombineCall : EpCommonCall {
  uint32_t steps;  // kEpSends, kEpReceives
  bool weighted, renormalizes;
  EpType y;
  const char* yRows;
  // Of a kernel that only receives, those of the combine's send phase are used instead.
  EpType out;
  const char* add;  // nullptr: none
  char* outRows;
};
// Whether late and dead ranks are masked. A context C without deaths to survive, or without plans (C::kPlans), has shorter code.
template <class C>
RH_FN bool epDropsDead(const EpTeam& team) {
  return C::kSurvivesDeaths && team.dropsDead;
}

// EpRankState::done
RH_FN uint32_t epOutcome(EpError error, EpError receiveError) { return static_cast<uint32_t>(error) << 16 | static_cast<uint32_t>(receiveError) << 24; }
RH_FN uint32_t epBlocks(uint32_t done) { return done & 0xffff; }
RH_FN EpError epErrorOf(uint32_t done) { return static_cast<EpError>(done >> 16 & 0xff); }
RH_FN EpError epReceiveErrorOf(uint32_t done) { return static_cast<EpError>(done >> 24); }

static_assert(sizeof(EpDispatchCall) <= 4096 && sizeof(EpCombineCall) <= 4096, "a kernel's parameter");

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_CALL_H_
