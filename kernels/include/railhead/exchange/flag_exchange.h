// Exchange by flags: what the algorithms use on a CPU, where a rank is one thread.
//
// Two ranks swap their buffers: in an epoch whose bit 1 is set, each rank writes to the other rank's heap. So a rank writes to the cache lines
// that it read two epochs before. It took ownership of them when it read them (takeTile), so a line moves between the caches once an epoch:
// without the swap it moves for the read, and ownership moves back for the next write. With more ranks several read a buffer, and none can
// own it.
#ifndef RAILHEAD_KERNELS_FLAG_EXCHANGE_H_
#define RAILHEAD_KERNELS_FLAG_EXCHANGE_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/flags.h"

namespace railhead {

// Raw is a tile as it lies in a buffer, or a run of kStep tiles (host/runs.h). Mem has, besides what flags.h lists, kStep and accesses to
// shared memory that the flags order: loadTile<Raw>, takeTile<Raw> and storeTile for buffers, with the number of tiles that a run may have;
// loadElements and storeElements for windows, loadOffer and storeOffer for offsets.
template <class Mem, class Raw>
class FlagExchange {
 public:
  static constexpr int kBatch = 1;

  // tileBytes: of a tile in a buffer.
  FlagExchange(Mem& mem, const FlagTeam& team, uint32_t tileBytes)
      : mem_(mem), team_(team), flags_(mem, team), own_(flags_.header(team.rank)), tileBytes_(tileBytes), generation_(own_->generation) {
    flags_.announce();
  }
  ~FlagExchange() { own_->generation = generation_; }
  FlagExchange(const FlagExchange&) = delete;
  FlagExchange& operator=(const FlagExchange&) = delete;

  int rank() const { return team_.rank; }
  int worldSize() const { return team_.worldSize; }
  int reduceGroup() const { return team_.reduceGroup; }
  uint32_t chunkTiles() const { return team_.blockBytes / tileBytes_; }
  uint32_t sliceTiles() const { return chunkTiles() / static_cast<uint32_t>(team_.worldSize); }
  uint32_t first() const { return 0; }
  uint32_t step() const { return Mem::kStep; }

  bool beginEpoch() {
    generation_ = (generation_ + 2) & Mem::kGenerationMask;
    half_ = kScratchHeaderBytes + (mutated(Mutant::kOneBuffer) ? 0 : generation_ >> 1 & 1) * static_cast<size_t>(team_.blockBytes);
    swapped_ = team_.worldSize == 2 ? static_cast<int>(generation_ >> 2 & 1) : 0;
    if (mutated(Mutant::kPublishBeforeTiles)) publish(generation_);
    return true;
  }

  // Publishes what this rank has pushed in the phase (0 or 1), and waits until all ranks have published theirs. The first exchange of an
  // operation also compares the ranks' signatures.
  bool meet(int phase) {
    if (compared_ || team_.call.call == 0) return publishAndAwait(phase);
    compared_ = true;
    storeSignature(mem_, &signatureIn(own_), team_.call);
    return publishAndAwait(phase) && allAgree();
  }

  // A rank takes its own tiles from the caller's memory, not from its buffer.
  static constexpr bool kKeepsOwn = true;
  static constexpr bool kPadsChunks = false;  // a generation covers all tiles of the rank
  void pushAll(uint32_t tile, const Raw& raw) { mem_.storeTile(ownAt(tile), raw, Mem::kStep); }
  bool poll(int first, int, uint32_t tile, const Raw& own, Raw (&out)[1]) {
    out[0] = first == team_.rank ? own : theirs(first, tile, Mem::kStep);
    return true;
  }
  // Slices lie in the buffer in the order of the message: tile j of an owner's slice has the same number in both.
  void pushSlice(int, int owner, uint32_t j, uint32_t slice, const Raw& raw) {
    mem_.storeTile(ownAt(static_cast<uint32_t>(owner) * slice + j), raw, slice - j);
  }
  bool pollSlice(int first, int, uint32_t j, uint32_t slice, const Raw& own, Raw (&out)[1]) {
    out[0] = first == team_.rank ? own : theirs(first, static_cast<uint32_t>(team_.rank) * slice + j, slice - j);
    return true;
  }
  // A rank's own slice is pushed to no rank, so its place in the rank's buffer is free for the result.
  void pushResult(uint32_t j, uint32_t slice, const Raw& raw) {
    mem_.storeTile(ownAt(static_cast<uint32_t>(team_.rank) * slice + j), raw, slice - j);
  }
  bool pollResult(int first, int, uint32_t j, uint32_t slice, Raw (&out)[1]) {
    if (first != team_.rank) out[0] = theirs(first, static_cast<uint32_t>(first) * slice + j, slice - j);
    return true;
  }

  // The buffers of the epoch after the next one are others, and a flag says when they are free.
  void release(int, uint32_t) {}

