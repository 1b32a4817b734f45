// Tiles of the CPU target: 16 f32 accumulators, loaded from and rounded to the element type.
#ifndef RAILHEAD_KERNELS_HOST_TILE_H_
#define RAILHEAD_KERNELS_HOST_TILE_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace railhead::host {

// bf16 is the upper half of an f32.
struct BF16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(BF16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

inline void narrow(float f, float* out) { *out = f; }
// Round to nearest, ties to even. A NaN keeps its sign and upper payload and becomes quiet: adding the rounding constant
// could otherwise carry it into infinity. Branch-free, so that the loop over a tile vectorises.
inline void narrow(float f, BF16* out) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40u;
  out->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

template <class T>
struct Tile {
  static constexpr size_t kElements = 16;
  float v[kElements];

  Tile& operator+=(const Tile& other) {
    for (size_t i = 0; i < kElements; i++) v[i] += other.v[i];
    return *this;
  }
};

// Reads n (at most kElements) elements at any address; the rest of the tile is 0.
template <class T>
inline Tile<T> loadTile(const void* src, size_t n) {
  T raw[Tile<T>::kElements];
  if (n == Tile<T>::kElements) {
    memcpy(raw, src, sizeof raw);
  } else {
    memset(raw, 0, sizeof raw);
    memcpy(raw, src, n * sizeof(T));
  }
  Tile<T> tile;
  for (size_t i = 0; i < Tile<T>::kElements; i++) tile.v[i] = widen(raw[i]);
  return tile;
}

template <class T>
inline void storeTile(void* dst, const Tile<T>& tile, size_t n) {
  T raw[Tile<T>::kElements];
  for (size_t i = 0; i < Tile<T>::kElements; i++) narrow(tile.v[i], &raw[i]);
  if (n == Tile<T>::kElements) {
    memcpy(dst, raw, sizeof raw);
  } else {
    memcpy(dst, raw, n * sizeof(T));
  }
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_TILE_H_
