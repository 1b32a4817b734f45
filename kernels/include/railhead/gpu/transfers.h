// Transfers: any number of sends and receives of a rank at the same time, over lanes. Each proceeds whenever its lane has a credit or a chunk,
// so no order of the list can deadlock, and a rank waits for no peer that it has nothing to do with.
#ifndef RAILHEAD_KERNELS_GPU_TRANSFERS_H_
#define RAILHEAD_KERNELS_GPU_TRANSFERS_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/lanes.h"
#include "railhead/gpu/context.h"
#include "railhead/gpu/elements.h"
#include "railhead/gpu/launch.h"

namespace railhead::gpu {

// A transfer in chunks. Chunk q goes over lane q modulo lanes. No bytes are a chunk too, which carries the signature.
struct Chunks {
  uint64_t each;
  uint32_t count;
};
RH_FN Chunks chunksOfTransfer(uint64_t bytes, uint32_t lanes, uint64_t slotBytes) {
  const uint64_t most = slotBytes - kLaneHeaderBytes, share = ((bytes + lanes - 1) / lanes + 255) / 256 * 256;
  const uint64_t each = share < most ? (share == 0 ? 256 : share) : most;
  return {each, bytes == 0 ? 1 : static_cast<uint32_t>((bytes + each - 1) / each)};
}

// Copies tiles, four of each thread in flight at the same time. load(i), store(i, tile).
template <class Load, class Store>
RH_FN void copyTiles(uint32_t first, uint32_t step, uint64_t tiles, Load load, Store store) {
  constexpr int kInFlight = 4;
  RH_ROLLED
  for (uint64_t i = first; i < tiles; i += uint64_t{step} * kInFlight) {
    Raw16 raw[kInFlight] = {};
    RH_UNROLL
    for (int q = 0; q < kInFlight; q++) {
      if (i + uint64_t{step} * static_cast<uint32_t>(q) < tiles) raw[q] = load(i + uint64_t{step} * static_cast<uint32_t>(q));
    }
    RH_UNROLL
    for (int q = 0; q < kInFlight; q++) {
      if (i + uint64_t{step} * static_cast<uint32_t>(q) < tiles) store(i + uint64_t{step} * static_cast<uint32_t>(q), raw[q]);
    }
  }
}

// List has:
//   size(), units()
//   at(i)             a Transfer; those to one peer, and those from one, have the same firstUnit
//   calls(i)          SignedWay that the peer must have too
//   load(p, i, n)     tile i of n bytes at p, as it is sent
//   waitsForPair(u)   the unit may receive a chunk once unit u - units() / 2 has sent it: it lies in the same memory. Then at(i) has the sends to all
//                     peers, then the receives from the same, with as many bytes
// Each block has its own units: those of its number modulo the number of blocks, of each half of the units.
template <class Context, class List>
class Transfers {
 public:
  RH_FN Transfers(Context& c, const List& list)
      : c_(c), list_(list), lanes_(c.lanes()), blocks_((c.threads() + c.blockThreads() - 1) / c.blockThreads()), half_((list.units() + 1) / 2) {}

  // After join(). Every data thread of the kernel calls it. False: the comm has stopped.
  RH_FN bool run() {
    Shared& shared = c_.shared();
    if (isFirst()) {
      RH_ROLLED
      for (uint32_t k = 0; hasUnit(k); k++) shared.units[k] = nextOf(unitOf(k), 0);
    }
    uint32_t last = 0;
    RH_ROLLED
    for (;;) {
      if (isFirst()) shared.chosen = choose(&last);
      c_.dataAll(true);
      const int k = shared.chosen;
      if (k < 0) return k == kAllEnded;
      if (mutated(Mutant::kLanePublishBeforeData) && isFirst()) publish(static_cast<uint32_t>(k));
      move(static_cast<uint32_t>(k));
      if (!mutated(Mutant::kLanePublishesAlone)) c_.dataAll(true);
      if (!mutated(Mutant::kLanePublishBeforeData) && isFirst()) publish(static_cast<uint32_t>(k));
      if (isFirst()) advance(static_cast<uint32_t>(k));
    }
  }

 private:
  static constexpr int kAllEnded = -1, kStopped = -2;

  RH_FN bool isFirst() const { return c_.threadInBlock() == 0; }
  // Unit k of this block: of the first half if k is even.
  RH_FN uint32_t unitOf(uint32_t k) const { return c_.block() + k / 2 * blocks_ + (k & 1) * half_; }
  RH_FN bool hasUnit(uint32_t k) const { return c_.block() + k / 2 * blocks_ < half_; }

