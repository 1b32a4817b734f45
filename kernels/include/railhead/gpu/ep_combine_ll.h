// The kernel of a combine: it adds the outputs of this rank's experts for each copy that it has received, sends the partial sums back, and adds those
// of all ranks for its own tokens, in rank order. A partial sum travels as cells: all ones are no sum, since sums have one NaN.
#ifndef RAILHEAD_KERNELS_GPU_EP_COMBINE_LL_H_
#define RAILHEAD_KERNELS_GPU_EP_COMBINE_LL_H_

#include "railhead/gpu/ep_control.h"
#include "railhead/gpu/ep_elements.h"
#include "railhead/gpu/ep_rings.h"

namespace railhead::gpu {

// T: the type of partial sums. kHt: of ht, see ep_combine_ht.h.
template <class T, class C, bool kHt = false>
class EpCombineKernel {
 public:
  RH_FN EpCombineKernel(C& c, const EpCombineCall& call) : c_(c), call_(call), team_(call.team), shared_(c.epShared()), y_(call.yRows) {}

  RH_FN void run() { epRun(c_, call_, *this); }

  // Of epRun().
  RH_FN void prepare() {
    if (c_.threadInBlock() == 0) decide();
  }
  RH_FN bool data() {
    const auto error = static_cast<EpError>(shared_.error);
    bool good = true;
    if (reports()) report(error);  // first: its stores, which may go to the host, are not waited for
    if (error == EpError::kNone) {
      if (does(kEpSends)) {
        loadReceived();
        withEpType(call_.y, [&](auto y) { sendSums<decltype(y)>(); });
      }
      if (does(kEpReceives)) {
        const Result result = resultOf();
        withEpType(result.type, [&](auto out) { good = addSums<decltype(out)>(result); });
      }
    }
    return good;
  }
  RH_FN void look() {
    const EpFlights<C> flights(c_, call_);
    may(flights, &flight_);
    masked_ = c_.loadState(&team_.state()->masked);
    maskedCopies_ = c_.loadState(&call_.state->flights[flight_].maskedCopies);
  }
  RH_FN void repair() {}
  // Only then copies are lost.
  RH_FN bool settles(uint64_t masked) const { return kHt || epDropsDead<C>(team_) || masked != 0; }
  // By control, after all blocks have ended.
  RH_FN void last(uint32_t outcome, uint64_t gone) {
    if (epErrorOf(outcome) != EpError::kNone) return;
    EpFlightState& f = call_.state->flights[flight_];
    EpState* state = team_.state();
    if (does(kEpSends)) {
      c_.storeState(&state->combines, c_.loadState(&state->combines) + 1);
      c_.storeState(&f.outRows, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(call_.outRows)));
      c_.storeState(&f.add, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(call_.add)));
      c_.storeState(&f.out, static_cast<uint64_t>(call_.out));
      if (kHt) {
        c_.storeState(&f.yRows, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(call_.yRows)));
        c_.storeState(&f.y, static_cast<uint64_t>(call_.y));
        c_.storeState(&f.weighted, uint64_t{call_.weighted});
      }
    }
    c_.storeOwn(&f.phase, static_cast<uint64_t>(does(kEpReceives) ? EpPhase::kFree : EpPhase::kAdding));
    if (!does(kEpReceives)) return;
    const uint64_t lost = maskedCopies_ + (settles(masked_) ? c_.loadOwn(&call_.state->dropped) : 0);
    if (lost != 0) call_.cell->combined.lostCopies = lost;
    if (gone != 0) call_.cell->combined.lostRanks |= gone;
    if (kHt) advanceRings();
    EpCounting<C>(c_, team_).combined(lost);
    epEnded(c_, call_);
  }

 protected:
  using Tile = EpTile<T>;
  using Sum = typename Tile::Sum;
  static constexpr uint32_t kElements = Tile::kElements;
  static constexpr uint32_t kTiles = 16 / kElements;  // of a thread, in flight: 512 threads have 8192 elements. More cost registers that a row has no use for
  static constexpr uint64_t kNotHere = ~uint64_t{0};

  RH_FN void advanceRings() {
    EpRings<C> rings(c_, call_);
    const EpFlightArrays& arrays = call_.flights[flight_];
    RH_ROLLED
    for (int r = 0; r < team_.worldSize; r++) {
      rings.advance(&call_.state->summed[r], c_.loadState(arrays.received + r));
      rings.advance(&call_.state->added[r], c_.loadState(arrays.copies + r));
    }
  }
  RH_FN bool does(uint32_t step) const { return (call_.steps & step) != 0; }
  RH_FN bool reports() const { return c_.block() == 0 && c_.threadInBlock() == 0; }
  RH_FN void report(EpError error) {
    EpReport report = {};
    report.error = error;
    if (error == EpError::kNone && does(kEpReceives)) {
      report.number = shared_.number;
      report.lostRanks = c_.loadState(&flight().masked) | shared_.masked;
    }
    call_.cell->combined = report;
    shared_.outcome = epOutcome(error, EpError::kNone);
  }
  RH_FN bool isMasked(int r) const { return (shared_.masked >> r & 1) != 0; }
  RH_FN const EpFlightArrays& arrays() const { return call_.flights[shared_.flight]; }
  RH_FN EpFlightState& flight() const { return call_.state->flights[shared_.flight]; }
  RH_FN EpSlots slots() const { return {team_, shared_.number}; }
  RH_FN uint32_t hidden() const { return call_.format.hidden; }
  RH_FN uint32_t tiles() const { return (hidden() + kElements - 1) / kElements; }
  RH_FN uint32_t elementsOf(uint32_t tile) const {
    const uint32_t left = hidden() - tile * kElements;
    return left < kElements ? left : kElements;
  }

  RH_FN EpError may(const EpFlights<C>& flights, uint32_t* flight) const {
    if (!does(kEpSends)) return flights.mayCombine(EpPhase::kAdding, flight);
    return does(kEpReceives) ? flights.mayCombineAtOnce(flight) : flights.mayCombine(EpPhase::kReceived, flight);
  }
  // Where the result goes, and what is added to it.
  struct Result {
    char* rows;
    const char* add;
    EpType type;
  };
  RH_FN Result resultOf() {
    if (does(kEpSends)) return {call_.outRows, call_.add, call_.out};
    const EpFlightState& f = flight();
    return {reinterpret_cast<char*>(static_cast<uintptr_t>(c_.loadState(&f.outRows))),
            reinterpret_cast<const char*>(static_cast<uintptr_t>(c_.loadState(&f.add))), static_cast<EpType>(c_.loadState(&f.out))};
  }

  // By one thread, of both flights before one is chosen: so their words are loaded at once.
  RH_FN void decide() {
    const EpFlights<C> flights(c_, call_);
    const uint64_t masked = c_.loadState(&team_.state()->masked);
    Flight words[kEpInFlight];
    RH_UNROLL
    for (int i = 0; i < kEpInFlight; i++) {
      const EpFlightState& f = call_.state->flights[i];
      words[i] = {c_.loadState(&f.tokens), c_.loadState(&f.excess), c_.loadState(&f.perToken), c_.loadState(&f.hasRows)};
    }
    EpError error = may(flights, &shared_.flight);
    shared_.masked = masked;
    shared_.gone[0] = shared_.gone[1] = 0;
    if (error == EpError::kNone) {
      const bool isFirst = shared_.flight == 0;
      const Flight f = {isFirst ? words[0].tokens : words[1].tokens, isFirst ? words[0].excess : words[1].excess,
                        isFirst ? words[0].perToken : words[1].perToken, isFirst ? words[0].hasRows : words[1].hasRows};  // without a computed index
      shared_.number = flights.numberOf(shared_.flight);
      shared_.tokens = static_cast<uint32_t>(f.tokens);
      shared_.excess = static_cast<uint32_t>(f.excess);
      shared_.isWeighted = call_.weighted || f.perToken != 0;
      if (does(kEpSends) && f.hasRows != 0 && call_.yRows == nullptr) error = EpError::kNoY;
      if (error == EpError::kNone && f.tokens + f.excess > 0 && resultOf().rows == nullptr) error = EpError::kNoOut;
    }
    shared_.error = static_cast<uint32_t>(error);
  }
  struct Flight {
    uint64_t tokens, excess, perToken, hasRows;
  };

  // A barrier follows.
  RH_FN void loadReceived() {
    RH_ROLLED
    for (int s = static_cast<int>(c_.threadInBlock()); s < team_.worldSize; s += static_cast<int>(c_.dataThreadsInBlock())) {
      shared_.received[s] = c_.loadState(arrays().received + s);
    }
    c_.dataAll(true);
  }

  // How many of i, i + blocks, ... below n make a group.
  RH_FN uint32_t groupOf(uint32_t i, uint32_t n) const {
    const uint32_t left = (n - i + c_.dataBlocks() - 1) / c_.dataBlocks();
    return left < kEpGroup ? left : kEpGroup;
  }
  RH_FN uint32_t memberOf(uint32_t i, uint32_t g) const { return i + g * c_.dataBlocks(); }

  // ---- Sums of this rank's experts ----

  template <class Y>
  RH_FN void sendSums() {
    const uint32_t blocks = c_.dataBlocks(), tokens = shared_.tokens;
    addOwn<Y>();
    uint32_t before = tokens;
    RH_ROLLED
    for (int k = 1; k < team_.worldSize; k++) {
      const int s = (team_.rank + k) % team_.worldSize;
      if (isMasked(s)) continue;
      const uint32_t n = shared_.received[s];
      if (reports()) EpCounting<C>(c_, team_).returned(s, n);
      RH_ROLLED
      for (uint32_t i = epFirstOf(c_.block(), before, blocks); i < n; i += kEpGroup * blocks) sendSumsOf<Y>(s, i, groupOf(i, n));
      before += n;
    }
  }
  // Copies i, i + blocks, ... of rank s, n of them.
  template <class Y>
  RH_FN void sendSumsOf(int s, uint32_t i, uint32_t n) {
    loadLists(s, i, n);
    RH_ROLLED
    for (uint32_t g = 0; g < n; g++) {
      char* row = sentSum(s, memberOf(i, g));
      addRows<Y>(g, [&](uint32_t tile, const Raw16& raw) { c_.storePacket(cellOf(row, tile), packetOf(raw)); });
    }
  }
  // A thread adds the tiles of this rank's own tokens that it reads again in addSums().
  template <class Y>
  RH_FN void addOwn() {
    const uint32_t blocks = c_.dataBlocks(), tokens = shared_.tokens;
    RH_ROLLED
    for (uint32_t t = c_.block(); t < tokens; t += kEpGroup * blocks) {
      const uint32_t n = groupOf(t, tokens);
      loadLists(team_.rank, t, n);
      RH_ROLLED
      for (uint32_t g = 0; g < n; g++) {
        char* sums = arrays().sums + memberOf(t, g) * team_.layout.combineStride;
        if ((shared_.to[g] >> team_.rank & 1) == 0) continue;
        addRows<Y>(g, [&](uint32_t tile, const Raw16& raw) { c_.storeSlotTile(sums + tile * uint64_t{16}, raw); });
      }
    }
  }
  // Where the partial sum of a copy that rank s has sent goes to, and where that of number g of the group comes from, of rank r.
  RH_FN char* sentSum(int s, uint32_t copy) {
    if (!kHt) return team_.combineRow(s, team_.rank, shared_.number, copy);
    EpRings<C> rings(c_, call_);
    return rings.sum(s, team_.rank, rings.to(s, copy));
  }
  RH_FN char* addedSum(int r, uint32_t g) {
    const uint32_t at = g * kMaxWorldSize + static_cast<uint32_t>(r);
    if (!kHt) return team_.combineRow(team_.rank, r, shared_.number, shared_.copies[at]);
    const EpPosition p = shared_.moving.places[at];
    return team_.combineRow(team_.rank, r, p.slot, p.at);
  }
  RH_FN static Packet packetOf(const Raw16& raw) { return {{raw.w[0] | uint64_t{raw.w[1]} << 32, raw.w[2] | uint64_t{raw.w[3]} << 32}}; }

  // The lists of copies i, i + blocks, ..., n of them. A barrier is behind.
  RH_FN void loadLists(int source, uint32_t i, uint32_t n) {
    const uint32_t stride = team_.topk < team_.maxLocal ? team_.topk : team_.maxLocal;
    c_.dataAll(true);  // those of the group before have been read
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < n * stride; j += c_.dataThreadsInBlock()) {
      const uint32_t g = j / stride, k = j - g * stride, copy = memberOf(i, g);
      const uint64_t index = static_cast<uint32_t>(source) * uint64_t{team_.maxTokens} + copy;
      const uint64_t ref = c_.loadState(arrays().lists + index * stride + k);
      const uint32_t length = c_.loadState(arrays().lengths + index);
      if (k == 0 && source == team_.rank) shared_.to[g] = c_.loadState(arrays().ranks + copy);
      if (k == 0) shared_.listed[g] = length <= stride ? length : 0;  // kEpMissing: a header was taken back, which no rank does that keeps the rules
      shared_.rows[g * kEpMaxTopk + k] = static_cast<uint32_t>(ref);
      shared_.weights[g * kEpMaxTopk + k] = static_cast<uint32_t>(ref >> 32);
    }
    c_.dataAll(true);
  }

  // The weighted sum of number g of the group. Each product and sum is rounded; the first product is the first sum.
  template <class Y, class Put>
  RH_FN void addRows(uint32_t g, Put put) {
    constexpr uint32_t kSize = sizeof(typename Y::Bits), kRows = 4;  // in flight
    const uint32_t rows = shared_.listed[g], *places = shared_.rows + g * kEpMaxTopk, *weights = shared_.weights + g * kEpMaxTopk;
    const bool weighted = shared_.isWeighted != 0, isEven = epAreEven<Y, kElements>(y_, hidden());
    const uint32_t most = isEven ? kRows : 1;
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < tiles(); i += c_.dataThreadsInBlock()) {
      Sum sum = {};
      bool first = true;
      RH_ROLLED
      for (uint32_t j = 0; j < rows; j += most) {
        uint32_t row[kRows];
        float weight[kRows];
        RH_UNROLL
        for (uint32_t q = 0; q < kRows; q++) {
          const bool has = q < most && j + q < rows;
          row[q] = has ? places[j + q] : kEpNoRow;
          weight[q] = has && !weighted ? bitsOf<float>(weights[j + q]) : 1.0f;  // x * 1 is x
        }
        EpPieces<Y, kElements> terms[kRows] = {};
        RH_UNROLL
        for (uint32_t q = 0; q < kRows; q++) {
          const char* y = y_ + (row[q] * uint64_t{hidden()} + i * uint64_t{kElements}) * kSize;
          if (row[q] != kEpNoRow && isEven) terms[q] = loadEvenPieces<Y, kElements>(y);
          if (q == 0 && row[q] != kEpNoRow && !isEven) terms[q] = loadOddPieces<Y, kElements>(y, elementsOf(i));
        }
        RH_UNROLL
        for (uint32_t q = 0; q < kRows; q++) {
          if (row[q] == kEpNoRow) continue;
          const Sum term = floatsOf<Y, kElements>(terms[q]);
          RH_UNROLL
          for (uint32_t e = 0; e < kElements; e++) {
            const float product = term.v[e] * weight[q];
            sum.v[e] = first ? product : sum.v[e] + product;
          }
          first = false;
        }
      }
      put(i, Tile::narrow(sum, elementsOf(i)));  // of no rows 0
    }
  }

  // ---- Sums of all ranks ----

  template <class Out>
  RH_FN bool addSums(const Result& result) {
    const uint32_t blocks = c_.dataBlocks(), tokens = shared_.tokens, all = tokens + shared_.excess;
    bool good = true;
    RH_ROLLED
    for (uint32_t t = c_.block(); t < all; t += kEpGroup * blocks) {
      const uint32_t n = groupOf(t, all);
      loadCopies(t, n, tokens);
      RH_ROLLED
      for (uint32_t g = 0; g < n; g++) {
        const uint32_t token = memberOf(t, g);
        const uint64_t ranks = shared_.to[g];
        if (epDropsDead<C>(team_) && !awaitSums(g, ranks & ~shared_.masked)) return false;
        const uint64_t here = ranks & ~(shared_.masked | shared_.goneRanks());
        if (good) good = addToken<Out>(result, g, token, here);
      }
    }
    return good;
  }
  // Number g of the group. here: of the ranks that have a copy, those whose partial sums are added. False: the comm has stopped. Threads of a block may
  // differ in that, so a thread that adds no more still comes to all barriers of the others.
  template <class Out>
  RH_FN bool addToken(const Result& result, uint32_t g, uint32_t token, uint64_t here) {
    const bool isEven = epAreEven<Out, kElements>(result.rows, hidden()) && epAreEven<Out, kElements>(result.add, hidden());
    const uint32_t most = isEven ? kTiles : 1;
    if (c_.threadInBlock() == 0) {
      RH_ROLLED
      for (uint64_t left = shared_.to[g] & ~here; left != 0; left &= left - 1) c_.addOne(&call_.state->dropped);
    }
    float factor = 1;
    const bool scaled = call_.renormalizes && token < shared_.tokens && renormalizing(token, here, &factor);
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i < tiles(); i += most * c_.dataThreadsInBlock()) {
      if (!addTiles<Out>(result, g, token, here, i, isEven, scaled, factor)) return false;
    }
    return true;
  }
  // Waits for all partial sums of a token, or gives up their ranks, so that all threads of the block add the same ones. False: the comm has stopped.
  RH_FN bool awaitSums(uint32_t g, uint64_t ranks) {
    c_.dataAll(true);  // all threads have read which ranks were given up before
    bool good = true;
    RH_ROLLED
    for (uint64_t left = ranks & ~(shared_.goneRanks() | uint64_t{1} << team_.rank); left != 0 && good; left &= left - 1) {
      const int r = lowestBit(left);
      char* row = addedSum(r, g);
      EpWait<C> wait(c_, call_, r);
      RH_ROLLED
      for (uint32_t i = c_.threadInBlock(); i < tiles() && good; i += c_.dataThreadsInBlock()) {
        RH_ROLLED
        while (isLate(c_.loadPacket(cellOf(row, i)))) {
          if (wait.goesOn()) continue;
          good = wait.isGone();
          if (good) c_.sharedOr(&shared_.gone[r / 32], 1u << r % 32);
          break;
        }
        if (wait.isGone()) break;
      }
      wait.end(c_.threadInBlock() == 0);
    }
    return mutated(Mutant::kGpuEpThreadsGiveUpAlone) ? good : c_.dataAll(good);
  }
  // Which copies tokens t, t + blocks, ... have, n of them. A barrier is behind.
  RH_FN void loadCopies(uint32_t t, uint32_t n, uint32_t tokens) {
    const uint32_t world = static_cast<uint32_t>(team_.worldSize);
    c_.dataAll(true);
    RH_ROLLED
    for (uint32_t j = c_.threadInBlock(); j < n * world; j += c_.dataThreadsInBlock()) {
      const uint32_t g = j / world, r = j - g * world, token = memberOf(t, g);
      if (r == 0) shared_.to[g] = token < tokens ? c_.loadState(arrays().ranks + token) : 0;
      if (token >= tokens) continue;
      const uint32_t copy = c_.loadState(arrays().copyOf + r * uint64_t{team_.maxTokens} + token);
      if constexpr (kHt) {
        shared_.moving.places[g * kMaxWorldSize + r] = EpRings<C>(c_, call_).from(static_cast<int>(r), copy);
      } else {
        shared_.copies[g * kMaxWorldSize + r] = copy;
      }
    }
    c_.dataAll(true);
  }

  // Tiles i, i + step, ... of a token, number g of its group: those of a rank are polled together. Not even: tile i.
  template <class Out>
  RH_FN bool addTiles(const Result& result, uint32_t g, uint32_t t, uint64_t here, uint32_t i, bool isEven, bool scaled, float factor) {
    constexpr uint32_t kSize = sizeof(typename Out::Bits);
    const uint32_t step = c_.dataThreadsInBlock(), behind = isEven ? tiles() : i + 1;
    Sum sums[kTiles] = {};
    bool first = true;
    RH_ROLLED
    for (uint64_t left = here; left != 0; left &= left - 1, first = false) {
      Raw16 raw[kTiles];
      const int r = lowestBit(left);
      if (!load(r, g, t, i, behind, raw)) return false;
      RH_UNROLL
      for (uint32_t q = 0; q < kTiles; q++) {
        const Sum term = Tile::widen(raw[q]);
        RH_UNROLL
        for (uint32_t e = 0; e < kElements; e++) sums[q].v[e] = first ? term.v[e] : sums[q].v[e] + term.v[e];
      }
    }
    RH_UNROLL
    for (uint32_t q = 0; q < kTiles; q++) {
      const uint32_t tile = i + q * step;
      if (tile >= behind) break;
      const uint64_t at = (t * uint64_t{hidden()} + tile * uint64_t{kElements}) * kSize;
      if (result.add != nullptr || scaled) {
        Sum added = {};
        const char* from = result.add + at;
        if (result.add != nullptr) added = floatsOf(q > 0 || isEven ? loadEvenPieces<Out, kElements>(from) : loadOddPieces<Out, kElements>(from, elementsOf(tile)));
        RH_UNROLL
        for (uint32_t e = 0; e < kElements; e++) {
          if (scaled) sums[q].v[e] = sums[q].v[e] * factor;
          if (result.add != nullptr) sums[q].v[e] = sums[q].v[e] + added.v[e];
        }
      }
      if (q > 0 || isEven) {
        storeEvenFloats<Out, kElements>(result.rows + at, sums[q]);
      } else {
        storeOddFloats<Out, kElements>(result.rows + at, elementsOf(tile), sums[q]);
      }
    }
    return true;
  }

  // The tiles below `behind` of the partial sum of rank r for token t, number g of its group. Puts all ones back.
  RH_FN bool load(int r, uint32_t g, uint32_t t, uint32_t i, uint32_t behind, Raw16 (&raw)[kTiles]) {
    const uint32_t step = c_.dataThreadsInBlock();
    if (r == team_.rank) {
      const char* sums = arrays().sums + t * team_.layout.combineStride;
      RH_UNROLL
      for (uint32_t q = 0; q < kTiles; q++) raw[q] = i + q * step < behind ? c_.loadSlotTile(sums + (i + q * step) * uint64_t{16}) : Raw16{};
      return true;
    }
    char* row = addedSum(r, g);
    Packet p[kTiles];
    RH_ROLLED
    for (;;) {
      bool late = false;
      RH_UNROLL
      for (uint32_t q = 0; q < kTiles; q++) {
        if (i + q * step < behind) p[q] = c_.loadPacket(cellOf(row, i + q * step));
      }
      RH_UNROLL
      for (uint32_t q = 0; q < kTiles; q++) {
        if (i + q * step < behind) late |= isLate(p[q]);
      }
      if (!late) break;
      if (c_.keepWaiting()) continue;
      c_.giveUp(uint64_t{1} << r);
      return false;
    }
    if (c_.waitBegan() != 0 && c_.threadInBlock() == 0) epCountWait<C>(c_, call_, r, c_.waitBegan());
    c_.endWait();
    RH_UNROLL
    for (uint32_t q = 0; q < kTiles; q++) {
      raw[q] = {{0, 0, 0, 0}};
      if (i + q * step >= behind) continue;
      Packet* cell = cellOf(row, i + q * step);
      c_.arrived(cell);
      if (!mutated(Mutant::kGpuEpCellNotCleared)) c_.storePacket(cell, {{kNotHere, kNotHere}});
      raw[q] = {{static_cast<uint32_t>(p[q].e[0]), static_cast<uint32_t>(p[q].e[0] >> 32), static_cast<uint32_t>(p[q].e[1]),
                 static_cast<uint32_t>(p[q].e[1] >> 32)}};
    }
    return true;
  }
  RH_FN static Packet* cellOf(char* row, uint32_t tile) { return reinterpret_cast<Packet*>(row + tile * uint64_t{16}); }
  RH_FN static bool isLate(const Packet& p) {
    const bool first = p.e[0] == kNotHere && !mutated(Mutant::kGpuEpFirstElementUnchecked);
    const bool second = p.e[1] == kNotHere && !mutated(Mutant::kGpuEpSecondElementUnchecked);
    return first | second;
  }

  // As EpCombine::renormalizing.
  RH_FN bool renormalizing(uint32_t t, uint64_t here, float* factor) {
    float all = 0, kept = 0;
    bool lost = false;
    RH_ROLLED
    for (uint32_t k = 0; k < team_.topk; k++) {
      const uint64_t at = uint64_t{t} * team_.topk + k;
      const uint64_t entry = c_.loadState(arrays().entries + at);
      if (EpEntry::isNone(entry)) continue;
      const float weight = bitsOf<float>(c_.loadState(reinterpret_cast<const uint32_t*>(arrays().weights) + at));
      all += weight;
      if ((here >> EpEntry::rank(entry) & 1) != 0) {
        kept += weight;
      } else {
        lost = true;
      }
    }
    if (!lost || kept == 0) return false;
    *factor = all / kept;
    return true;
  }

  C& c_;
  const EpCombineCall& call_;
  const EpTeam& team_;
  EpShared& shared_;
  const char* y_;
  uint32_t flight_ = 0;        // of control
  uint64_t masked_ = 0, maskedCopies_ = 0;
};

// Ends a received dispatch without a combine.
template <class C>
class EpReleaseKernel {
 public:
  RH_FN EpReleaseKernel(C& c, const EpCommonCall& call) : c_(c), call_(call) {}

  RH_FN void run() { epRun(c_, call_, *this); }

  // Of epRun().
  RH_FN void prepare() {}
  RH_FN bool data() { return true; }
  RH_FN void look() { error_ = EpFlights<C>(c_, call_).mayRelease(&flight_); }
  RH_FN void repair() {}
  RH_FN bool settles(uint64_t) const { return false; }
  RH_FN void last(uint32_t, uint64_t) {
    EpReport report = {};
    report.error = error_;
    call_.cell->combined = report;
    if (error_ != EpError::kNone) return;
    c_.storeOwn(&call_.state->flights[flight_].phase, static_cast<uint64_t>(EpPhase::kFree));
    epEnded(c_, call_);
  }

 private:
  C& c_;
  const EpCommonCall& call_;
  uint32_t flight_ = 0;
  EpError error_ = EpError::kNone;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_COMBINE_LL_H_
