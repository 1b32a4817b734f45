// Elements of the CPU target: tiles of 16, folded in the type's accumulators.
#ifndef RAILHEAD_KERNELS_HOST_ELEMENTS_H_
#define RAILHEAD_KERNELS_HOST_ELEMENTS_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "host/accumulators.h"
#include "host/bf16_lanes.h"
#include "host/f16_lanes.h"
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

// Converts between a tile at any address and its accumulators. This one is for types that are added as they are; others follow.
//
// store makes every NaN the type's one NaN of railhead.h. So NaN results have the same bits whatever instructions computed them: of two
// NaNs, x86 addition returns the first operand's, and which operand comes first is the compiler's choice.
template <class T, class Isa>
struct ConvertAt {
  using Sum = Accumulators<T, Isa>;
  static constexpr size_t kBytes = sizeof(RawTile<T>);
  static constexpr int kLanes = Sum::kBytes / static_cast<int>(sizeof(T));
  static Sum load(const void* from) {
    Sum s;
    for (int i = 0; i < Sum::kVectors; i++) s.v[i] = loadVector<typename Sum::Vector>(static_cast<const T*>(from) + i * kLanes);
    return s;
  }
  static void store(void* to, const Sum& s) {
    for (int i = 0; i < Sum::kVectors; i++) storeVector(static_cast<T*>(to) + i * kLanes, withOneNaN<T>(s.v[i]));
  }
};

template <class Isa>
struct ConvertAt<BF16, Isa> {
  using V = Vectors<Isa::kVectorBytes>;
  using Sum = Accumulators<float, Isa>;
  static constexpr size_t kBytes = sizeof(RawTile<BF16>);
  static constexpr int kLanes = Isa::kVectorBytes / 4;

  // Puts each half above 16 zero bits.
  static Sum load(const void* from) {
    const auto* e = static_cast<const BF16*>(from);
    Sum s;
    if constexpr (Isa::kVectorBytes == 16) {
      // The baseline has no widening conversion: interleave with zeros instead.
      typedef uint16_t Half8 __attribute__((vector_size(16)));
      const Half8 zero = {};
      for (int i = 0; i < 2; i++) {
        const Half8 h = loadVector<Half8>(e + 8 * i);
        s.v[2 * i] = reinterpret_cast<typename V::Float>(__builtin_shuffle(zero, h, Half8{0, 8, 1, 9, 2, 10, 3, 11}));
        s.v[2 * i + 1] = reinterpret_cast<typename V::Float>(__builtin_shuffle(zero, h, Half8{4, 12, 5, 13, 6, 14, 7, 15}));
      }
    } else {
      for (int i = 0; i < Sum::kVectors; i++) {
        const auto h = loadVector<typename V::Half>(e + i * kLanes);
        s.v[i] = reinterpret_cast<typename V::Float>(widenLanes<typename V::Word>(h) << 16);
      }
    }
    return s;
  }

  static void store(void* to, const Sum& s) {
    auto* e = static_cast<BF16*>(to);
    if constexpr (Isa::kVectorBytes == 16) {
      typedef uint16_t Half8 __attribute__((vector_size(16)));
      for (int i = 0; i < 2; i++) {
        const auto low = reinterpret_cast<Half8>(BF16Lanes<Isa>::round(s.v[2 * i]));
        const auto high = reinterpret_cast<Half8>(BF16Lanes<Isa>::round(s.v[2 * i + 1]));
        storeVector(e + 8 * i, __builtin_shuffle(low, high, Half8{1, 3, 5, 7, 9, 11, 13, 15}));
      }
    } else {
#pragma GCC unroll 2
      for (int i = 0; i < Sum::kVectors; i++) {
        storeVector(e + i * kLanes, narrowLanes<typename V::Half>(BF16Lanes<Isa>::round(s.v[i]) >> 16));
      }
    }
  }
};

template <class T>
struct FormatOf;
template <>
struct FormatOf<F16> : SmallFloat<5, 10, true, Overflow::kInfinity> {};
template <>
struct FormatOf<E4M3> : SmallFloat<4, 3, false, Overflow::kSaturate> {};
template <>
struct FormatOf<E5M2> : SmallFloat<5, 2, true, Overflow::kSaturate> {};

// Vectors of T by arithmetic on words, and by instructions for f16 where there are some.
template <class T, class Isa, bool kHasF16 = (Isa::kVectorBytes > 16)>
struct LanesOf {
  using V = Vectors<Isa::kVectorBytes>;
  using Lanes = std::conditional_t<sizeof(T) == 2, typename V::Half, typename V::Byte>;
  static typename V::Float widen(Lanes l) { return FormatOf<T>::template widen<typename V::Float>(widenLanes<typename V::Word>(l)); }
  static Lanes narrow(typename V::Float f) { return narrowLanes<Lanes>(FormatOf<T>::template narrow<typename V::Word>(f)); }
};
#if defined(__x86_64__)
template <class Isa>
struct LanesOf<F16, Isa, true> : F16Lanes<Isa> {};
template <class Isa>
struct LanesOf<E4M3, Isa, true> : E4M3Lanes<Isa> {};
template <class Isa>
struct LanesOf<E5M2, Isa, true> : E5M2Lanes<Isa> {};
#endif

// Converts a tile in vectors of f32.
template <class T, class Isa>
struct ConvertVectors {
  using L = LanesOf<T, Isa>;
  using Sum = Accumulators<float, Isa>;
  static constexpr size_t kBytes = sizeof(RawTile<T>);
  static constexpr int kLanes = Isa::kVectorBytes / 4;

  static Sum load(const void* from) {
    Sum s;
    for (int i = 0; i < Sum::kVectors; i++) s.v[i] = L::widen(loadVector<typename L::Lanes>(static_cast<const T*>(from) + i * kLanes));
    return s;
  }
  static void store(void* to, const Sum& s) {
    for (int i = 0; i < Sum::kVectors; i++) storeVector(static_cast<T*>(to) + i * kLanes, L::narrow(s.v[i]));
  }
};

template <class Isa>
struct ConvertAt<F16, Isa> : ConvertVectors<F16, Isa> {};
template <class Isa>
struct ConvertAt<E4M3, Isa> : ConvertVectors<E4M3, Isa> {};
template <class Isa>
struct ConvertAt<E5M2, Isa> : ConvertVectors<E5M2, Isa> {};

// What sums of elements go in: something with ConvertAt's members.
template <class T, class Isa>
struct SumBlockOf {
  using type = ConvertAt<T, Isa>;
};
template <class Isa>
struct SumBlockOf<BF16, Isa> {
  using type = BF16Pairs<Isa, 2>;
};

// The same for a tile that is a value.
template <class T, class Isa>
struct Convert : ConvertAt<T, Isa> {
  using typename ConvertAt<T, Isa>::Sum;
  static Sum widen(const RawTile<T>& raw) { return ConvertAt<T, Isa>::load(raw.e); }
  static RawTile<T> narrow(const Sum& s) {
    RawTile<T> raw;
    ConvertAt<T, Isa>::store(raw.e, s);
    return raw;
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_ELEMENTS_H_
