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
  using Block = typename SumBlockOf<T, Isa>::type;  // what sums go in
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
    if constexpr (kConverts) {
      if (!plain) return foldSums(f, from, toSums, to, tiles);
    }
    const bool averages = f.kind == Reduction::kAvg && !toSums;
    const bool adds = f.kind == Reduction::kSum || f.kind == Reduction::kPreMulSum || f.kind == Reduction::kAvg;
    const size_t bytes = tiles * kTileBytes;
    if (!adds) return foldElements<false, C>(f, from, false, to, 0, bytes);
    const size_t whole = bytes - bytes % Block::kBytes;  // the rest goes in tiles
    if (f.n == 2 && !averages) {
      addTwo<Block>(from[0], from[1], to, 0, whole);
      if constexpr (Block::kBytes > kTileBytes) addTwo<C>(from[0], from[1], to, whole, bytes);
      return;
    }
    foldElements<true, Block>(f, from, averages, to, 0, whole);
    if constexpr (Block::kBytes > kTileBytes) foldElements<true, C>(f, from, averages, to, whole, bytes);
  }

  // Both reduce the bytes from `at` to `end`, in steps of By.
  template <class By>
  static void addTwo(const char* a, const char* b, char* to, size_t at, size_t end) {
    for (; at < end; at += By::kBytes) {
      typename By::Sum sum = By::load(a + at);
      sum.fold(Reduction::kSum, By::load(b + at));
      By::store(to + at, sum);
    }
  }
  // kAdds: the compiler knows the reduction.
  template <bool kAdds, class By>
  static void foldElements(const RunFold& f, const char* const* from, bool averages, char* to, size_t at, size_t end) {
    const Reduction kind = kAdds ? Reduction::kSum : f.kind;
    const int n = f.n, inGroup = f.group;
    for (; at < end; at += By::kBytes) {
      typename By::Sum total = By::load(from[0] + at);
      for (int r = 1; r < n && r < inGroup; r++) total.fold(kind, By::load(from[r] + at));
      for (int begin = inGroup; begin < n; begin += inGroup) {
        typename By::Sum group = By::load(from[begin] + at);
        for (int r = begin + 1; r < n && r < begin + inGroup; r++) group.fold(kind, By::load(from[r] + at));
        total.fold(kind, group);
      }
      if (averages) total.divide(static_cast<A>(f.worldSize));
      By::store(to + at, total);
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
