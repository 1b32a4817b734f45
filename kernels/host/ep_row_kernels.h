// Rows of MoE dispatch and combine: the layout of a token on the wire, and the functions on rows. Only these functions know element
// types; the protocol moves bytes.
#ifndef RAILHEAD_KERNELS_HOST_EP_ROW_KERNELS_H_
#define RAILHEAD_KERNELS_HOST_EP_ROW_KERNELS_H_

#include <stdint.h>

#include "host/types.h"

namespace railhead::host {

// Elements that share a scale; the last block of a row may be shorter.
constexpr uint32_t kEpScaleBlock = 128;

// The values of railhead.h's RH_EP_SCALE_...
enum class EpScale : uint32_t { kF32, kUE8M0, kStatic };

struct EpRowFormat {
  Type in;        // of x: kF32, kBF16, kF16 or kE4M3; if kE4M3, wire is kE4M3 too
  Type wire;      // kF32, kBF16, kF16, kE4M3
  Type combine;   // of partial sums: kF32, kBF16 or kF16
  EpScale scale;  // used if wire is kE4M3
  float staticScale;
  uint32_t hidden;  // elements of a row, at least 1
};

// A row on the wire: the elements; then, if there is a scale for each block, zeros up to a multiple of 4, and the scales. The functions
// are static, since a shared copy could be that of another instruction set.
static constexpr uint32_t epScaleColumns(const EpRowFormat& f) {
  return f.wire == Type::kE4M3 && f.scale != EpScale::kStatic ? (f.hidden + kEpScaleBlock - 1) / kEpScaleBlock : 0;
}
static constexpr uint32_t epScaleBytes(const EpRowFormat& f) { return epScaleColumns(f) * (f.scale == EpScale::kF32 ? 4 : 1); }
static constexpr uint32_t epScaleOffset(const EpRowFormat& f) {
  const uint32_t elements = f.hidden * bytesOf(f.wire);
  return epScaleColumns(f) == 0 ? elements : (elements + 3) / 4 * 4;
}
static constexpr uint32_t epRowBytes(const EpRowFormat& f) { return epScaleOffset(f) + epScaleBytes(f); }
static constexpr uint32_t epCombineRowBytes(const EpRowFormat& f) { return f.hidden * bytesOf(f.combine); }

// Rows may have any address. Outputs do not overlap inputs, except where stated.
struct EpRowKernels {
  // x, xScales: the token's row and its scales (only if `in` is kE4M3 and scales are sent). wire: epRowBytes, aligned to 64. If x is
  // converted to kE4M3, isFinite must be true of x.
  void (*encode)(const EpRowFormat&, const void* x, const void* xScales, void* wire);

  // Whether a row has neither NaN nor infinity. For kE4M3: no NaN, and finite scales.
  bool (*isFinite)(const EpRowFormat&, const void* x, const void* xScales);

  // wire = weights[0] * rows[0] + weights[1] * rows[1] + ..., from left to right in f32. Each product and sum is rounded to f32, the
  // result to `combine`. rows: n >= 1, of type y (kF32, kBF16, kF16). weights: nullptr = no multiplication.
  void (*partial)(const EpRowFormat&, Type y, const void* const* rows, const float* weights, int n, void* wire);

  // result = (partials[0] + partials[1] + ...) * factor + add, rounded in the same way. partials: n >= 0, of type `combine`; the sum of
  // none is +0. It multiplies only if `scaled`, and adds only if `add` is not nullptr. add and result: rows of type `out` (kF32, kBF16,
  // kF16); they may be the same.
  void (*finish)(const EpRowFormat&, const void* const* partials, int n, bool scaled, float factor, const void* add, Type out,
                 void* result);

  // Copies a row to n places. streams: past the caches, which pays if all rows together are larger than the caches.
  void (*fanOut)(const void* row, void* const* to, int n, uint32_t bytes, bool streams);
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_EP_ROW_KERNELS_H_
