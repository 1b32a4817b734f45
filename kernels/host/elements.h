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

// Copies all bytes of a tile, in vectors of Isa.
template <int kBytes, class Isa>
static inline void copyTile(void* to, const void* from) {
  constexpr int kPiece = kBytes < Isa::kVectorBytes ? kBytes : Isa::kVectorBytes;
  for (int i = 0; i < kBytes; i += kPiece) {
    storeVector(static_cast<char*>(to) + i, loadVector<typename Vectors<kPiece>::All>(static_cast<const char*>(from) + i));
  }
}

// Tile number `tile` of count elements at any address; elements beyond the end are 0.
template <class Raw, class Isa>
static inline Raw loadTileOf(const char* base, uint64_t tile, size_t count) {
  constexpr uint32_t kCount = sizeof(Raw::e) / sizeof(Raw::e[0]), kBytes = sizeof(Raw::e[0]);
  const size_t at = tile * kCount;
  Raw raw;
  if (__builtin_expect(count - at >= kCount, 1)) {
    copyTile<sizeof raw, Isa>(&raw, base + at * kBytes);
  } else {
    memset(&raw, 0, sizeof raw);
    memcpy(&raw, base + at * kBytes, (count - at) * kBytes);
  }
  return raw;
}
template <class Isa, class Raw>
static inline void storeTileOf(char* base, uint64_t tile, size_t count, const Raw& raw) {
  constexpr uint32_t kCount = sizeof(Raw::e) / sizeof(Raw::e[0]), kBytes = sizeof(Raw::e[0]);
  const size_t at = tile * kCount;
  if (__builtin_expect(count - at >= kCount, 1)) {
    copyTile<sizeof raw, Isa>(base + at * kBytes, &raw);
  } else {
    memcpy(base + at * kBytes, &raw, (count - at) * kBytes);
  }
}

// The elements of operations that only copy. Isa keeps the functions of different instruction sets apart.
template <class Isa>
struct Bytes {
  using Raw = RawTile<uint8_t, 64>;
  static constexpr uint32_t kElements = 64;
  static constexpr uint32_t kBytes = 1;
  static Raw load(const char* base, uint64_t tile, size_t count) { return loadTileOf<Raw, Isa>(base, tile, count); }
  static Raw loadRaw(const char* base, uint64_t tile, size_t count) { return load(base, tile, count); }
  static void store(char* base, uint64_t tile, size_t count, const Raw& raw) { storeTileOf<Isa>(base, tile, count, raw); }
};

// Converts between a tile and its accumulators. This one is for types that are added as they are; others follow.
//
// narrow makes every NaN the type's one NaN of railhead.h. So NaN results have the same bits whatever instructions computed them: of two
// NaNs, x86 addition returns the first operand's, and which operand comes first is the compiler's choice.
template <class T, class Isa>
struct Convert {
  using Sum = Accumulators<T, Isa>;
  static constexpr int kLanes = Sum::kBytes / static_cast<int>(sizeof(T));
  static Sum widen(const RawTile<T>& raw) {
    Sum s;
    for (int i = 0; i < Sum::kVectors; i++) s.v[i] = loadVector<typename Sum::Vector>(raw.e + i * kLanes);
    return s;
  }
  static RawTile<T> narrow(const Sum& s) {
    RawTile<T> raw;
    for (int i = 0; i < Sum::kVectors; i++) storeVector(raw.e + i * kLanes, withOneNaN<T>(s.v[i]));
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
        const Half8 h = loadVector<Half8>(raw.e + 8 * i);
        s.v[2 * i] = reinterpret_cast<typename V::Float>(__builtin_shuffle(zero, h, Half8{0, 8, 1, 9, 2, 10, 3, 11}));
        s.v[2 * i + 1] = reinterpret_cast<typename V::Float>(__builtin_shuffle(zero, h, Half8{4, 12, 5, 13, 6, 14, 7, 15}));
      }
    } else {
      for (int i = 0; i < Sum::kVectors; i++) {
        const auto h = loadVector<typename V::Half>(raw.e + i * kLanes);
        s.v[i] = reinterpret_cast<typename V::Float>(__builtin_convertvector(h, typename V::Word) << 16);
      }
    }
    return s;
  }

  static RawTile<BF16> narrow(const Sum& s) {
    RawTile<BF16> raw;
    if constexpr (Isa::kVectorBytes == 16) {
      typedef uint16_t Half8 __attribute__((vector_size(16)));
      for (int i = 0; i < 2; i++) {
        const auto low = reinterpret_cast<Half8>(roundToUpperHalf(s.v[2 * i]));
        const auto high = reinterpret_cast<Half8>(roundToUpperHalf(s.v[2 * i + 1]));
        storeVector(raw.e + 8 * i, __builtin_shuffle(low, high, Half8{1, 3, 5, 7, 9, 11, 13, 15}));
      }
    } else {
#pragma GCC unroll 2
      for (int i = 0; i < Sum::kVectors; i++) {
        storeVector(raw.e + i * kLanes, __builtin_convertvector(roundToUpperHalf(s.v[i]) >> 16, typename V::Half));
      }
    }
    return raw;
  }

  // Rounds to nearest, ties to even; the result is in the upper halves. NaNs are set apart because adding the rounding constant could
  // carry them into infinity.
  static typename V::Word roundToUpperHalf(typename V::Float f) {
    using Word = typename V::Word;
    const Word bits = reinterpret_cast<Word>(f);
    const Word rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const Word isNaN = reinterpret_cast<Word>(f != f);  // all ones or zero
    return (0x7fc00000u & isNaN) | (rounded & ~isNaN);
  }
};

// Converts by SmallFloat. Lanes is a vector of integers of T's size.
template <class T, class Small, class Lanes, class Isa>
struct ConvertSmall {
  using V = Vectors<Isa::kVectorBytes>;
  using Sum = Accumulators<float, Isa>;
  static constexpr int kLanes = Isa::kVectorBytes / 4;

  static Sum widen(const RawTile<T>& raw) {
    Sum s;
    for (int i = 0; i < Sum::kVectors; i++) {
      const Lanes l = loadVector<Lanes>(raw.e + i * kLanes);
      s.v[i] = Small::template widen<typename V::Float>(__builtin_convertvector(l, typename V::Word));
    }
    return s;
  }
  static RawTile<T> narrow(const Sum& s) {
    RawTile<T> raw;
    for (int i = 0; i < Sum::kVectors; i++) {
      storeVector(raw.e + i * kLanes, __builtin_convertvector(Small::template narrow<typename V::Word>(s.v[i]), Lanes));
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

// The elements of reductions, of type T.
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

  // A tile as the rank contributes it.
  Raw load(const char* base, uint64_t tile, size_t count) const {
    const Raw raw = loadRaw(base, tile, count);
    if (__builtin_expect(kind_ != Reduction::kPreMulSum, 1)) return raw;
    Sum s = widen(raw);
    s.multiply(scalar_);
    return Convert<T, Isa>::narrow(s);
  }
  // A tile as it lies in memory.
  static Raw loadRaw(const char* base, uint64_t tile, size_t count) { return loadTileOf<Raw, Isa>(base, tile, count); }
  static void store(char* base, uint64_t tile, size_t count, const Raw& raw) { storeTileOf<Isa>(base, tile, count, raw); }

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