  // Pull: where this rank's buffers are. The next exchange publishes it.
  void offer(uint64_t send, uint64_t recv) {
    mem_.storeOffer(&own_->sendOffset, send);
    mem_.storeOffer(&own_->recvOffset, recv);
  }
  // Pull, after meet(0): reads every rank's offers, of `bytes` bytes each. *all: every rank has offered its send buffer and, if usesRecv,
  // its recv buffer; the same on all ranks. An offer is read once, here, since its rank may overwrite it at any time. False: a rank
  // offered memory that is not in its windows, which ends the operation.
  bool readOffers(uint64_t bytes, bool usesRecv, bool* all) {
    *all = true;
    for (int r = 0; r < team_.worldSize; r++) {
      const ScratchHeader* theirs = flags_.header(r);
      const uint64_t send = mem_.loadOffer(&theirs->sendOffset);
      const uint64_t recv = !usesRecv ? send : mem_.loadOffer(&theirs->recvOffset);
      if (send == kNoOffset || (recv == kNoOffset && !mutated(Mutant::kRecvNotOffered))) {
        *all = false;
      } else if (!locate(r, send, bytes, &send_[r]) || !locate(r, recv, bytes, &recv_[r])) {
        flags_.stopBecause(Stop::kBadOffer, uint64_t{1} << r);
        return false;
      }
    }
    return true;
  }
  // Called if not all ranks have offered. Nothing to do: the next exchange precedes the next offers.
  bool fallBack() { return true; }
  // Tile number `tile` of count elements that begin `offset` bytes into the send buffer of rank r.
  template <class Elements>
  typename Elements::Raw loadRemoteAt(int r, uint64_t offset, uint64_t tile, size_t count) {
    return mem_.template loadElements<Elements>(send_[r] + offset, tile, count);
  }
  template <class Elements>
  typename Elements::Raw loadRemote(int r, uint64_t tile, size_t count) {
    return mem_.template loadElements<Elements>(send_[r], tile, count);
  }
  template <class Elements>
  void storeRemote(int r, uint64_t tile, size_t count, const typename Elements::Raw& raw) {
    mem_.template storeElements<Elements>(recv_[r], tile, count, raw);
  }

  Stop stop() const { return flags_.stop(); }
  uint64_t missing() const { return flags_.missing(); }
  const Difference& difference() const { return flags_.difference(); }

 private:
  bool publishAndAwait(int phase) {
    const uint32_t generation = generation_ + static_cast<uint32_t>(mutated(Mutant::kOneGenerationForBothPhases) ? 0 : phase);
    const int peers = mutated(Mutant::kAwaitOnlyTheFirst) ? 1 : team_.worldSize;
    if (!mutated(Mutant::kAwaitBeforePublish)) publish(generation);
    for (int r = 0; r < peers; r++) {
      if (r != team_.rank && !flags_.await(flags_.header(r)->published.generation, generation, r)) return false;
    }
    if (mutated(Mutant::kAwaitBeforePublish)) publish(generation);
    return true;
  }
  void publish(uint32_t generation) { flags_.publish(own_->published.generation, generation); }

  Signature& signatureIn(ScratchHeader* header) {
    return header->published.signature[mutated(Mutant::kOneSignature) ? 0 : generation_ >> 1 & 1];
  }
  // This rank does not read its own signature back. The other ranks are reading that line at this moment, and the load took as long as a
  // third of an exchange of 2 ranks.
  bool allAgree() {
    if (mutated(Mutant::kSignatureNotCompared)) return true;
    for (int r = 0; r < team_.worldSize; r++) {
      if (r == team_.rank) continue;
      const Signature theirs = loadSignature(mem_, &signatureIn(flags_.header(r)));
      if (theirs == team_.call) continue;
      flags_.mismatch(r, theirs, team_.call);
      return false;
    }
    return true;
  }

  // The address of what rank r offers. False: not all of the bytes are in its windows.
  bool locate(int r, uint64_t offer, uint64_t bytes, char** out) const {
    const uint64_t number = offer >> kOfferRegionShift, offset = offer & ((uint64_t{1} << kOfferRegionShift) - 1);
    uint64_t begin = 0, end = 0;
    char* base = nullptr;
    if (number == 0) {
      base = team_.heap(r);
      begin = team_.scratchBytes;
      end = team_.heapBytes;
    } else if (number < kMaxRegions && team_.regions != nullptr && team_.regions[number].parts != nullptr) {
      base = team_.regions[number].parts[r];
      end = team_.regions[number].bytes;
    }
    const bool inside = base != nullptr && offset >= begin && offset <= end && bytes <= end - offset;
    if (!inside && !mutated(Mutant::kOfferNotBounded)) return false;
    *out = base + offset;
    return true;
  }
  // A tile that rank r has pushed, or pushes, in this epoch.
  char* at(int r, uint32_t tile) const { return team_.heap(r ^ swapped_) + half_ + static_cast<size_t>(tile) * tileBytes_; }
  char* ownAt(uint32_t tile) const { return at(team_.rank, tile); }
  // Another rank's tile, or a run of at most so many.
  Raw theirs(int r, uint32_t tile, uint32_t tiles) {
    if (mutated(Mutant::kReadsWithoutSwap)) r ^= swapped_;
    return team_.worldSize == 2 ? mem_.template takeTile<Raw>(at(r, tile), tiles) : mem_.template loadTile<Raw>(at(r, tile), tiles);
  }

  Mem& mem_;
  const FlagTeam& team_;
  Flags<Mem> flags_;
  ScratchHeader* const own_;
  const uint32_t tileBytes_;
  uint32_t generation_;
  bool compared_ = false;  // whether the signatures were compared
  size_t half_ = 0;  // offset of the current buffer in every heap
  int swapped_ = 0;  // 1: two ranks use each other's heap
  char *send_[kMaxWorldSize], *recv_[kMaxWorldSize];  // pull: where every rank's buffers lie
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_FLAG_EXCHANGE_H_
