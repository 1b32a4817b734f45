// Combine: for each token copy that it has received, a rank adds the outputs of its own experts and sends the partial sum back. The
// token's rank adds the partial sums in rank order.
//
// Rows knows element types:
//   partial(const EpRowRef* list, uint32_t n, char* out)   out = round(sum of weight * y[row] in list order), a row in wire format; 0 if
//                                                          n is 0. out may be memory of another rank
//   finish(uint32_t token, const char* const* partials, int n, bool scaled, float factor)   the token's result
#ifndef RAILHEAD_KERNELS_EP_COMBINE_H_
#define RAILHEAD_KERNELS_EP_COMBINE_H_

#include "railhead/ep/ep_links.h"

namespace railhead {

template <class Mem, class Rows, class Links = EpLinks<Mem>>
class EpCombine {
 public:
  // scratch: one partial sum, of this rank's own experts.
  RH_FN EpCombine(Mem& mem, const EpTeam& team, Links& links, EpFlight& flight, Rows& rows, char* scratch, bool renormalize)
      : mem_(mem), team_(team), links_(links), f_(flight), rows_(rows), scratch_(scratch), renormalize_(renormalize), state_(*team.state()) {}

  // The send phase: fills the slots that are free. In ll these are enough: a rank that has sent dispatch n has ended n - 2, whose slot
  // this is.
  RH_FN void send() {
    f_.adding = true;
    links_.clear();
    pushAll();
  }

  // The receive phase: sends the rest, and finishes this rank's tokens.
  RH_FN bool receive() {
    for (;;) {
      links_.clear();
      pushAll();
      finishTokens();
      if (!links_.isWaiting()) break;
      if (!links_.wait()) return false;
    }
    f_.adding = false;
    return true;
  }

 private:
  RH_FN uint64_t firstOf(int rank) const { return static_cast<uint64_t>(rank) * team_.maxTokens; }

  RH_FN void pushAll() {
    for (int k = 1; k < team_.worldSize; k++) {
      const int s = (team_.rank + k) % team_.worldSize;
      while (f_.returned[s] < f_.received[s] && !links_.isMasked(s) && !waitsForOther(s)) {
        Flag& head = team_.line(team_.rank, s).combineHead;
        const uint32_t credit = links_.credit(state_.combineSent[s]);
        if (!links_.hasReached(head, credit)) {
          links_.add(head, credit, s);
          break;
        }
        pushChunk(s);
      }
    }
  }

  RH_FN bool waitsForOther(int s) const { return f_.waitsForOthersSums(s) && !mutated(Mutant::kEpCombineOvertakes); }

  RH_FN void pushChunk(int s) {
    const uint32_t left = f_.received[s] - f_.returned[s];
    const uint32_t n = left < team_.layout.chunkTokens ? left : team_.layout.chunkTokens;
    const uint32_t chunk = state_.combineSent[s], next = Links::next(chunk);
    Flag& tail = team_.line(s, team_.rank).combineTail;
    if (mutated(Mutant::kEpCombineTailBeforeRows)) links_.publish(tail, next);
    for (uint32_t i = mem_.row(); i < n; i += mem_.rows()) {
      const uint32_t copy = f_.returned[s] + i;
      rows_.partial(f_.listOf(team_, s, copy), f_.lengthOf(team_, s, copy), team_.combineRow(s, team_.rank, chunk, i));
    }
    f_.returned[s] += n;
    state_.combineSent[s] = next;
    if (!mutated(Mutant::kEpCombineTailBeforeRows)) links_.publish(tail, next);
    addTo(&team_.counters->payloadBytes[s], uint64_t{n} * team_.combineRowBytes);
    addTo(&team_.counters->flagBytes, sizeof(Flag));
  }

  // Finishes tokens in order, until a partial sum is missing. Every rank sends its partial sums in the order of tokens.
  RH_FN void finishTokens() {
    while (f_.finished < f_.tokens && haveAllArrived(f_.finished)) finishToken(f_.finished++);
  }

