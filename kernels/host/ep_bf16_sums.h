// Sums of bf16 rows to a bf16 row, which is what most models combine. Elements are taken in pairs (bf16_lanes.h). The bits are those of
// ep_rows.h.
#ifndef RAILHEAD_KERNELS_HOST_EP_BF16_SUMS_H_
#define RAILHEAD_KERNELS_HOST_EP_BF16_SUMS_H_

#include <stddef.h>
#include <stdint.h>

#include "host/bf16_lanes.h"

namespace railhead::host {

template <class Isa>
struct BF16Sums {
  using Lanes = BF16Lanes<Isa>;
  static constexpr size_t kElements = Isa::kVectorBytes / sizeof(BF16);  // in a vector
  // Vectors at a time. Their two sums each leave registers for one more vector and its products, of 16 registers.
  static constexpr int kVectors = 4;
  static constexpr size_t kRun = kVectors * kElements;
  static constexpr size_t kPrefetchBytes = 2048;

  const void* const* rows;
  const float* weights;  // nullptr: no multiplication
  int n;                 // at least 1
  bool scaled;
  float factor;
  const char* add;       // nullptr: none

  // Writes as many elements as whole runs have, from the row's start. Returns how many.
  size_t write(size_t hidden, char* to) const {
    size_t at = 0;
    for (; hidden - at >= kRun; at += kRun) writeRun(at, to);
    return at;
  }

 private:
  struct Pairs {
    typename Lanes::Float lower, upper;
  };

  inline __attribute__((always_inline)) void writeRun(size_t at, char* to) const {
    Pairs sums[kVectors];
    prefetch(0, at);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) sums[v] = term(0, at, v);
    for (int i = 1; i < n; i++) {
      prefetch(i, at);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        const Pairs p = term(i, at, v);
        sums[v].lower += p.lower;
        sums[v].upper += p.upper;
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      Pairs s = sums[v];
      if (scaled) {
        s.lower *= factor;
        s.upper *= factor;
      }
      if (add != nullptr) {
        const Pairs p = load(add, at, v);
        s.lower += p.lower;
        s.upper += p.upper;
      }
      storeVector(to + byteOf(at, v), Lanes::pairs(s.lower, s.upper));
    }
  }

  static size_t byteOf(size_t at, int vector) { return at * sizeof(BF16) + static_cast<size_t>(vector) * Isa::kVectorBytes; }
  static inline __attribute__((always_inline)) Pairs load(const void* row, size_t at, int vector) {
    const auto pairs = loadVector<typename Lanes::Word>(static_cast<const char*>(row) + byteOf(at, vector));
    return {Lanes::lower(pairs), Lanes::upper(pairs)};
  }
  inline __attribute__((always_inline)) Pairs term(int i, size_t at, int vector) const {
    Pairs p = load(rows[i], at, vector);
    if (weights != nullptr) {
      p.lower *= weights[i];
      p.upper *= weights[i];
    }
    return p;
  }
  // Prefetching beyond the row's end is harmless. Hardware prefetchers follow one row, but not many rows in turn.
  inline __attribute__((always_inline)) void prefetch(int i, size_t at) const {
    const char* run = static_cast<const char*>(rows[i]) + at * sizeof(BF16) + kPrefetchBytes;
#pragma GCC unroll 4
    for (size_t line = 0; line < kRun * sizeof(BF16); line += 64) __builtin_prefetch(run + line);
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_EP_BF16_SUMS_H_
