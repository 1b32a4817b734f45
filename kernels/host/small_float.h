// Conversions between f32 and the floating-point types of 16 and 8 bits, on vectors of 32-bit words.
#ifndef RAILHEAD_KERNELS_HOST_SMALL_FLOAT_H_
#define RAILHEAD_KERNELS_HOST_SMALL_FLOAT_H_

#include <stdint.h>

namespace railhead::host {

// What a value becomes that is too large for the type.
enum class Overflow { kInfinity, kSaturate };

// A type of 1 + kExponent + kMantissa bits. kInfinities: infinities are above the finite values and NaNs above those, as in IEEE 754.
// Else the only NaN is the pattern of all ones, and there are no infinities.
template <int kExponent, int kMantissa, bool kInfinities, Overflow kOverflow>
struct SmallFloat {
  static constexpr int kBits = kExponent + kMantissa;  // without the sign
  static constexpr uint32_t kMagnitude = (1u << kBits) - 1;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias);
  static constexpr uint32_t kInfinity = kMagnitude - (kMagnitude >> kExponent);  // all ones in the exponent
  static constexpr uint32_t kMaxFinite = kInfinities ? kInfinity - 1 : kMagnitude - 1;
  static constexpr uint32_t kNaN = kInfinities ? kInfinity | 1u << (kMantissa - 1) : kMagnitude;

  // Exact. Does not rely on subnormal f32 numbers, which a process may have switched off.
  template <class Float, class Word>
  static Float widen(Word w) {
    const Word magnitude = w & kMagnitude;
    const Word normal = (magnitude << kShift) + (kRebias << 23);
    // A subnormal is m * 2^(1 - bias). So put m behind the binary point of 2^(1 - bias), then subtract 2^(1 - bias).
    const Word one = Word{} + ((kRebias + 1) << 23);
    const Word above = (magnitude << kShift) + one;
    const Word subnormal = fromFloat<Word>(asFloat<Float>(above) - asFloat<Float>(one));
    Word bits = select(magnitude < (1u << kMantissa), subnormal, normal);
    if constexpr (kInfinities) {
      bits |= Word(magnitude >= kInfinity) & 0x7f800000u;
    } else {
      bits |= Word(magnitude == kNaN) & 0x7fc00000u;
    }
    return asFloat<Float>(bits | (w >> kBits) << 31);
  }

  // Nearest, ties to even. Every NaN becomes +kNaN.
  template <class Word, class Float>
  static Word narrow(Float f) {
    const Word bits = fromFloat<Word>(f);
    const Word magnitude = bits & 0x7fffffffu;
    const Word rounded = magnitude + ((1u << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1u);
    const Word normal = (rounded >> kShift) - (kRebias << kMantissa);
    // In f32, adding a number whose last place is the type's smallest subnormal rounds to a multiple of that subnormal.
    const Word magic = Word{} + ((kRebias + 1 + static_cast<uint32_t>(kShift)) << 23);
    const Word subnormal = fromFloat<Word>(asFloat<Float>(magnitude) + asFloat<Float>(magic)) - magic;
    Word small = select(magnitude < ((kRebias + 1) << 23), subnormal, normal);
    if constexpr (kOverflow == Overflow::kInfinity) {
      small = select(small > kMaxFinite, Word{} + kInfinity, small);
    } else {
      small = select(small > kMaxFinite, Word{} + kMaxFinite, small);
      if constexpr (kInfinities) small = select(magnitude == 0x7f800000u, Word{} + kInfinity, small);
    }
    return select(magnitude > 0x7f800000u, Word{} + kNaN, small | (bits >> 31) << kBits);
  }

 private:
  template <class Float, class Word>
  static Float asFloat(Word w) {
    return reinterpret_cast<Float>(w);
  }
  template <class Word, class Float>
  static Word fromFloat(Float f) {
    return reinterpret_cast<Word>(f);
  }
  // mask: all ones or all zeros in each lane.
  template <class Mask, class Word>
  static Word select(Mask mask, Word a, Word b) {
    const Word m = reinterpret_cast<Word>(mask);
    return (a & m) | (b & ~m);
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_SMALL_FLOAT_H_
