// The send phase of a dispatch: counts, headers and rows go to the slots of the ranks that hold a token's experts.
#ifndef RAILHEAD_KERNELS_GPU_EP_SEND_H_
#define RAILHEAD_KERNELS_GPU_EP_SEND_H_

#include "railhead/gpu/ep_counters.h"
#include "railhead/gpu/ep_routes.h"
#include "railhead/gpu/ep_tiles.h"
#include "railhead/gpu/ep_waits.h"

namespace railhead::gpu {

RH_FN uint32_t epFloatBits(float f) { return bitsOf<uint32_t>(f); }

// kHt: it sends only the counts, and notes where copies go (ep_dispatch_ht.h moves rows).
template <class C, bool kHt = false>
class EpSender {
 public:
  RH_FN EpSender(C& c, const EpDispatchCall& call) : c_(c), call_(call), team_(call.team), routes_(c, call, true), shared_(c.epShared()) {}

  RH_FN EpRoutes<C>& routes() { return routes_; }
  // Few tokens, which this kernel receives too: where one block sends a token, another one takes it to this rank's own experts.
  RH_FN bool isSplit() const {
    const uint32_t tokens = routes_.tokens();
    return !kHt && (call_.steps & kEpReceives) != 0 && 2 * tokens <= c_.dataBlocks() && tokens <= routes_.passTokens();
  }
  RH_FN bool takesOwn() const { return isSplit() && ownToken() < routes_.tokens(); }
  // isSplit(): the token that the block takes, if it is one.
  RH_FN uint32_t ownToken() const { return c_.block() - routes_.tokens(); }
  // The first token of the block; kNoToken: it has none in the first pass.
  static constexpr uint32_t kNoToken = ~0u;
  RH_FN uint32_t firstToken() const {
    if (takesOwn()) return ownToken();
    return c_.block() < routes_.tokens() && c_.block() < routes_.passTokens() ? c_.block() : kNoToken;
  }
  // Tile `at` of token t's row, the q-th of a thread's, if it was loaded early: isEarly().
  RH_FN bool isEarly(uint32_t t) const { return !kHt && t == firstToken() && epIsEven(rowOf(t), team_.rowBytes); }
  RH_FN bool isEarlyAt(uint32_t q, uint32_t at) const { return at == earlyAt(q); }
  RH_FN Raw16 early(uint32_t q) const { return early_[q]; }

  // The block that stores what later kernels need, and describes the rows: behind the last blocks, which send counts and report, it has the fewest tokens.
  RH_FN uint32_t keepingBlock() const {
    const uint32_t blocks = c_.dataBlocks(), world = static_cast<uint32_t>(team_.worldSize);
    return blocks > world ? blocks - 1 - world : blocks - 1;
  }

  // What can be done before the call is decided. A barrier follows. All loads of a thread are begun before it uses one.
  RH_FN void prepare() {
    const uint32_t first = firstToken(), n = first == kNoToken ? 0 : groupOf(first, routes_.endOfPass(0)) * team_.topk, i = c_.threadInBlock();
    const int r = static_cast<int>(i);
    const bool hasHead = r < team_.worldSize && r != team_.rank && !mutated(Mutant::kGpuEpHeadNotAwaited);
    const typename EpRoutes<C>::Early tables = routes_.loadEarly();
    const Words words = i < n ? loadWords(first, i) : Words{};
    if (hasHead) head_ = c_.loadFlagAcquire(EpSlots{team_, 0}.head(team_.rank, r));
    if (i == 0) shared_.held = ~0u;
    routes_.prepare(tables);
    if (i < n) storeWords(i, words);
    RH_ROLLED
    for (uint32_t j = i + c_.dataThreadsInBlock(); j < n; j += c_.dataThreadsInBlock()) storeWords(j, loadWords(first, j));
  }
  // The masks of the first pass, and all invalid input. False: the comm has stopped. A barrier is before and behind.
  RH_FN bool begin() {
    loadEarly();
    routes_.markFirst();
    if (!c_.dataAll(awaitHeads())) return false;
    if (routes_.lacks()) routes_.computeInstead();
    return true;
  }
  // After begin().
  RH_FN void send() {
    const uint32_t tokens = routes_.tokens(), blocks = c_.dataBlocks();
    uint32_t first = 0, behind;
    RH_ROLLED
    do {
      behind = routes_.endOfPass(first);
      if (first != 0) routes_.nextPass(first);
      if (behind == tokens) sendCounts();
      RH_ROLLED
      for (uint32_t t = takesOwn() ? firstToken() : first + epFirstOf(c_.block(), first, blocks); t < behind; t += kEpGroup * blocks) {
        sendGroup(t, groupOf(t, behind));
      }
      if (!routes_.isOnlyPass()) c_.dataAll(true);  // others may yet read the totals
      routes_.endPass();
      c_.dataAll(true);
      first = behind;
    } while (first < tokens);
    if (c_.block() != keepingBlock()) return;
    if (c_.threadInBlock() == 0) keep();
    EpCounting<C>(c_, team_).sent(routes_.tokens(), routes_.excess());
  }

