// The receive phase of a dispatch: rows go to the caller's layout, grouped by expert, in the order of source ranks and tokens.
#ifndef RAILHEAD_KERNELS_GPU_EP_RECEIVE_H_
#define RAILHEAD_KERNELS_GPU_EP_RECEIVE_H_

#include "railhead/gpu/elements.h"
#include "railhead/gpu/ep_send.h"

namespace railhead::gpu {

template <class C>
class EpReceiver {
 public:
  RH_FN EpReceiver(C& c, const EpDispatchCall& call)
      : c_(c), call_(call), team_(call.team), to_(call.receive), shared_(c.epShared()), arrays_(call.flights[shared_.flight]),
        flight_(call.state->flights[shared_.flight]), slots_{call.team, shared_.number}, local_(team_.localExperts[team_.rank]) {}

  // Where this kernel has not sent the dispatch. A barrier follows.
  RH_FN void loadOwnCounts() {
    RH_ROLLED
    for (uint32_t e = c_.threadInBlock(); e < local_; e += c_.dataThreadsInBlock()) {
      shared_.totals[team_.ownExperts[e]] = c_.loadState(arrays_.own + 1 + e);
    }
    if (c_.threadInBlock() == 0) shared_.totals[team_.physical + static_cast<uint32_t>(team_.rank)] = c_.loadState(arrays_.own);
  }

  RH_FN bool awaitCounts() {
    const uint32_t each = 1 + local_, n = each * static_cast<uint32_t>(team_.worldSize);
    bool good = true;
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n && good; i += c_.dataThreadsInBlock()) {
      const int s = static_cast<int>(i / each);
      if (!isPeer(s)) continue;
      const uint32_t* count = slots_.counts(team_.rank, s) + i % each;
      RH_ROLLED
      while (c_.loadFlag(count) == 0) {
        if (c_.keepWaiting()) continue;
        c_.giveUp(uint64_t{1} << s);
        good = false;
        break;
      }
      c_.endWait();
    }
    return c_.dataAll(good);
  }

