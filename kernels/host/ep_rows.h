// Makes the EpRowKernels of an instruction set. The types are chosen once a row; then tiles go through registers.
#ifndef RAILHEAD_KERNELS_HOST_EP_ROWS_H_
#define RAILHEAD_KERNELS_HOST_EP_ROWS_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "host/elements.h"
#include "host/ep_bf16_sums.h"
#include "host/ep_fan_out.h"
#include "host/ep_row_kernels.h"
#include "host/ep_scales.h"

namespace railhead::host {

// Calls f with a value of the C++ type that `type` names.
template <class F>
static inline void withType(Type type, F f) {
  switch (type) {
    case Type::kF32:
      return f(float{});
    case Type::kBF16:
      return f(BF16{});
    default:
      return f(F16{});
  }
}

template <class From, class To, class Isa>
void convertRow(const char* from, size_t count, char* to) {
  for (size_t at = 0, tile = 0; at < count; at += kTileElements, tile++) {
    const auto sum = Convert<From, Isa>::widen(loadTileOf<RawTile<From>, Isa>(from, tile, count));
    storeTileOf<Isa>(to, tile, count, Convert<To, Isa>::narrow(sum));
  }
}

// Whether any of n words has all bits of mask set: an exponent of all ones, or a NaN of kE4M3.
template <class Word, class Isa>
bool anyHasAll(const void* words, size_t n, Word mask) {
  typedef Word Lanes __attribute__((vector_size(Isa::kVectorBytes)));
  using Raw = RawTile<Word, Isa::kVectorBytes / sizeof(Word)>;
  const Lanes all = Lanes{} + mask;
  Lanes found = {};
  for (size_t tile = 0; tile * (sizeof(Raw) / sizeof(Word)) < n; tile++) {
    const Raw raw = loadTileOf<Raw, Isa>(static_cast<const char*>(words), tile, n);
    const Lanes l = loadVector<Lanes>(&raw);
    found |= reinterpret_cast<Lanes>((l & all) == all);
  }
  uint64_t parts[sizeof found / 8], any = 0;
  memcpy(parts, &found, sizeof found);
  for (uint64_t p : parts) any |= p;
  return any != 0;
}

// Sums of rows of type T.
template <class T, class Isa>
struct RowSums {
  using Sum = Accumulators<float, Isa>;
  // Tiles at a time. They leave registers for one more tile and its conversion, of 16 registers. Each row is read in runs of cache lines,
  // and its address and weight are loaded once a run.
  static constexpr int kTiles = 8 / Sum::kVectors;
  static constexpr size_t kPrefetchBytes = 2048;

  const void* const* rows;
  const float* weights;
  int n;

  // Calls use(sum, at, count) for each tile in order, from element `at` on: the sum of `count` elements from element `at` of the row.
  template <class Use>
  void forEachTile(size_t hidden, Use use, size_t at = 0) const {
    for (; hidden - at >= kTiles * kTileElements; at += kTiles * kTileElements) addTiles<kTiles>(at, kTileElements, use);
    for (; at < hidden; at += kTileElements) {
      const size_t count = hidden - at < kTileElements ? hidden - at : kTileElements;
      use(addOne(at, count), at, count);
    }
  }

 private:
  // Of the last tiles. noinline: one copy for all uses, which saves time of compilation.
  __attribute__((noinline)) Sum addOne(size_t at, size_t count) const {
    Sum sum;
    addTiles<1>(at, count, [&](const Sum& s, size_t, size_t) { sum = s; });
    return sum;
  }
  // Inlined, so that `count` is a constant for whole tiles.
  template <int kCount, class Use>
  inline __attribute__((always_inline)) void addTiles(size_t at, size_t count, Use use) const {
    Sum sums[kCount];
    if (kCount > 1 && n != 0) prefetch(0, at + kPrefetchBytes / sizeof(T));
#pragma GCC unroll 8
    for (int t = 0; t < kCount; t++) sums[t] = n == 0 ? Sum{} : term(0, at, t, count);
    for (int i = 1; i < n; i++) {
      if (kCount > 1) prefetch(i, at + kPrefetchBytes / sizeof(T));
#pragma GCC unroll 8
      for (int t = 0; t < kCount; t++) sums[t].fold(Reduction::kSum, term(i, at, t, count));
    }
#pragma GCC unroll 8
    for (int t = 0; t < kCount; t++) use(sums[t], at + static_cast<size_t>(t) * kTileElements, count);
  }
  // Prefetches the run from element `at` on. Prefetching beyond the row's end is harmless. Hardware prefetchers follow one row, but not
  // many rows in turn.
  inline __attribute__((always_inline)) void prefetch(int i, size_t at) const {
    const uintptr_t run = reinterpret_cast<uintptr_t>(rows[i]) + at * sizeof(T);
#pragma GCC unroll 8
    for (size_t line = 0; line < kTiles * kTileElements * sizeof(T); line += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(run + line));
    }
  }
  inline __attribute__((always_inline)) Sum term(int i, size_t at, int tile, size_t count) const {
    const char* row = static_cast<const char*>(rows[i]) + (at + static_cast<size_t>(tile) * kTileElements) * sizeof(T);
    Sum s = Convert<T, Isa>::widen(loadTileOf<RawTile<T>, Isa>(row, 0, count));
    if (weights != nullptr) s.multiply(weights[i]);
    return s;
  }
};

