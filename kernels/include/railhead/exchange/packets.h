// Packets: data of any kind that is its own flag. How ranks on GPUs exchange messages of integers and bytes.
//
// A packet is 16 bytes, {data32, epoch32} twice. It is stored and loaded as two 64-bit elements, each of them atomic. So an element with the
// expected epoch has that epoch's data. There is no fence and no barrier, and data may take any value.
//
// A tile of 16 bytes is two packets, for its first and its second 8 bytes. A slot has a plane for each: neighbouring threads then store to
// neighbouring 16 bytes.
//
// Two halves suffice: a rank overwrites half e & 1 of a peer in epoch e + 2, after it has received the peer's packets of e + 1. The peer
// has sent those after its last read of epoch e: by program order of the thread that handles the tile, or by the order of kernels on a
// stream. Every rank receives from every rank in every epoch. A rank sends to itself too: that costs two stores that no rank waits for,
// and saves a branch on the latency path.
//
// Wrap: epochs skip 0, the value of untouched memory. A slot that was written long ago still has its old epoch, which recurs after the
// wrap. So in the last two epochs before the wrap a rank zeroes its half after its last read.
#ifndef RAILHEAD_KERNELS_PACKETS_H_
#define RAILHEAD_KERNELS_PACKETS_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/inbox.h"

namespace railhead {

// One thread's packets. Mem is the target's memory: what cells.h lists but arrived(), and
//   kEpochMask           the last epoch
//   thread(), threads()  those that handle data
template <class Mem>
class Packets {
 public:
  static constexpr bool kIsCells = false;
  static constexpr int kRanks = 0;  // any number
  static constexpr uint32_t kTileBytes = 2 * sizeof(Packet);
  // Ranks that are polled together, so that their loads are in flight at the same time.
  static constexpr int kBatch = Mem::kPacketBatch;
  static constexpr bool kKeepsOwn = false;

  RH_FN Packets(Mem& mem, const Inbox& inbox) : mem_(mem), inbox_(inbox) {}

  // 0 is the value of untouched memory; 1 would use the same half as the last epoch.
  RH_FN static uint32_t next(uint32_t epoch) {
    epoch = (epoch + 1) & Mem::kEpochMask;
    if (epoch == 0 && !mutated(Mutant::kEpochZero)) epoch = mutated(Mutant::kEpochOne) ? 1 : 2;
    return epoch;
  }

  RH_FN void begin(uint32_t epoch, bool) {
    epoch_ = epoch;
    half_ = mutated(Mutant::kOneHalf) ? 0 : inbox_.half(epoch);
    if (mutated(Mutant::kClearBeforeRead)) clearHalf();
  }

  // In the last two epochs before the wrap: zeroes what was read. The fence orders this rank's zeros before its packets of the next epoch,
  // which allow peers to write there again. On the peers, the fence of these epochs and of the first one after the wrap orders their loads
  // of those packets before their stores.
  RH_FN void end() {
    if (epoch_ >= Mem::kEpochMask - (mutated(Mutant::kClearOnlyLastEpoch) ? 0 : 1)) {
      if (!mutated(Mutant::kNoWrapClear) && !mutated(Mutant::kClearBeforeRead)) clearHalf();
      if (!mutated(Mutant::kNoFenceAfterClear)) mem_.fence();
    } else if (epoch_ == 2 && !mutated(Mutant::kNoFenceInFirstEpoch)) {
      mem_.fence();
    }
  }

  RH_FN void push(int r, int phase, uint32_t tile, const Raw16& raw) { store(r, at(phase, inbox_.rank, tile), raw); }

  // Sends a tile to every rank.
  RH_FN void pushAll(int phase, uint32_t tile, const Raw16& raw) {
    const uint32_t offset = at(phase, inbox_.rank, tile);
    int r = inbox_.rank;
    RH_ROLLED
    for (int k = 0; k < inbox_.worldSize; k++) {
      store(r, offset, raw);
      r = r + 1 == inbox_.worldSize ? 0 : r + 1;
    }
  }
  // A rank that owns no slice receives results only. Around the wrap, a result must therefore also publish what its owner has acquired
  // with the contributions: that all ranks have zeroed their half (see end()).
  RH_FN void pushResult(uint32_t tile, const Raw16& raw) {
    if ((epoch_ == Mem::kEpochMask || epoch_ == 2) && !mutated(Mutant::kResultWithoutFence)) mem_.fence();
    pushAll(1, tile, raw);
  }