  // After awaitCounts. Computes where rows begin, and whether they have room. A barrier is before and behind.
  RH_FN EpError place(EpReport* report) {
    if (c_.threadInBlock() == 0) shared_.over = ~0u;
    loadAllReceived();
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t e = c_.threadInBlock(); e < local_; e += c_.dataThreadsInBlock()) {
      const uint64_t n = rowsOf(e);
      if (to_.layout == EpRowLayout::kPadded && n > to_.capacity) c_.sharedMin(&shared_.over, e);
      shared_.begin[e + 1] = to_.layout == EpRowLayout::kPadded ? to_.capacity : epRoundUp(n, to_.alignment);
    }
    if (c_.threadInBlock() == 0) shared_.begin[0] = 0;
    c_.dataAll(true);
    if (to_.layout != EpRowLayout::kTokens) scan();
    report->capacity = to_.capacity;
    report->tokens = tokensBefore(team_.worldSize);
    if (to_.layout == EpRowLayout::kPadded && shared_.over != ~0u) {
      report->wantedBy = static_cast<uint16_t>(shared_.over);
      report->wanted = rowsOf(shared_.over);
      if (!call_.dropsInvalid) return EpError::kNoRoom;
    }
    report->rows = to_.layout == EpRowLayout::kTokens ? report->tokens : shared_.begin[local_];
    if (to_.layout == EpRowLayout::kPadded || report->rows <= to_.capacity) return EpError::kNone;
    report->wantedBy = kNoExpert;
    report->wanted = report->rows;
    return EpError::kNoRoom;
  }

  RH_FN bool takeRows() {
    takeOwn();
    // Copies of all ranks in turn, one for each block.
    const uint32_t blocks = c_.dataBlocks();
    uint32_t before = 0;
    RH_ROLLED
    for (int s = 0; s < team_.worldSize; s++) {
      if (!isPeer(s)) continue;
      const uint32_t n = receivedFrom(s), skipped = before % blocks;
      RH_ROLLED
      for (uint32_t i = (c_.block() + blocks - skipped) % blocks; i < n; i += blocks) {
        if (!takeCopy(s, i)) return false;
      }
      before += n;
    }
    return true;
  }

  // Counts, offsets and totals, in the caller's arrays, and what the combine needs of the ranks. By block 0.
  RH_FN void describe(const EpReport& report) {
    RH_ROLLED
    for (uint32_t e = c_.threadInBlock(); e <= local_; e += c_.dataThreadsInBlock()) {
      if (e < local_ && to_.counts != nullptr) {
        const uint64_t n = rowsOf(e);
        to_.counts[e] = static_cast<int32_t>(to_.layout == EpRowLayout::kPadded && n > to_.capacity ? to_.capacity : n);
      }
      if (to_.offsets != nullptr && to_.layout != EpRowLayout::kTokens) to_.offsets[e] = static_cast<int64_t>(shared_.begin[e]);
    }
    RH_ROLLED
    for (int s = static_cast<int>(c_.threadInBlock()); s < team_.worldSize; s += static_cast<int>(c_.dataThreadsInBlock())) {
      c_.storeState(arrays_.received + s, receivedFrom(s));
    }
    if (c_.threadInBlock() != 0) return;
    if (to_.rows != nullptr) *to_.rows = report.rows;
    if (to_.tokens != nullptr) *to_.tokens = report.tokens;
  }
  // Only the counts: for a look at them. A barrier is behind awaitCounts().
  RH_FN void describeCounts() {
    loadAllReceived();
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t e = c_.threadInBlock(); e < local_ && to_.counts != nullptr; e += c_.dataThreadsInBlock()) {
      to_.counts[e] = static_cast<int32_t>(rowsOf(e));
    }
    if (c_.threadInBlock() == 0 && to_.tokens != nullptr) *to_.tokens = tokensBefore(team_.worldSize);
  }

 private:
  RH_FN bool isMasked(int r) const { return (shared_.masked >> r & 1) != 0; }
  RH_FN bool isPeer(int r) const { return r != team_.rank && !isMasked(r); }

  // ---- Counts: of other ranks, clamped, so that none leads outside of this rank's memory ----

  RH_FN static uint32_t atMost(uint32_t n, uint32_t most) { return n < most ? n : most; }
  RH_FN uint32_t receivedFrom(int s) { return shared_.received[s]; }
  RH_FN void loadAllReceived() {
    RH_ROLLED
    for (int s = static_cast<int>(c_.threadInBlock()); s < team_.worldSize; s += static_cast<int>(c_.dataThreadsInBlock())) {
      shared_.received[s] = loadReceived(s);
    }
  }
  RH_FN uint32_t loadReceived(int s) {
    if (s == team_.rank) return shared_.totals[team_.physical + static_cast<uint32_t>(s)];
    return isMasked(s) ? 0 : atMost(c_.loadFlag(slots_.counts(team_.rank, s)) - 1, team_.maxTokens);
  }
  RH_FN uint32_t count(int s, uint32_t e) {
    if (s == team_.rank) return shared_.totals[team_.ownExperts[e]];
    return isMasked(s) ? 0 : atMost(c_.loadFlag(slots_.counts(team_.rank, s) + 1 + e) - 1, receivedFrom(s));
  }
  RH_FN uint64_t rowsBefore(int behind, uint32_t e) {
    uint64_t n = 0;
    RH_ROLLED
    for (int s = 0; s < behind; s++) n += count(s, e);
    return n;
  }
  RH_FN uint64_t rowsOf(uint32_t e) { return rowsBefore(team_.worldSize, e); }
  RH_FN uint64_t tokensBefore(int behind) {
    uint64_t n = 0;
    RH_ROLLED
    for (int s = 0; s < behind; s++) n += receivedFrom(s);
    return n;
  }

  // begin[i] becomes the sum of begin[0] to begin[i], in rounds: in each an element adds the one `distance` before it. Chunks go from the last to the
  // first, so that each reads sums of the round before.
  RH_FN void scan() {
    const uint32_t n = local_ + 1, step = c_.dataThreadsInBlock(), chunks = (n + step - 1) / step;
    RH_ROLLED
    for (uint32_t distance = 1; distance < n; distance *= 2) {
      RH_ROLLED
      for (uint32_t chunk = chunks; chunk-- > 0;) {
        const uint32_t i = chunk * step + c_.threadInBlock();
        const bool adds = i >= distance && i < n;
        const uint64_t sum = adds ? shared_.begin[i] + shared_.begin[i - distance] : 0;
        c_.dataAll(true);
        if (adds) shared_.begin[i] = sum;
        c_.dataAll(true);
      }
    }
  }

  // ---- Rows ----

  // A copy that is being received.
  struct Copy {
    int source;
    uint32_t number, token;
  };

  RH_FN uint64_t listAt(const Copy& copy) const {
    return (static_cast<uint32_t>(copy.source) * uint64_t{team_.maxTokens} + copy.number) * listStride();
  }
  RH_FN uint32_t listStride() const { return team_.topk < team_.maxLocal ? team_.topk : team_.maxLocal; }
  RH_FN uint32_t* lengthOf(const Copy& copy) const {
    return arrays_.lengths + static_cast<uint32_t>(copy.source) * uint64_t{team_.maxTokens} + copy.number;
  }

  // Lists where a copy's rows go, one expert a thread. A barrier follows. expertOf(i, &local, &place, &weight) is its expert number i of n; false =
  // there is none.
  template <class ExpertOf>
  RH_FN void list(const Copy& copy, uint32_t n, ExpertOf expertOf) {
    if (to_.layout == EpRowLayout::kTokens) {
      if (c_.threadInBlock() == 0) listToken(copy, n, expertOf);
      return;
    }
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n; i += c_.dataThreadsInBlock()) {
      uint32_t local, place, weight = 0;
      uint64_t row = kEpNoRow;
      if (expertOf(i, &local, &place, &weight) && local < local_) row = rowOf(copy, local, place);
      shared_.rows[i] = static_cast<uint32_t>(row);
      c_.storeState(arrays_.lists + listAt(copy) + i, uint64_t{static_cast<uint32_t>(row)} | uint64_t{weight} << 32);
      if (row != kEpNoRow) describeRow(row, copy, weight);
    }
    if (c_.threadInBlock() == 0) listed(copy, n);
  }
  // The row of a copy for a local expert. kEpNoRow: more than the rank has counted, which is another rank's row, or beyond the expert's room.
  RH_FN uint64_t rowOf(const Copy& copy, uint32_t local, uint32_t place) {
    if (place >= count(copy.source, local)) return kEpNoRow;
    const uint64_t inExpert = rowsBefore(copy.source, local) + place;
    if (to_.layout == EpRowLayout::kPadded && inExpert >= to_.capacity) {
      c_.addOne(&call_.state->dropped);
      return kEpNoRow;
    }
    // Counts lie where other ranks write. One that has grown since place() must not lead into the next expert's rows.
    const uint64_t row = shared_.begin[local] + inExpert;
    return row < shared_.begin[local + 1] ? row : kEpNoRow;
  }
  // By one thread: a row for all experts, which the caller's arrays list.
  template <class ExpertOf>
  RH_FN void listToken(const Copy& copy, uint32_t n, ExpertOf expertOf) {
    const uint64_t row = tokensBefore(copy.source) + copy.number;
    uint32_t k = 0;
    RH_ROLLED
    for (uint32_t i = 0; i < n; i++) {
      uint32_t local, place, weight;
      if (expertOf(i, &local, &place, &weight) && local < local_) listExpert(row, k++, static_cast<int32_t>(local), bitsOf<float>(weight));
    }
    RH_ROLLED
    for (; k < team_.topk; k++) listExpert(row, k, -1, 0);
    const uint32_t one = epFloatBits(1.0f);
    c_.storeState(arrays_.lists + listAt(copy), uint64_t{static_cast<uint32_t>(row)} | uint64_t{one} << 32);
    shared_.rows[0] = static_cast<uint32_t>(row);
    listed(copy, 1);
    describeRow(row, copy, one);
  }
  RH_FN void listed(const Copy& copy, uint32_t n) {
    shared_.listed = n;
    c_.storeState(lengthOf(copy), n);
  }
  RH_FN void listExpert(uint64_t row, uint32_t k, int32_t local, float weight) {
    if (to_.topkIdx != nullptr) to_.topkIdx[row * team_.topk + k] = local;
    if (to_.topkWeights != nullptr) to_.topkWeights[row * team_.topk + k] = weight;
  }
  RH_FN void describeRow(uint64_t row, const Copy& copy, uint32_t weight) {
    if (to_.weights != nullptr) to_.weights[row] = bitsOf<float>(weight);
    if (to_.sourceRank != nullptr) to_.sourceRank[row] = copy.source;
    if (to_.sourceToken != nullptr) to_.sourceToken[row] = static_cast<int32_t>(copy.token);
  }

  // Copies a row to its places: the rows of EpShared. load(tile, bytes) is a tile of the row on the wire, byte(at) a byte of it.
  template <class Load, class Byte>
  RH_FN void put(Load load, Byte byte) {
    constexpr uint32_t kTiles = 4;
    const uint32_t rows = shared_.listed, data = call_.format.dataBytes(), step = c_.dataThreadsInBlock();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i * 16 < data; i += kTiles * step) {
      Raw16 raw[kTiles] = {};
      RH_UNROLL
      for (uint32_t q = 0; q < kTiles; q++) {
        const uint32_t at = (i + q * step) * 16;
        if (at < data) raw[q] = load(at);
      }
      RH_ROLLED
      for (uint32_t j = 0; j < rows; j++) {
        const uint32_t row = shared_.rows[j];
        if (row == kEpNoRow) continue;
        char* out = to_.x + row * uint64_t{data};
        RH_UNROLL
        for (uint32_t q = 0; q < kTiles; q++) {
          const uint32_t at = (i + q * step) * 16;
          if (at < data) storeTile<false>(out + at, data - at < 16 ? data - at : 16, raw[q]);
        }
      }
    }
    const uint32_t scales = to_.scales == nullptr ? 0 : call_.format.scaleBytes(), offset = call_.format.scaleOffset();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < scales; i += step) {
      const char b = byte(offset + i);
      RH_ROLLED
      for (uint32_t j = 0; j < rows; j++) {
        const uint32_t row = shared_.rows[j];
        if (row != kEpNoRow) to_.scales[row * uint64_t{scales} + i] = b;
      }
    }
  }

  RH_FN bool takeCopy(int s, uint32_t i) {
    char* slot = slots_.slot(team_.rank, s);
    uint32_t* at = slots_.firstWord(slot, i);
    uint32_t first;
    bool good = c_.dataAll(true);  // the rows of the copy before have been read
    RH_ROLLED
    while (((first = mutated(Mutant::kGpuEpLookRelaxed) ? c_.loadFlag(at) : c_.loadFlagAcquire(at)) & EpFirstWord::kHere) == 0) {
      if (c_.keepWaiting()) continue;
      c_.giveUp(uint64_t{1} << s);
      good = false;
      break;
    }
    c_.endWait();
    const Copy copy = {s, i, EpFirstWord::token(first)};
    if (good) {
      list(copy, atMost(EpFirstWord::experts(first), listStride()), [&](uint32_t k, uint32_t* local, uint32_t* place, uint32_t* weight) {
        const uint64_t word = c_.loadSlotWord(slots_.expertWord(slot, i, k));
        *local = EpExpertWord::local(word);
        *place = EpExpertWord::place(word);
        *weight = EpExpertWord::weight(word);
        return true;
      });
    }
    if (!c_.dataAll(good)) return false;
    const char* row = team_.row(slot, i);
    put([&](uint32_t b) { return c_.loadSlotTile(row + b); }, [&](uint32_t b) { return row[b]; });
    // Every thread of the block has seen the word. The sender fills the slot again after the head, which all blocks precede.
    if (c_.threadInBlock() == 0 && !mutated(Mutant::kGpuEpHeaderNotCleared)) c_.storeFlag(at, 0);
    return true;
  }

  // Tokens of this rank to its own experts. The block that has noted a token in the same kernel takes it.
  RH_FN void takeOwn() {
    const auto tokens = static_cast<uint32_t>(ownTokens());
    const char* rows = ownRows();
    const uint32_t blocks = c_.dataBlocks();
    RH_ROLLED
    for (uint32_t t = c_.block(); t < tokens; t += blocks) {
      if ((c_.loadState(arrays_.ranks + t) >> team_.rank & 1) == 0) continue;
      const Copy copy = {team_.rank, c_.loadState(arrays_.copyOf + static_cast<uint32_t>(team_.rank) * uint64_t{team_.maxTokens} + t), t};
      c_.dataAll(true);  // the rows of the token before have been read
      listOwn(copy, t);
      c_.dataAll(true);
      const char* row = rows + t * ownStride();
      const uint32_t data = call_.format.dataBytes();
      put([&](uint32_t b) { return loadTile<false>(row + b, data - b < 16 ? data - b : 16); }, [&](uint32_t b) { return row[b]; });
    }
  }
  // Its list has an entry for each of the token's experts on this rank.
  RH_FN void listOwn(const Copy& copy, uint32_t t) {
    const uint64_t base = uint64_t{t} * team_.topk;
    uint32_t n = 0;
    RH_ROLLED
    for (uint32_t k = 0; k < team_.topk; k++) n += isOwn(c_.loadState(arrays_.entries + base + k));
    list(copy, n, [&](uint32_t i, uint32_t* local, uint32_t* place, uint32_t* weight) {
      uint32_t k = 0;
      uint64_t entry = c_.loadState(arrays_.entries + base);
      RH_ROLLED
      for (uint32_t before = 0; !isOwn(entry) || before++ < i;) entry = c_.loadState(arrays_.entries + base + ++k);
      *local = team_.expertLocal[static_cast<uint32_t>(entry)];
      *place = static_cast<uint32_t>(entry >> 32);
      *weight = c_.loadState(reinterpret_cast<const uint32_t*>(arrays_.weights) + base + k);
      return true;
    });
  }
  RH_FN bool isOwn(uint64_t entry) const {
    const auto e = static_cast<uint32_t>(entry);
    return e != kNoExpert && team_.expertRank[e] == team_.rank;
  }
  // Of a dispatch that this kernel has sent, block 0 may not have kept these yet.
  RH_FN bool sendsToo() const { return (call_.steps & kEpSends) != 0; }
  RH_FN uint64_t ownTokens() { return sendsToo() ? atMost(call_.routing.tokens, team_.maxTokens) : c_.loadState(&flight_.tokens); }
  RH_FN const char* ownRows() {
    if (arrays_.encoded != nullptr) return arrays_.encoded;
    return sendsToo() ? call_.x : reinterpret_cast<const char*>(static_cast<uintptr_t>(c_.loadState(&flight_.rows)));
  }
  RH_FN uint64_t ownStride() {
    return arrays_.encoded != nullptr ? team_.layout.rowStride : uint64_t{call_.format.hidden} * epBytesOf(call_.format.in);
  }

  C& c_;
  const EpDispatchCall& call_;
  const EpTeam& team_;
  const EpReceive& to_;
  EpShared& shared_;
  const EpFlightArrays& arrays_;
  EpFlightState& flight_;
  EpSlots slots_;
  const uint32_t local_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_RECEIVE_H_
