// Elements of the CPU target: tiles of 16, folded in the type's accumulators.
#ifndef RAILHEAD_KERNELS_HOST_ELEMENTS_H_
#define RAILHEAD_KERNELS_HOST_ELEMENTS_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "host/accumulators.h"
#include "host/small_float.h"
#include "host/types.h"

namespace railhead::host {

template <class T, uint32_t kCount = kTileElements>
struct alignas(kCount * sizeof(T)) RawTile {
  T e[kCount];
};

// Tile number `tile` of count elements at any address; what lies behind the end is 0.
template <class Raw>
static inline Raw loadTileOf(const char* base, uint64_t tile, size_t count) {
  constexpr uint32_t kCount = sizeof(Raw::e) / sizeof(Raw::e[0]), kBytes = sizeof(Raw::e[0]);
  const size_t at = tile * kCount;
  Raw raw;
  if (__builtin_expect(count - at >= kCount, 1)) {
    memcpy(&raw, base + at * kBytes, sizeof raw);
  } else {
    memset(&raw, 0, sizeof raw);
    memcpy(&raw, base + at * kBytes, (count - at) * kBytes);
  }
  return raw;
}
template <class Raw>
static inline void storeTileOf(char* base, uint64_t tile, size_t count, const Raw& raw) {
  constexpr uint32_t kCount = sizeof(Raw::e) / sizeof(Raw::e[0]), kBytes = sizeof(Raw::e[0]);
  const size_t at = tile * kCount;
  if (__builtin_expect(count - at >= kCount, 1)) {
    memcpy(base + at * kBytes, &raw, sizeof raw);
  } else {
    memcpy(base + at * kBytes, &raw, (count - at) * kBytes);
  }
}

// What operations that only copy ask for. Isa keeps the functions of different instruction sets apart.
template <class Isa>
struct Bytes {
  using Raw = RawTile<uint8_t, 64>;
  static constexpr uint32_t kElements = 64;
  static constexpr uint32_t kBytes = 1;
  static Raw load(const char* base, uint64_t tile, size_t count) { return loadTileOf<Raw>(base, tile, count); }
  static Raw loadRaw(const char* base, uint64_t tile, size_t count) { return load(base, tile, count); }
  static void store(char* base, uint64_t tile, size_t count, const Raw& raw) { storeTileOf<Raw>(base, tile, count, raw); }
};

// Between a tile and its accumulators. Types that are added as they are; others follow.
template <class T, class Isa>
struct Convert {
  using Sum = Accumulators<T, Isa>;
  static Sum widen(const RawTile<T>& raw) {
    Sum s;
    memcpy(&s, &raw, sizeof s);
    return s;
  }
  static RawTile<T> narrow(const Sum& s) {
    RawTile<T> raw;
    memcpy(&raw, &s, sizeof raw);
    return raw;
  }
};

template <class Isa>
struct Convert<BF16, Isa> {
  using V = Vectors<Isa::kVectorBytes>;
  using Sum = Accumulators<float, Isa>;
  static constexpr int kLanes = Isa::kVectorBytes / 4;

  // Puts each half above 16 zero bits.
  static Sum widen(const RawTile<BF16>& raw) {
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

  static RawTile<BF16> narrow(const Sum& s) {
    RawTile<BF16> raw;
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
        memcpy(raw.e + 8 * i, &h, sizeof h);
      }
    } else {
      for (int i = 0; i < Sum::kVectors; i++) {
        const typename V::Half h = __builtin_convertvector(rounded[i] >> 16, typename V::Half);
        memcpy(raw.e + i * kLanes, &h, sizeof h);
      }
    }
    return raw;
  }

 private:
  // Rounds to nearest, ties to even; the result is in the upper halves. A NaN keeps its sign and upper payload and becomes
  // quiet: adding the rounding constant could otherwise carry it into infinity.
  template <class Float, class Word>
  static Word roundToUpperHalf(Float f, Word bits) {
    const Word rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const Word isNaN = reinterpret_cast<Word>(f != f);  // all ones or zero
    return ((bits | 0x400000u) & isNaN) | (rounded & ~isNaN);
  }
};

// By SmallFloat; Lanes is a vector of T's size of element.
template <class T, class Small, class Lanes, class Isa>
struct ConvertSmall {
  using V = Vectors<Isa::kVectorBytes>;
  using Sum = Accumulators<float, Isa>;
  static constexpr int kLanes = Isa::kVectorBytes / 4;

  static Sum widen(const RawTile<T>& raw) {
    Sum s;
    for (int i = 0; i < Sum::kVectors; i++) {
      Lanes l;
      memcpy(&l, raw.e + i * kLanes, sizeof l);
      s.v[i] = Small::template widen<typename V::Float>(__builtin_convertvector(l, typename V::Word));
    }
    return s;
  }
  static RawTile<T> narrow(const Sum& s) {
    RawTile<T> raw;
    for (int i = 0; i < Sum::kVectors; i++) {
      const Lanes l = __builtin_convertvector(Small::template narrow<typename V::Word>(s.v[i]), Lanes);
      memcpy(raw.e + i * kLanes, &l, sizeof l);
    }
    return raw;
  }
};

template <class Isa>
struct Convert<F16, Isa>
    : ConvertSmall<F16, SmallFloat<5, 10, true, Overflow::kInfinity>, typename Vectors<Isa::kVectorBytes>::Half, Isa> {};
template <class Isa>
struct Convert<E4M3, Isa>
    : ConvertSmall<E4M3, SmallFloat<4, 3, false, Overflow::kSaturate>, typename Vectors<Isa::kVectorBytes>::Byte, Isa> {};
template <class Isa>
struct Convert<E5M2, Isa>
    : ConvertSmall<E5M2, SmallFloat<5, 2, true, Overflow::kSaturate>, typename Vectors<Isa::kVectorBytes>::Byte, Isa> {};

// What the reductions ask for a type T.
template <class T, class Isa>
struct Elements {
  using Raw = RawTile<T>;
  using A = typename AccumulatorOf<T>::type;
  using Sum = Accumulators<A, Isa>;
  static constexpr uint32_t kElements = kTileElements;
  static constexpr uint32_t kBytes = sizeof(T);

  Elements(const ReduceOp& op, int worldSize) : kind_(op.kind), worldSize_(static_cast<A>(worldSize)) {
    memcpy(&scalar_, op.scalar, sizeof scalar_);
  }

  // As the rank contributes it.
  Raw load(const char* base, uint64_t tile, size_t count) const {
    const Raw raw = loadRaw(base, tile, count);
    if (__builtin_expect(kind_ != Reduction::kPreMulSum, 1)) return raw;
    Sum s = widen(raw);
    s.multiply(scalar_);
    return Convert<T, Isa>::narrow(s);
  }
  // As it lies in memory.
  static Raw loadRaw(const char* base, uint64_t tile, size_t count) { return loadTileOf<Raw>(base, tile, count); }
  static void store(char* base, uint64_t tile, size_t count, const Raw& raw) { storeTileOf<Raw>(base, tile, count, raw); }

  static Sum widen(const Raw& raw) { return Convert<T, Isa>::widen(raw); }
  void add(Sum* sum, const Sum& other) const { sum->fold(kind_, other); }
  Raw narrow(const Sum& s) const {
    if (__builtin_expect(kind_ != Reduction::kAvg, 1)) return Convert<T, Isa>::narrow(s);
    Sum average = s;
    average.divide(worldSize_);
    return Convert<T, Isa>::narrow(average);
  }

 private:
  Reduction kind_;
  A worldSize_;
  A scalar_;
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_ELEMENTS_H_
