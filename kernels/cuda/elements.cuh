// Elements of the GPU target: tiles of 16 bytes, added in f32.
#ifndef RAILHEAD_KERNELS_CUDA_ELEMENTS_CUH_
#define RAILHEAD_KERNELS_CUDA_ELEMENTS_CUH_

#include <cuda_bf16.h>

#include "railhead/base/target.h"
#include "railhead/exchange/packets.h"

namespace railhead::cuda {

// The slow path: n bytes of a tile, or a tile that is not aligned. Out of line, so that its instructions are not fetched on the fast
// path.
__device__ __noinline__ inline uint4 loadBytes(const char* p, uint32_t n) {
  uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
  for (uint32_t i = 0; i < 16; i++) {
    if (i < n) w[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(p[i])) << (8 * (i % 4));
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}
__device__ __noinline__ inline void storeBytes(char* p, uint32_t n, uint4 v) {
  const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (uint32_t i = 0; i < 16; i++) {
    if (i < n) p[i] = static_cast<char>(w[i / 4] >> (8 * (i % 4)));
  }
}

template <uint32_t kCount>
struct FloatSum {
  float v[kCount];
  RH_FN FloatSum& operator+=(const FloatSum& other) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; i++) v[i] += other.v[i];
    return *this;
  }
  RH_FN FloatSum& operator*=(const FloatSum& other) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; i++) v[i] *= other.v[i];
    return *this;
  }
  RH_FN FloatSum& operator*=(float f) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; i++) v[i] *= f;
    return *this;
  }
};

template <class T>
struct Elements {
  using Raw = Raw16;
  static constexpr uint32_t kBytes = sizeof(T);
  static constexpr uint32_t kElements = 16 / kBytes;
  using Sum = FloatSum<kElements>;

  RH_FN static Raw load(const char* base, uint32_t tile, size_t count) {
    const char* p = base + static_cast<size_t>(tile) * 16;
    const uint32_t n = bytesOf(tile, count);
    uint4 v;
    if (n == 16 && (reinterpret_cast<uintptr_t>(p) & 15) == 0) {
      v = *reinterpret_cast<const uint4*>(p);
    } else {
      v = loadBytes(p, n);
    }
    return {{v.x, v.y, v.z, v.w}};
  }
  RH_FN static void store(char* base, uint32_t tile, size_t count, const Raw& raw) {
    char* p = base + static_cast<size_t>(tile) * 16;
    const uint32_t n = bytesOf(tile, count);
    const uint4 v = make_uint4(raw.w[0], raw.w[1], raw.w[2], raw.w[3]);
    if (n == 16 && (reinterpret_cast<uintptr_t>(p) & 15) == 0) {
      *reinterpret_cast<uint4*>(p) = v;
    } else {
      storeBytes(p, n, v);
    }
  }

  RH_FN static Sum widen(const Raw& raw) {
    Sum s;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (kBytes == 4) {
        s.v[i] = __uint_as_float(raw.w[i]);
      } else {
        s.v[2 * i] = __uint_as_float(raw.w[i] << 16);
        s.v[2 * i + 1] = __uint_as_float(raw.w[i] & 0xffff0000u);
      }
    }
    return s;
  }
  RH_FN static Raw narrow(const Sum& s) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (kBytes == 4) {
        raw.w[i] = __float_as_uint(s.v[i]);
      } else {
        const __nv_bfloat162 h = __floats2bfloat162_rn(s.v[2 * i], s.v[2 * i + 1]);
        raw.w[i] = *reinterpret_cast<const uint32_t*>(&h);
      }
    }
    return raw;
  }
  RH_FN static void add(Sum* sum, const Sum& other) { *sum += other; }
  RH_FN static float sumOfSquares(const Sum& s) {
    float total = 0;
#pragma unroll
    for (uint32_t i = 0; i < kElements; i++) total += s.v[i] * s.v[i];
    return total;
  }

 private:
  // Bytes of the tile that belong to the buffer: 16, except in the last tile.
  RH_FN static uint32_t bytesOf(uint32_t tile, size_t count) {
    const size_t left = (count - static_cast<size_t>(tile) * kElements) * kBytes;
    return left < 16 ? static_cast<uint32_t>(left) : 16u;
  }
};

}  // namespace railhead::cuda

#endif  // RAILHEAD_KERNELS_CUDA_ELEMENTS_CUH_