  RH_FN Chunks chunksOf(const Transfer& t) const { return chunksOfTransfer(t.bytes, t.lanes, lanes_.slotBytes); }
  // What a unit moves first of the transfers from number i on. transfer is size() if there is nothing.
  RH_FN Shared::Unit nextOf(uint32_t unit, uint32_t i) const {
    RH_ROLLED
    for (; i < list_.size(); i++) {
      const Transfer t = list_.at(i);
      const uint32_t lane = unit - t.firstUnit;
      if (unit >= t.firstUnit && lane < t.lanes && lane < chunksOf(t).count) return {i, lane};
    }
    return {list_.size(), 0};
  }
  RH_FN bool hasEnded(uint32_t k) { return c_.shared().units[k].transfer >= list_.size(); }

  // A unit that can proceed, from the one after the last chosen on, so that all get their turn.
  RH_FN int choose(uint32_t* last) {
    RH_ROLLED
    for (;;) {
      uint64_t missing = 0;
      int stopped = 0;
      uint32_t n = 0;
      RH_ROLLED
      while (hasUnit(n)) n++;
      n += n & 1;
      RH_ROLLED
      for (uint32_t turn = 1; turn <= n; turn++) {
        const uint32_t k = (*last + turn) % n;
        if (hasEnded(k)) continue;
        const uint32_t i = c_.shared().units[k].transfer;
        const Transfer t = list_.at(i);
        missing |= uint64_t{1} << t.peer;
        if (!isReady(k, t, i, &stopped)) continue;
        if (stopped != 0) return kStopped;
        *last = k;
        c_.endWait();
        return static_cast<int>(k);
      }
      if (missing == 0) return kAllEnded;
      if (c_.keepWaiting()) continue;
      c_.giveUp(missing);
      return kStopped;
    }
  }
  // Then shared.slot is the chunk's slot. *stopped: the peer has called something else.
  RH_FN bool isReady(uint32_t k, const Transfer& t, uint32_t i, int* stopped) {
    Lane<Context> lane(c_, lanes_, t.peer, unitOf(k) - t.firstUnit);
    if (t.sends != 0) {
      if (!lane.hasCredit()) return false;
      c_.shared().slot = lane.slotToWrite();
      return true;
    }
    if (list_.waitsForPair() && !mutated(Mutant::kInPlaceWithoutPair) && !isPast(k - 1, k)) return false;
    if (!lane.hasChunk()) return false;
    char* slot = lane.slotToRead();
    c_.shared().slot = slot;
    SignedWay theirs;
    lane.readHeader(slot, &theirs.signature, &theirs.way);
    const SignedWay ours = list_.calls(i);
    if (isEqual(theirs, ours) || mutated(Mutant::kLaneSignatureNotCompared)) return true;
    c_.mismatch(t.peer, theirs, ours);
    *stopped = 1;
    return true;
  }
  // Whether unit a has moved the chunk that unit b is to move.
  RH_FN bool isPast(uint32_t a, uint32_t b) { return hasEnded(a) || c_.shared().units[a].chunk > c_.shared().units[b].chunk; }

  RH_FN void move(uint32_t k) {
    const Shared& shared = c_.shared();
    const Transfer t = list_.at(shared.units[k].transfer);
    const Chunks chunks = chunksOf(t);
    const uint64_t at = shared.units[k].chunk * chunks.each;
    const uint64_t n = t.bytes - at < chunks.each ? t.bytes - at : chunks.each;
    char *slot = shared.slot + kLaneHeaderBytes, *buffer = t.buffer + at;
    const uint64_t tiles = (n + 15) / 16;
    if (t.sends != 0) {
      if (isFirst()) writeHeader(k, t);
      copyTiles(c_.threadInBlock(), c_.dataThreadsInBlock(), tiles, [&](uint64_t i) { return list_.load(buffer, i, n); },
                [&](uint64_t i, const Raw16& raw) { c_.storeSlotTile(slot + 16 * i, raw); });
    } else {
      copyTiles(c_.threadInBlock(), c_.dataThreadsInBlock(), tiles, [&](uint64_t i) { return c_.loadSlotTile(slot + 16 * i); },
                [&](uint64_t i, const Raw16& raw) { Bytes::store(buffer, i, n, raw); });
    }
  }
  RH_FN void writeHeader(uint32_t k, const Transfer& t) {
    const SignedWay ours = list_.calls(c_.shared().units[k].transfer);
    Lane<Context>(c_, lanes_, t.peer, 0).writeHeader(c_.shared().slot, ours.signature, ours.way);
  }
  RH_FN void publish(uint32_t k) {
    const Transfer t = list_.at(c_.shared().units[k].transfer);
    Lane<Context> lane(c_, lanes_, t.peer, unitOf(k) - t.firstUnit);
    if (t.sends != 0) {
      lane.publishChunk();
    } else {
      lane.releaseChunk();
    }
  }
  RH_FN void advance(uint32_t k) {
    Shared::Unit& u = c_.shared().units[k];
    const Transfer t = list_.at(u.transfer);
    u.chunk += t.lanes;
    if (u.chunk >= chunksOf(t).count) u = nextOf(unitOf(k), u.transfer + 1);
  }

  Context& c_;
  const List& list_;
  const LaneTeam lanes_;
  const uint32_t blocks_, half_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_TRANSFERS_H_
