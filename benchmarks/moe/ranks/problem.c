#define _GNU_SOURCE
#include "problem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *touched(size_t bytes) {
  enum { PAGE = 4096 };
  bytes = (bytes + PAGE) / PAGE * PAGE;
  void *memory = aligned_alloc(PAGE, bytes);
  if (memory == NULL) {
    fprintf(stderr, "no memory of %zu bytes: take fewer --tokens\n", bytes);
    exit(1);
  }
  memset(memory, 1, bytes);
  return memory;
}

static void must(int fits, const char *path, const char *what) {
  if (fits) return;
  fprintf(stderr, "%s: %s\n", path, what);
  exit(1);
}

static void place_experts(struct problem *p) {
  int each = p->experts / p->ranks, more = p->experts % p->ranks;
  p->most_local = each + (more > 0);
  p->rank_of = touched((size_t)p->experts * sizeof(int));
  int expert = 0;
  for (int rank = 0; rank < p->ranks; rank++) {
    p->first_expert[rank] = expert;
    for (int i = 0; i < each + (rank < more); i++) p->rank_of[expert++] = rank;
  }
  p->first_expert[p->ranks] = expert;
}

/* A token that named an expert twice would have more entries for a rank than a header has room for. */
static int is_valid(const struct problem *p, const int32_t *idx) {
  for (int k = 0; k < p->topk; k++) {
    if (idx[k] < -1 || idx[k] >= p->experts) return 0;
    for (int other = 0; other < k; other++) {
      if (idx[k] >= 0 && idx[k] == idx[other]) return 0;
    }
  }
  return 1;
}

void read_problem(const char *path, int rank, int ranks, struct problem *p) {
  uint32_t shape[5];
  FILE *file = fopen(path, "rb");
  must(file != NULL && fread(shape, sizeof shape, 1, file) == 1, path, "cannot be read");
  must(shape[0] == (uint32_t)ranks && ranks <= MAX_RANKS, path, "is for another number of ranks");
  must(shape[1] >= 1 && shape[1] <= 1 << 20 && shape[2] >= 1 && shape[2] <= 1 << 16 && shape[3] >= 1 && shape[3] <= 1 << 16 &&
           shape[4] >= 1 && shape[4] <= MAX_TOPK,
       path, "has a shape out of range");
  *p = (struct problem){.rank = rank, .ranks = ranks, .tokens = (int)shape[1], .hidden = (int)shape[2]};
  p->experts = (int)shape[3];
  p->topk = (int)shape[4];
  size_t entries = (size_t)ranks * shape[1] * shape[4];
  int32_t *idx = touched(entries * sizeof *idx);
  float *weights = touched(entries * sizeof *weights);
  must(fread(idx, sizeof *idx, entries, file) == entries, path, "is too short");
  must(fread(weights, sizeof *weights, entries, file) == entries, path, "is too short");
  fclose(file);
  p->topk_idx = idx;
  p->topk_weights = weights;
  place_experts(p);
  for (int r = 0; r < ranks; r++) {
    for (int t = 0; t < p->tokens; t++) must(is_valid(p, idx_of(p, r, t)), path, "a token names an unknown expert, or one twice");
  }
}
