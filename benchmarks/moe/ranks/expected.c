/* expected.c - plain and slow, and without a word of how the sides do it. */
#include "expected.h"

#include <stdlib.h>
#include <string.h>

#include "bf16.h"

/* A token is a stretch of the pattern; a prime, so that stretches of near tokens, ranks and turns begin at different places. */
enum { PERIOD = 65521 };

static uint16_t *pattern; /* PERIOD + hidden elements */
static float *sum, *partial;

void make_pattern(const struct problem *p) {
  pattern = touched(((size_t)PERIOD + (size_t)p->hidden) * sizeof *pattern);
  sum = touched((size_t)p->hidden * sizeof *sum);
  partial = touched((size_t)p->hidden * sizeof *partial);
  uint32_t state = 1;
  for (int i = 0; i < PERIOD; i++) {
    state = state * 1664525 + 1013904223;
    /* Any sign and mantissa, and exponents from 2^-7 to 1. */
    pattern[i] = (uint16_t)((state >> 16 & 0x807f) | (120 + (state >> 13 & 7)) << 7);
  }
  for (int i = 0; i < p->hidden; i++) pattern[PERIOD + i] = pattern[i % PERIOD];
}

static const uint16_t *token_of(int rank, int token, uint32_t turn) {
  return pattern + ((uint32_t)rank * 16411 + (uint32_t)token * 3 + turn * 7) % PERIOD;
}

void write_tokens(const struct problem *p, int tokens, uint32_t turn, uint16_t *x) {
  for (int t = 0; t < tokens; t++) memcpy(x + (size_t)t * (size_t)p->hidden, token_of(p->rank, t, turn), row_bytes(p));
}

static size_t wrong_in_row(const uint16_t *got, const uint16_t *want, int hidden) {
  size_t wrong = 0;
  for (int i = 0; i < hidden; i++) wrong += got[i] != want[i];
  return wrong;
}

static int takes(const struct problem *p, int rank, int token, int expert) {
  const int32_t *idx = idx_of(p, rank, token);
  for (int k = 0; k < p->topk; k++) {
    if (idx[k] == expert) return 1;
  }
  return 0;
}

size_t wrong_rows(const struct problem *p, int tokens, uint32_t turn, const uint16_t *rows, size_t count, int own_only) {
  size_t wrong = 0, row = 0;
  for (int expert = p->first_expert[p->rank]; expert < p->first_expert[p->rank + 1]; expert++) {
    for (int rank = 0; rank < p->ranks; rank++) {
      for (int token = 0; token < tokens; token++) {
        if (!takes(p, rank, token, expert)) continue;
        if (row >= count) return wrong + (size_t)p->hidden;
        if (rank == p->rank || !own_only) wrong += wrong_in_row(rows + row * (size_t)p->hidden, token_of(rank, token, turn), p->hidden);
        row++;
      }
    }
  }
  return wrong + (count - row) * (size_t)p->hidden;
}

/* to += from, or to = from where it is the first. Product and sum are rounded each. */
static void add(float *restrict to, float weight, const uint16_t *restrict from, int is_first, int hidden) {
  for (int i = 0; i < hidden; i++) {
    float product = weight * widen(from[i]);
    to[i] = is_first ? product : to[i] + product;
  }
}

/* sum = the sums of each rank's experts, rounded, in the order of ranks. */
static int add_by_rank(const struct problem *p, const int32_t *idx, const float *weights, const uint16_t *x) {
  int sums = 0;
  for (int rank = 0; rank < p->ranks; rank++) {
    int terms = 0;
    for (int k = 0; k < p->topk; k++) {
      if (idx[k] >= 0 && p->rank_of[idx[k]] == rank) add(partial, weights[k], x, terms++ == 0, p->hidden);
    }
    if (terms == 0) continue;
    for (int i = 0; i < p->hidden; i++) {
      float rounded = widen(to_bf16(partial[i]));
      sum[i] = sums == 0 ? rounded : sum[i] + rounded;
    }
    sums++;
  }
  return sums;
}

static int add_in_order(const struct problem *p, const int32_t *idx, const float *weights, const uint16_t *x) {
  int terms = 0;
  for (int k = 0; k < p->topk; k++) {
    if (idx[k] >= 0) add(sum, weights[k], x, terms++ == 0, p->hidden);
  }
  return terms;
}

size_t wrong_sums(const struct problem *p, int tokens, uint32_t turn, int sends_sums, const uint16_t *out) {
  size_t wrong = 0;
  for (int t = 0; t < tokens; t++) {
    const int32_t *idx = idx_of(p, p->rank, t);
    const float *weights = weights_of(p, p->rank, t);
    const uint16_t *x = token_of(p->rank, t, turn);
    int terms = sends_sums ? add_by_rank(p, idx, weights, x) : add_in_order(p, idx, weights, x);
    const uint16_t *got = out + (size_t)t * (size_t)p->hidden;
    for (int i = 0; i < p->hidden; i++) wrong += got[i] != (terms == 0 ? 0 : to_bf16(sum[i]));
  }
  return wrong;
}
