// Dispatch: sends each token to the ranks of its experts, once to each. There it becomes a row for each of its local experts.
//
// Mem moves bytes: copyToSlot, copyFromSlot, copyLocal, clearLocal, and to several places at once fanOutFromSlot, fanOutLocal. Words of
// slots that other ranks read are accessed by loadWord, storeWord (64 bits) and loadRelaxed, storeRelaxed (32 bits), ordered by the
// flags.
//
// Links waits for other ranks and publishes to them: next, credit, isMasked, masked, publish, hasReached, clear, add, isWaiting, wait, as
// in EpLinks. One thread of a rank runs the protocol, since EpState and EpFlight are for one thread; a Mem with more threads lets them
// help within its calls.
#ifndef RAILHEAD_KERNELS_EP_DISPATCH_H_
#define RAILHEAD_KERNELS_EP_DISPATCH_H_

#include "railhead/ep/ep_links.h"

namespace railhead {

// Where the caller wants received rows.
struct EpOutput {
  bool perToken;           // one row for each token, not for each expert
  uint64_t capacity;       // rows: of each expert if padded, else of all
  const int64_t* begin;    // [local experts] first row of each; not perToken
  bool padded;             // capacity is that of each expert
  uint32_t dataBytes;      // of a row without its scales
  uint32_t scaleOffset, scaleBytes;  // on the wire; 0 bytes = none
  bool streams;            // all rows together are larger than the caches
  char* x;
  char* scales;            // nullptr: not wanted, as with all that follow
  float* weights;
  int32_t *sourceRank, *sourceToken;
  int32_t* topkIdx;        // [rows, topk], perToken
  float* topkWeights;
};

template <class Mem, class Links = EpLinks<Mem>>
class EpDispatch {
 public:
  RH_FN EpDispatch(Mem& mem, const EpTeam& team, Links& links, EpFlight& flight)
      : mem_(mem), team_(team), links_(links), f_(flight), state_(*team.state()) {}

  // The send phase, after the plan is made. send(n) blocks only on peers that have not received n - 2: until then the place of its
  // counts, and in ll the slot, is not free. ht: sends what the pipes have room for. False: the group is broken.
  RH_FN bool send() {
    countLoad();
    if (!sendCounts()) return false;
    links_.clear();
    pushAll();
    return true;
  }

  // Waits for the counts of all ranks, and takes them. Does nothing if called again.
  RH_FN bool awaitCounts() {
    for (;;) {
      links_.clear();
      for (int s = 0; s < team_.worldSize; s++) {
        if (s == team_.rank || links_.isMasked(s)) continue;
        EpLine& line = team_.line(team_.rank, s);
        Flag& flag = team_.countsFirst ? line.counts : line.tail;
        const uint32_t value = team_.countsFirst ? f_.number : Links::next(state_.read[s]);
        if (!links_.hasReached(flag, value)) links_.add(flag, value, s);
      }
      if (!links_.isWaiting()) break;
      // ht: a peer waits for credits only after it has published its counts, so there is nothing to push here.
      if (!links_.wait()) return false;
    }
    for (int s = 0; s < team_.worldSize; s++) takeCounts(s);
    return true;
  }

  // The receive phase, after awaitCounts: sends the rest, and receives everything.
  RH_FN bool receive(const EpOutput& out) {
    placeRows(out);
    takeOwn(out);
    for (;;) {
      links_.clear();
      pushAll();
      pullAll(out);
      if (!links_.isWaiting()) break;
      if (!links_.wait()) return false;
    }
    for (int s = 0; s < team_.worldSize; s++) dropMissing(s, out);
    return true;
  }

 private:
  RH_FN uint64_t index(int source) const { return static_cast<uint64_t>(source) * team_.maxLocal; }
  RH_FN uint64_t firstOf(int rank) const { return static_cast<uint64_t>(rank) * team_.maxTokens; }

  // ---- Sending ----

  RH_FN void countLoad() {
    EpCounters* c = team_.counters;
    addTo(&c->tokens, f_.tokens);
    for (int r = 0; r < team_.worldSize; r++) addTo(&c->copies, f_.copies[r]);
    for (uint64_t i = 0; i < uint64_t{f_.tokens} * team_.topk; i++) {
      if (f_.expert[i] != kNoExpert && !links_.isMasked(team_.expertRank[f_.expert[i]])) addTo(&c->routed[f_.expert[i]], 1);
    }
  }

