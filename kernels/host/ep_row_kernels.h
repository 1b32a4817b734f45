// The rows of MoE dispatch and combine: how a token lies on the wire, and what is done with rows. Only these functions know
// element types; a protocol moves bytes.
#ifndef RAILHEAD_KERNELS_HOST_EP_ROW_KERNELS_H_
#define RAILHEAD_KERNELS_HOST_EP_ROW_KERNELS_H_

#include <stdint.h>

#include "host/types.h"

namespace railhead::host {

// Elements that share a scale; the last block of a row may be shorter.
constexpr uint32_t kEpScaleBlock = 128;

// By the numbers of railhead.h's RH_EP_SCALE_...
enum class EpScale : uint32_t { kF32, kUE8M0, kStatic };

struct EpRowFormat {
  Type in;        // of x: kF32, kBF16, kF16, or kE4M3, and then wire is kE4M3 too
  Type wire;      // kF32, kBF16, kF16, kE4M3
  Type combine;   // of partial sums: kF32, kBF16, kF16
  EpScale scale;  // of wire kE4M3
  float staticScale;
  uint32_t hidden;  // elements of a row, at least 1
};

// A row on the wire: its elements, then, where a scale travels for each block, zeros up to a multiple of 4 and the scales. The
// functions are static: a shared copy of one could be that of another instruction set.
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

// Rows may have any address. No output overlaps an input, but where it is said.
struct EpRowKernels {
  // x, xScales: the token's row and its scales (these only where `in` is kE4M3 and scales travel). wire: epRowBytes, aligned
  // to 64. Where it makes kE4M3 of x, isFinite must be true of x.
  void (*encode)(const EpRowFormat&, const void* x, const void* xScales, void* wire);

  // Whether a row has neither NaN nor infinity; of kE4M3, no NaN, and finite scales.
  bool (*isFinite)(const EpRowFormat&, const void* x, const void* xScales);

  // wire = weights[0] * rows[0] + weights[1] * rows[1] + ..., from left to right in f32, each product and sum rounded, and the
  // result to `combine`. rows: n >= 1, of type y (kF32, kBF16, kF16). weights: nullptr = no multiplication.
  void (*partial)(const EpRowFormat&, Type y, const void* const* rows, const float* weights, int n, void* wire);

  // result = (partials[0] + partials[1] + ...) * factor + add, in the same way. partials: n >= 0, of type `combine`; the sum of
  // none is +0. There is a multiplication only where `scaled`, and an addition only where `add` is not nullptr. add and result:
  // rows of type `out` (kF32, kBF16, kF16); they may be the same.
  void (*finish)(const EpRowFormat&, const void* const* partials, int n, bool scaled, float factor, const void* add, Type out,
                 void* result);

  // Copies a row to n places. streams: past the caches, which pays where all that is copied is larger than those.
  void (*fanOut)(const void* row, void* const* to, int n, uint32_t bytes, bool streams);
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_EP_ROW_KERNELS_H_
