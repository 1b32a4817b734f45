/* side_alone.c - a side of one rank, to test loop.c without a library. SPOIL=rows or SPOIL=sums makes the last element of them wrong. */
#include <stdlib.h>
#include <string.h>

#include "../ranks/rows.h"
#include "../ranks/side.h"

const char *const side_rank_variables[] = {"RANK", NULL};
const int side_has_results = 1;
const int side_sends_sums = 0;

static const struct problem *p;
static uint16_t *rows;
static const uint16_t *sent;
static int current_tokens;

static int spoils(const char *what) {
  const char *spoil = getenv("SPOIL");
  return spoil != NULL && strcmp(spoil, what) == 0;
}

void side_start(int *argc, char ***argv, int *rank, int *ranks) {
  (void)argc;
  (void)argv;
  *rank = 0;
  *ranks = 1;
}

void side_prepare(const struct problem *problem) {
  p = problem;
  rows = touched((size_t)p->tokens * (size_t)p->topk * row_bytes(p));
}

void side_barrier(void) {}

const uint16_t *side_dispatch(const uint16_t *x, int tokens, size_t *count) {
  sent = x;
  current_tokens = tokens;
  *count = 0;
  for (int e = 0; e < p->experts; e++) {
    for (int i = 0; i < tokens * p->topk; i++) {
      if (p->topk_idx[i] != e) continue;
      memcpy(rows + (*count)++ * (size_t)p->hidden, x + (size_t)(i / p->topk) * (size_t)p->hidden, row_bytes(p));
    }
  }
  if (spoils("rows")) rows[*count * (size_t)p->hidden - 1] ^= 1;
  return rows;
}

/* The experts change nothing, so that what they would give back are the tokens. */
void side_combine(const uint16_t *y, uint16_t *out) {
  (void)y;
  for (int t = 0; t < current_tokens; t++) {
    const uint16_t *terms[MAX_TOPK];
    for (int k = 0; k < p->topk; k++) terms[k] = sent + (size_t)t * (size_t)p->hidden;
    add_rows(terms, weights_of(p, 0, t), p->topk, p->hidden, out + (size_t)t * (size_t)p->hidden);
  }
  if (spoils("sums")) out[(size_t)current_tokens * (size_t)p->hidden - 1] ^= 1;
}

void side_end(void) {}
