/* loop.c - one rank of the comparison: the same loop, the same clock and the same checks for every side.
 *
 *   loop SOCKET CPUS PROBLEM
 *
 * It binds itself to the rank'th of CPUS ("0,1", or "-" to stay unbound), joins its group, reads the file PROBLEM, takes all
 * memory and connects to SOCKET. Each line "TOKENS WARMUP ITERATIONS\n" it answers with "WRONG\n", how many elements were wrong in
 * the first and in the last iteration, and then a line "DISPATCH COMBINE ROUND_TRIP\n" for each iteration but those of the
 * warm-up: what each took on this rank, in ns. The end of the input ends it. */
#define _GNU_SOURCE
#include "rank.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "expected.h"
#include "problem.h"
#include "side.h"

struct times {
  int64_t dispatch, combine, round_trip;
};

struct buffers {
  uint16_t *x, *out; /* [tokens, hidden] */
  const uint16_t *rows;
  size_t count; /* of rows */
};

/* The experts' work is to give back what they were given, so that y is rows. */
static int64_t dispatch(struct buffers *b, int tokens) {
  side_barrier();
  int64_t start = now();
  b->rows = side_dispatch(b->x, tokens, &b->count);
  return now() - start;
}

static int64_t combine(struct buffers *b) {
  side_barrier();
  int64_t start = now();
  side_combine(b->rows, b->out);
  return now() - start;
}

static int64_t round_trip(struct buffers *b, int tokens) {
  side_barrier();
  int64_t start = now();
  b->rows = side_dispatch(b->x, tokens, &b->count);
  side_combine(b->rows, b->out);
  return now() - start;
}

static size_t wrong(const struct problem *p, const struct buffers *b, int tokens, uint32_t turn) {
  size_t elements = wrong_rows(p, tokens, turn, b->rows, b->count, !side_has_results);
  if (side_has_results) elements += wrong_sums(p, tokens, turn, side_sends_sums, b->out);
  return elements;
}

/* Each turn has tokens of its own, so that nothing that an earlier one has left behind passes for a result. */
static size_t iterate(const struct problem *p, struct buffers *b, int tokens, uint32_t iteration, int checked,
                      struct times *times) {
  size_t wrong_elements = 0;
  uint32_t turn = 2 * iteration;
  write_tokens(p, tokens, turn, b->x);
  times->dispatch = dispatch(b, tokens);
  times->combine = combine(b);
  if (checked) wrong_elements += wrong(p, b, tokens, turn);
  write_tokens(p, tokens, turn + 1, b->x);
  times->round_trip = round_trip(b, tokens);
  if (checked) wrong_elements += wrong(p, b, tokens, turn + 1);
  return wrong_elements;
}

static void measure(const struct problem *p, struct buffers *b, int tokens, uint32_t warmup, uint32_t iterations, FILE *answers) {
  uint32_t all = warmup + iterations;
  struct times *times = touched(all * sizeof *times);
  size_t wrong_elements = 0;
  for (uint32_t i = 0; i < all; i++) {
    int checked = i == 0 || i == all - 1;
    wrong_elements += iterate(p, b, tokens, i, checked, &times[i]);
  }
  fprintf(answers, "%zu\n", wrong_elements);
  for (uint32_t i = warmup; i < all; i++) {
    fprintf(answers, "%" PRId64 " %" PRId64 " %" PRId64 "\n", times[i].dispatch, times[i].combine, times[i].round_trip);
  }
  if (fflush(answers) != 0) fail("answer");
  free(times);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s SOCKET CPUS PROBLEM\n", argv[0]);
    return 2;
  }
  bind_to_cpu(argv[2], side_rank_variables);
  int rank, ranks;
  side_start(&argc, &argv, &rank, &ranks);
  struct problem p;
  read_problem(argv[3], rank, ranks, &p);
  make_pattern(&p);
  side_prepare(&p);
  size_t bytes = (size_t)p.tokens * row_bytes(&p);
  struct buffers b = {.x = touched(bytes), .out = touched(bytes)};
  FILE *commands, *answers;
  connect_to(argv[1], rank, ranks, &commands, &answers);
  int tokens;
  uint32_t warmup, iterations;
  while (fscanf(commands, "%d %" SCNu32 " %" SCNu32, &tokens, &warmup, &iterations) == 3) {
    if (tokens < 1 || tokens > p.tokens || warmup > 1 << 20 || iterations < 1 || iterations > 1 << 20) {
      fprintf(stderr, "rank %d: %d tokens, %" PRIu32 " and %" PRIu32 " times: not possible\n", rank, tokens, warmup, iterations);
      return 1;
    }
    measure(&p, &b, tokens, warmup, iterations, answers);
  }
  side_end();
  return 0;
}