 private:
  RH_FN bool isMasked(int r) const { return (shared_.masked >> r & 1) != 0; }
  RH_FN bool isPeer(int r) const { return r != team_.rank && !isMasked(r); }
  // Ranks that this kernel has given up have copies, which are lost, but their slots may not be filled.
  RH_FN bool isSentTo(int r) const { return isPeer(r) && (shared_.goneRanks() >> r & 1) == 0; }
  RH_FN EpSlots slots() const { return {team_, shared_.number}; }
  RH_FN const EpFlightArrays& arrays() const { return call_.flights[shared_.flight]; }

  // Waits until every rank has read this rank's dispatch n - 2, whose slots are filled again. Most often head_, which was loaded early, is enough.
  RH_FN bool awaitHeads() {
    RH_ROLLED
    for (int r = static_cast<int>(c_.threadInBlock()); r < team_.worldSize; r += static_cast<int>(c_.dataThreadsInBlock())) {
      if (!isPeer(r) || mutated(Mutant::kGpuEpHeadNotAwaited)) continue;
      const uint32_t* head = slots().head(team_.rank, r);
      uint32_t seen = r == static_cast<int>(c_.threadInBlock()) ? head_ : c_.loadFlagAcquire(head);
      EpWait<C> wait(c_, call_, r);
      RH_ROLLED
      while (((seen - (shared_.number - kEpInFlight)) & C::kMeetingMask) > C::kMeetingMask / 2) {
        if (!wait.goesOn()) {
          if (!wait.isGone()) return false;
          c_.sharedOr(&shared_.gone[r / 32], 1u << r % 32);
          break;
        }
        seen = c_.loadFlagAcquire(head);
      }
      wait.end(true);
    }
    return true;
  }

  // One block for each rank, from the last one, which has the fewest tokens. After all masks are made.
  RH_FN void sendCounts() {
    const uint32_t blocks = c_.dataBlocks();
    RH_ROLLED
    for (int d = static_cast<int>(blocks - 1 - c_.block()); d < team_.worldSize; d += static_cast<int>(blocks)) {
      if (d != team_.rank && !isSentTo(d)) continue;
      uint32_t* counts = slots().counts(d, team_.rank);
      RH_ROLLED
      for (uint32_t p = c_.threadInBlock(); p < team_.physical; p += c_.dataThreadsInBlock()) {
        if (shared_.expertRank[p] == d) sendCount(d, counts, 1u + shared_.expertLocal[p], routes_.tokensOf(p));
      }
      if (c_.threadInBlock() == 0) sendCount(d, counts, 0, routes_.copiesTo(d));
    }
  }
  RH_FN void sendCount(int d, uint32_t* counts, uint32_t at, uint32_t n) {
    if (d == team_.rank) {
      c_.storeState(arrays().own + at, n);
    } else {
      c_.storeFlag(counts + at, EpCountWord::of(n, shared_.number));
    }
  }

  // How many tokens t, t + blocks, ... below `behind` make a group.
  RH_FN uint32_t groupOf(uint32_t t, uint32_t behind) const {
    const uint32_t left = (behind - t + c_.dataBlocks() - 1) / c_.dataBlocks();
    return left < kEpGroup ? left : kEpGroup;
  }
  // The caller's words of entry i of a group, or the plan's. The thread that has loaded them uses them.
  struct Words {
    int64_t wanted;  // EpRoutes::wanted()
    float weight;
  };
  RH_FN Words loadWords(uint32_t first, uint32_t i) const {
    const uint64_t at = uint64_t{tokenOf(first, i / team_.topk)} * team_.topk + i % team_.topk;
    return {routes_.wanted(at), call_.routing.weightAt(at)};
  }
  RH_FN void storeWords(uint32_t i, const Words& words) {
    const uint32_t at = i / team_.topk * kEpMaxTopk + i % team_.topk;
    shared_.entries[at] = static_cast<uint64_t>(words.wanted);
    shared_.weights[at] = epFloatBits(words.weight);
  }

