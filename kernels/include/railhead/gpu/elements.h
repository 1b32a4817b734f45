// Elements of the GPU target: tiles of 16 bytes at any address, folded in the type's accumulators.
#ifndef RAILHEAD_KERNELS_GPU_ELEMENTS_H_
#define RAILHEAD_KERNELS_GPU_ELEMENTS_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "railhead/base/target.h"
#include "railhead/exchange/inbox.h"
#include "railhead/gpu/launch.h"
#include "railhead/gpu/types.h"

namespace railhead::gpu {

// The first n bytes of a tile at any address.
RH_COLD Raw16 loadBytes(const char* p, uint32_t n) {
  Raw16 raw = {{0, 0, 0, 0}};
  RH_UNROLL
  for (uint32_t i = 0; i < 16; i++) {
    if (i < n) raw.w[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(p[i])) << (8 * (i % 4));
  }
  return raw;
}
RH_COLD void storeBytes(char* p, uint32_t n, Raw16 raw) {
  RH_UNROLL
  for (uint32_t i = 0; i < 16; i++) {
    if (i < n) p[i] = static_cast<char>(raw.w[i / 4] >> (8 * (i % 4)));
  }
}

RH_FN bool isWhole(const char* p, uint32_t n) { return n == 16 && (reinterpret_cast<uintptr_t>(p) & 15) == 0; }
template <bool kWhole>
RH_FN Raw16 loadTile(const char* p, uint32_t n) {
  if (!kWhole && !isWhole(p, n)) return loadBytes(p, n);
#if defined(__CUDACC__)
  const uint4 v = *reinterpret_cast<const uint4*>(p);
  return {{v.x, v.y, v.z, v.w}};
#else
  Raw16 raw;
  memcpy(&raw, p, sizeof raw);
  return raw;
#endif
}
template <bool kWhole>
RH_FN void storeTile(char* p, uint32_t n, const Raw16& raw) {
  if (!kWhole && !isWhole(p, n)) return storeBytes(p, n, raw);
#if defined(__CUDACC__)
  *reinterpret_cast<uint4*>(p) = make_uint4(raw.w[0], raw.w[1], raw.w[2], raw.w[3]);
#else
  memcpy(p, &raw, sizeof raw);
#endif
}

// Tiles of count elements of kSize bytes. kWhole: the buffers are aligned to 16 bytes, and there is no short tile.
template <uint32_t kSize, bool kWhole>
struct Tiles {
  using Raw = Raw16;
  static constexpr uint32_t kBytes = kSize;
  static constexpr uint32_t kElements = 16 / kSize;
  RH_FN static uint32_t bytesOf(uint64_t tile, size_t count) {
    if (kWhole) return 16;
    const size_t left = (count - tile * kElements) * kBytes;
    return left < 16 ? static_cast<uint32_t>(left) : 16u;
  }
  RH_FN static Raw loadRaw(const char* base, uint64_t tile, size_t count) { return loadTile<kWhole>(base + tile * 16, bytesOf(tile, count)); }
  RH_FN static void store(char* base, uint64_t tile, size_t count, const Raw& raw) {
    storeTile<kWhole>(base + tile * 16, bytesOf(tile, count), raw);
  }
};

// The elements of operations that only copy.
struct Bytes : Tiles<1, false> {
  RH_FN static Raw load(const char* base, uint64_t tile, size_t count) { return loadRaw(base, tile, count); }
};

template <class A, uint32_t kCount>
struct Accumulators {
  A v[kCount];
};

// The elements of reductions, of type T (types.h). kFast: the reduction is a sum, and tiles are whole; else the reduction is chosen at run time,
// and buffers have any address and size.
template <class T, bool kFast>
struct Elements : Tiles<sizeof(typename T::Bits), kFast> {
  using Base = Tiles<sizeof(typename T::Bits), kFast>;
  static constexpr bool kRolled = !kFast;
  using Raw = Raw16;
  using A = typename T::A;
  using Bits = typename T::Bits;
  static constexpr uint32_t kElements = Base::kElements;
  using Sum = Accumulators<A, kElements>;

  RH_FN explicit Elements(const Call& call)
      : kind_(static_cast<Reduction>(call.reduction)), worldSize_(static_cast<A>(call.team.worldSize)), scale_(T::widen(0)) {
    memcpy(&scale_, &call.scale, sizeof scale_);
  }

  // A tile as the rank contributes it.
  RH_FN Raw load(const char* base, uint64_t tile, size_t count) const {
    const Raw raw = Base::loadRaw(base, tile, count);
    return kFast || kind_ != Reduction::kPreMulSum ? raw : scaled(raw, scale_);
  }

