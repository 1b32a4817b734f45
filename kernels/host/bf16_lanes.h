// bf16 in vectors of f32: rounding to it, and its elements in pairs. Two elements lie in a word of 32 bits. The upper one is an f32 if the
// lower half is cleared, the lower one is an f32 if it is shifted up. So pairs need no conversion and no shuffle, in either direction.
#ifndef RAILHEAD_KERNELS_HOST_BF16_LANES_H_
#define RAILHEAD_KERNELS_HOST_BF16_LANES_H_

#include <stddef.h>
#include <stdint.h>

#include "host/accumulators.h"

namespace railhead::host {

template <class Isa>
struct BF16Lanes {
  using V = Vectors<Isa::kVectorBytes>;
  using Float = typename V::Float;
  using Word = typename V::Word;
  static constexpr uint32_t kUpper = 0xffff0000u;

  // Rounds to nearest, ties to even, and every NaN to the one NaN. The result is in the upper halves; the lower ones have any value.
  static inline __attribute__((always_inline)) Word round(Float f) {
    // NaNs are set apart because adding the rounding constant could carry them into infinity.
#if defined(__x86_64__)
    if constexpr (Isa::kVectorBytes == 64) {
      constexpr int16_t kAllLanes = -1;  // a mask
      constexpr int kOrdered = 7;
      using SignedWord = typename V::SignedWord;
      typedef int16_t SignedHalves __attribute__((vector_size(64)));
      const auto bits = reinterpret_cast<SignedWord>(f);
      // 0x7fff plus the last bit that stays: a product with ones adds the two halves of a word.
      const auto halves = reinterpret_cast<SignedHalves>((bits & 0x10000) | 0x7fff);
      const SignedWord added = __builtin_ia32_pmaddwd512_mask(halves, SignedHalves{} + int16_t{1}, SignedWord{}, kAllLanes);
      const auto numbers = static_cast<int16_t>(__builtin_ia32_cmpps512_mask(f, f, kOrdered, kAllLanes, 4));
      return reinterpret_cast<Word>(__builtin_ia32_paddd512_mask(bits, added, SignedWord{} + 0x7fc00000, static_cast<uint16_t>(numbers)));
    }
#endif
    const Word bits = reinterpret_cast<Word>(f);
    const Word rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const Word isNaN = reinterpret_cast<Word>(f != f);  // all ones or zero
    return (0x7fc00000u & isNaN) | (rounded & ~isNaN);
  }

  static inline __attribute__((always_inline)) Float lower(Word pairs) { return reinterpret_cast<Float>(pairs << 16); }
  static inline __attribute__((always_inline)) Float upper(Word pairs) { return reinterpret_cast<Float>(pairs & kUpper); }
  static inline __attribute__((always_inline)) Word pairs(Float lower, Float upper) { return round(lower) >> 16 | (round(upper) & kUpper); }
};

// The accumulators of as many pairs as kVectors vectors have: lower and upper elements in turn.
template <class Isa, int kVectors>
struct BF16Pairs {
  using L = BF16Lanes<Isa>;
  static constexpr size_t kBytes = static_cast<size_t>(kVectors) * Isa::kVectorBytes;
  using Sum = Accumulators<float, Isa, kBytes / sizeof(BF16)>;

  static inline __attribute__((always_inline)) Sum load(const void* from) {
    Sum s;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; i++) {
      const auto pairs = loadVector<typename L::Word>(static_cast<const char*>(from) + i * Isa::kVectorBytes);
      s.v[2 * i] = L::lower(pairs);
      s.v[2 * i + 1] = L::upper(pairs);
    }
    return s;
  }
  static inline __attribute__((always_inline)) void store(void* to, const Sum& s) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; i++) storeVector(static_cast<char*>(to) + i * Isa::kVectorBytes, L::pairs(s.v[2 * i], s.v[2 * i + 1]));
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_BF16_LANES_H_
