// Cells: floating-point data that is its own flag, with no added bytes. How ranks on GPUs exchange messages of floating-point numbers.
//
// A cell is a tile of 16 bytes, stored and loaded as two 64-bit elements, each of them atomic. An element of all ones means "not yet here". As
// numbers of any floating-point type, all ones are NaNs, and which NaN a NaN is is not promised (results have one NaN, and so have
// contributions that are scaled). So a sender clears the highest bit of an element of all ones, which leaves NaNs. The reader puts all ones
// back after its last read. There is no barrier, and no fence in a kernel of one chunk.
//
// Two halves suffice. Rank r stores to half e & 1 of a peer in epoch e + 2, after it has received the peer's cells of e + 1. The peer has
// stored those after its last read of the cell's epoch e, and after it has put all ones back: the same thread handles a tile in every
// chunk of a kernel, and all kernels of a rank follow each other. Both orders need a fence on both sides, between the peer's accesses and its
// next cells, and between r's polls and its next ones. Within a kernel that is a fence of each thread between two chunks (Cells::begin).
// Between two kernels it is the end of the first: it waits until all stores of the kernel have been performed in system scope, and no access of
// the next one begins before. A rank that owns no slice of a two-shot receives no cells from ranks that own none either; from those it has the
// line of the signature (railhead/gpu/control.h), which every rank sends to every rank in every kernel.
#ifndef RAILHEAD_KERNELS_CELLS_H_
#define RAILHEAD_KERNELS_CELLS_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/inbox.h"

namespace railhead {

// One thread's cells. kWorld: the ranks, all of one reduce group; 0 = any number, and any group. Mem is the target's memory:
//   loadPacket, storePacket   relaxed, system scope, atomic per 64-bit element
//   arrived(p)                tells the memory model that a cell is received: no later store may overtake the load
//   keepWaiting()             called between polls; false = give up
//   endWait()                 called after the last poll
//   giveUp(missing)           called after keepWaiting(); bit r of missing: what rank r sends had not arrived
//   fence()                   acquire and release fence, system scope
template <class Mem, int kWorld = 0>
class Cells {
 public:
  static constexpr bool kIsCells = true;
  static constexpr int kRanks = kWorld;
  static constexpr uint32_t kTileBytes = 16;
  // Ranks that are polled together, so that their loads are in flight at the same time.
  static constexpr int kBatch = kWorld != 0 ? kWorld : Mem::kCellBatch;
  // A rank that sends to itself too pays two stores that no rank waits for, and saves branches on the latency path. With two ranks it is the other
  // way round.
  static constexpr bool kKeepsOwn = kWorld == 2;

  RH_FN Cells(Mem& mem, const Inbox& inbox) : mem_(mem), inbox_(inbox) {}

  RH_FN static uint32_t next(uint32_t epoch) { return epoch + 1; }

  // first: of this kernel.
  RH_FN void begin(uint32_t epoch, bool first) {
    if (!first && !mutated(Mutant::kCellsWithoutFence)) mem_.fence();
    half_ = mutated(Mutant::kCellsOneHalf) ? 0 : inbox_.half(epoch);
    if (mutated(Mutant::kCellsClearedEarly)) {
      for (uint32_t tile = mem_.thread(); tile < inbox_.slotBytes / kTileBytes; tile += mem_.threads()) clear(0, tile);
    }
  }
  RH_FN void end() {}

  RH_FN void push(int r, int phase, uint32_t tile, const Raw16& raw) { store(r, at(phase, inbox_.rank, tile), sent(raw)); }

  // To every rank that receives it.
  RH_FN void pushAll(int phase, uint32_t tile, const Raw16& raw) {
    const uint32_t offset = at(phase, inbox_.rank, tile);
    const Packet p = sent(raw);
    if constexpr (kWorld == 2) {
      store(1 - inbox_.rank, offset, p);
    } else if constexpr (kWorld != 0) {
      RH_UNROLL
      for (int k = 0; k < kWorld; k++) store(static_cast<int>(static_cast<uint32_t>(inbox_.rank + k) % kWorld), offset, p);
    } else {
      int r = inbox_.rank;
      RH_ROLLED
      for (int k = 0; k < inbox_.worldSize; k++) {
        store(r, offset, p);
        r = r + 1 == inbox_.worldSize ? 0 : r + 1;
      }
    }
  }
  RH_FN void pushResult(uint32_t tile, const Raw16& raw) { pushAll(mutated(Mutant::kCellsOnePhase) ? 0 : 1, tile, raw); }

