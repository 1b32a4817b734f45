// The receive phase of a dispatch: rows go to the caller's layout, grouped by expert, in the order of source ranks and tokens.
#ifndef RAILHEAD_KERNELS_GPU_EP_RECEIVE_H_
#define RAILHEAD_KERNELS_GPU_EP_RECEIVE_H_

#include "railhead/gpu/ep_places.h"
#include "railhead/gpu/ep_rings.h"
#include "railhead/gpu/ep_send.h"
#include "railhead/gpu/ep_tiles.h"

namespace railhead::gpu {

template <class C, bool kHt = false>
class EpReceiver {
 public:
  // sender: of this kernel, if it has sent the dispatch.
  RH_FN EpReceiver(C& c, const EpDispatchCall& call, const EpSender<C, kHt>& sender)
      : c_(c), call_(call), sender_(sender), team_(call.team), to_(call.receive), places_(c, call), shared_(c.epShared()),
        arrays_(call.flights[shared_.flight]), slots_{call.team, shared_.number}, local_(team_.localExperts[team_.rank]) {}

  RH_FN EpPlaces<C>& places() { return places_; }

  // After EpPlaces::place(), and a barrier. False: the comm has stopped.
  RH_FN bool takeRows() {
    const uint32_t blocks = c_.dataBlocks(), tokens = ownTokens();
    const bool isSplit = sendsToo() && sender_.isSplit();
    takeOwnTokens();
    // Copies of all ranks in turn, one for each block, behind the blocks that have tokens of this rank.
    uint32_t before = isSplit ? 2 * tokens : tokens;
    RH_ROLLED
    for (int s = 0; s < team_.worldSize; s++) {
      if (!places_.isPeer(s)) continue;
      const uint32_t n = shared_.received[s];
      RH_ROLLED
      for (uint32_t i = epFirstOf(c_.block(), before, blocks); i < n; i += kEpGroup * blocks) {
        if (!takeCopies(s, i, groupOf(i, n))) return false;
      }
      before += n;
    }
    return true;
  }

  RH_FN void takeOwnTokens() {
    RH_ROLLED
    for (uint32_t t = sendsToo() && sender_.isSplit() ? sender_.ownToken() : c_.block(); t < ownTokens(); t += kEpGroup * c_.dataBlocks()) {
      takeOwn(t, groupOf(t, ownTokens()));
    }
  }
  RH_FN uint32_t groupOf(uint32_t i, uint32_t n) const {
    const uint32_t left = (n - i + c_.dataBlocks() - 1) / c_.dataBlocks();
    return left < kEpGroup ? left : kEpGroup;
  }
  RH_FN uint32_t memberOf(uint32_t i, uint32_t g) const { return i + g * c_.dataBlocks(); }
  RH_FN uint32_t ownTokens() const {
    if (!sendsToo()) return static_cast<uint32_t>(c_.loadState(&flight().tokens));
    return call_.routing.tokens < team_.maxTokens ? call_.routing.tokens : team_.maxTokens;
  }
  // Row t of this rank as it is sent.
  RH_FN const char* ownRow(uint32_t t) const {
    if (arrays_.encoded != nullptr) return arrays_.encoded + t * team_.layout.rowStride;
    const char* x = sendsToo() ? call_.x : reinterpret_cast<const char*>(static_cast<uintptr_t>(c_.loadState(&flight().rows)));
    return x + t * uint64_t{call_.format.hidden} * epBytesOf(call_.format.in);
  }
  // Copies i, i + blocks, ... of rank s, n of them, which have come: shared_.firstWords has their first words. Barriers before and behind.
  RH_FN void takeHere(int s, uint32_t i, uint32_t n) {
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < n * listStride(); j += c_.dataThreadsInBlock()) {
      const uint32_t g = j / listStride(), k = j - g * listStride();
      const uint32_t copy = memberOf(i, g), first = shared_.firstWords[g], experts = expertsOf(first);
      if (k == 0) shared_.listed[g] = experts;
      if (k >= experts) continue;
      const Place place = placeOf(s, copy, g);
      const uint64_t word = c_.loadSlotWord(slots_.expertWord(place.slot, place.at, k));
      list({s, copy, EpFirstWord::token(first)}, g, k, EpExpertWord::local(word), EpExpertWord::place(word), EpExpertWord::weight(word));
    }
    listTokens(s, n, [&](uint32_t g) { return Copy{s, memberOf(i, g), EpFirstWord::token(shared_.firstWords[g])}; });
    RH_ROLLED
    for (uint32_t g = 0; g < n; g++) {
      const Place place = placeOf(s, memberOf(i, g), g);
      if (shared_.firstWords[g] != 0) put(team_.row(place.slot, place.at), true, false, g);
    }
  }

 private:
  RH_FN uint32_t listStride() const { return team_.topk < team_.maxLocal ? team_.topk : team_.maxLocal; }

  // ---- Copies from another rank: i, i + blocks, ..., n of them ----