  // Receives tile number `tile` of the ranks first .. first + count - 1, count <= kBatch. Issues all loads, then checks all epochs: a turn of
  // the loop costs one memory latency, however many ranks are late.
  RH_FN bool poll(int first, int count, int phase, uint32_t tile, const Raw16&, Raw16 (&out)[kBatch]) {
    const char* from = inbox_.of(inbox_.rank) + at(phase, first, tile);
    Packet p[kBatch][2] = {};
    uint32_t late;
    RH_ROLLED
    do {
      late = 0;
      RH_UNROLL
      for (int i = 0; i < kBatch; i++) {
        if (i < count) load(from + static_cast<uint32_t>(i) * inbox_.slotBytes, p[i]);
      }
      RH_UNROLL
      for (int i = 0; i < kBatch; i++) {
        if (i < count) late |= difference(p[i]);
      }
    } while (late != 0 && mem_.keepWaiting());
    // All of them, also if it gives up, as for cells.
    RH_UNROLL
    for (int i = 0; i < kBatch; i++) out[i] = data(p[i]);
    if (late != 0) {
      mem_.giveUp(missing(from, first, count));
      return false;
    }
    mem_.endWait();
    return true;
  }

  // Tiles are overwritten by later epochs.
  RH_FN void clear(int, uint32_t) {}

 private:
  RH_FN uint64_t missing(const char* from, int first, int count) {
    uint64_t ranks = 0;
    RH_ROLLED
    for (int i = 0; i < count; i++) {
      Packet p[2];
      load(from + static_cast<uint32_t>(i) * inbox_.slotBytes, p);
      if (difference(p) != 0) ranks |= uint64_t{1} << (first + i);
    }
    return ranks;
  }

  // A tile is zeroed by the thread that handles it.
  RH_FN void clearHalf() {
    char* own = inbox_.of(inbox_.rank);
    RH_ROLLED
    for (uint32_t tile = mem_.thread(); tile < inbox_.slotBytes / kTileBytes; tile += mem_.threads()) {
      uint32_t offset = at(0, 0, tile);
      RH_ROLLED
      for (int slot = 0; slot < kPhases * inbox_.worldSize; slot++, offset += inbox_.slotBytes) {
        mem_.storePacket(reinterpret_cast<Packet*>(own + offset), {{0, 0}});
        mem_.storePacket(reinterpret_cast<Packet*>(own + offset + secondPlane()), {{0, 0}});
      }
    }
  }

  RH_FN static Raw16 data(const Packet (&p)[2]) {
    return {{static_cast<uint32_t>(p[0].e[0]), static_cast<uint32_t>(p[0].e[1]), static_cast<uint32_t>(p[1].e[0]),
             static_cast<uint32_t>(p[1].e[1])}};
  }
  // 0 if all four elements are of this epoch. No branches.
  RH_FN uint32_t difference(const Packet (&p)[2]) const {
    uint32_t d[4] = {static_cast<uint32_t>(p[0].e[0] >> 32) ^ epoch_, static_cast<uint32_t>(p[0].e[1] >> 32) ^ epoch_,
                     static_cast<uint32_t>(p[1].e[0] >> 32) ^ epoch_, static_cast<uint32_t>(p[1].e[1] >> 32) ^ epoch_};
    if (mutated(Mutant::kFirstElementUnchecked)) d[0] = 0;
    if (mutated(Mutant::kSecondElementUnchecked)) d[1] = 0;
    if (mutated(Mutant::kSecondPacketUnchecked)) d[2] = d[3] = 0;
    return d[0] | d[1] | d[2] | d[3];
  }
  // Offset in an inbox of a tile's first packet.
  RH_FN uint32_t at(int phase, int source, uint32_t tile) const {
    if (mutated(Mutant::kOnePhase) && phase == 1) phase = 0;
    return half_ + inbox_.slot(phase, source) + tile * static_cast<uint32_t>(sizeof(Packet));
  }
  RH_FN uint32_t secondPlane() const { return inbox_.slotBytes / 2; }
  RH_FN void store(int r, uint32_t offset, const Raw16& raw) {
    const uint64_t tag = uint64_t{epoch_} << 32;
    char* to = inbox_.of(r) + offset;
    mem_.storePacket(reinterpret_cast<Packet*>(to), {{tag | raw.w[0], tag | raw.w[1]}});
    mem_.storePacket(reinterpret_cast<Packet*>(to + secondPlane()), {{tag | raw.w[2], tag | raw.w[3]}});
  }
  RH_FN void load(const char* at, Packet (&p)[2]) {
    p[0] = mem_.loadPacket(reinterpret_cast<const Packet*>(at));
    p[1] = mem_.loadPacket(reinterpret_cast<const Packet*>(at + secondPlane()));
  }

  Mem& mem_;
  const Inbox& inbox_;
  uint32_t epoch_ = 0;
  uint32_t half_ = 0;  // offset of the current half
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_PACKETS_H_
