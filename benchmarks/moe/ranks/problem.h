/* problem.h - what all ranks know: shapes, where experts lie, and which experts each token of every rank takes. */
#ifndef PROBLEM_H_
#define PROBLEM_H_

#include <stddef.h>
#include <stdint.h>

enum { MAX_TOPK = 64, MAX_RANKS = 64 };

/* Rank r holds the consecutive experts first_expert[r] .. first_expert[r + 1] - 1: experts / ranks, the first ranks one more. */
struct problem {
  int rank, ranks;
  int tokens; /* of each rank, at most */
  int hidden, experts, topk;
  int most_local; /* the most experts that a rank holds */
  int first_expert[MAX_RANKS + 1];
  int *rank_of;              /* [experts] */
  const int32_t *topk_idx;   /* [ranks, tokens, topk]; -1 = none */
  const float *topk_weights; /* the same shape */
};

/* Reads the file: ranks, tokens, hidden, experts, topk as uint32, then topk_idx and topk_weights. What does not fit ends the
 * process. */
void read_problem(const char *path, int rank, int ranks, struct problem *p);

static inline const int32_t *idx_of(const struct problem *p, int rank, int token) {
  return p->topk_idx + ((size_t)rank * (size_t)p->tokens + (size_t)token) * (size_t)p->topk;
}

static inline const float *weights_of(const struct problem *p, int rank, int token) {
  return p->topk_weights + ((size_t)rank * (size_t)p->tokens + (size_t)token) * (size_t)p->topk;
}

static inline size_t row_bytes(const struct problem *p) { return (size_t)p->hidden * sizeof(uint16_t); }

/* Memory of bytes, aligned to a page and touched, so that no page is missing while the clock runs. None ends the process. */
void *touched(size_t bytes);

#endif
