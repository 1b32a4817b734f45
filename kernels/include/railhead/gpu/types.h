// Element types of the GPU kernels: one element's bits to the type it is added in and back, with the bits of the CPU target (host/elements.h).
#ifndef RAILHEAD_KERNELS_GPU_TYPES_H_
#define RAILHEAD_KERNELS_GPU_TYPES_H_

#include <stdint.h>
#include <string.h>

#include "railhead/base/target.h"

namespace railhead::gpu {

template <class To, class From>
RH_FN To bitsOf(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// A is the type that elements are added in. narrow rounds to nearest, ties to even, and makes every NaN the type's one NaN.
struct F32 {
  using Bits = uint32_t;
  using A = float;
  RH_FN static A widen(Bits b) { return bitsOf<float>(b); }
  RH_FN static Bits narrow(A v) { return v != v ? 0x7fc00000u : bitsOf<uint32_t>(v); }
};
struct F64 {
  using Bits = uint64_t;
  using A = double;
  RH_FN static A widen(Bits b) { return bitsOf<double>(b); }
  RH_FN static Bits narrow(A v) { return v != v ? 0x7ff8000000000000u : bitsOf<uint64_t>(v); }
};
// Integers are added and multiplied as unsigned, which wraps.
template <class I, class U>
struct Integer {
  using Bits = U;
  using A = I;
  RH_FN static A widen(Bits b) { return static_cast<A>(b); }
  RH_FN static Bits narrow(A v) { return static_cast<Bits>(v); }
};
using I8 = Integer<int8_t, uint8_t>;
using U8 = Integer<uint8_t, uint8_t>;
using I32 = Integer<int32_t, uint32_t>;
using I64 = Integer<int64_t, uint64_t>;
using U64 = Integer<uint64_t, uint64_t>;

struct BF16 {
  using Bits = uint16_t;
  using A = float;
  static constexpr uint32_t kInfinity = 0x7f80, kNaN = 0x7fc0;
  RH_FN static A widen(Bits b) { return bitsOf<float>(uint32_t{b} << 16); }
  RH_FN static Bits narrow(A v) {
    const uint32_t bits = bitsOf<uint32_t>(v);
    return static_cast<Bits>(v != v ? kNaN : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
  // Two elements, of which none is a NaN.
  RH_FN static uint32_t narrowPair(A low, A high) {
#if defined(__CUDA_ARCH__)
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return uint32_t{narrow(low)} | uint32_t{narrow(high)} << 16;
#endif
  }
};

// A type of 1 + kExponent + kMantissa bits. kInfinities: infinities are above the finite values and NaNs above those, as in IEEE 754. Else
// the only NaN is the pattern of all ones, and there are no infinities. kSaturates: what is too large becomes the largest finite value.
template <class B, int kExponent, int kMantissa, bool kInfinities, bool kSaturates>
struct SmallFloat {
  using Bits = B;
  using A = float;
  static constexpr int kBits = kExponent + kMantissa;  // without the sign
  static constexpr uint32_t kMagnitude = (1u << kBits) - 1;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = 127 - ((1u << (kExponent - 1)) - 1);
  static constexpr uint32_t kInfinity = kMagnitude - (kMagnitude >> kExponent);  // all ones in the exponent
  static constexpr uint32_t kMaxFinite = kInfinities ? kInfinity - 1 : kMagnitude - 1;
  static constexpr uint32_t kNaN = kInfinities ? kInfinity | 1u << (kMantissa - 1) : kMagnitude;

  // Exact. A subnormal is m * 2^(1 - bias): m behind the binary point of 2^(1 - bias), minus 2^(1 - bias).
  RH_FN static A widen(Bits b) {
    const uint32_t w = b, magnitude = w & kMagnitude;
    const uint32_t one = (kRebias + 1) << 23;
    uint32_t bits = (magnitude << kShift) + (kRebias << 23);
    if (magnitude < (1u << kMantissa)) bits = bitsOf<uint32_t>(bitsOf<float>((magnitude << kShift) + one) - bitsOf<float>(one));
    if (kInfinities ? magnitude >= kInfinity : magnitude == kNaN) bits |= kInfinities ? 0x7f800000u : 0x7fc00000u;
    return bitsOf<float>(bits | (w >> kBits) << 31);
  }
  // In f32, adding a number whose last place is the type's smallest subnormal rounds to a multiple of that subnormal.
  RH_FN static Bits narrow(A v) {
    const uint32_t bits = bitsOf<uint32_t>(v), magnitude = bits & 0x7fffffffu;
    const uint32_t rounded = magnitude + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1u);
    const uint32_t magic = (kRebias + 1 + static_cast<uint32_t>(kShift)) << 23;
    uint32_t small = (rounded >> kShift) - (kRebias << kMantissa);
    if (magnitude < (kRebias + 1) << 23) small = bitsOf<uint32_t>(bitsOf<float>(magnitude) + bitsOf<float>(magic)) - magic;
    if (small > kMaxFinite) small = kSaturates ? kMaxFinite : kInfinity;
    if (kSaturates && kInfinities && magnitude == 0x7f800000u) small = kInfinity;
    small |= (bits >> 31) << kBits;
    return static_cast<Bits>(magnitude > 0x7f800000u ? kNaN : small);
  }
};
using E4M3 = SmallFloat<uint8_t, 4, 3, false, true>;
using E5M2 = SmallFloat<uint8_t, 5, 2, true, true>;

struct F16 : SmallFloat<uint16_t, 5, 10, true, false> {
#if defined(__CUDA_ARCH__)
  RH_FN static A widen(Bits b) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(b));
    return v;
  }
#endif
  // Two elements, of which none is a NaN.
  RH_FN static uint32_t narrowPair(A low, A high) {
#if defined(__CUDA_ARCH__)
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return uint32_t{narrow(low)} | uint32_t{narrow(high)} << 16;
#endif
  }
};

template <class T>
struct IsFloating {
  static constexpr bool value = true;
};
template <class I, class U>
struct IsFloating<Integer<I, U>> {
  static constexpr bool value = false;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_TYPES_H_
