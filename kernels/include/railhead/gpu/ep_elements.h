// Elements of rows on a GPU: conversions to the wire, FP8 with its scales, weighted sums. The bits are those of host/ep_rows.h and host/ep_scales.h.
#ifndef RAILHEAD_KERNELS_GPU_EP_ELEMENTS_H_
#define RAILHEAD_KERNELS_GPU_EP_ELEMENTS_H_

#include "railhead/gpu/elements.h"
#include "railhead/gpu/ep_call.h"
#include "railhead/gpu/types.h"

namespace railhead::gpu {

// Calls f with a value of the type (types.h) that rows of `type` have: F32, BF16 or F16.
template <class F>
RH_FN void withEpType(EpType type, F f) {
  switch (type) {
    case EpType::kF32: return f(F32{});
    case EpType::kBF16: return f(BF16{});
    default: return f(F16{});
  }
}

// kN elements as they are added.
template <uint32_t kN>
struct Floats {
  float v[kN];
};

// Up to 16 bytes at any address; fast where they are a whole aligned tile or half of one.
RH_FN Raw16 loadPiece(const char* p, uint32_t bytes) {
  if (bytes == 8 && (reinterpret_cast<uintptr_t>(p) & 7) == 0) {
    uint64_t v;
#if defined(__CUDACC__)
    v = *reinterpret_cast<const uint64_t*>(p);
#else
    memcpy(&v, p, sizeof v);
#endif
    return {{static_cast<uint32_t>(v), static_cast<uint32_t>(v >> 32), 0, 0}};
  }
  return loadTile<false>(p, bytes);
}
RH_FN void storePiece(char* p, uint32_t bytes, const Raw16& raw) {
  if (bytes == 8 && (reinterpret_cast<uintptr_t>(p) & 7) == 0) {
    const uint64_t v = raw.w[0] | uint64_t{raw.w[1]} << 32;
#if defined(__CUDACC__)
    *reinterpret_cast<uint64_t*>(p) = v;
#else
    memcpy(p, &v, sizeof v);
#endif
    return;
  }
  storeTile<false>(p, bytes, raw);
}

// Element i of 16 bytes.
template <class T>
RH_FN typename T::Bits epElement(const Raw16& raw, uint32_t i) {
  constexpr uint32_t kPerWord = 4 / sizeof(typename T::Bits);
  return static_cast<typename T::Bits>(raw.w[i / kPerWord] >> (8 * sizeof(typename T::Bits) * (i % kPerWord)));
}
template <class T>
RH_FN void epSetElement(Raw16* raw, uint32_t i, typename T::Bits bits) {
  constexpr uint32_t kPerWord = 4 / sizeof(typename T::Bits);
  raw->w[i / kPerWord] |= static_cast<uint32_t>(bits) << (8 * sizeof(typename T::Bits) * (i % kPerWord));
}

// The first n elements of kN from p on; the others are 0.
template <class T, uint32_t kN>
RH_FN Floats<kN> loadFloats(const char* p, uint32_t n) {
  constexpr uint32_t kSize = sizeof(typename T::Bits), kPiece = kN * kSize < 16 ? kN : 16 / kSize;
  Floats<kN> f;
  RH_UNROLL
  for (uint32_t at = 0; at < kN; at += kPiece) {
    const uint32_t left = n > at ? n - at : 0, count = left < kPiece ? left : kPiece;
    const Raw16 raw = count == 0 ? Raw16{} : loadPiece(p + at * kSize, count * kSize);
    RH_UNROLL
    for (uint32_t i = 0; i < kPiece; i++) f.v[at + i] = T::widen(epElement<T>(raw, i));
  }
  return f;
}
template <class T, uint32_t kN>
RH_FN void storeFloats(char* p, uint32_t n, const Floats<kN>& f) {
  constexpr uint32_t kSize = sizeof(typename T::Bits), kPiece = kN * kSize < 16 ? kN : 16 / kSize;
  RH_UNROLL
  for (uint32_t at = 0; at < kN; at += kPiece) {
    const uint32_t left = n > at ? n - at : 0, count = left < kPiece ? left : kPiece;
    if (count == 0) continue;
    Raw16 raw = {{0, 0, 0, 0}};
    RH_UNROLL
    for (uint32_t i = 0; i < kPiece; i++) epSetElement<T>(&raw, i, T::narrow(f.v[at + i]));
    storePiece(p + at * kSize, count * kSize, raw);
  }
}

// Whether each kN elements of rows of T from p on are whole and aligned.
template <class T, uint32_t kN>
RH_FN bool epAreEven(const char* p, uint32_t hidden) {
  constexpr uint32_t kBytes = kN * sizeof(typename T::Bits);
  return (reinterpret_cast<uintptr_t>(p) & (kBytes < 16 ? kBytes - 1 : 15)) == 0 && hidden % kN == 0;
}
// kN elements as they are in memory: a thread loads several of them before it widens one.
template <class T, uint32_t kN>
struct EpPieces {
  static constexpr uint32_t kSize = sizeof(typename T::Bits), kPiece = kN * kSize < 16 ? kN : 16 / kSize, kCount = kN / kPiece;
  Raw16 raw[kCount];
};
template <class T, uint32_t kN>
RH_FN EpPieces<T, kN> loadEvenPieces(const char* p) {
  using P = EpPieces<T, kN>;
  P pieces;
  RH_UNROLL
  for (uint32_t i = 0; i < P::kCount; i++) pieces.raw[i] = P::kPiece * P::kSize == 8 ? loadPiece(p, 8) : loadTile<true>(p + i * 16, 16);
  return pieces;
}
template <class T, uint32_t kN>
RH_FN Floats<kN> floatsOf(const EpPieces<T, kN>& pieces) {
  using P = EpPieces<T, kN>;
  Floats<kN> f;
  RH_UNROLL
  for (uint32_t i = 0; i < kN; i++) f.v[i] = T::widen(epElement<T>(pieces.raw[i / P::kPiece], i % P::kPiece));
  return f;
}
template <class T, uint32_t kN>
RH_FN void storeEvenFloats(char* p, const Floats<kN>& f) {
  constexpr uint32_t kSize = sizeof(typename T::Bits), kPiece = kN * kSize < 16 ? kN : 16 / kSize;
  RH_UNROLL
  for (uint32_t at = 0; at < kN; at += kPiece) {
    Raw16 raw = {{0, 0, 0, 0}};
    RH_UNROLL
    for (uint32_t i = 0; i < kPiece; i++) epSetElement<T>(&raw, i, T::narrow(f.v[at + i]));
    if (kPiece * kSize == 8) {
      storePiece(p, 8, raw);
    } else {
      storeTile<true>(p + at * kSize, 16, raw);
    }
  }
}
// Of a row that is not even, or its end: n of kN elements.
template <class T, uint32_t kN>
RH_COLD EpPieces<T, kN> loadOddPieces(const char* p, uint32_t n) {
  using P = EpPieces<T, kN>;
  P pieces = {};
  RH_UNROLL
  for (uint32_t i = 0; i < P::kCount; i++) {
    const uint32_t left = n > i * P::kPiece ? n - i * P::kPiece : 0, count = left < P::kPiece ? left : P::kPiece;
    if (count != 0) pieces.raw[i] = loadPiece(p + i * 16, count * P::kSize);
  }
  return pieces;
}
template <class T, uint32_t kN>
RH_COLD void storeOddFloats(char* p, uint32_t n, Floats<kN> f) {
  storeFloats<T, kN>(p, n, f);
}

// A tile of 16 bytes of elements of T, as floats and back.
template <class T>
struct EpTile {
  static constexpr uint32_t kElements = 16 / sizeof(typename T::Bits);
  using Sum = Floats<kElements>;

