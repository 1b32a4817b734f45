// Elements of the CPU target: tiles of 16 elements, added in f32, in GCC's vector types of the width that Isa has. The
// compiler makes SSE2, AVX2, AVX-512 or NEON of it.
#ifndef RAILHEAD_KERNELS_HOST_ELEMENTS_H_
#define RAILHEAD_KERNELS_HOST_ELEMENTS_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace railhead::host {

// bf16 is the upper half of an f32.
struct BF16 {
  uint16_t bits;
};

constexpr uint32_t kTileElements = 16;

// Vectors of kBytes bytes.
template <int kBytes>
struct Vectors {
  typedef float Float __attribute__((vector_size(kBytes)));
  typedef uint32_t Word __attribute__((vector_size(kBytes)));
  typedef uint16_t Half __attribute__((vector_size(kBytes / 2)));
};

// 16 f32 accumulators.
template <class Isa>
struct Sum16 {
  using Float = typename Vectors<Isa::kVectorBytes>::Float;
  static constexpr int kVectors = 64 / Isa::kVectorBytes;
  Float v[kVectors];

  Sum16& operator+=(const Sum16& other) {
    for (int i = 0; i < kVectors; i++) v[i] += other.v[i];
    return *this;
  }
};

template <class T>
struct alignas(kTileElements * sizeof(T)) RawTile {
  T e[kTileElements];
};

// What the algorithms ask for a type T.
template <class T, class Isa>
struct Elements {
  using Raw = RawTile<T>;
  using Sum = Sum16<Isa>;
  static constexpr uint32_t kElements = kTileElements;
  static constexpr uint32_t kBytes = sizeof(T);

  // Tile number `tile` of count elements at any address; what lies behind the end is 0.
  static Raw load(const char* base, uint64_t tile, size_t count) {
    const size_t at = tile * kElements;
    Raw raw;
    if (__builtin_expect(count - at >= kElements, 1)) {
      memcpy(&raw, base + at * sizeof(T), sizeof raw);
    } else {
      memset(&raw, 0, sizeof raw);
      memcpy(&raw, base + at * sizeof(T), (count - at) * sizeof(T));
    }
    return raw;
  }
  static void store(char* base, uint64_t tile, size_t count, const Raw& raw) {
    const size_t at = tile * kElements;
    if (__builtin_expect(count - at >= kElements, 1)) {
      memcpy(base + at * sizeof(T), &raw, sizeof raw);
    } else {
      memcpy(base + at * sizeof(T), &raw, (count - at) * sizeof(T));
    }
  }

  static Sum widen(const RawTile<float>& raw) {
    Sum s;
    memcpy(&s, &raw, sizeof s);
    return s;
  }
  // Puts each half above 16 zero bits.
  static Sum widen(const RawTile<BF16>& raw) {
    using V = Vectors<Isa::kVectorBytes>;
    Sum s;
    if constexpr (Isa::kVectorBytes == 16) {
      // The baseline has no widening conversion: interleave with zeros instead.
      typedef uint16_t Half8 __attribute__((vector_size(16)));
      const Half8 zero = {};
      for (int i = 0; i < 2; i++) {
        Half8 h;
        memcpy(&h, raw.e + 8 * i, sizeof h);
        const Half8 low = __builtin_shuffle(zero, h, Half8{0, 8, 1, 9, 2, 10, 3, 11});
        const Half8 high = __builtin_shuffle(zero, h, Half8{4, 12, 5, 13, 6, 14, 7, 15});
        memcpy(&s.v[2 * i], &low, sizeof low);
        memcpy(&s.v[2 * i + 1], &high, sizeof high);
      }
    } else {
      for (int i = 0; i < Sum::kVectors; i++) {
        typename V::Half h;
        memcpy(&h, raw.e + i * kLanes, sizeof h);
        const typename V::Word w = __builtin_convertvector(h, typename V::Word) << 16;
        memcpy(&s.v[i], &w, sizeof w);
      }
    }
    return s;
  }

  static Raw narrow(const Sum& s) {
    Raw raw;
    narrowTo(s, &raw);
    return raw;
  }

 private:
  static void narrowTo(const Sum& s, RawTile<float>* raw) { memcpy(raw, &s, sizeof *raw); }

  static constexpr int kLanes = Isa::kVectorBytes / 4;

  // Rounds to nearest, ties to even; the result is in the upper halves. A NaN keeps its sign and upper payload and becomes
  // quiet: adding the rounding constant could otherwise carry it into infinity.
  template <class Float, class Word>
  static Word roundToUpperHalf(Float f, Word bits) {
    const Word rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const Word isNaN = reinterpret_cast<Word>(f != f);  // all ones or zero
    return ((bits | 0x400000u) & isNaN) | (rounded & ~isNaN);
  }

  static void narrowTo(const Sum& s, RawTile<BF16>* raw) {
    using V = Vectors<Isa::kVectorBytes>;
    typename V::Word rounded[Sum::kVectors];
    for (int i = 0; i < Sum::kVectors; i++) {
      memcpy(&rounded[i], &s.v[i], sizeof rounded[i]);
      rounded[i] = roundToUpperHalf(s.v[i], rounded[i]);
    }
    if constexpr (Isa::kVectorBytes == 16) {
      typedef uint16_t Half8 __attribute__((vector_size(16)));
      for (int i = 0; i < 2; i++) {
        const Half8 h = __builtin_shuffle(reinterpret_cast<Half8>(rounded[2 * i]), reinterpret_cast<Half8>(rounded[2 * i + 1]),
                                          Half8{1, 3, 5, 7, 9, 11, 13, 15});
        memcpy(raw->e + 8 * i, &h, sizeof h);
      }
    } else {
      for (int i = 0; i < Sum::kVectors; i++) {
        const typename V::Half h = __builtin_convertvector(rounded[i] >> 16, typename V::Half);
        memcpy(raw->e + i * kLanes, &h, sizeof h);
      }
    }
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_ELEMENTS_H_