  RH_FN bool takeCopies(int s, uint32_t i, uint32_t n) {
    char* slot = slots_.slot(team_.rank, s);
    bool good = c_.dataAll(true);  // what the group before has left in shared memory has been read
    RH_ROLLED
    for (uint32_t g = c_.threadInBlock(); g < n && good; g += c_.dataThreadsInBlock()) good = awaitHeader(s, slot, i, g);
    if (!c_.dataAll(good)) return false;
    takeHere(s, i, n);
    return true;
  }
  struct Place {
    char* slot;
    uint32_t at;
  };
  // Of a copy that is number g of the group.
  RH_FN Place placeOf(int s, uint32_t copy, uint32_t g) {
    if (!kHt) return {slots_.slot(team_.rank, s), copy};
    const EpPosition p = shared_.moving.taken[g];
    return {team_.slot(team_.rank, s, p.slot), p.at};
  }
  // The sender fills the slot again after the head, which all blocks precede.
  RH_FN bool awaitHeader(int s, char* slot, uint32_t i, uint32_t g) {
    uint32_t* at = slots_.firstWord(slot, memberOf(i, g));
    uint32_t first;
    EpWait<C> wait(c_, call_, s);
    RH_ROLLED
    while (((first = mutated(Mutant::kGpuEpLookRelaxed) ? c_.loadFlag(at) : c_.loadFlagAcquire(at)) & EpFirstWord::kHere) == 0) {
      if (wait.goesOn()) continue;
      shared_.firstWords[g] = 0;  // the copy is missing
      wait.end(g == 0);
      return wait.isGone();
    }
    wait.end(g == 0);
    shared_.firstWords[g] = first;
    if (!mutated(Mutant::kGpuEpHeaderNotCleared)) c_.storeFlag(at, 0);
    return true;
  }
  RH_FN uint32_t expertsOf(uint32_t firstWord) const {
    const uint32_t n = EpFirstWord::experts(firstWord);
    return n < listStride() ? n : listStride();
  }

  // ---- Tokens of this rank to its own experts: t, t + blocks, ..., n of them ----

