// All-reduce, residual add and RMSNorm in one kernel: what follows each attention and MLP block of a transformer.
#ifndef RAILHEAD_KERNELS_ALLREDUCE_RMSNORM_H_
#define RAILHEAD_KERNELS_ALLREDUCE_RMSNORM_H_

#include "railhead/base/fold.h"
#include "railhead/base/target.h"

namespace railhead {

// x, residual, out: rows x hidden elements, row-major; weight: hidden elements. For every row:
//   residual = round(sum over ranks of x + residual);  out = round(residual / sqrt(mean(residual^2) + eps) * weight)
// in f32. hidden is a multiple of Elements::kElements and rows * hidden fits in one chunk; the caller checks. A row is assigned to a
// block, or to a cluster of blocks, by exchange.row() and exchange.rows().
template <class Elements, class Exchange>
RH_FN bool allReduceRMSNorm(Exchange& exchange, const Elements& e, const char* x, char* residual, const char* weight, char* out,
                            uint32_t rows, uint32_t hidden, float eps) {
  using Raw = typename Elements::Raw;
  const uint32_t perRow = hidden / Elements::kElements;
  const size_t total = static_cast<size_t>(rows) * hidden;
  const uint32_t first = exchange.firstInRow(), step = exchange.stepInRow();
  Raw mine = {};
  if (exchange.row() < rows && first < perRow) mine = e.load(x, exchange.row() * perRow + first, total);
  if (!exchange.beginEpoch()) return false;
  RH_ROLLED
  for (uint32_t row = exchange.row(); row < rows; row += exchange.rows()) {
    RH_ROLLED
    for (uint32_t i = first; i < perRow; i += step) {
      const bool have = row == exchange.row() && i == first;
      exchange.pushAll(row * perRow + i, have ? mine : e.load(x, row * perRow + i, total));
    }
  }
  if (!exchange.meet(0)) return false;

  bool good = true;
  RH_ROLLED
  for (uint32_t row = exchange.row(); row < rows; row += exchange.rows()) {
    float squares = 0;
    Raw kept = {};
    RH_ROLLED
    for (uint32_t i = first; i < perRow && good; i += step) {
      const uint32_t tile = row * perRow + i;
      Raw own = {};
      if (Exchange::kKeepsOwn) own = e.load(x, tile, total);
      const Raw before = e.load(residual, tile, total);
      Raw sum;
      good = foldRanks<Exchange::kBatch>(
          e, exchange.worldSize(), exchange.reduceGroup(),
          [&](int r, int ranks, Raw(&raw)[Exchange::kBatch]) { return exchange.poll(r, ranks, tile, own, raw); }, &sum);
      if (!good) break;
      typename Elements::Sum s = e.widen(sum);
      e.add(&s, e.widen(before));
      kept = e.narrow(s);
      e.store(residual, tile, total, kept);
      exchange.release(0, tile);
      squares += e.sumOfSquares(e.widen(kept));
    }
    // All threads of the row get here, also after a failed wait, since rowSum() is a barrier.
    const float scale = exchange.rsqrt(exchange.rowSum(squares) / static_cast<float>(hidden) + eps);
    RH_ROLLED
    for (uint32_t i = first; i < perRow && good; i += step) {
      const uint32_t tile = row * perRow + i;
      typename Elements::Sum s = e.widen(perRow <= step ? kept : e.load(residual, tile, total));
      s *= scale;
      s *= e.widen(e.load(weight, i, hidden));
      e.store(out, tile, total, e.narrow(s));
    }
  }
  return good;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_ALLREDUCE_RMSNORM_H_