  // Tokens t, t + blocks, ...: n of them.
  RH_FN void sendGroup(uint32_t t, uint32_t n) {
    if (t >= c_.dataBlocks() || t >= routes_.passTokens() || routes_.isComputedInstead()) {  // else prepare() has loaded them
      c_.dataAll(true);                                                                      // the entries of the group before have been read
      RH_ROLLED
      for (uint32_t i = c_.threadInBlock(); i < n * team_.topk; i += c_.dataThreadsInBlock()) storeWords(i, loadWords(t, i));
    }
    noteGroup(t, n, !takesOwn());
    if (kHt || takesOwn()) return;
    c_.dataAll(true);
    if (mutated(Mutant::kGpuEpHeaderBeforeRow)) publish(t, n);
    writeHeaders(n);
    copyRows(t, n);
    if (!mutated(Mutant::kGpuEpPublishesAlone)) c_.dataAll(true);
    if (!mutated(Mutant::kGpuEpHeaderBeforeRow)) publish(t, n);
  }
  RH_FN uint32_t tokenOf(uint32_t t, uint32_t g) const { return t + g * c_.dataBlocks(); }

  // What the receive phase and the combine need of the tokens. keeps: for other blocks and kernels too.
  RH_FN void noteGroup(uint32_t first, uint32_t n, bool keeps) {
    const uint32_t step = c_.dataThreadsInBlock(), world = static_cast<uint32_t>(team_.worldSize);
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n * team_.topk; i += step) {
      const uint32_t g = i / team_.topk, k = i - g * team_.topk, t = tokenOf(first, g), at = g * kEpMaxTopk + k;
      const uint64_t index = uint64_t{t} * team_.topk + k;
      shared_.entries[at] = routes_.entry(t, k, static_cast<int64_t>(shared_.entries[at]));
      if (!keeps) continue;
      c_.storeState(arrays().entries + index, shared_.entries[at]);
      c_.storeState(reinterpret_cast<uint32_t*>(arrays().weights) + index, shared_.weights[at]);
    }
    // From the last thread, which has no entry most often.
    RH_ROLLED
    for (uint32_t i = step - 1 - c_.threadInBlock(); keeps && i < n * world; i += step) {
      const uint32_t g = i / world, t = tokenOf(first, g);
      const int r = static_cast<int>(i - g * world);
      if (isMasked(r) || !routes_.goesTo(t, r)) continue;
      const uint32_t copy = routes_.copyTo(t, r);
      shared_.copies[g * kMaxWorldSize + static_cast<uint32_t>(r)] = copy;
      c_.storeState(arrays().copyOf + static_cast<uint32_t>(r) * uint64_t{team_.maxTokens} + t, copy);
    }
    const uint32_t g = step - 1 - c_.threadInBlock();
    RH_ROLLED
    for (uint32_t i = g; i < n; i += step) {
      const uint32_t t = tokenOf(first, i);
      uint64_t to = 0;
      RH_ROLLED
      for (int r = 0; r < team_.worldSize; r++) to |= !isMasked(r) && routes_.goesTo(t, r) ? uint64_t{1} << r : 0;
      shared_.to[i] = to;
      shared_.ownCopy[i] = routes_.copyTo(t, team_.rank);
      if (keeps) c_.storeState(arrays().ranks + t, to);
      if (i == 0) shared_.held = first;
    }
  }
  // Of the group's token g, without this rank.
  RH_FN uint64_t peersOf(uint32_t g) const { return shared_.to[g] & ~(shared_.goneRanks() | uint64_t{1} << team_.rank); }

  // Index of the copy of the group's token g to a rank that gets it.
  RH_FN uint32_t copyOf(uint32_t g, int d) const { return shared_.copies[g * kMaxWorldSize + static_cast<uint32_t>(d)]; }