  RH_FN void takeOwn(uint32_t t, uint32_t n) {
    c_.dataAll(true);
    if (shared_.held != t) load(t, n);
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < n * team_.topk; j += c_.dataThreadsInBlock()) {
      const uint32_t g = j / team_.topk, k = j - g * team_.topk, at = g * kEpMaxTopk;
      if (k == 0) shared_.listed[g] = shared_.expertsOn(g, team_.rank, team_.topk);
      const uint64_t entry = shared_.entries[at + k];
      if (!isOwn(g) || !EpEntry::isOf(entry, team_.rank)) continue;
      list(ownOf(t, g), g, shared_.expertsOn(g, team_.rank, k), EpEntry::local(entry), EpEntry::place(entry), shared_.weights[at + k]);
    }
    listTokens(team_.rank, n, [&](uint32_t g) { return ownOf(t, g); });
    RH_ROLLED
    for (uint32_t g = 0; g < n; g++) {
      if (isOwn(g)) put(ownRow(memberOf(t, g)), false, sendsToo() && sender_.isEarly(memberOf(t, g)), g);
    }
  }
  RH_FN bool isOwn(uint32_t g) const { return (shared_.to[g] >> team_.rank & 1) != 0; }
  RH_FN Copy ownOf(uint32_t t, uint32_t g) const { return {team_.rank, shared_.ownCopy[g], memberOf(t, g)}; }
  // What another group, or an earlier kernel, has noted.
  RH_FN void load(uint32_t t, uint32_t n) {
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < n * team_.topk; j += c_.dataThreadsInBlock()) {
      const uint32_t g = j / team_.topk, k = j - g * team_.topk;
      const uint64_t at = uint64_t{memberOf(t, g)} * team_.topk + k;
      shared_.entries[g * kEpMaxTopk + k] = c_.loadState(arrays_.entries + at);
      shared_.weights[g * kEpMaxTopk + k] = c_.loadState(reinterpret_cast<const uint32_t*>(arrays_.weights) + at);
      if (k != 0) continue;
      shared_.to[g] = c_.loadState(arrays_.ranks + memberOf(t, g));
      const uint32_t* own = arrays_.copyOf + static_cast<uint32_t>(team_.rank) * uint64_t{team_.maxTokens};
      if (isOwn(g)) shared_.ownCopy[g] = c_.loadState(own + memberOf(t, g));
    }
    c_.dataAll(true);
    if (c_.threadInBlock() == 0) shared_.held = ~0u;
  }
  // Of a dispatch that this kernel has sent, the last block may not have kept these yet.
  RH_FN bool sendsToo() const { return (call_.steps & kEpSends) != 0; }
  RH_FN const EpFlightState& flight() const { return call_.state->flights[shared_.flight]; }

  // ---- Where rows go ----

  // Of its list. This rank's own are in the order of tokens.
  RH_FN uint64_t indexOf(const Copy& copy) const {
    return static_cast<uint32_t>(copy.source) * uint64_t{team_.maxTokens} + (copy.source == team_.rank ? copy.token : copy.number);
  }
  // Expert number k of the copy that is number g of the group. A barrier follows.
  RH_FN void list(const Copy& copy, uint32_t g, uint32_t k, uint32_t local, uint32_t place, uint32_t weight) {
    const uint32_t at = g * kEpMaxTopk + k;
    if (to_.layout == EpRowLayout::kTokens) {
      // listTokens() makes one row of them.
      shared_.rows[at] = local < local_ ? local : kEpNoRow;
      shared_.listedWeights[at] = weight;
      return;
    }
    const uint64_t row = local < local_ ? places_.rowOf(copy.source, local, place) : kEpNoRow;
    shared_.rows[at] = static_cast<uint32_t>(row);
    c_.storeState(arrays_.lists + indexOf(copy) * listStride() + k, uint64_t{static_cast<uint32_t>(row)} | uint64_t{weight} << 32);
    if (row != kEpNoRow) describeRow(row, copy, weight);
  }
  // Behind the list of a group; a barrier is behind.
  template <class CopyOf>
  RH_FN void listTokens(int source, uint32_t n, CopyOf copyOf) {
    c_.dataAll(true);
    const bool perToken = to_.layout == EpRowLayout::kTokens;
    RH_ROLLED
    for (uint32_t g = c_.threadInBlock(); g < n; g += c_.dataThreadsInBlock()) {
      if (source == team_.rank && !isOwn(g)) continue;
      const Copy copy = copyOf(g);
      const bool isMissing = source != team_.rank && shared_.firstWords[g] == 0;
      if (perToken && !isMissing) listToken(copy, g);
      c_.storeState(arrays_.lengths + indexOf(copy), isMissing ? kEpMissing : shared_.listed[g]);
    }
    if (perToken) c_.dataAll(true);
  }
  // By one thread: a row for all experts, which the caller's arrays list.
  RH_FN void listToken(const Copy& copy, uint32_t g) {
    const uint64_t row = places_.tokensBefore(copy.source) + copy.number;
    const uint32_t one = epFloatBits(1.0f), at = g * kEpMaxTopk, n = shared_.listed[g];
    uint32_t k = 0;
    RH_ROLLED
    for (uint32_t i = 0; i < n; i++) {
      const uint32_t local = shared_.rows[at + i];
      if (local != kEpNoRow) listExpert(row, k++, static_cast<int32_t>(local), bitsOf<float>(shared_.listedWeights[at + i]));
    }
    RH_ROLLED
    for (; k < team_.topk; k++) listExpert(row, k, -1, 0);
    c_.storeState(arrays_.lists + indexOf(copy) * listStride(), uint64_t{static_cast<uint32_t>(row)} | uint64_t{one} << 32);
    shared_.rows[at] = static_cast<uint32_t>(row);
    shared_.listed[g] = 1;
    describeRow(row, copy, one);
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

  // Copies a row on the wire to the places of number g of the group.
  RH_FN void put(const char* row, bool isInSlot, bool isEarly, uint32_t g) {
    const uint32_t rows = shared_.listed[g], data = call_.format.dataBytes();
    const uint32_t* places = shared_.rows + g * kEpMaxTopk;
    const bool isEven = epIsEven(to_.x, data) && epIsEven(row, data);
    const auto load = [&](uint32_t q, uint32_t at) {
      if (isEarly && sender_.isEarlyAt(q, at)) return sender_.early(q);
      if (isInSlot) return c_.loadSlotTile(row + at);
      return isEven ? loadTile<true>(row + at, 16) : loadBytes(row + at, data - at < 16 ? data - at : 16);
    };
    epForTiles(c_, data, isEven, load, [&](uint32_t at, uint32_t tiles, uint32_t step, const Raw16* raw) {
      RH_ROLLED
      for (uint32_t j = 0; j < rows; j++) {
        if (places[j] == kEpNoRow) continue;
        char* out = to_.x + places[j] * uint64_t{data} + at;
        if (!isEven) {
          storeBytes(out, data - at < 16 ? data - at : 16, raw[0]);
          continue;
        }
        RH_UNROLL
        for (uint32_t q = 0; q < kEpTiles; q++) {
          if (q < tiles) storeTile<true>(out + q * step, 16, raw[q]);
        }
      }
    });
    const uint32_t scales = to_.scales == nullptr ? 0 : call_.format.scaleBytes();
    const char* from = row + call_.format.scaleOffset();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < scales; i += c_.dataThreadsInBlock()) {
      const char b = from[i];
      RH_ROLLED
      for (uint32_t j = 0; j < rows; j++) {
        if (places[j] != kEpNoRow) to_.scales[places[j] * uint64_t{scales} + i] = b;
      }
    }
  }

  C& c_;
  const EpDispatchCall& call_;
  const EpSender<C, kHt>& sender_;
  const EpTeam& team_;
  const EpReceive& to_;
  EpPlaces<C> places_;
  EpShared& shared_;
  const EpFlightArrays& arrays_;
  EpSlots slots_;
  const uint32_t local_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_RECEIVE_H_
