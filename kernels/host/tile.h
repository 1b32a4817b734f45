// Tiles of the CPU target: 16 f32 accumulators in vector registers, loaded from and rounded to the element type.
//
// Written in GCC's vector types of 16 bytes, which every machine has: this is the portable path.
#ifndef RAILHEAD_KERNELS_HOST_TILE_H_
#define RAILHEAD_KERNELS_HOST_TILE_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace railhead::host {

typedef float Float4 __attribute__((vector_size(16)));
typedef uint32_t Word4 __attribute__((vector_size(16)));
typedef uint16_t Half8 __attribute__((vector_size(16)));

// bf16 is the upper half of an f32.
struct BF16 {
  uint16_t bits;
};

constexpr size_t kTileElements = 16;

struct Floats {
  Float4 v[4];
};

inline void widen(const float (&raw)[kTileElements], Floats* out) { memcpy(out, raw, sizeof *out); }

// Puts each half above 16 zero bits.
inline void widen(const BF16 (&raw)[kTileElements], Floats* out) {
  const Half8 zero = {};
  for (int i = 0; i < 2; i++) {
    Half8 h;
    memcpy(&h, raw + 8 * i, sizeof h);
    out->v[2 * i] = reinterpret_cast<Float4>(__builtin_shuffle(zero, h, Half8{0, 8, 1, 9, 2, 10, 3, 11}));
    out->v[2 * i + 1] = reinterpret_cast<Float4>(__builtin_shuffle(zero, h, Half8{4, 12, 5, 13, 6, 14, 7, 15}));
  }
}

// Rounds to nearest, ties to even; the result is in the upper halves. A NaN keeps its sign and upper payload and becomes
// quiet: adding the rounding constant could otherwise carry it into infinity.
inline Word4 roundToUpperHalf(Float4 f) {
  const Word4 bits = reinterpret_cast<Word4>(f);
  const Word4 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Word4 isNaN = reinterpret_cast<Word4>(f != f);  // all ones or zero
  return ((bits | 0x400000u) & isNaN) | (rounded & ~isNaN);
}

inline void narrow(const Floats& f, float (*out)[kTileElements]) { memcpy(out, &f, sizeof f); }
inline void narrow(const Floats& f, BF16 (*out)[kTileElements]) {
  for (int i = 0; i < 2; i++) {
    const Half8 low = reinterpret_cast<Half8>(roundToUpperHalf(f.v[2 * i]));
    const Half8 high = reinterpret_cast<Half8>(roundToUpperHalf(f.v[2 * i + 1]));
    const Half8 h = __builtin_shuffle(low, high, Half8{1, 3, 5, 7, 9, 11, 13, 15});
    memcpy(*out + 8 * i, &h, sizeof h);
  }
}

template <class T>
struct Tile {
  static constexpr size_t kElements = kTileElements;
  Floats f;

  Tile& operator+=(const Tile& other) {
    for (int i = 0; i < 4; i++) f.v[i] += other.f.v[i];
    return *this;
  }
};

// Reads n (at most kElements) elements at any address; the rest of the tile is 0.
template <class T>
inline Tile<T> loadTile(const void* src, size_t n) {
  T raw[kTileElements];
  if (__builtin_expect(n == kTileElements, 1)) {
    memcpy(raw, src, sizeof raw);
  } else {
    memset(raw, 0, sizeof raw);
    memcpy(raw, src, n * sizeof(T));
  }
  Tile<T> tile;
  widen(raw, &tile.f);
  return tile;
}

template <class T>
inline void storeTile(void* dst, const Tile<T>& tile, size_t n) {
  T raw[kTileElements];
  narrow(tile.f, &raw);
  if (__builtin_expect(n == kTileElements, 1)) {
    memcpy(dst, raw, sizeof raw);
  } else {
    memcpy(dst, raw, n * sizeof(T));
  }
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_TILE_H_
