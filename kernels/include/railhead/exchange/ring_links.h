// The two pipes of a channel, from the predecessor and to the successor. Both protocols have the same interface:
//
//   arrived(bytes)    whether the next chunk, of so many bytes, has arrived. False: its flag was added to the waits, or the chunk is of
//                     another operation, which flags.stop() tells
//   reserve()         whether there is a credit for the next chunk. False: its flag was added to the waits
//   read(bytes)                          precedes loads of the chunk that has arrived
//   load<T>(at, tiles), store(at, value) a tile, or a run of at most so many tiles, `at` bytes into the chunk that has arrived, and into
//                                        the reserved one
//   write(bytes)                         follows all stores to the reserved chunk
//   release(), send(bytes)               returns the chunk that has arrived; publishes the reserved one
#ifndef RAILHEAD_KERNELS_RING_LINKS_H_
#define RAILHEAD_KERNELS_RING_LINKS_H_

#include "railhead/exchange/flag_waits.h"
#include "railhead/exchange/ll_pipes.h"
#include "railhead/exchange/pipes.h"
#include "railhead/exchange/ring.h"

namespace railhead {

// The credits that a writer knows of. It loads the reader's head, a cache line of another rank, only when it has none.
template <class Mem>
class Credits {
 public:
  // Whether there is a credit for chunk number `tail`. Acquire on head: the reader has read the slots that are free again.
  bool available(Mem& mem, FlagWaits<Mem>& waits, uint32_t tail, Flag& head, int reader) {
    if (left_ > 0) return true;
    const uint32_t first = Pipes<Mem>::credit(tail);
    const uint32_t seen = mutated(Mutant::kRingHeadRelaxed) ? mem.loadRelaxed(&head.value) : mem.loadAcquire(&head.value);
    if (Flags<Mem>::reached(seen, first)) {
      left_ = ((seen - first) & Mem::kGenerationMask) + 1;
      return true;
    }
    waits.add(head, first, reader);
    return false;
  }
  void use() {
    if (!mutated(Mutant::kRingCreditsNotCounted)) left_--;
  }

 private:
  uint32_t left_ = 0;
};

template <class Mem>
class SimpleLink {
 public:
  SimpleLink(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, FlagWaits<Mem>& waits, int channel, int before, int next)
      : mem_(mem), team_(team), pipes_(mem, team, flags, ringPipeSet(channel, team.worldSize)), waits_(waits), before_(before), next_(next) {}

  uint32_t chunkBytes() const { return pipes_.chunkBytes(); }

  bool arrived(uint32_t) {
    const uint32_t chunk = mem_.loadRelaxed(&pipes_.head(before_, team_.rank).value);
    Flag& tail = pipes_.tail(before_, team_.rank);
    const uint32_t written = Pipes<Mem>::next(chunk);
    const uint32_t seen = mutated(Mutant::kRingTailRelaxed) ? mem_.loadRelaxed(&tail.value) : mem_.loadAcquire(&tail.value);
    if (!Flags<Mem>::reached(seen, written)) {
      waits_.add(tail, written, before_);
      return false;
    }
    in_ = pipes_.slot(before_, team_.rank, chunk);
    return pipes_.agrees(in_, team_.call, before_);
  }
  bool reserve() {
    const uint32_t chunk = mem_.loadRelaxed(&pipes_.tail(team_.rank, next_).value);
    if (!credits_.available(mem_, waits_, chunk, pipes_.head(team_.rank, next_), next_)) return false;
    out_ = pipes_.slot(team_.rank, next_, chunk);
    return true;
  }
  void read(uint32_t) {}
  template <class T>
  T load(uint32_t at, uint32_t tiles) {
    return mem_.template loadSlotTile<T>(in_ + kSlotHeaderBytes + at, tiles);
  }
  template <class T>
  void store(uint32_t at, const T& value) {
    mem_.storeSlotTile(out_ + kSlotHeaderBytes + at, value);
  }
  void write(uint32_t) {}
  void release() { pipes_.release(before_); }
  void send(uint32_t bytes) {
    pipes_.writeHeader(out_, team_.call, bytes);
    pipes_.send(next_);
    credits_.use();
  }

