// Rows in kE4M3, with a scale for each block or one for all: the formulas of railhead.h's RH_EP_SCALE_...
#ifndef RAILHEAD_KERNELS_HOST_EP_SCALES_H_
#define RAILHEAD_KERNELS_HOST_EP_SCALES_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "host/elements.h"
#include "host/ep_row_kernels.h"

namespace railhead::host {

// Converts rows of type T, which must be finite.
template <class T, class Isa>
struct ScaledRow {
  using Sum = Accumulators<float, Isa>;

  static void write(const EpRowFormat& f, const char* x, char* wire) {
    if (f.scale == EpScale::kStatic) {
      return writeBlock(x, f.hidden, wire, [&](Sum* s) { s->divide(f.staticScale); });
    }
    char* scales = wire + epScaleOffset(f);
    for (uint32_t first = 0; first < f.hidden; first += kEpScaleBlock) {
      const char* block = x + first * sizeof(T);
      const uint32_t left = f.hidden - first, count = left < kEpScaleBlock ? left : kEpScaleBlock;
      const uint32_t amax = largest(block, count);
      const float factor = f.scale == EpScale::kF32 ? linear(amax, &scales) : power(amax, &scales);
      writeBlock(block, count, wire + first, [factor](Sum* s) { s->multiply(factor); });
    }
  }

 private:
  static constexpr float kLargestE4M3 = 448;

  template <class Scale>
  static void writeBlock(const char* x, size_t count, char* to, Scale scale) {
    for (size_t at = 0, tile = 0; at < count; at += kTileElements, tile++) {
      Sum s = Convert<T, Isa>::widen(loadTileOf<RawTile<T>, Isa>(x, tile, count));
      scale(&s);
      storeTileOf<Isa>(to, tile, count, Convert<E4M3, Isa>::narrow(s));
    }
  }

  // The bits of the largest magnitude, which is at least 1e-4. Compared as integers, which have the same order as the magnitudes:
  // subnormal numbers count in every denormal mode of the process.
  static uint32_t largest(const char* x, size_t count) {
    typedef int32_t Words __attribute__((vector_size(Isa::kVectorBytes)));
    Words max = {};
    for (size_t at = 0, tile = 0; at < count; at += kTileElements, tile++) {
      const Sum s = Convert<T, Isa>::widen(loadTileOf<RawTile<T>, Isa>(x, tile, count));
      for (int i = 0; i < Sum::kVectors; i++) {
        const Words magnitude = reinterpret_cast<Words>(s.v[i]) & 0x7fffffff;
        max = magnitude > max ? magnitude : max;
      }
    }
    return largestOf(max);
  }
  // Reduces in vectors of 16 bytes, then the last four words.
  template <class Words>
  static uint32_t largestOf(const Words& words) {
    typedef int32_t Quad __attribute__((vector_size(16)));
    Quad quads[sizeof words / 16];
    memcpy(quads, &words, sizeof words);
    Quad max = Quad{} + 0x38d1b717;  // 1e-4
    for (const Quad& q : quads) max = q > max ? q : max;
    const int32_t a = max[0] > max[1] ? max[0] : max[1], b = max[2] > max[3] ? max[2] : max[3];
    return static_cast<uint32_t>(a > b ? a : b);
  }

  // Both write the next scale and return the factor for x.
  static float linear(uint32_t amaxBits, char** scales) {
    const float amax = fromBits(amaxBits), scale = amax / kLargestE4M3;
    memcpy(*scales, &scale, sizeof scale);
    *scales += sizeof scale;
    return kLargestE4M3 / amax;
  }
  // The smallest power of two that brings amax to 448 = 1.75 * 2^8 or below. Its inverse is a normal number, 2^-120 to 2^22, since 1e-4
  // <= amax < 2^128. A product with it is exact or below 2^-126. The latter is 0 in kE4M3, so it does not matter whether the product is
  // rounded or flushed to zero.
  static float power(uint32_t amaxBits, char** scales) {
    const uint32_t exponent = (amaxBits >> 23) - 8 + ((amaxBits & 0x7fffffu) > 0x600000u ? 1 : 0);
    *(*scales)++ = static_cast<char>(exponent);
    return fromBits((254 - exponent) << 23);
  }
  static float fromBits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_EP_SCALES_H_
