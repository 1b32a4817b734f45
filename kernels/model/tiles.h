// Elements whose sum shows every mistake: a += b is neither commutative nor associative, so a wrong order, and a missing, repeated or
// stale contribution all change the result.
#ifndef RAILHEAD_KERNELS_MODEL_TILES_H_
#define RAILHEAD_KERNELS_MODEL_TILES_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#include "model/memory.h"
#include "railhead/exchange/inbox.h"

namespace railhead::model {

struct Raw8 {
  uint32_t w[2];
};

// On a GPU all ones and 0x7fffffff are NaNs of the elements: which of the two a NaN is does not matter to their sums.
inline uint32_t withOneNaN(uint32_t w) { return (w & 0x7fffffff) == 0x7fffffff ? 0x7fffffff : w; }

template <class R>
struct Tiles {
  using Raw = R;
  static constexpr uint32_t kBytes = 4;
  static constexpr uint32_t kElements = sizeof(R) / 4;

  struct Sum {
    uint32_t w[kElements];
    Sum& operator+=(const Sum& o) {
      for (uint32_t i = 0; i < kElements; i++) w[i] = w[i] * 31 + o.w[i];
      return *this;
    }
    Sum& operator*=(const Sum& o) {
      for (uint32_t i = 0; i < kElements; i++) w[i] = w[i] * 37 + o.w[i];
      return *this;
    }
    Sum& operator*=(float f) {
      for (uint32_t i = 0; i < kElements; i++) w[i] = w[i] * 41 + static_cast<uint32_t>(f * 8);
      return *this;
    }
  };

  static constexpr uint32_t kTileBytes = sizeof(Raw), kSumBytes = sizeof(Sum);

  static Raw load(const char* base, uint64_t tile, size_t count) {
    Raw raw = {};
    memcpy(&raw, base + tile * sizeof(Raw), bytesOf(tile, count));
    return raw;
  }
  static Raw loadRaw(const char* base, uint64_t tile, size_t count) { return load(base, tile, count); }
  static void store(char* base, uint64_t tile, size_t count, const Raw& raw) {
    memcpy(base + tile * sizeof(Raw), &raw, bytesOf(tile, count));
  }
  static Sum widen(const Raw& raw) {
    Sum s;
    for (uint32_t i = 0; i < kElements; i++) s.w[i] = sizeof(Raw) == sizeof(Raw16) ? withOneNaN(raw.w[i]) : raw.w[i];
    return s;
  }
  static Raw narrow(const Sum& s) {
    Raw raw;
    memcpy(&raw, &s, sizeof raw);
    return raw;
  }
  // Small values, so that their sums are exact.
  static void add(Sum* sum, const Sum& other) { *sum += other; }
  static float sumOfSquares(const Sum& s) {
    float total = 0;
    for (uint32_t w : s.w) total += static_cast<float>(w % 16);
    return total;
  }

 private:
  static size_t bytesOf(uint64_t tile, size_t count) {
    const size_t left = (count - tile * kElements) * 4;
    return left < sizeof(Raw) ? left : sizeof(Raw);
  }
};

// What ranks offer in a pull. If rank 0 lacks a buffer, all ranks fall back.
enum class Offers { kAll, kNotRank0s, kNotRank0sRecv };

// Element i of rank r's contribution to an operation. Never 0.
inline uint32_t contribution(int operation, int r, size_t i) {
  return static_cast<uint32_t>(mix(mix(static_cast<uint64_t>(operation) + 1, static_cast<uint64_t>(r)), i)) | 1;
}
// The same on a GPU. Some pairs of elements are all ones.
inline uint32_t gpuContribution(int operation, int r, size_t i) {
  const bool allOnes = mix(mix(static_cast<uint64_t>(operation) + 5, static_cast<uint64_t>(r)), i / 2) % 8 == 0;
  return allOnes ? 0xffffffff : contribution(operation, r, i);
}

// Element i of the sum of all contributions, in the order that fold.h promises.
template <class Contribution>
uint32_t foldOf(Contribution contributionOf, int worldSize, int reduceGroup) {
  uint32_t total = 0;
  for (int begin = 0; begin < worldSize; begin += reduceGroup) {
    uint32_t group = contributionOf(begin);
    for (int r = begin + 1; r < worldSize && r < begin + reduceGroup; r++) group = group * 31 + contributionOf(r);
    total = begin == 0 ? group : total * 31 + group;
  }
  return total;
}
inline uint32_t reference(int operation, int worldSize, int reduceGroup, size_t i) {
  return foldOf([=](int r) { return contribution(operation, r, i); }, worldSize, reduceGroup);
}
inline uint32_t gpuReference(int operation, int worldSize, int reduceGroup, size_t i) {
  return foldOf([=](int r) { return withOneNaN(gpuContribution(operation, r, i)); }, worldSize, reduceGroup);
}

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_TILES_H_
