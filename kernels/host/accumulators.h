// The accumulators of elements, by default of a tile's 16, in GCC's vector types of Isa's width. The compiler makes SSE2, AVX2, AVX-512 or NEON of them.
#ifndef RAILHEAD_KERNELS_HOST_ACCUMULATORS_H_
#define RAILHEAD_KERNELS_HOST_ACCUMULATORS_H_

#include <stdint.h>

#include <type_traits>

#include "host/types.h"

namespace railhead::host {

constexpr uint32_t kTileElements = 16;

// Vectors of kBytes bytes with 32-bit lanes, and vectors with as many smaller lanes.
template <int kBytes>
struct Vectors {
  typedef float Float __attribute__((vector_size(kBytes)));
  typedef uint32_t Word __attribute__((vector_size(kBytes)));
  typedef uint16_t Half __attribute__((vector_size(kBytes / 2)));
  typedef int16_t SignedHalf __attribute__((vector_size(kBytes / 2)));
  typedef uint8_t Byte __attribute__((vector_size(kBytes / 4)));
  typedef int32_t SignedWord __attribute__((vector_size(kBytes)));
  typedef char Char __attribute__((vector_size(kBytes / 4)));
  typedef uint8_t All __attribute__((vector_size(kBytes)));
};

// Loads and stores a vector at any address, in one access. memcpy would move 32 bytes in two parts, and a later load of the whole vector
// would then wait until both have left the store buffer.
template <class Vector>
static inline Vector loadVector(const void* from) {
  typedef Vector Unaligned __attribute__((aligned(1), may_alias));
  return *static_cast<const Unaligned*>(from);
}
template <class Vector>
static inline void storeVector(void* to, Vector v) {
  typedef Vector Unaligned __attribute__((aligned(1), may_alias));
  *static_cast<Unaligned*>(to) = v;
}

// Lanes of 16 or 8 bits as 32-bit words, and the low bits of words as such lanes. For words of 512 bits GCC 12 makes several shuffles of
// __builtin_convertvector, where the processor has one instruction.
template <class Words, class Lanes>
static inline Words widenLanes(Lanes lanes) {
#if defined(__x86_64__)
  using V = Vectors<sizeof(Words)>;
  constexpr int16_t kAllLanes = -1;  // a mask
  if constexpr (sizeof(Words) == 64 && sizeof(Lanes) == 32) {
    return (Words)__builtin_ia32_pmovzxwd512_mask((typename V::SignedHalf)lanes, typename V::SignedWord{}, kAllLanes);
  } else if constexpr (sizeof(Words) == 64 && sizeof(Lanes) == 16) {
    return (Words)__builtin_ia32_pmovzxbd512_mask((typename V::Char)lanes, typename V::SignedWord{}, kAllLanes);
  }
#endif
  return __builtin_convertvector(lanes, Words);
}
template <class Lanes, class Words>
static inline Lanes narrowLanes(Words words) {
#if defined(__x86_64__)
  using V = Vectors<sizeof(Words)>;
  constexpr int16_t kAllLanes = -1;
  if constexpr (sizeof(Words) == 64 && sizeof(Lanes) == 32) {
    return (Lanes)__builtin_ia32_pmovdw512_mask((typename V::SignedWord)words, typename V::SignedHalf{}, kAllLanes);
  } else if constexpr (sizeof(Words) == 64 && sizeof(Lanes) == 16) {
    return (Lanes)__builtin_ia32_pmovdb512_mask((typename V::SignedWord)words, typename V::Char{}, kAllLanes);
  }
#endif
  return __builtin_convertvector(words, Lanes);
}

// v, with every NaN replaced by the type's one NaN: positive, quiet, payload 0. Integers stay as they are.
template <class T, class Vector>
static inline Vector withOneNaN(Vector v) {
  if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    typedef Bits Patterns __attribute__((vector_size(sizeof(Vector))));
    const Patterns nan = Patterns{} + (sizeof(T) == 8 ? static_cast<Bits>(0x7ff8000000000000u) : static_cast<Bits>(0x7fc00000u));
    return v != v ? reinterpret_cast<Vector>(nan) : v;
  } else {
    return v;
  }
}

// The type that elements are added in.
template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<BF16> {
  using type = float;
};
template <>
struct AccumulatorOf<F16> {
  using type = float;
};
template <>
struct AccumulatorOf<E4M3> {
  using type = float;
};
template <>
struct AccumulatorOf<E5M2> {
  using type = float;
};

// Integers are added and multiplied as unsigned, which wraps.
template <class A, bool kIsInteger = std::is_integral_v<A>>
struct ArithmeticOf {
  using type = A;
};
template <class A>
struct ArithmeticOf<A, true> {
  using type = std::make_unsigned_t<A>;
};

template <class A, class Isa, uint32_t kElements = kTileElements>
struct Accumulators {
  static constexpr int kAllBytes = static_cast<int>(kElements * sizeof(A));
  static constexpr int kBytes = kAllBytes < Isa::kVectorBytes ? kAllBytes : Isa::kVectorBytes;
  static constexpr int kVectors = kAllBytes / kBytes;
  typedef A Vector __attribute__((vector_size(kBytes)));
  typedef typename ArithmeticOf<A>::type Arithmetic __attribute__((vector_size(kBytes)));
  Vector v[kVectors];

  void fold(Reduction kind, const Accumulators& other) {
    switch (kind) {
      case Reduction::kProd:
        for (int i = 0; i < kVectors; i++) v[i] = (Vector)((Arithmetic)v[i] * (Arithmetic)other.v[i]);
        break;
      case Reduction::kMin:
        for (int i = 0; i < kVectors; i++) v[i] = ((v[i] <= other.v[i]) | (v[i] != v[i])) ? v[i] : other.v[i];
        break;
      case Reduction::kMax:
        for (int i = 0; i < kVectors; i++) v[i] = ((v[i] >= other.v[i]) | (v[i] != v[i])) ? v[i] : other.v[i];
        break;
      default:
        for (int i = 0; i < kVectors; i++) v[i] = (Vector)((Arithmetic)v[i] + (Arithmetic)other.v[i]);
    }
  }
  // factor - 0 is factor in all lanes; 0 + factor would turn -0 into 0.
  void multiply(A factor) {
    const Arithmetic f = static_cast<typename ArithmeticOf<A>::type>(factor) - Arithmetic{};
    for (int i = 0; i < kVectors; i++) v[i] = (Vector)((Arithmetic)v[i] * f);
  }
  // Integers: with truncation.
  void divide(A divisor) {
    const Vector d = divisor - Vector{};
    for (int i = 0; i < kVectors; i++) v[i] = v[i] / d;
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_ACCUMULATORS_H_