  RH_FN bool sendCounts() {
    for (int k = 1; k < team_.worldSize; k++) {
      const int d = (team_.rank + k) % team_.worldSize;
      if (links_.isMasked(d)) continue;
      if (mutated(Mutant::kEpCountsBeforeCredit)) writeCounts(d);
      // The counts of dispatch n - 2 were in the same place.
      if (!(team_.countsFirst ? awaitOne(team_.line(team_.rank, d).countsHead, Links::next(f_.number, 0u - kEpInFlight), d)
                              : awaitOne(team_.line(team_.rank, d).head, links_.credit(state_.sent[d]), d))) {
        return false;
      }
      if (links_.isMasked(d)) continue;
      if (mutated(Mutant::kEpCountsFlagBeforeCounts) && team_.countsFirst) links_.publish(team_.line(d, team_.rank).counts, f_.number);
      if (mutated(Mutant::kEpTailBeforeCounts) && !team_.countsFirst) pushChunk(d);
      writeCounts(d);
      if (team_.countsFirst) links_.publish(team_.line(d, team_.rank).counts, f_.number);
    }
    return true;
  }

  RH_FN bool awaitOne(Flag& flag, uint32_t value, int peer) {
    while (!links_.isMasked(peer) && !links_.hasReached(flag, value)) {
      links_.clear();
      links_.add(flag, value, peer);
      if (!links_.wait()) return false;
    }
    return true;
  }

  RH_FN void writeCounts(int d) {
    uint32_t n[kEpMaxExperts];
    for (uint32_t e = 0; e < team_.localExperts[d]; e++) n[e] = 0;
    for (uint32_t i = 0; i < f_.copies[d]; i++) {
      forEachExpert(d, f_.tokenOf[firstOf(d) + i], [&](uint16_t local, float) { n[local]++; });
    }
    uint32_t* counts = team_.counts(d, team_.rank, f_.number);
    mem_.storeRelaxed(counts, f_.copies[d]);
    for (uint32_t e = 0; e < team_.localExperts[d]; e++) mem_.storeRelaxed(counts + 1 + e, n[e]);
    addTo(&team_.counters->flagBytes, 4 * (1 + uint64_t{team_.localExperts[d]}) + sizeof(Flag));
  }

  // Visits the experts of token t on rank d, in the order of topk_idx.
  template <class Visit>
  RH_FN void forEachExpert(int d, uint32_t t, Visit visit) const {
    const uint64_t base = uint64_t{t} * team_.topk;
    for (uint32_t k = 0; k < team_.topk; k++) {
      const uint16_t e = f_.expert[base + k];
      if (e != kNoExpert && team_.expertRank[e] == d) visit(team_.expertLocal[e], f_.weight[base + k]);
    }
  }

  // In ll a dispatch without tokens is an empty chunk, since the tail publishes the counts; in ht it is no chunk.
  RH_FN bool hasToSend(int d) const {
    if (f_.moved[d] < f_.copies[d]) return true;
    return !team_.countsFirst && !f_.pushed[d] && !mutated(Mutant::kEpEmptyWithoutTail);
  }

  // Fills every free slot. Adds the heads of full pipes to the waits.
  RH_FN void pushAll() {
    for (int k = 1; k < team_.worldSize; k++) {
      const int d = (team_.rank + k) % team_.worldSize;
      while (hasToSend(d) && !links_.isMasked(d) && !waitsForOther(d)) {
        Flag& head = team_.line(team_.rank, d).head;
        const uint32_t credit = links_.credit(state_.sent[d]);
        if (!links_.hasReached(head, credit)) {
          links_.add(head, credit, d);
          break;
        }
        pushChunk(d);
      }
    }
  }

  RH_FN bool waitsForOther(int d) const { return f_.waitsForOther(d) && !mutated(Mutant::kEpOvertakes); }