  // Whether all partial sums of a token have arrived. Adds those that have not to the waits.
  RH_FN bool haveAllArrived(uint32_t t) {
    bool all = true;
    for (uint64_t left = othersOf(t); left != 0; left &= left - 1) {
      const int r = lowestBit(left);
      // combineRead counts the chunks that were released, so the next one is the current one.
      Flag& tail = team_.line(team_.rank, r).combineTail;
      const uint32_t written = Links::next(state_.combineRead[r]);
      if (links_.hasReached(tail, written)) continue;
      links_.add(tail, written, r);
      all = false;
    }
    return all;
  }
  // Other ranks that have a copy of token t and are not masked.
  RH_FN uint64_t othersOf(uint32_t t) const { return f_.ranks[t] & ~links_.masked() & ~(uint64_t{1} << team_.rank); }

  RH_FN void finishToken(uint32_t t) {
    const char* partials[kMaxWorldSize];
    int n = 0;
    const uint64_t others = othersOf(t), here = others | (f_.ranks[t] & uint64_t{1} << team_.rank);
    for (uint64_t left = here; left != 0; left &= left - 1) {
      const int r = lowestBit(left);
      const uint32_t copy = f_.copyOf[firstOf(r) + t];
      if (r == team_.rank) {
        rows_.partial(f_.listOf(team_, r, copy), f_.lengthOf(team_, r, copy), scratch_);
        partials[n++] = scratch_;
      } else {
        partials[n++] = team_.combineRow(team_.rank, r, state_.combineRead[r], copy % team_.layout.chunkTokens);
      }
    }
    const uint64_t lost = f_.ranks[t] & ~here;
    f_.lostCopies += static_cast<uint64_t>(__builtin_popcountll(lost));
    f_.lostRanks |= lost;
    float factor = 1;
    const bool scaled = renormalize_ && f_.lostRanks != 0 && renormalizing(t, here, &factor);
    if (mutated(Mutant::kEpCombineHeadBeforeRead)) release(t, others);
    rows_.finish(t, partials, n, scaled, factor);
    if (!mutated(Mutant::kEpCombineHeadBeforeRead)) release(t, others);
  }

  // Whether the token has lost weights to masked ranks; *factor makes up for them. False if no weight is left to scale.
  RH_FN bool renormalizing(uint32_t t, uint64_t here, float* factor) const {
    float all = 0, kept = 0;
    bool lost = false;
    for (uint32_t k = 0; k < team_.topk; k++) {
      const uint64_t i = uint64_t{t} * team_.topk + k;
      if (f_.expert[i] == kNoExpert) continue;
      all += f_.weight[i];
      if ((here >> team_.expertRank[f_.expert[i]] & 1) != 0) {
        kept += f_.weight[i];
      } else {
        lost = true;
      }
    }
    if (!lost || kept == 0) return false;
    *factor = all / kept;
    return true;
  }

  // Releases the chunks whose last partial sum was this token's.
  RH_FN void release(uint32_t t, uint64_t ranks) {
    for (uint64_t left = ranks; left != 0; left &= left - 1) {
      const int r = lowestBit(left);
      const uint32_t copy = f_.copyOf[firstOf(r) + t];
      const bool isLast = (copy + 1) % team_.layout.chunkTokens == 0 || copy + 1 == f_.copies[r];
      if (!isLast && !mutated(Mutant::kEpCombineReleasesEveryToken)) continue;
      state_.combineRead[r] = Links::next(state_.combineRead[r]);
      links_.publish(team_.line(r, team_.rank).combineHead, state_.combineRead[r]);
      addTo(&team_.counters->flagBytes, sizeof(Flag));
    }
  }

  RH_FN void addTo(uint64_t* counter, uint64_t n) { mem_.storeWord(counter, mem_.loadWord(counter) + n); }

  Mem& mem_;
  const EpTeam& team_;
  Links& links_;
  EpFlight& f_;
  Rows& rows_;
  char* scratch_;
  const bool renormalize_;
  EpState& state_;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_EP_COMBINE_H_
