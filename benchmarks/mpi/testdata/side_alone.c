/* side_alone.c - a side of one rank, to test loop.c: the sum is a copy. With "wrong" for buffers its last element is wrong. */
#include "../ranks/side.h"

#include <stdlib.h>
#include <string.h>

const char *const side_rank_variables[] = {"RANK", NULL};

static int spoil;

void side_start(int *argc, char ***argv, int *rank, int *ranks) {
  (void)argc;
  (void)argv;
  *rank = 0;
  *ranks = 1;
}

void side_buffers(const char *kind, size_t bytes, float **send, float **recv) {
  spoil = strcmp(kind, "wrong") == 0;
  *send = malloc(bytes);
  *recv = malloc(bytes);
}

void side_reduce(const float *send, float *recv, size_t count) {
  memcpy(recv, send, count * sizeof *send);
  if (spoil) recv[count - 1] += 1;
}

void side_end(void) {}