  RH_FN void pushChunk(int d) {
    char* slot = team_.slot(d, team_.rank, state_.sent[d]);
    const uint32_t left = f_.copies[d] - f_.moved[d];
    const uint32_t n = left < team_.layout.chunkTokens ? left : team_.layout.chunkTokens;
    const uint32_t next = Links::next(state_.sent[d]);
    Flag& tail = team_.line(d, team_.rank).tail;
    if (mutated(Mutant::kEpTailBeforeRows)) links_.publish(tail, next);
    uint64_t headers = 0;
    for (uint32_t i = mem_.row(); i < n; i += mem_.rows()) {
      const uint32_t t = f_.tokenOf[firstOf(d) + f_.moved[d] + i];
      headers += writeHeader(team_.header(slot, i), d, t);
      mem_.copyToSlot(team_.row(slot, i), f_.rows + t * f_.rowStride, team_.rowBytes);
    }
    state_.sent[d] = next;
    f_.moved[d] += n;
    f_.pushed[d] = true;
    if (!mutated(Mutant::kEpTailBeforeRows)) links_.publish(tail, next);
    addTo(&team_.counters->headerBytes[d], headers);
    addTo(&team_.counters->payloadBytes[d], uint64_t{n} * team_.rowBytes);
    addTo(&team_.counters->flagBytes, sizeof(Flag));
  }

  RH_FN uint64_t writeHeader(uint64_t* words, int d, uint32_t t) {
    uint32_t n = 0;
    forEachExpert(d, t, [&](uint16_t local, float weight) {
      mem_.storeWord(words + 1 + n++, uint64_t{local} | uint64_t{bitsOf(weight)} << 32);
    });
    mem_.storeWord(words, uint64_t{t} | uint64_t{n} << 32);
    return epHeaderBytes(n);
  }

  // ---- Receiving ----

  // Values from other ranks are clamped, so that none leads outside of this rank's memory.
  RH_FN void takeCounts(int s) {
    if (f_.counted[s]) return;
    f_.counted[s] = true;
    f_.received[s] = 0;
    uint32_t* own = f_.counts + index(s);
    for (uint32_t e = 0; e < team_.localExperts[team_.rank]; e++) own[e] = 0;
    if (s == team_.rank) {
      f_.received[s] = f_.copies[s];
      for (uint32_t i = 0; i < f_.copies[s]; i++) {
        forEachExpert(s, f_.tokenOf[firstOf(s) + i], [&](uint16_t local, float) { own[local]++; });
      }
    } else if (!links_.isMasked(s)) {
      const uint32_t* counts = team_.counts(team_.rank, s, f_.number);
      Flag& head = team_.line(s, team_.rank).countsHead;
      if (mutated(Mutant::kEpCountsHeadBeforeRead) && team_.countsFirst) links_.publish(head, f_.number);
      f_.received[s] = atMost(mem_.loadRelaxed(counts), team_.maxTokens);
      for (uint32_t e = 0; e < team_.localExperts[team_.rank]; e++) own[e] = atMost(mem_.loadRelaxed(counts + 1 + e), f_.received[s]);
      if (team_.countsFirst && !mutated(Mutant::kEpCountsHeadBeforeRead)) links_.publish(head, f_.number);
    }
    for (uint32_t e = 0; e < team_.localExperts[team_.rank]; e++) addTo(&team_.counters->received[team_.ownExperts[e]], own[e]);
  }

  // The rows of an expert, or all rows if perToken, are in rank order.
  RH_FN void placeRows(const EpOutput& out) {
    if (out.perToken) {
      uint32_t row = 0;
      for (int s = 0; s < team_.worldSize; s++) {
        f_.nextRow[index(s)] = row;
        row += f_.received[s];
      }
      return;
    }
    for (uint32_t e = 0; e < team_.localExperts[team_.rank]; e++) {
      auto row = static_cast<uint32_t>(out.begin[e]);
      for (int s = 0; s < team_.worldSize; s++) {
        f_.nextRow[index(s) + e] = row;
        row += f_.counts[index(s) + e];
        f_.endRow[index(s) + e] = row;
      }
    }
  }