  RH_FN static Sum widen(const Raw16& raw) {
    Sum s;
    RH_UNROLL
    for (uint32_t i = 0; i < kElements; i++) s.v[i] = T::widen(epElement<T>(raw, i));
    return s;
  }
  // Elements from n on are 0.
  RH_FN static Raw16 narrow(const Sum& s, uint32_t n) {
    Raw16 raw = {{0, 0, 0, 0}};
    RH_UNROLL
    for (uint32_t i = 0; i < kElements; i++) {
      if (i < n) epSetElement<T>(&raw, i, T::narrow(s.v[i]));
    }
    return raw;
  }
};

// The scale of a block, from the bits of its largest magnitude, which is at least 1e-4; and the factor for x.
constexpr uint32_t kEpLeast = 0x38d1b717u;  // 1e-4
constexpr float kEpLargestE4M3 = 448;
RH_FN float epLinearScale(uint32_t largest) { return bitsOf<float>(largest) / kEpLargestE4M3; }
RH_FN float epLinearFactor(uint32_t largest) { return kEpLargestE4M3 / bitsOf<float>(largest); }
RH_FN uint32_t epPowerScale(uint32_t largest) { return (largest >> 23) - 8 + ((largest & 0x7fffffu) > 0x600000u ? 1 : 0); }
RH_FN float epPowerFactor(uint32_t largest) { return bitsOf<float>((254 - epPowerScale(largest)) << 23); }

// Bits of a type that tell what is not finite. If all of `exponent` are set, the value is an infinity if those of `mantissa` are 0, else a NaN.
// E4M3's only NaN has all seven bits set.
struct EpSpecials {
  uint32_t exponent, mantissa, sign;
  RH_FN static EpSpecials of(EpType t) {
    switch (t) {
      case EpType::kF32: return {0x7f800000, 0x7fffff, 0x80000000};
      case EpType::kBF16: return {0x7f80, 0x7f, 0x8000};
      case EpType::kF16: return {0x7c00, 0x3ff, 0x8000};
      default: return {0x7f, 0x7f, 0x80};
    }
  }
  RH_FN bool isSpecial(uint32_t bits) const { return (bits & exponent) == exponent; }
  // The value of EpProblems::nonFinite.
  RH_FN uint32_t what(uint32_t bits) const { return (bits & mantissa) != 0 ? 0 : (bits & sign) != 0 ? 2 : 1; }
  static constexpr uint32_t kScale = 3;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_ELEMENTS_H_
