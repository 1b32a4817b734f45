// The small floating-point types by their definitions, in exact arithmetic.
#ifndef RAILHEAD_KERNELS_TESTDATA_FORMATS_H_
#define RAILHEAD_KERNELS_TESTDATA_FORMATS_H_

#include <math.h>
#include <stdint.h>

#include "host/types.h"

// The meaning of a type's bits, by its definition.
template <class T, int kExponent, int kMantissa, bool kInfinities, bool kSaturates>
struct Format {
  using Type = T;
  static constexpr int kBits = kExponent + kMantissa;
  static constexpr uint32_t kSign = 1u << kBits;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;  // if the type has infinities
  static constexpr uint32_t kLargest = kInfinities ? kInfinity - 1 : kSign - 2;

  // The magnitude of a pattern, or of the one that would follow the largest. From a table: a call of ldexp takes long where the upper
  // halves of vector registers are in use, and a search makes up to 15.
  static double magnitude(uint32_t pattern) {
    static const Magnitudes all;
    return all.of[pattern];
  }
  struct Magnitudes {
    double of[kSign + 1];
    Magnitudes() {
      for (uint32_t p = 0; p <= kSign; p++) of[p] = byDefinition(p);
    }
  };
  static double byDefinition(uint32_t pattern) {
    const uint32_t exponent = pattern >> kMantissa, mantissa = pattern & ((1u << kMantissa) - 1);
    if (exponent == 0) return ldexp(mantissa, 1 - kBias - kMantissa);
    return ldexp((1u << kMantissa) + mantissa, static_cast<int>(exponent) - kBias - kMantissa);
  }
  // The pattern of every NaN result: positive, quiet, payload 0.
  static constexpr uint32_t kNaN = kInfinities ? kInfinity | 1u << (kMantissa - 1) : kSign - 1;
  static bool isNaN(uint32_t pattern) { return (pattern & (kSign - 1)) > (kInfinities ? kInfinity : kLargest); }
  static bool isInfinite(uint32_t pattern) { return kInfinities && (pattern & (kSign - 1)) == kInfinity; }

  // The nearest value, ties to even, in exact double arithmetic. The value that would follow the largest one counts as a neighbour.
  static uint32_t nearest(double f) {
    const uint32_t sign = signbit(f) ? kSign : 0;
    if (isinf(f)) return sign | (kInfinities ? kInfinity : kLargest);
    const double exact = fabs(f);
    uint32_t below = 0, above = kLargest + 1;  // magnitude(below) <= exact < magnitude(above), or above is beyond all
    while (above - below > 1) {
      const uint32_t middle = (below + above) / 2;
      (magnitude(middle) <= exact ? below : above) = middle;
    }
    const double down = exact - magnitude(below), up = magnitude(above) - exact;
    const uint32_t rounded = up < down || (up == down && (below & 1) != 0) ? above : below;
    if (rounded <= kLargest) return sign | rounded;
    return sign | (kSaturates ? kLargest : kInfinity);
  }
};
using FormatBF16 = Format<railhead::host::BF16, 8, 7, true, false>;
using FormatF16 = Format<railhead::host::F16, 5, 10, true, false>;
using FormatE4M3 = Format<railhead::host::E4M3, 4, 3, false, true>;
using FormatE5M2 = Format<railhead::host::E5M2, 5, 2, true, true>;

#endif  // RAILHEAD_KERNELS_TESTDATA_FORMATS_H_