  RH_FN static Sum widen(const Raw& raw) {
    Sum s;
    RH_UNROLL
    for (uint32_t i = 0; i < kElements; i++) s.v[i] = T::widen(element(raw, i));
    return s;
  }
  RH_FN void add(Sum* sum, const Sum& other) const {
    if (!kFast && (kind_ == Reduction::kProd || kind_ == Reduction::kMin || kind_ == Reduction::kMax)) {
      *sum = folded(kind_, *sum, other);
      return;
    }
    RH_UNROLL
    for (uint32_t i = 0; i < kElements; i++) sum->v[i] = total(sum->v[i], other.v[i]);
  }
  RH_FN Raw narrow(const Sum& s) const { return kFast || kind_ != Reduction::kAvg ? round(s) : averaged(s, worldSize_); }

 private:
  RH_FN static Bits element(const Raw& raw, uint32_t i) {
    if constexpr (sizeof(Bits) == 8) {
      return static_cast<Bits>(raw.w[2 * i]) | static_cast<Bits>(raw.w[2 * i + 1]) << 32;
    } else {
      constexpr uint32_t kPerWord = 4 / sizeof(Bits);
      return static_cast<Bits>(raw.w[i / kPerWord] >> (8 * sizeof(Bits) * (i % kPerWord)));
    }
  }
  // Integers are widened no further than unsigned int, in which additions and products wrap as in their own type.
  RH_FN static A total(A a, A b) {
    if constexpr (IsFloating<T>::value) {
      return a + b;
    } else {
      return static_cast<A>(static_cast<Bits>(a) + static_cast<Bits>(b));
    }
  }
  RH_FN static A product(A a, A b) {
    if constexpr (IsFloating<T>::value) {
      return a * b;
    } else {
      return static_cast<A>(static_cast<Bits>(static_cast<Bits>(a) * static_cast<Bits>(b)));
    }
  }
  RH_COLD static Raw scaled(Raw raw, A scale) {
    Sum s = widen(raw);
    RH_UNROLL
    for (uint32_t i = 0; i < kElements; i++) s.v[i] = product(s.v[i], scale);
    return round(s);
  }
  // Integers: with truncation.
  RH_COLD static Raw averaged(Sum s, A worldSize) {
    RH_UNROLL
    for (uint32_t i = 0; i < kElements; i++) s.v[i] = static_cast<A>(s.v[i] / worldSize);
    return round(s);
  }
  RH_COLD static Sum folded(Reduction kind, Sum a, Sum b) {
    RH_UNROLL
    for (uint32_t i = 0; i < kElements; i++) {
      switch (kind) {
        case Reduction::kProd: a.v[i] = product(a.v[i], b.v[i]); break;
        case Reduction::kMin: a.v[i] = (a.v[i] <= b.v[i]) | (a.v[i] != a.v[i]) ? a.v[i] : b.v[i]; break;
        default: a.v[i] = (a.v[i] >= b.v[i]) | (a.v[i] != a.v[i]) ? a.v[i] : b.v[i];
      }
    }
    return a;
  }
  RH_FN static Raw round(const Sum& s) {
    Raw raw;
    if constexpr (sizeof(Bits) == 8) {
      RH_UNROLL
      for (uint32_t i = 0; i < kElements; i++) {
        const uint64_t b = T::narrow(s.v[i]);
        raw.w[2 * i] = static_cast<uint32_t>(b);
        raw.w[2 * i + 1] = static_cast<uint32_t>(b >> 32);
      }
    } else if constexpr (sizeof(Bits) == 2) {
      bool anyNaN = false;
      RH_UNROLL
      for (uint32_t i = 0; i < kElements; i++) anyNaN |= s.v[i] != s.v[i];
      if (anyNaN) return roundNaNs(s);
      RH_UNROLL
      for (uint32_t i = 0; i < 4; i++) raw.w[i] = T::narrowPair(s.v[2 * i], s.v[2 * i + 1]);
    } else {
      constexpr uint32_t kPerWord = 4 / sizeof(Bits);
      RH_UNROLL
      for (uint32_t i = 0; i < 4; i++) {
        raw.w[i] = 0;
        RH_UNROLL
        for (uint32_t j = 0; j < kPerWord; j++) {
          raw.w[i] |= static_cast<uint32_t>(T::narrow(s.v[i * kPerWord + j])) << (8 * sizeof(Bits) * j);
        }
      }
    }
    return raw;
  }
  // Two bytes an element.
  RH_COLD static Raw roundNaNs(Sum s) {
    Raw raw;
    RH_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
      raw.w[i] = static_cast<uint32_t>(T::narrow(s.v[2 * i])) | static_cast<uint32_t>(T::narrow(s.v[(2 * i + 1) % kElements])) << 16;
    }
    return raw;
  }

  Reduction kind_;
  A worldSize_;
  A scale_;
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_ELEMENTS_H_
