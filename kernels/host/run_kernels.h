// The functions of run_fold.h, for elements of type T on the instruction set Isa.
#ifndef RAILHEAD_KERNELS_HOST_RUN_KERNELS_H_
#define RAILHEAD_KERNELS_HOST_RUN_KERNELS_H_

#include <string.h>

#include <type_traits>

#include "host/elements.h"
#include "host/run_fold.h"

namespace railhead::host {

template <class T, class Isa>
class RunKernelsOf {
 public:
  static constexpr RunKernels set() { return {sizeof(T), sizeof(A), fold, scale}; }

 private:
  using A = typename AccumulatorOf<T>::type;
  using C = ConvertAt<T, Isa>;
  using Sum = typename C::Sum;
  static constexpr size_t kTileBytes = sizeof(RawTile<T>);
  static constexpr bool kConverts = !std::is_same_v<T, A>;  // else accumulators are elements

  static void fold(const RunFold& f, bool toSums, char* to, size_t count) {
    const bool plain = !kConverts || (f.sums == 0 && !toSums);
    const size_t toBytes = toSums ? sizeof(A) : sizeof(T);
    const size_t tiles = count / kTileElements, rest = count % kTileElements;
    if (tiles > 0) foldTiles(f, f.from, plain, toSums, to, tiles);
    if (rest == 0) return;
    // A part of a tile is copied to whole tiles, which end in zeros.
    alignas(64) char last[kMaxWorldSize][kTileElements * sizeof(A)];
    alignas(64) char result[kTileElements * sizeof(A)];
    const char* from[kMaxWorldSize];
    int i = 0;  // there is at least one run
    do {
      const size_t bytes = (f.sums >> i & 1) != 0 ? sizeof(A) : sizeof(T);
      memset(last[i], 0, sizeof last[i]);
      memcpy(last[i], f.from[i] + tiles * kTileElements * bytes, rest * bytes);
      from[i] = last[i];
    } while (++i < f.n);
    foldTiles(f, from, plain, toSums, result, 1);
    memcpy(to + tiles * kTileElements * toBytes, result, rest * toBytes);
  }

  // noinline: it is called twice.
  static __attribute__((noinline)) void foldTiles(const RunFold& f, const char* const* from, bool plain, bool toSums, char* to, size_t tiles) {
    const bool adds = f.kind == Reduction::kSum || f.kind == Reduction::kPreMulSum;
    if constexpr (kConverts) {
      if (!plain) return foldSums(f, from, toSums, to, tiles);
    }
    if (adds && f.n == 2) return addTwo(from[0], from[1], to, tiles);
    const bool averages = f.kind == Reduction::kAvg && !toSums;
    if (adds) return foldElements<true>(f, from, averages, to, tiles);
    foldElements<false>(f, from, averages, to, tiles);
  }

  static void addTwo(const char* a, const char* b, char* to, size_t tiles) {
    for (size_t at = 0; at < tiles * kTileBytes; at += kTileBytes) {
      Sum sum = C::load(a + at);
      sum.fold(Reduction::kSum, C::load(b + at));
      C::store(to + at, sum);
    }
  }

  // kAdds: the compiler knows the reduction.
  template <bool kAdds>
  static void foldElements(const RunFold& f, const char* const* from, bool averages, char* to, size_t tiles) {
    const Reduction kind = kAdds ? Reduction::kSum : f.kind;
    const int n = f.n, inGroup = f.group;
    for (size_t at = 0; at < tiles * kTileBytes; at += kTileBytes) {
      Sum total = C::load(from[0] + at);
      for (int r = 1; r < n && r < inGroup; r++) total.fold(kind, C::load(from[r] + at));
      for (int begin = inGroup; begin < n; begin += inGroup) {
        Sum group = C::load(from[begin] + at);
        for (int r = begin + 1; r < n && r < begin + inGroup; r++) group.fold(kind, C::load(from[r] + at));
        total.fold(kind, group);
      }
      if constexpr (!kAdds) {
        if (averages) total.divide(static_cast<A>(f.worldSize));
      }
      C::store(to + at, total);
    }
  }

  // Of types that are converted: elements and accumulators to elements or accumulators.
  static void foldSums(const RunFold& f, const char* const* from, bool toSums, char* to, size_t tiles) {
    const bool averages = f.kind == Reduction::kAvg;
    for (size_t i = 0; i < tiles; i++) {
      const auto load = [&](int k) {
        return (f.sums >> k & 1) != 0 ? ConvertAt<A, Isa>::load(from[k] + i * sizeof(Sum)) : C::load(from[k] + i * kTileBytes);
      };
      Sum total = load(0);
      for (int k = 1; k < f.n; k++) total.fold(f.kind, load(k));
      if (toSums) {
        ConvertAt<A, Isa>::store(to + i * sizeof(Sum), total);
        continue;
      }
      if (averages) total.divide(static_cast<A>(f.worldSize));
      C::store(to + i * kTileBytes, total);
    }
  }

  static void scale(const ReduceOp& op, const char* from, char* to, size_t count) {
    A scalar;
    memcpy(&scalar, op.scalar, sizeof scalar);
    for (size_t tile = 0; tile * kTileElements < count; tile++) {
      Sum sum = Convert<T, Isa>::widen(loadTileOf<RawTile<T>, Isa>(from, tile, count));
      sum.multiply(scalar);
      storeTileOf<Isa>(to, tile, count, Convert<T, Isa>::narrow(sum));
    }
  }
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_RUN_KERNELS_H_
