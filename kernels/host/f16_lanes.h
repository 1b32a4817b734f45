// f16 and FP8 in vectors of f32, by the instructions that convert f16: F16C, which all processors with AVX2 have, and AVX-512. They round as
// the standard environment does, and neither read nor write the modes and exception flags of subnormal numbers.
#ifndef RAILHEAD_KERNELS_HOST_F16_LANES_H_
#define RAILHEAD_KERNELS_HOST_F16_LANES_H_

#if defined(__x86_64__)

#include <stdint.h>

#include "host/accumulators.h"

namespace railhead::host {

// widen takes a vector of a type's elements to f32, exactly. narrow rounds to nearest, ties to even, and every NaN to the one NaN.
template <class Isa>
struct F16Lanes {
  using V = Vectors<Isa::kVectorBytes>;
  using Float = typename V::Float;
  using Word = typename V::Word;
  using Half = typename V::Half;
  using Lanes = typename V::SignedHalf;
  using Byte = typename V::Byte;
  using Char = typename V::Char;
  using SignedWord = typename V::SignedWord;
  enum Rounding { kToNearest = 8, kTowardsZero = 11 };  // without exceptions
  static constexpr int16_t kAllLanes = -1;              // a mask

  static Float widen(Lanes halves) {
    if constexpr (Isa::kVectorBytes == 64) {
      return __builtin_ia32_vcvtph2ps512_mask(halves, Float{}, kAllLanes, kToNearest);
    } else {
      return __builtin_ia32_vcvtph2ps256(halves);
    }
  }
  static Lanes narrow(Float f) { return convert<kToNearest>(withOneNaN<float>(f)); }

  template <Rounding kRounding>
  static Lanes convert(Float f) {
    if constexpr (Isa::kVectorBytes == 64) {
      return __builtin_ia32_vcvtps2ph512_mask(f, kRounding, Lanes{}, kAllLanes);
    } else {
      return __builtin_ia32_vcvtps2ph256(f, kRounding);
    }
  }

  // Bytes as halves, with their signs or with zeros above them, and halves as bytes. For these too GCC 12 makes several instructions of
  // __builtin_convertvector.
  static Lanes withSigns(Byte bytes) {
    if constexpr (Isa::kVectorBytes == 64) return (Lanes)__builtin_ia32_pmovsxbw256_mask((Char)bytes, Lanes{}, kAllLanes);
    else return (Lanes)__builtin_ia32_pmovsxbw128(sixteen(bytes));
  }
  static Lanes withZeros(Byte bytes) {
    if constexpr (Isa::kVectorBytes == 64) return (Lanes)__builtin_ia32_pmovzxbw256_mask((Char)bytes, Lanes{}, kAllLanes);
    else return (Lanes)__builtin_ia32_pmovzxbw128(sixteen(bytes));
  }
  // The halves are at most 255.
  static Byte bytesOf(Half halves) {
    if constexpr (Isa::kVectorBytes == 64) {
      return (Byte)__builtin_ia32_pmovwb256_mask((Lanes)halves, Char{}, kAllLanes);
    } else {
      typedef long long Pair __attribute__((vector_size(16)));
      const Pair twice = (Pair)__builtin_ia32_packuswb128((Lanes)halves, (Lanes)halves);
      return (Byte)twice[0];
    }
  }

  // The power of two at or below a magnitude, which may be an infinity or a NaN. At least 2^kSmallest.
  template <int kSmallest>
  static Word powerBelow(Word magnitude) { return larger(magnitude & 0x7f800000u, Word{} + bitsOfPower(kSmallest)); }
  // Rounds magnitudes below 2^23 powers to kMantissa bits behind the bit of their power. The last place of `large` is the place to round at,
  // so adding it rounds. Infinities stay.
  template <int kMantissa>
  static Float roundMagnitude(Word magnitude, Word power) {
    const Float large = reinterpret_cast<Float>(power + (static_cast<uint32_t>(23 - kMantissa) << 23));
    return (reinterpret_cast<Float>(magnitude) + large) - large;
  }
  static Word smaller(Word a, Word b) {
    if constexpr (Isa::kVectorBytes == 64) return (Word)__builtin_ia32_pminud512_mask((SignedWord)a, (SignedWord)b, SignedWord{}, kAllLanes);
    return a < b ? a : b;
  }
  static Word larger(Word a, Word b) {
    if constexpr (Isa::kVectorBytes == 64) return (Word)__builtin_ia32_pmaxud512_mask((SignedWord)a, (SignedWord)b, SignedWord{}, kAllLanes);
    return a > b ? a : b;
  }
  static constexpr uint32_t bitsOfPower(int exponent) { return static_cast<uint32_t>(127 + exponent) << 23; }