template <class From, class To>
constexpr bool areBF16 = std::is_same_v<From, BF16> && std::is_same_v<To, BF16>;

template <class Isa>
struct EpRowsOf {
  using Sum = Accumulators<float, Isa>;

  static void encode(const EpRowFormat& f, const void* x, const void* xScales, void* wire) {
    const char* from = static_cast<const char*>(x);
    char* to = static_cast<char*>(wire);
    if (f.wire == Type::kE4M3) memset(to + f.hidden, 0, epScaleOffset(f) - f.hidden);
    if (f.in == f.wire) {
      memcpy(to, from, f.hidden * bytesOf(f.in));
      if (epScaleBytes(f) != 0) memcpy(to + epScaleOffset(f), xScales, epScaleBytes(f));
      return;
    }
    withType(f.in, [&](auto element) {
      using In = decltype(element);
      if (f.wire == Type::kE4M3) return ScaledRow<In, Isa>::write(f, from, to);
      withType(f.wire, [&](auto other) { convertRow<In, decltype(other), Isa>(from, f.hidden, to); });
    });
  }

  static bool isFinite(const EpRowFormat& f, const void* x, const void* xScales) {
    switch (f.in) {
      case Type::kF32:
        return !anyHasAll<uint32_t, Isa>(x, f.hidden, 0x7f800000u);
      case Type::kBF16:
        return !anyHasAll<uint16_t, Isa>(x, f.hidden, 0x7f80u);
      case Type::kF16:
        return !anyHasAll<uint16_t, Isa>(x, f.hidden, 0x7c00u);
      default:
        if (anyHasAll<uint8_t, Isa>(x, f.hidden, 0x7fu)) return false;
        if (f.scale == EpScale::kF32) return !anyHasAll<uint32_t, Isa>(xScales, epScaleColumns(f), 0x7f800000u);
        return !anyHasAll<uint8_t, Isa>(xScales, epScaleColumns(f), 0xffu);
    }
  }

  static void partial(const EpRowFormat& f, Type y, const void* const* rows, const float* weights, int n, void* wire) {
    char* to = static_cast<char*>(wire);
    withType(y, [&](auto element) {
      using From = decltype(element);
      const RowSums<From, Isa> sums{rows, weights, n};
      withType(f.combine, [&](auto other) {
        using To = decltype(other);
        size_t done = 0;
        if constexpr (areBF16<From, To>) done = BF16Sums<Isa>{rows, weights, n, false, 1, nullptr}.write(f.hidden, to);
        sums.forEachTile(f.hidden, [to](const Sum& s, size_t at, size_t count) {
          storeTileOf<Isa>(to + at * sizeof(To), 0, count, Convert<To, Isa>::narrow(s));
        }, done);
      });
    });
  }

  static void finish(const EpRowFormat& f, const void* const* partials, int n, bool scaled, float factor, const void* add,
                     Type out, void* result) {
    const char* added = static_cast<const char*>(add);
    char* to = static_cast<char*>(result);
    withType(f.combine, [&](auto element) {
      using From = decltype(element);
      const RowSums<From, Isa> sums{partials, nullptr, n};
      withType(out, [&](auto other) {
        using To = decltype(other);
        size_t done = 0;
        if constexpr (areBF16<From, To>) {
          if (n > 0) done = BF16Sums<Isa>{partials, nullptr, n, scaled, factor, added}.write(f.hidden, to);
        }
        sums.forEachTile(f.hidden, [=](Sum s, size_t at, size_t count) {
          if (scaled) s.multiply(factor);
          if (added != nullptr) {
            const auto raw = loadTileOf<RawTile<To>, Isa>(added + at * sizeof(To), 0, count);
            s.fold(Reduction::kSum, Convert<To, Isa>::widen(raw));
          }
          storeTileOf<Isa>(to + at * sizeof(To), 0, count, Convert<To, Isa>::narrow(s));
        }, done);
      });
    });
  }

  static constexpr EpRowKernels set() {
    EpRowKernels k{};
    k.encode = encode;
    k.isFinite = isFinite;
    k.partial = partial;
    k.finish = finish;
    k.fanOut = FanOut<Isa>::copy;
    return k;
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_EP_ROWS_H_