  RH_FN void takeOwn(const EpOutput& out) {
    const int s = team_.rank;
    for (uint32_t i = mem_.row(); i < f_.copies[s]; i += mem_.rows()) {
      const uint32_t t = f_.tokenOf[firstOf(s) + i];
      const char* row = f_.rows + t * f_.rowStride;
      Copy copy = {s, i, t, f_.listOf(team_, s, i), 0};
      forEachExpert(s, t, [&](uint16_t local, float weight) { add(out, &copy, local, weight); });
      end(out, copy, [&](void* const* to, uint32_t n) { mem_.fanOutLocal(row, to, n, out.dataBytes, out.streams); },
          [&](char* to) { mem_.copyLocal(to, row + out.scaleOffset, out.scaleBytes); });
    }
    f_.taken[s] = f_.copies[s];
  }

  RH_FN bool hasToTake(int s) const {
    if (s == team_.rank || links_.isMasked(s)) return false;
    return f_.taken[s] < f_.received[s] || (!team_.countsFirst && !f_.pulled[s]);
  }

  RH_FN void pullAll(const EpOutput& out) {
    for (int s = 0; s < team_.worldSize; s++) {
      while (hasToTake(s)) {
        Flag& tail = team_.line(team_.rank, s).tail;
        const uint32_t written = Links::next(state_.read[s]);
        if (!links_.hasReached(tail, written)) {
          links_.add(tail, written, s);
          break;
        }
        pullChunk(s, out);
      }
    }
  }

  RH_FN void pullChunk(int s, const EpOutput& out) {
    char* slot = team_.slot(team_.rank, s, state_.read[s]);
    const uint32_t n = atMost(f_.received[s] - f_.taken[s], team_.layout.chunkTokens);
    const uint32_t next = Links::next(state_.read[s]);
    Flag& head = team_.line(s, team_.rank).head;
    if (mutated(Mutant::kEpHeadBeforeRead)) links_.publish(head, next);
    for (uint32_t i = mem_.row(); i < n; i += mem_.rows()) takeCopy(out, s, f_.taken[s] + i, team_.header(slot, i), team_.row(slot, i));
    f_.taken[s] += n;
    f_.pulled[s] = true;
    state_.read[s] = next;
    if (!mutated(Mutant::kEpHeadBeforeRead)) links_.publish(head, next);
    addTo(&team_.counters->flagBytes, sizeof(Flag));
  }

  RH_FN void takeCopy(const EpOutput& out, int s, uint32_t i, const uint64_t* words, const char* row) {
    const uint64_t first = mem_.loadWord(words);
    const uint32_t n = atMost(static_cast<uint32_t>(first >> 32), f_.listStride);
    Copy copy = {s, i, static_cast<uint32_t>(first), f_.listOf(team_, s, i), 0};
    for (uint32_t k = 0; k < n; k++) {
      const uint64_t word = mem_.loadWord(words + 1 + k);
      const auto local = static_cast<uint16_t>(word);
      if (local < team_.localExperts[team_.rank]) add(out, &copy, local, floatOf(static_cast<uint32_t>(word >> 32)));
    }
    end(out, copy, [&](void* const* to, uint32_t places) { mem_.fanOutFromSlot(row, to, places, out.dataBytes, out.streams); },
        [&](char* to) { mem_.copyFromSlot(to, row + out.scaleOffset, out.scaleBytes); });
  }

  // A received copy that is being written to its rows.
  struct Copy {
    int source;
    uint32_t number, token;
    EpRowRef* list;
    uint32_t experts;  // so far
  };

  // Adds an expert to a copy. perToken: lists it in the caller's arrays; end() then makes the row.
  RH_FN void add(const EpOutput& out, Copy* copy, uint16_t local, float weight) {
    if (out.perToken) {
      const uint64_t at = (uint64_t{f_.nextRow[index(copy->source)]} + copy->number) * team_.topk + copy->experts++;
      if (out.topkIdx != nullptr) out.topkIdx[at] = local;
      if (out.topkWeights != nullptr) out.topkWeights[at] = weight;
      return;
    }
    const uint64_t at = index(copy->source) + local;
    if (f_.nextRow[at] == f_.endRow[at]) return;  // more than the rank has counted: the next row belongs to another rank
    const uint32_t row = f_.nextRow[at]++;
    if (out.padded && row - static_cast<uint64_t>(out.begin[local]) >= out.capacity) {
      f_.overCapacity++;
      return;
    }
    copy->list[copy->experts++] = {row, weight};
  }