  // All words but the first of each header, in the order of topk_idx.
  RH_FN void writeHeaders(uint32_t n) {
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n * team_.topk; i += c_.dataThreadsInBlock()) {
      const uint32_t g = i / team_.topk, k = i - g * team_.topk;
      const uint64_t entry = shared_.entries[g * kEpMaxTopk + k];
      const int d = EpEntry::rank(entry);
      if (EpEntry::isNone(entry) || (peersOf(g) >> d & 1) == 0) continue;
      char* slot = slots().slot(d, team_.rank);
      c_.storeSlotWord(slots().expertWord(slot, copyOf(g, d), shared_.expertsOn(g, d, k)),
                       EpExpertWord::of(EpEntry::local(entry), EpEntry::place(entry), shared_.weights[g * kEpMaxTopk + k]));
    }
  }

  // Rows as they are sent.
  RH_FN const char* rowOf(uint32_t t) const {
    if (arrays().encoded != nullptr) return arrays().encoded + t * team_.layout.rowStride;
    return call_.x + t * uint64_t{call_.format.hidden} * epBytesOf(call_.format.in);
  }
  RH_FN uint32_t earlyAt(uint32_t q) const { return 16 * (c_.threadInBlock() + q * c_.dataThreadsInBlock()); }
  // Begins to load the row of the block's first token, if it is even.
  RH_FN void loadEarly() {
    const uint32_t t = firstToken();
    if (kHt || t == kNoToken) return;
    const char* row = rowOf(t);
    if (!epIsEven(row, team_.rowBytes)) return;
    RH_UNROLL
    for (uint32_t q = 0; q < kEpTiles; q++) {
      if (earlyAt(q) < team_.rowBytes) early_[q] = loadTile<true>(row + earlyAt(q), 16);
    }
  }
  RH_FN void copyRows(uint32_t first, uint32_t n) {
    const uint32_t bytes = team_.rowBytes;
    RH_ROLLED
    for (uint32_t g = 0; g < n; g++) {
      const uint32_t t = tokenOf(first, g);
      const uint64_t to = peersOf(g);
      if (to == 0) continue;
      const char* row = rowOf(t);
      const bool isEven = epIsEven(row, bytes), hasEarly = isEarly(t);
      const auto load = [&](uint32_t q, uint32_t at) {
        if (hasEarly && at == earlyAt(q)) return early_[q];
        return isEven ? loadTile<true>(row + at, 16) : loadBytes(row + at, bytes - at < 16 ? bytes - at : 16);
      };
      epForTiles(c_, bytes, isEven, load, [&](uint32_t at, uint32_t tiles, uint32_t step, const Raw16* raw) {
        RH_ROLLED
        for (uint64_t left = to; left != 0; left &= left - 1) {
          const int d = lowestBit(left);
          char* out = team_.row(slots().slot(d, team_.rank), copyOf(g, d));
          RH_UNROLL
          for (uint32_t q = 0; q < kEpTiles; q++) {
            if (q < tiles) c_.storeSlotTile(out + at + q * step, raw[q]);
          }
        }
      });
    }
  }

  // The barrier before it orders the block's stores before the fence.
  RH_FN void publish(uint32_t first, uint32_t n) {
    const uint32_t world = static_cast<uint32_t>(team_.worldSize);
    bool isFenced = mutated(Mutant::kGpuEpPublishWithoutFence);
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < n * world; i += c_.dataThreadsInBlock()) {
      const uint32_t g = i / world, t = tokenOf(first, g);
      const int d = static_cast<int>(i - g * world);
      if ((peersOf(g) >> d & 1) == 0) continue;
      const uint32_t word = EpFirstWord::of(t, shared_.expertsOn(g, d, team_.topk));
      if (!isFenced) c_.fence();
      isFenced = true;
      c_.storeFlag(slots().firstWord(slots().slot(d, team_.rank), copyOf(g, d)), word);
    }
  }

  // By one thread of all, what later calls need of the dispatch.
  RH_FN void keep() {
    EpFlightState& f = call_.state->flights[shared_.flight];
    const bool isEncoded = arrays().encoded != nullptr;
    uint64_t lost = 0;
    RH_ROLLED
    for (int r = 0; r < team_.worldSize; r++) {
      const uint32_t n = shared_.totals[team_.physical + static_cast<uint32_t>(r)];
      if (isMasked(r)) lost += n;
      c_.storeState(arrays().copies + r, isMasked(r) ? 0 : n);
    }
    c_.storeState(&f.tokens, uint64_t{routes_.tokens()});
    c_.storeState(&f.excess, uint64_t{routes_.excess()});
    c_.storeState(&f.rows, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(isEncoded ? arrays().encoded : call_.x)));
    c_.storeState(&f.masked, shared_.masked);
    c_.storeState(&f.plan, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(call_.plan.idx)));
    c_.storeState(&f.maskedCopies, lost);
    routes_.storeProblems(&f.problems);
  }

  C& c_;
  const EpDispatchCall& call_;
  const EpTeam& team_;
  EpRoutes<C> routes_;
  EpShared& shared_;
  uint32_t head_ = 0;           // of the rank whose number is the thread's
  Raw16 early_[kEpTiles] = {};  // of the row of the block's first token
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_SEND_H_
