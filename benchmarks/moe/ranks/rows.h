/* rows.h - sums of rows for the sides that are written by hand: loops that a compiler makes vectors of. */
#ifndef ROWS_H_
#define ROWS_H_

#include <stdint.h>

#include "bf16.h"

enum { ROW_TILE = 512 }; /* elements whose sums stay in the cache nearest to the processor */

/* Not inlined: gcc 12 would put the loop over rows inside of the one over elements, which takes five times as long. */
static __attribute__((noinline)) void set_row(float *restrict sums, float weight, const uint16_t *restrict row, int count) {
  for (int i = 0; i < count; i++) sums[i] = weight * widen(row[i]);
}

static __attribute__((noinline)) void add_row(float *restrict sums, float weight, const uint16_t *restrict row, int count) {
  for (int i = 0; i < count; i++) sums[i] += weight * widen(row[i]);
}

static __attribute__((noinline)) void round_row(uint16_t *restrict out, const float *restrict sums, int count) {
  for (int i = 0; i < count; i++) out[i] = to_bf16(sums[i]);
}

/* out = the sum of weights[r] * rows[r], added in this order in f32 and rounded once; 0 where there are none. */
static inline void add_rows(const uint16_t *const *rows, const float *weights, int n, int hidden, uint16_t *out) {
  if (n == 0) memset(out, 0, (size_t)hidden * sizeof *out);
  for (int begin = 0; n > 0 && begin < hidden; begin += ROW_TILE) {
    float sums[ROW_TILE];
    int count = hidden - begin < ROW_TILE ? hidden - begin : ROW_TILE;
    set_row(sums, weights[0], rows[0] + begin, count);
    for (int r = 1; r < n; r++) add_row(sums, weights[r], rows[r] + begin, count);
    round_row(out + begin, sums, count);
  }
}

#endif
