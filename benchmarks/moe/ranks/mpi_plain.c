/* mpi_plain.c - dispatch and combine by MPI_Alltoallv, one copy of a token for each of its experts.
 *
 * Counts by expert go first. Rows are sent in the order of experts, so that what a rank receives from another one for an expert lies
 * together. The experts' outputs go back as they are to where their tokens were packed; the token's rank multiplies and adds.
 * The rows of the rank's own experts are copied from x, and added from y, without MPI. */
#include <mpi.h>

#include "problem.h"
#include "rows.h"
#include "side.h"
#include "side_mpi.h"

const int side_has_results = 1;
const int side_sends_sums = 0;

static const struct problem *p;
static uint16_t *packed;        /* rows by expert, without the own rank's: to send, and what comes back */
static uint16_t *received;      /* rows by rank, then expert: what came, and to send back */
static uint16_t *rows;          /* by expert, then rank, then token */
static int *send_count;         /* [ranks, most_local] rows for each expert; the rest of a rank's line is 0 */
static int *receive_count;      /* [ranks, most_local] rows from each rank for each local expert */
static int *next;               /* [experts] where the next row for it goes, in packed, or in rows where it is the rank's own */
static int *place;              /* [tokens, topk] where the row went */
static int sends[MAX_RANKS], send_at[MAX_RANKS], receives[MAX_RANKS], receive_at[MAX_RANKS]; /* in rows */
static int current_tokens;

static uint16_t *row(uint16_t *base, int i) { return base + (size_t)i * (size_t)p->hidden; }

static int local(int rank, int expert) { return rank * p->most_local + expert - p->first_expert[rank]; }

/* The buffers are as large as the problem's routing makes them, which is the most that the side can meet. */
void side_prepare(const struct problem *problem) {
  p = problem;
  size_t sent = 0, came = 0, own = 0;
  for (int r = 0; r < p->ranks; r++) {
    for (int t = 0; t < p->tokens; t++) {
      const int32_t *idx = idx_of(p, r, t);
      for (int k = 0; k < p->topk; k++) {
        int to = idx[k] < 0 ? -1 : p->rank_of[idx[k]];
        sent += to >= 0 && r == p->rank && to != p->rank;
        own += r == p->rank && to == p->rank;
        came += r != p->rank && to == p->rank;
      }
    }
  }
  packed = touched(sent * row_bytes(p));
  received = touched(came * row_bytes(p));
  rows = touched((came + own) * row_bytes(p));
  size_t lines = (size_t)p->ranks * (size_t)p->most_local;
  send_count = touched(lines * sizeof *send_count);
  receive_count = touched(lines * sizeof *receive_count);
  next = touched((size_t)p->experts * sizeof *next);
  place = touched((size_t)p->tokens * (size_t)p->topk * sizeof *place);
  side_mpi_make_unit((int)row_bytes(p));
}

static void count_rows(int tokens) {
  memset(send_count, 0, (size_t)p->ranks * (size_t)p->most_local * sizeof *send_count);
  const int32_t *idx = idx_of(p, p->rank, 0);
  for (int i = 0; i < tokens * p->topk; i++) {
    if (idx[i] >= 0) send_count[local(p->rank_of[idx[i]], idx[i])]++;
  }
}

/* How many rows go to each rank and come from each, and where; MPI moves none of the rank to itself. */
static void lay_out(void) {
  int sent = 0, came = 0;
  for (int r = 0; r < p->ranks; r++) {
    sends[r] = receives[r] = 0;
    send_at[r] = sent;
    receive_at[r] = came;
    if (r == p->rank) continue;
    for (int e = 0; e < p->most_local; e++) {
      sends[r] += send_count[r * p->most_local + e];
      receives[r] += receive_count[r * p->most_local + e];
    }
    int at = sent;
    for (int e = p->first_expert[r]; e < p->first_expert[r + 1]; e++) {
      next[e] = at;
      at += send_count[local(r, e)];
    }
    sent += sends[r];
    came += receives[r];
  }
}

/* Where in rows the own rank's rows of each local expert begin. Returns the number of rows. */
static int lay_out_own(void) {
  int at = 0;
  for (int e = 0; e < p->first_expert[p->rank + 1] - p->first_expert[p->rank]; e++) {
    for (int r = 0; r < p->ranks; r++) {
      if (r == p->rank) next[p->first_expert[p->rank] + e] = at;
      at += receive_count[r * p->most_local + e];
    }
  }
  return at;
}

static void pack(const uint16_t *x, int tokens) {
  for (int t = 0; t < tokens; t++) {
    const int32_t *idx = idx_of(p, p->rank, t);
    for (int k = 0; k < p->topk; k++) {
      if (idx[k] < 0) continue;
      int to = place[t * p->topk + k] = next[idx[k]]++;
      memcpy(row(p->rank_of[idx[k]] == p->rank ? rows : packed, to), x + (size_t)t * (size_t)p->hidden, row_bytes(p));
    }
  }
}

/* Calls move for the rows of each other rank for each local expert: n rows from `came` in received, from `at` in rows. */
static void each_block(const uint16_t *y, void (*move)(const uint16_t *y, int came, int at, int n)) {
  int came[MAX_RANKS], at = 0;
  memcpy(came, receive_at, sizeof came);
  for (int e = 0; e < p->first_expert[p->rank + 1] - p->first_expert[p->rank]; e++) {
    for (int r = 0; r < p->ranks; r++) {
      int n = receive_count[r * p->most_local + e];
      if (r != p->rank && n > 0) {
        move(y, came[r], at, n);
        came[r] += n;
      }
      at += n;
    }
  }
}

static void unpack(const uint16_t *y, int came, int at, int n) {
  (void)y;
  memcpy(row(rows, at), row(received, came), (size_t)n * row_bytes(p));
}

static void pack_back(const uint16_t *y, int came, int at, int n) {
  memcpy(row(received, came), y + (size_t)at * (size_t)p->hidden, (size_t)n * row_bytes(p));
}

const uint16_t *side_dispatch(const uint16_t *x, int tokens, size_t *count) {
  current_tokens = tokens;
  count_rows(tokens);
  MPI_Alltoall(send_count, p->most_local, MPI_INT, receive_count, p->most_local, MPI_INT, MPI_COMM_WORLD);
  lay_out();
  *count = (size_t)lay_out_own();
  pack(x, tokens);
  MPI_Alltoallv(packed, sends, send_at, side_mpi_unit, received, receives, receive_at, side_mpi_unit, MPI_COMM_WORLD);
  each_block(NULL, unpack);
  return rows;
}

void side_combine(const uint16_t *y, uint16_t *out) {
  each_block(y, pack_back);
  MPI_Alltoallv(received, receives, receive_at, side_mpi_unit, packed, sends, send_at, side_mpi_unit, MPI_COMM_WORLD);
  for (int t = 0; t < current_tokens; t++) {
    const int32_t *idx = idx_of(p, p->rank, t);
    const float *weights = weights_of(p, p->rank, t);
    const uint16_t *terms[MAX_TOPK];
    float of[MAX_TOPK];
    int n = 0;
    for (int k = 0; k < p->topk; k++) {
      if (idx[k] < 0) continue;
      const uint16_t *base = p->rank_of[idx[k]] == p->rank ? y : packed;
      terms[n] = base + (size_t)place[t * p->topk + k] * (size_t)p->hidden;
      of[n++] = weights[k];
    }
    add_rows(terms, of, n, p->hidden, out + (size_t)t * (size_t)p->hidden);
  }
}
