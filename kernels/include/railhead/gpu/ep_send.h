// The send phase of a dispatch: counts, headers and rows go to the slots of the ranks that hold a token's experts.
#ifndef RAILHEAD_KERNELS_GPU_EP_SEND_H_
#define RAILHEAD_KERNELS_GPU_EP_SEND_H_

#include "railhead/gpu/elements.h"
#include "railhead/gpu/ep_routes.h"

namespace railhead::gpu {

RH_FN uint32_t epFloatBits(float f) { return bitsOf<uint32_t>(f); }

template <class C>
class EpSender {
 public:
  RH_FN EpSender(C& c, const EpDispatchCall& call, EpRoutes<C>& routes)
      : c_(c), call_(call), team_(call.team), routes_(routes), shared_(c.epShared()), arrays_(call.flights[shared_.flight]),
        slots_{call.team, shared_.number} {
    rows_ = arrays_.encoded != nullptr ? arrays_.encoded : call.x;
    rowStride_ = arrays_.encoded != nullptr ? team_.layout.rowStride : uint64_t{call.format.hidden} * epBytesOf(call.format.in);
  }

  // After the routing was checked. False: the comm has stopped.
  RH_FN bool send() {
    if (!awaitHeads()) return false;
    const uint32_t tokens = routes_.tokens();
    RH_ROLLED
    for (uint32_t first = 0; first == 0 || first < tokens; first += routes_.passTokens()) {
      const uint32_t behind = tokens - first < routes_.passTokens() ? tokens : first + routes_.passTokens();
      routes_.beginPass(first);
      if (behind == tokens) sendCounts();
      const uint32_t blocks = c_.dataBlocks(), skipped = first % blocks;
      RH_ROLLED
      for (uint32_t t = first + (c_.block() + blocks - skipped) % blocks; t < behind; t += blocks) sendToken(t);
      c_.dataAll(true);
      routes_.endPass();
      c_.dataAll(true);
    }
    if (c_.block() == 0 && c_.threadInBlock() == 0) keep();
    return true;
  }

 private:
  RH_FN bool isMasked(int r) const { return (shared_.masked >> r & 1) != 0; }
  RH_FN bool isPeer(int r) const { return r != team_.rank && !isMasked(r); }

  // Waits until every rank has read this rank's dispatch n - 2, whose slots are filled again.
  RH_FN bool awaitHeads() {
    bool good = true;
    RH_ROLLED
    for (int r = static_cast<int>(c_.threadInBlock()); r < team_.worldSize && good; r += static_cast<int>(c_.dataThreadsInBlock())) {
      if (!isPeer(r) || mutated(Mutant::kGpuEpHeadNotAwaited)) continue;
      const uint32_t* head = slots_.head(team_.rank, r);
      RH_ROLLED
      while (((c_.loadFlagAcquire(head) - (shared_.number - kEpInFlight)) & C::kMeetingMask) > C::kMeetingMask / 2) {
        if (c_.keepWaiting()) continue;
        c_.giveUp(uint64_t{1} << r);
        good = false;
        break;
      }
      c_.endWait();
    }
    return c_.dataAll(good);
  }

  // One block for each rank. After all masks are made.
  RH_FN void sendCounts() {
    const uint32_t blocks = c_.dataBlocks();
    RH_ROLLED
    for (int d = static_cast<int>(c_.block()); d < team_.worldSize; d += static_cast<int>(blocks)) {
      if (d != team_.rank && isMasked(d)) continue;
      uint32_t* counts = slots_.counts(d, team_.rank);
      RH_ROLLED
      for (uint32_t p = c_.threadInBlock(); p < team_.physical; p += c_.dataThreadsInBlock()) {
        if (team_.expertRank[p] != d) continue;
        const uint32_t n = routes_.tokensOf(p), at = 1u + team_.expertLocal[p];
        if (d == team_.rank) {
          c_.storeState(arrays_.own + at, n);
        } else {
          c_.storeFlag(counts + at, n + 1);
        }
      }
      if (c_.threadInBlock() != 0) continue;
      const uint32_t n = routes_.copiesTo(d);
      if (d == team_.rank) {
        c_.storeState(arrays_.own, n);
      } else {
        c_.storeFlag(counts, n + 1);
      }
    }
  }

  RH_FN void sendToken(uint32_t t) {
    c_.dataAll(true);  // the entries of the token before have been read
    noteToken(t);
    c_.dataAll(true);
    uint64_t to = 0;
    RH_ROLLED
    for (int r = 0; r < team_.worldSize; r++) to |= isPeer(r) && routes_.goesTo(t, r) ? uint64_t{1} << r : 0;
    if (to == 0) return;
    if (mutated(Mutant::kGpuEpHeaderBeforeRow)) publish(t, to);
    writeHeaders(t, to);
    copyRow(rows_ + t * rowStride_, t, to);
    if (!mutated(Mutant::kGpuEpPublishesAlone)) c_.dataAll(true);
    if (!mutated(Mutant::kGpuEpHeaderBeforeRow)) publish(t, to);
  }