  // putRow(places, n) copies the row to n places, putScales(place) copies its scales to one.
  template <class PutRow, class PutScales>
  RH_FN void end(const EpOutput& out, const Copy& copy, PutRow putRow, PutScales putScales) {
    uint32_t n = copy.experts;
    if (out.perToken) {
      const uint32_t row = f_.nextRow[index(copy.source)] + copy.number;
      for (uint32_t k = n; k < team_.topk; k++) {
        if (out.topkIdx != nullptr) out.topkIdx[uint64_t{row} * team_.topk + k] = -1;
        if (out.topkWeights != nullptr) out.topkWeights[uint64_t{row} * team_.topk + k] = 0;
      }
      copy.list[0] = {row, 1.0f};
      n = 1;
    }
    f_.lengthOf(team_, copy.source, copy.number) = static_cast<uint8_t>(n);
    void* rows[kEpMaxTopk] = {};
    for (uint32_t j = 0; j < n; j++) rows[j] = out.x + copy.list[j].row * uint64_t{out.dataBytes};
    putRow(rows, n);
    for (uint32_t j = 0; j < n; j++) {
      const uint64_t row = copy.list[j].row;
      if (out.scales != nullptr && out.scaleBytes != 0) putScales(out.scales + row * out.scaleBytes);
      if (out.weights != nullptr) out.weights[row] = copy.list[j].weight;
      if (out.sourceRank != nullptr) out.sourceRank[row] = copy.source;
      if (out.sourceToken != nullptr) out.sourceToken[row] = static_cast<int32_t>(copy.token);
    }
  }

  // A rank that died after its counts and before its last chunk leaves rows that no rank writes. They become 0, without a source token.
  RH_FN void dropMissing(int s, const EpOutput& out) {
    const uint32_t missing = f_.received[s] - f_.taken[s];
    if (missing == 0 || mutated(Mutant::kEpMissingNotCleared)) return;
    if (out.perToken) {
      for (uint32_t i = f_.taken[s]; i < f_.received[s]; i++) clearRow(out, f_.nextRow[index(s)] + i);
    } else {
      for (uint32_t e = 0; e < team_.localExperts[team_.rank]; e++) {
        for (uint32_t row = f_.nextRow[index(s) + e]; row != f_.endRow[index(s) + e]; row++) {
          if (!out.padded || row - static_cast<uint64_t>(out.begin[e]) < out.capacity) clearRow(out, row);
        }
      }
    }
    f_.received[s] = f_.taken[s];
  }
  RH_FN void clearRow(const EpOutput& out, uint64_t row) {
    mem_.clearLocal(out.x + row * out.dataBytes, out.dataBytes);
    if (out.scales != nullptr) mem_.clearLocal(out.scales + row * out.scaleBytes, out.scaleBytes);
    if (out.weights != nullptr) out.weights[row] = 0;
    if (out.sourceRank != nullptr) out.sourceRank[row] = -1;
    if (out.sourceToken != nullptr) out.sourceToken[row] = -1;
    for (uint32_t k = 0; out.perToken && k < team_.topk; k++) {
      if (out.topkIdx != nullptr) out.topkIdx[row * team_.topk + k] = -1;
      if (out.topkWeights != nullptr) out.topkWeights[row * team_.topk + k] = 0;
    }
  }

  RH_FN static uint32_t atMost(uint32_t n, uint32_t most) { return n < most ? n : most; }
  RH_FN static uint32_t bitsOf(float f) {
    uint32_t bits;
    __builtin_memcpy(&bits, &f, sizeof bits);
    return bits;
  }
  RH_FN static float floatOf(uint32_t bits) {
    float f;
    __builtin_memcpy(&f, &bits, sizeof f);
    return f;
  }
  // Counters that others read. The only writer is this rank.
  RH_FN void addTo(uint64_t* counter, uint64_t n) { mem_.storeWord(counter, mem_.loadWord(counter) + n); }

  Mem& mem_;
  const EpTeam& team_;
  Links& links_;
  EpFlight& f_;
  EpState& state_;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_EP_DISPATCH_H_
