// LL ("low latency") pipes: data that is its own flag, for small chunks from a rank to its successor in a ring on a CPU. The counterpart
// of a GPU's packets.h.
//
// A chunk is a row of 8-byte words, {data32, mark32}, each of them stored and loaded whole, relaxed. A word with the chunk's mark has the
// chunk's data. So a reader needs no tail and no fence, and fetches no cache lines but those of the data. The first words of a chunk are
// the signature.
//
// The writer also publishes a tail, which counts its chunks, and on which a reader sleeps. A spinning reader never loads it, so that its
// cache line stays with the writer. Credits are as in pipes.h: the writer may fill chunk t while t - head < kPipeSlots.
//
// The mark of chunk t is t with the highest bit set, so it is never 0, the value of untouched memory. Slots belong to LL pipes alone.
// Wrap: marks recur after 2^31 chunks. A word that short chunks have not overwritten since would then be taken for one of the new chunk.
// So the reader zeroes the slots of the last kPipeSlots chunks before the wrap, after its last read and before it publishes its head. The
// writer writes there again after it has acquired the head.
#ifndef RAILHEAD_KERNELS_LL_PIPES_H_
#define RAILHEAD_KERNELS_LL_PIPES_H_

#include <string.h>

#include "railhead/exchange/pipes.h"

namespace railhead {

template <class Mem>
class LLPipes {
 public:
  LLPipes(Mem& mem, const FlagTeam& team, int channel) : mem_(mem), team_(team), offset_(llPipeOffset(team, channel)) {}

  // Most data bytes of a chunk.
  uint32_t chunkBytes() const { return 4 * (words() - kSignatureWords); }

  // The tail of the pipe that rank `writer` writes, and the head of the pipe that rank `reader` reads.
  Flag& tail(int writer) const { return *reinterpret_cast<Flag*>(team_.heap(writer) + offset_); }
  Flag& head(int reader) const { return *reinterpret_cast<Flag*>(team_.heap(reader) + offset_ + kFlagLineBytes); }
  uint64_t* slot(int writer, uint32_t chunk) const {
    char* slots = team_.heap(writer) + offset_ + kLLFlagsBytes;
    return reinterpret_cast<uint64_t*>(slots + (chunk % kPipeSlots) * static_cast<uint64_t>(team_.llSlotBytes));
  }

  static uint32_t mark(uint32_t chunk) { return (chunk & kMarkMask) | (mutated(Mutant::kLLMarkMayBeZero) ? 0 : kMarkMask + 1); }

  static constexpr uint32_t kSignatureWords = sizeof(Signature) / 4;
  static uint32_t wordsOf(uint32_t bytes) { return kSignatureWords + bytes / 4; }

  void writeSignature(uint64_t* slot, uint32_t chunk, const Signature& s) {
    storeWords(slot, chunk, &s, kSignatureWords);
  }
  // Valid once the words of the signature have arrived.
  Signature signature(const uint64_t* slot) {
    Signature s;
    loadWords(slot, &s, kSignatureWords);
    return s;
  }

  bool isThere(const uint64_t* slot, uint32_t chunk, uint32_t word) { return mem_.loadWord(slot + word) >> 32 == mark(chunk); }
  // How many of the first n words have arrived without a gap: the index of the first that has not, or n.
  uint32_t countThere(const uint64_t* slot, uint32_t chunk, uint32_t n) {
    if (mutated(Mutant::kLLChecksOneWord) && n > kSignatureWords) return n;
    uint32_t word = 0;
    while (word < n && isThere(slot, chunk, word)) word++;
    return word;
  }

  // The data of a chunk. bytes: a multiple of 4.
  void load(const uint64_t* slot, void* data, uint32_t bytes) { loadWords(slot + kSignatureWords, data, bytes / 4); }
  void store(uint64_t* slot, uint32_t chunk, const void* data, uint32_t bytes) { storeWords(slot + kSignatureWords, chunk, data, bytes / 4); }

  // Called after the last read of a chunk: zeroes its slot if it is one of the last kPipeSlots chunks before the wrap.
  void clearBeforeWrap(uint64_t* slot, uint32_t chunk) {
    const uint32_t last = mutated(Mutant::kLLClearsOneLess) ? kPipeSlots - 1 : kPipeSlots;
    if ((chunk & kMarkMask) + last <= kMarkMask || mutated(Mutant::kLLNoWrapClear)) return;
    for (uint32_t i = 0; i < words(); i++) mem_.storeWord(slot + i, 0);
  }

 private:
  static constexpr uint32_t kMarkMask = Mem::kGenerationMask >> 1;

  uint32_t words() const { return team_.llSlotBytes / 8; }
  void storeWords(uint64_t* to, uint32_t chunk, const void* data, uint32_t n) {
    const uint64_t flag = uint64_t{mark(chunk)} << 32;
    for (uint32_t i = 0; i < n; i++) {
      uint32_t word;
      memcpy(&word, static_cast<const char*>(data) + 4 * i, 4);
      mem_.storeWord(to + i, flag | word);
    }
  }
  // Words that have arrived: release() of the chunk comes after these loads, unlike polls of words that have not.
  void loadWords(const uint64_t* from, void* data, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
      const auto word = static_cast<uint32_t>(mem_.loadArrivedWord(from + i));
      memcpy(static_cast<char*>(data) + 4 * i, &word, 4);
    }
  }

  Mem& mem_;
  const FlagTeam& team_;
  const uint64_t offset_;
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_LL_PIPES_H_