  // What the receive phase and the combine need of a token.
  RH_FN void noteToken(uint32_t t) {
    const uint64_t base = uint64_t{t} * team_.topk;
    RH_ROLLED
    for (uint32_t k = c_.threadInBlock(); k < team_.topk; k += c_.dataThreadsInBlock()) {
      const uint32_t e = routes_.entry(t, k);
      const uint32_t place = e == kNoExpert ? 0 : routes_.placeOf(t, e);
      shared_.entries[k] = uint64_t{e} | uint64_t{place} << 32;
      shared_.weights[k] = epFloatBits(call_.routing.weightAt(base + k));
      c_.storeState(arrays_.entries + base + k, shared_.entries[k]);
      c_.storeState(reinterpret_cast<uint32_t*>(arrays_.weights) + base + k, shared_.weights[k]);
    }
    uint64_t ranks = 0;
    RH_ROLLED
    for (int r = 0; r < team_.worldSize; r++) ranks |= !isMasked(r) && routes_.goesTo(t, r) ? uint64_t{1} << r : 0;
    RH_ROLLED
    for (int r = static_cast<int>(c_.threadInBlock()); r < team_.worldSize; r += static_cast<int>(c_.dataThreadsInBlock())) {
      if ((ranks >> r & 1) != 0) c_.storeState(copyOf(r, t), routes_.copyTo(t, r));
    }
    if (c_.threadInBlock() == 0) c_.storeState(arrays_.ranks + t, ranks);
  }
  RH_FN uint32_t* copyOf(int rank, uint32_t t) const { return arrays_.copyOf + static_cast<uint32_t>(rank) * uint64_t{team_.maxTokens} + t; }

  // All words but the first of each header.
  RH_FN void writeHeaders(uint32_t t, uint64_t to) {
    RH_ROLLED
    for (uint64_t left = to; left != 0; left &= left - 1) {
      const int d = lowestBit(left);
      char* slot = slots_.slot(d, team_.rank);
      const uint32_t copy = routes_.copyTo(t, d);
      forEachExpert(d, [&](uint32_t n, uint32_t k, uint64_t entry) {
        if (n % c_.dataThreadsInBlock() != c_.threadInBlock()) return;
        const uint32_t local = team_.expertLocal[static_cast<uint32_t>(entry)], place = static_cast<uint32_t>(entry >> 32);
        c_.storeSlotWord(slots_.expertWord(slot, copy, n), EpExpertWord::of(local, place, shared_.weights[k]));
      });
    }
  }
  // Visits the token's experts on rank d, in the order of topk_idx. Returns how many there are.
  template <class Visit>
  RH_FN uint32_t forEachExpert(int d, Visit visit) {
    uint32_t n = 0;
    RH_ROLLED
    for (uint32_t k = 0; k < team_.topk; k++) {
      const uint64_t entry = shared_.entries[k];
      const auto e = static_cast<uint32_t>(entry);
      if (e != kNoExpert && team_.expertRank[e] == d) visit(n++, k, entry);
    }
    return n;
  }

  RH_FN void copyRow(const char* row, uint32_t t, uint64_t to) {
    constexpr uint32_t kTiles = 4;
    const uint32_t bytes = team_.rowBytes, step = c_.dataThreadsInBlock();
    RH_ROLLED
    for (uint32_t i = c_.threadInBlock(); i * 16 < bytes; i += kTiles * step) {
      Raw16 raw[kTiles] = {};
      RH_UNROLL
      for (uint32_t q = 0; q < kTiles; q++) {
        const uint32_t at = (i + q * step) * 16;
        if (at < bytes) raw[q] = loadTile<false>(row + at, bytes - at < 16 ? bytes - at : 16);
      }
      RH_ROLLED
      for (uint64_t left = to; left != 0; left &= left - 1) {
        const int d = lowestBit(left);
        char* out = team_.row(slots_.slot(d, team_.rank), routes_.copyTo(t, d));
        RH_UNROLL
        for (uint32_t q = 0; q < kTiles; q++) {
          const uint32_t at = (i + q * step) * 16;
          if (at < bytes) c_.storeSlotTile(out + at, raw[q]);
        }
      }
    }
  }

  // The barrier before it orders the block's stores before the fence.
  RH_FN void publish(uint32_t t, uint64_t to) {
    const auto thread = static_cast<int>(c_.threadInBlock()), step = static_cast<int>(c_.dataThreadsInBlock());
    if (thread < team_.worldSize && !mutated(Mutant::kGpuEpPublishWithoutFence)) c_.fence();
    RH_ROLLED
    for (int d = thread; d < team_.worldSize; d += step) {
      if ((to >> d & 1) == 0) continue;
      const uint32_t n = forEachExpert(d, [](uint32_t, uint32_t, uint64_t) {});
      c_.storeFlag(slots_.firstWord(slots_.slot(d, team_.rank), routes_.copyTo(t, d)), EpFirstWord::of(t, n));
    }
  }

  // By one thread of all, what later calls need of the dispatch.
  RH_FN void keep() {
    EpFlightState& f = call_.state->flights[shared_.flight];
    uint64_t lost = 0;
    RH_ROLLED
    for (int r = 0; r < team_.worldSize; r++) {
      const uint32_t n = shared_.totals[team_.physical + static_cast<uint32_t>(r)];
      if (isMasked(r)) lost += n;
      c_.storeState(arrays_.copies + r, isMasked(r) ? 0 : n);
    }
    c_.storeState(&f.tokens, uint64_t{routes_.tokens()});
    c_.storeState(&f.excess, uint64_t{routes_.excess()});
    c_.storeState(&f.rows, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(rows_)));
    c_.storeState(&f.masked, shared_.masked);
    c_.storeState(&f.maskedCopies, lost);
    f.problems = routes_.problems();
  }

  C& c_;
  const EpDispatchCall& call_;
  const EpTeam& team_;
  EpRoutes<C>& routes_;
  EpShared& shared_;
  const EpFlightArrays& arrays_;
  EpSlots slots_;
  const char* rows_;
  uint64_t rowStride_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_SEND_H_