 private:
  typedef char Char16 __attribute__((vector_size(16)));
  static Char16 sixteen(Byte bytes) {
    typedef long long Pair __attribute__((vector_size(16)));
    return (Char16)Pair{(long long)bytes, 0};
  }
};

// The upper half of an f16.
template <class Isa>
struct E5M2Lanes {
  using F16 = F16Lanes<Isa>;
  using Float = typename F16::Float;
  using Word = typename F16::Word;
  using Half = typename F16::V::Half;
  using Lanes = typename F16::V::Byte;

  static Float widen(Lanes bytes) {
    return F16::widen(F16::withZeros(bytes) << 8);
  }
  static Lanes narrow(Float f) {
    const Word bits = reinterpret_cast<Word>(withOneNaN<float>(f));
    const Word magnitude = bits & 0x7fffffffu;
    // Larger numbers are rounded at the place of 2^15, or not at all. They are above the type's largest in any case.
    const Word power = F16::smaller(F16::template powerBelow<-14>(magnitude), Word{} + F16::bitsOfPower(15));
    const auto rounded = reinterpret_cast<Word>(F16::template roundMagnitude<2>(magnitude, power));
    // Finite numbers above f16's largest become that, the upper half of which is the largest of this type.
    const auto half = F16::template convert<F16::kTowardsZero>(reinterpret_cast<Float>(rounded | (bits & 0x80000000u)));
    return F16::bytesOf(reinterpret_cast<Half>(half) >> 8);
  }
};

// An f16 2^8 times as small has the same mantissa 7 bits higher, subnormal numbers too.
template <class Isa>
struct E4M3Lanes {
  using F16 = F16Lanes<Isa>;
  using Float = typename F16::Float;
  using Word = typename F16::Word;
  using Half = typename F16::V::Half;
  using Lanes = typename F16::V::Byte;

  static Float widen(Lanes bytes) {
    // With their signs, bytes become words whose upper bits all are the sign.
    const Half half = (reinterpret_cast<Half>(F16::withSigns(bytes)) << 7) & uint16_t{0xbf80};
    const auto isNaN = reinterpret_cast<Half>((half & uint16_t{0x3f80}) == uint16_t{0x3f80});
    return F16::widen(reinterpret_cast<typename F16::Lanes>(half | (isNaN & uint16_t{0x7c00}))) * 256.f;
  }
  static Lanes narrow(Float f) {
    const Word bits = reinterpret_cast<Word>(f);
    const Word magnitude = F16::smaller(bits & 0x7fffffffu, Word{} + 0x43e00000u);  // 448, the largest
    const Float rounded = F16::template roundMagnitude<3>(magnitude, F16::template powerBelow<-6>(magnitude)) * (1.f / 256);
    const auto finite = reinterpret_cast<Float>(reinterpret_cast<Word>(rounded) | (bits & 0x80000000u));
    const Float nan = Float{} + 480.f / 256;  // 480 would follow the largest
    const auto half = reinterpret_cast<Half>(F16::template convert<F16::kToNearest>(f != f ? nan : finite));
    // Bit 14 is 0. Twice the magnitude puts its bits beside the sign.
    return F16::bytesOf((half + (half & uint16_t{0x7fff})) >> 8);
  }
};

}  // namespace railhead::host

#endif
#endif  // RAILHEAD_KERNELS_HOST_F16_LANES_H_