  // Receives tile number `tile` of the ranks first .. first + count - 1, count <= kBatch. own: this rank's, if kKeepsOwn. first is 0 unless
  // kWorld is 0.
  RH_FN bool poll(int first, int count, int phase, uint32_t tile, const Raw16& own, Raw16 (&out)[kBatch]) {
    if (mutated(Mutant::kCellsOnePhase)) phase = 0;
    if constexpr (kWorld == 2) {
      const int peer = 1 - inbox_.rank;
      Raw16 theirs[1] = {};
      const bool here = peer >= count || pollBatch<1, true>(peer, 1, phase, tile, theirs);
      out[0] = inbox_.rank == 0 ? own : theirs[0];
      out[1] = inbox_.rank == 0 ? theirs[0] : own;
      return here;
    } else if (kWorld != 0 && count == kBatch) {
      return pollBatch<kBatch, true>(0, kBatch, phase, tile, out);
    } else {
      return pollBatch<kBatch, false>(first, count, phase, tile, out);
    }
  }

  // Puts all ones back into a tile of every rank's slot. Called by the thread that has polled it, after its last read.
  RH_FN void clear(int phase, uint32_t tile) {
    if (mutated(Mutant::kCellsNotCleared)) return;
    if (mutated(Mutant::kCellsOnePhase)) phase = 0;
    char* own = inbox_.of(inbox_.rank);
    if constexpr (kWorld == 2) {
      mem_.storePacket(reinterpret_cast<Packet*>(own + at(phase, 1 - inbox_.rank, tile)), {{kNotHere, kNotHere}});
    } else {
      const int ranks = kWorld != 0 ? kWorld : inbox_.worldSize;
      uint32_t offset = at(phase, 0, tile);
      RH_ROLLED
      for (int r = 0; r < ranks; r++, offset += inbox_.slotBytes) {
        mem_.storePacket(reinterpret_cast<Packet*>(own + offset), {{kNotHere, kNotHere}});
      }
    }
  }

 private:
  static constexpr uint64_t kNotHere = ~uint64_t{0};

  RH_FN static uint64_t element(uint32_t low, uint32_t high) {
    if ((low & high) == 0xffffffffu && !mutated(Mutant::kCellsSendAllOnes)) high = 0x7fffffffu;
    return uint64_t{low} | uint64_t{high} << 32;
  }
  RH_FN static Packet sent(const Raw16& raw) { return {{element(raw.w[0], raw.w[1]), element(raw.w[2], raw.w[3])}}; }
  RH_FN static Raw16 data(const Packet& p) {
    return {{static_cast<uint32_t>(p.e[0]), static_cast<uint32_t>(p.e[0] >> 32), static_cast<uint32_t>(p.e[1]),
             static_cast<uint32_t>(p.e[1] >> 32)}};
  }
  RH_FN static bool isLate(const Packet& p) {
    const bool first = p.e[0] == kNotHere && !mutated(Mutant::kCellsFirstElementUnchecked);
    const bool second = p.e[1] == kNotHere && !mutated(Mutant::kCellsSecondElementUnchecked);
    return first | second;
  }

  // Issues all loads, then checks all cells: a turn of the loop costs one memory latency, however many ranks are late.
  template <int kMost, bool kFull>
  RH_FN bool pollBatch(int first, int count, int phase, uint32_t tile, Raw16 (&out)[kMost]) {
    const char* from = inbox_.of(inbox_.rank) + at(phase, first, tile);
    Packet p[kMost] = {};
    bool late;
    RH_ROLLED
    do {
      late = false;
      RH_UNROLL
      for (int i = 0; i < kMost; i++) {
        if (kFull || i < count) p[i] = mem_.loadPacket(packet(from, i));
      }
      RH_UNROLL
      for (int i = 0; i < kMost; i++) {
        if (kFull || i < count) late |= isLate(p[i]);
      }
    } while (late && mem_.keepWaiting());
    // All of them, also if it gives up: where ways meet, the values that only one of them has would be moved to other registers, or spilled.
    RH_UNROLL
    for (int i = 0; i < kMost; i++) out[i] = data(p[i]);
    if (late) {
      uint64_t missing = 0;
      RH_ROLLED
      for (int i = 0; i < count; i++) {
        if (isLate(mem_.loadPacket(packet(from, i)))) missing |= uint64_t{1} << (first + i);
      }
      mem_.giveUp(missing);
      return false;
    }
    mem_.endWait();
    RH_UNROLL
    for (int i = 0; i < kMost; i++) {
      if (kFull || i < count) mem_.arrived(packet(from, i));
    }
    return true;
  }

  RH_FN const Packet* packet(const char* from, int i) const {
    return reinterpret_cast<const Packet*>(from + static_cast<uint32_t>(i) * inbox_.slotBytes);
  }
  // Offset of a tile in an inbox.
  RH_FN uint32_t at(int phase, int source, uint32_t tile) const { return half_ + inbox_.slot(phase, source) + tile * kTileBytes; }
  RH_FN void store(int r, uint32_t offset, const Packet& p) { mem_.storePacket(reinterpret_cast<Packet*>(inbox_.of(r) + offset), p); }

  Mem& mem_;
  const Inbox& inbox_;
  uint32_t half_ = 0;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_CELLS_H_
