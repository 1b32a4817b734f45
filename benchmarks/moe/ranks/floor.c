/* floor.c - a side that only moves the bytes of an exchange in its own memory, as fast as memcpy and plain reads do: the floor of a rank's
 * time for a dispatch or a combine in which each token goes once to each rank.
 *
 * Dispatch copies each token once for each other rank that has some of its experts, and each received copy to each of its experts' rows.
 * Combine reads each of these rows once, writes a row for each received copy, and reads one row for each copy that the rank has sent.
 * There is nothing else in it: no rank waits for another, no line moves between the caches of two processors, nothing is weighted or
 * rounded, and all places are known before the clock runs. So the results are no sums. */
#include <stdlib.h>
#include <string.h>

#include "railhead_side.h"
#include "side.h"

const char *const side_rank_variables[] = {"RANK", NULL};
const int side_has_results = 0;
const int side_sends_sums = 1;

enum { TILE = 512 }; /* elements that stay in the cache nearest to the processor */

static const struct problem *p;
static uint16_t *sent, *arrived; /* rows of the copies for other ranks, and of those from them */
static uint16_t *rows;           /* by expert, then rank, then token */
static size_t *place;            /* for each received copy, by rank and token: its places in rows */
static int *places;              /* [ranks, tokens] how many these are; 0: there is no copy */
static int *copies;              /* [tokens] how many of the other ranks have a copy of this rank's token */
static size_t row_count;
static int current_tokens;

void side_start(int *argc, char ***argv, int *rank, int *ranks) {
  (void)argc;
  (void)argv;
  join_group(rank, ranks);
}

static int experts_here(const int32_t *idx, int rank) {
  int n = 0;
  for (int k = 0; k < p->topk; k++) n += idx[k] >= 0 && p->rank_of[idx[k]] == rank;
  return n;
}

void side_prepare(const struct problem *problem) {
  p = problem;
  size_t to = 0, from = 0, entries = 0;
  for (int t = 0; t < p->tokens; t++) {
    for (int r = 0; r < p->ranks; r++) {
      int n = experts_here(idx_of(p, r, t), p->rank);
      entries += (size_t)n;
      from += r != p->rank && n > 0;
      to += r != p->rank && experts_here(idx_of(p, p->rank, t), r) > 0;
    }
  }
  const size_t most = from > to ? from : to; /* combine sends what dispatch has received */
  sent = touched(most * row_bytes(p));
  arrived = touched(most * row_bytes(p));
  rows = touched(entries * row_bytes(p));
  place = touched(entries * sizeof *place);
  places = touched((size_t)p->ranks * (size_t)p->tokens * sizeof *places);
  copies = touched((size_t)p->tokens * sizeof *copies);
}

/* The rows of an expert are those of all tokens that it takes, by rank and token. */
static void plan(int tokens) {
  size_t *next = touched(((size_t)p->experts + 1) * sizeof *next); /* of each expert: its next row */
  memset(next, 0, ((size_t)p->experts + 1) * sizeof *next);
  for (int r = 0; r < p->ranks; r++) {
    for (int i = 0; i < tokens * p->topk; i++) {
      int e = idx_of(p, r, 0)[i];
      if (e >= 0 && p->rank_of[e] == p->rank) next[e + 1]++;
    }
  }
  for (int e = 0; e < p->experts; e++) next[e + 1] += next[e];
  row_count = next[p->experts];
  size_t *to = place;
  for (int r = 0; r < p->ranks; r++) {
    for (int t = 0; t < tokens; t++) {
      const int32_t *idx = idx_of(p, r, t);
      places[r * p->tokens + t] = experts_here(idx, p->rank);
      for (int k = 0; k < p->topk; k++) {
        if (idx[k] >= 0 && p->rank_of[idx[k]] == p->rank) *to++ = next[idx[k]]++;
      }
    }
  }
  for (int t = 0; t < tokens; t++) {
    copies[t] = 0;
    for (int r = 0; r < p->ranks; r++) copies[t] += r != p->rank && experts_here(idx_of(p, p->rank, t), r) > 0;
  }
  free(next);
}

void side_barrier(void) { must(rh_barrier(comm, NULL)); }

/* The first call with another number of tokens plans: it is in the iterations that warm up. */
const uint16_t *side_dispatch(const uint16_t *x, int tokens, size_t *count) {
  if (tokens != current_tokens) plan(tokens);
  current_tokens = tokens;
  const size_t hidden = (size_t)p->hidden;
  uint16_t *to = sent;
  for (int t = 0; t < tokens; t++) {
    for (int n = 0; n < copies[t]; n++, to += hidden) memcpy(to, x + (size_t)t * hidden, row_bytes(p));
  }
  const uint16_t *from = arrived;
  const size_t *at = place;
  for (int r = 0; r < p->ranks; r++) {
    for (int t = 0; t < tokens; t++) {
      const int n = places[r * p->tokens + t];
      const uint16_t *row = r == p->rank ? x + (size_t)t * hidden : from;
      for (int i = 0; i < n; i++) memcpy(rows + *at++ * hidden, row, row_bytes(p));
      if (r != p->rank && n > 0) from += hidden;
    }
  }
  *count = row_count;
  return rows;
}

/* Not inlined, so that the compiler makes vectors of the loop. */
static __attribute__((noinline)) void add_tile(uint16_t *restrict sums, const uint16_t *restrict row, size_t count) {
  for (size_t i = 0; i < count; i++) sums[i] = (uint16_t)(sums[i] + row[i]);
}

/* Reads n rows of y at the places and `more` rows in a run, and writes one. */
static void read_rows(const uint16_t *y, const size_t *at, int n, const uint16_t *run, int more, uint16_t *to) {
  const size_t hidden = (size_t)p->hidden;
  for (size_t begin = 0; begin < hidden; begin += TILE) {
    uint16_t sums[TILE] = {0};
    const size_t count = hidden - begin < TILE ? hidden - begin : TILE;
    for (int i = 0; i < n; i++) add_tile(sums, y + at[i] * hidden + begin, count);
    for (int i = 0; i < more; i++) add_tile(sums, run + (size_t)i * hidden + begin, count);
    memcpy(to + begin, sums, count * sizeof *sums);
  }
}

void side_combine(const uint16_t *y, uint16_t *out) {
  const size_t hidden = (size_t)p->hidden, *at = place, *own = place;
  uint16_t *to = sent;
  for (int r = 0; r < p->ranks; r++) {
    if (r == p->rank) own = at;
    for (int t = 0; t < current_tokens; t++) {
      const int n = places[r * p->tokens + t];
      if (r != p->rank && n > 0) {
        read_rows(y, at, n, NULL, 0, to);
        to += hidden;
      }
      at += n;
    }
  }
  const uint16_t *run = arrived;
  for (int t = 0; t < current_tokens; t++) {
    const int n = places[p->rank * p->tokens + t];
    read_rows(y, own, n, run, copies[t], out + (size_t)t * hidden);
    own += n;
    run += (size_t)copies[t] * hidden;
  }
}

void side_end(void) { leave_group(); }
