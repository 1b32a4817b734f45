// Packets: data that is its own flag. How ranks on GPUs exchange small messages.
//
// A packet is 16 bytes, {data32, epoch32} twice. It is stored and loaded as two 64-bit elements, each of them atomic (PTX guarantees
// atomicity for each element, not for the vector). So an element with the expected epoch has that epoch's data. There is no fence and no
// barrier, and data may take any value.
//
// A rank's inbox has two halves; epoch e uses half e & 1. A half has kPhases areas, an area has a slot for each rank, a slot has two
// packets for each tile of 16 bytes.
//
// Two halves suffice: a rank overwrites half e & 1 of a peer in epoch e + 2, after it has received the peer's packets of e + 1. The peer
// has sent those after its last read of epoch e: by program order of the thread that handles the tile, or by the order of kernels on a
// stream. Every rank receives from every rank in every epoch. A rank sends to itself too: that costs two stores that no rank waits for,
// and saves a branch on the latency path.
//
// Wrap: epochs skip 0, the value of untouched memory. A slot that was written long ago still has its old epoch, which recurs after the
// wrap. So the kernels of the last two epochs before the wrap zero their half after their last read.
#ifndef RAILHEAD_KERNELS_PACKETS_H_
#define RAILHEAD_KERNELS_PACKETS_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"

namespace railhead {

struct Packet {
  uint64_t e[2];  // each: data in bits 0..31, epoch in bits 32..63
};

// 16 bytes of the caller's data.
struct Raw16 {
  uint32_t w[4];
};

constexpr int kPhases = 2;
constexpr uint32_t kPacketTileBytes = 2 * sizeof(Packet);

// Where the packets of a rank go. Filled in by the host.
struct PacketInboxes {
  char* own;                  // this rank's inbox
  char* peer[kMaxWorldSize];  // peer[k]: the inbox of rank (rank + k) mod worldSize, as this rank sees it
  uint32_t slotBytes;         // of a rank's slot; an inbox is below 4 GiB
};

// Bytes of an inbox.
inline uint64_t packetInboxBytes(int worldSize, uint32_t slotBytes) {
  return uint64_t{2} * kPhases * static_cast<uint64_t>(worldSize) * slotBytes;
}

// One thread's packets of one epoch. Mem is the target's memory.
template <class Mem>
class Packets {
 public:
  // Ranks that are polled together, so that their loads are in flight at the same time.
  static constexpr int kBatch = Mem::kPacketBatch;

  RH_FN Packets(Mem& mem, const PacketInboxes& inboxes, int rank, int worldSize)
      : mem_(mem), inboxes_(inboxes), rank_(rank), worldSize_(worldSize) {}

  RH_FN void setEpoch(uint32_t epoch) {
    epoch_ = epoch;
    half_ = (mutated(Mutant::kOneHalf) ? 0 : epoch & 1) * kPhases * static_cast<uint32_t>(worldSize_) * inboxes_.slotBytes;
  }

  // Sends a tile to rank (rank + k) mod worldSize, 0 <= k < worldSize.
  RH_FN void push(int k, int phase, uint32_t tile, const Raw16& raw) {
    store(inboxes_.peer[k] + slot(phase, rank_) + tile * kPacketTileBytes, raw);
  }

  // Sends a tile to every rank. The first batch has constant indices, which a GPU reads as operands from the constant bank.
  RH_FN void pushAll(int phase, uint32_t tile, const Raw16& raw) {
    const uint32_t offset = slot(phase, rank_) + tile * kPacketTileBytes;
    RH_UNROLL
    for (int k = 0; k < kBatch; k++) {
      if (k < worldSize_) store(inboxes_.peer[k] + offset, raw);
    }
    RH_ROLLED
    for (int k = kBatch; k < worldSize_; k++) store(inboxes_.peer[k] + offset, raw);
  }

  // Receives tile number `tile` of the ranks first .. first + count - 1, count <= kBatch.
  // False: the group is broken or the deadline has passed.
  RH_FN bool poll(int first, int count, int phase, uint32_t tile, Raw16 (&out)[kBatch]) {
    const char* at = inboxes_.own + slot(phase, first) + tile * kPacketTileBytes;
    return count == kBatch ? pollBatch<true>(at, first, count, out) : pollBatch<false>(at, first, count, out);
  }

  // Zeroes tile number `tile` in every slot of the current half. Called by the thread that handles the tile, after its last read.
  RH_FN void clear(uint32_t tile) {
    RH_ROLLED
    for (int source = 0; source < kPhases * worldSize_; source++) {
      auto* at = reinterpret_cast<Packet*>(inboxes_.own + slot(0, source) + tile * kPacketTileBytes);
      mem_.storePacket(at, {{0, 0}});
      mem_.storePacket(at + 1, {{0, 0}});
    }
  }

 private:
  // Issues all loads, then checks all epochs: a turn of the loop costs one memory latency, however many ranks are late.
  template <bool kFull>
  RH_FN bool pollBatch(const char* at, int first, int count, Raw16 (&out)[kBatch]) {
    Packet p[kBatch][2];
    RH_ROLLED
    for (;;) {
      uint32_t late = 0;
      RH_UNROLL
      for (int i = 0; i < kBatch; i++) {
        if (kFull || i < count) load(at + static_cast<uint32_t>(i) * inboxes_.slotBytes, p[i]);
      }
      RH_UNROLL
      for (int i = 0; i < kBatch; i++) {
        if (kFull || i < count) late |= difference(p[i]);
      }
      if (late == 0) break;
      if (!mem_.keepWaiting()) {
        reportMissing(at, first, count);
        return false;
      }
    }
    RH_UNROLL
    for (int i = 0; i < kBatch; i++) {
      if (kFull || i < count) out[i] = data(p[i]);
    }
    return true;
  }

  RH_FN void reportMissing(const char* at, int first, int count) {
    RH_ROLLED
    for (int i = 0; i < count; i++) {
      Packet p[2];
      load(at + static_cast<uint32_t>(i) * inboxes_.slotBytes, p);
      if (difference(p) != 0) mem_.missing(first + i);
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
  // Offset of the slot of rank source in an inbox.
  RH_FN uint32_t slot(int phase, int source) const {
    if (mutated(Mutant::kOnePhase) && phase == 1) phase = 0;
    return half_ + static_cast<uint32_t>(phase * worldSize_ + source) * inboxes_.slotBytes;
  }
  RH_FN void store(char* at, const Raw16& raw) {
    const uint64_t tag = uint64_t{epoch_} << 32;
    mem_.storePacket(reinterpret_cast<Packet*>(at), {{tag | raw.w[0], tag | raw.w[1]}});
    mem_.storePacket(reinterpret_cast<Packet*>(at) + 1, {{tag | raw.w[2], tag | raw.w[3]}});
  }
  RH_FN void load(const char* at, Packet (&p)[2]) {
    p[0] = mem_.loadPacket(reinterpret_cast<const Packet*>(at));
    p[1] = mem_.loadPacket(reinterpret_cast<const Packet*>(at) + 1);
  }

  Mem& mem_;
  const PacketInboxes& inboxes_;
  int rank_, worldSize_;
  uint32_t epoch_ = 0;
  uint32_t half_ = 0;  // offset of the current half
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_PACKETS_H_