 private:
  Mem& mem_;
  const FlagTeam& team_;
  Pipes<Mem> pipes_;
  FlagWaits<Mem>& waits_;
  const int before_, next_;
  Credits<Mem> credits_;
  const char* in_ = nullptr;
  char* out_ = nullptr;
};

template <class Mem>
class LLLink {
 public:
  LLLink(Mem& mem, const FlagTeam& team, Flags<Mem>& flags, FlagWaits<Mem>& waits, int channel, int before, int next)
      : mem_(mem), team_(team), flags_(flags), pipes_(mem, team, channel), waits_(waits), before_(before), next_(next) {}

  uint32_t chunkBytes() const { return pipes_.chunkBytes() < kDataBytes ? pipes_.chunkBytes() : kDataBytes; }

  // Polling the words in order would take each cache line from the writer while it fills the line. So this polls the last word, and
  // checks all others once it has arrived. A chunk of another operation may have fewer words, so the signature is checked whenever it has
  // arrived.
  bool arrived(uint32_t bytes) {
    inChunk_ = mem_.loadRelaxed(&pipes_.head(team_.rank).value);
    in_ = pipes_.slot(before_, inChunk_);
    constexpr uint32_t kFirst = LLPipes<Mem>::kSignatureWords;
    const uint32_t n = LLPipes<Mem>::wordsOf(bytes);
    const bool lastIsThere = pipes_.isThere(in_, inChunk_, n - 1);
    const uint32_t there = pipes_.countThere(in_, inChunk_, lastIsThere ? n : kFirst);
    if (there >= kFirst) {
      const Signature theirs = pipes_.signature(in_);
      if (theirs != team_.call && !mutated(Mutant::kLLSignatureNotCompared)) {
        flags_.mismatch(before_, theirs, team_.call);
        return false;
      }
    }
    if (there == n) return true;
    const uint64_t* missing = in_ + (lastIsThere ? there : n - 1);
    waits_.addWord(pipes_.tail(before_), Pipes<Mem>::next(inChunk_), before_, missing, LLPipes<Mem>::mark(inChunk_));
    return false;
  }
  bool reserve() {
    outChunk_ = mem_.loadRelaxed(&pipes_.tail(team_.rank).value);
    if (!credits_.available(mem_, waits_, outChunk_, pipes_.head(next_), next_)) return false;
    out_ = pipes_.slot(team_.rank, outChunk_);
    pipes_.writeSignature(out_, outChunk_, team_.call);
    return true;
  }
  void read(uint32_t bytes) { pipes_.load(in_, inData_, bytes); }
  template <class T>
  T load(uint32_t at, uint32_t tiles) {
    return mem_.template loadLocalTile<T>(inData_ + at, tiles);
  }
  template <class T>
  void store(uint32_t at, const T& value) {
    mem_.storeLocalTile(outData_ + at, value);
  }
  void write(uint32_t bytes) { pipes_.store(out_, outChunk_, outData_, bytes); }
  // Release: this rank has read the chunk, and has zeroed the slot if it had to.
  void release() {
    if (!mutated(Mutant::kLLClearsAfterRelease)) pipes_.clearBeforeWrap(in_, inChunk_);
    flags_.publish(pipes_.head(team_.rank), Pipes<Mem>::next(inChunk_));
    if (mutated(Mutant::kLLClearsAfterRelease)) pipes_.clearBeforeWrap(in_, inChunk_);
  }
  // Wakes a sleeping reader. Release: it then sees all words.
  void send(uint32_t) {
    Flag& tail = pipes_.tail(team_.rank);
    if (mutated(Mutant::kLLTailWithoutWake)) {
      mem_.storeRelease(&tail.value, Pipes<Mem>::next(outChunk_));
    } else {
      flags_.publish(tail, Pipes<Mem>::next(outChunk_));
    }
    credits_.use();
  }

 private:
  Mem& mem_;
  const FlagTeam& team_;
  Flags<Mem>& flags_;
  LLPipes<Mem> pipes_;
  FlagWaits<Mem>& waits_;
  const int before_, next_;
  Credits<Mem> credits_;
  uint32_t inChunk_ = 0, outChunk_ = 0;
  uint64_t* in_ = nullptr;
  uint64_t* out_ = nullptr;
  // The data of the two chunks, without marks.
  static constexpr uint32_t kDataBytes = kLLSlotBytes / 2;
  alignas(64) char inData_[kDataBytes], outData_[kDataBytes];
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_RING_LINKS_H_
