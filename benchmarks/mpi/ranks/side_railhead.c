/* side_railhead.c - Railhead's side, through its C ABI as any program uses it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "railhead_side.h"
#include "side.h"

const char *const side_rank_variables[] = {"RANK", NULL};

void side_start(int *argc, char ***argv, int *rank, int *ranks) {
  (void)argc;
  (void)argv;
  join_group(rank, ranks);
}

static float *buffer(const char *kind, int32_t rank, size_t bytes) {
  void *memory = NULL;
  if (strcmp(kind, "windows") == 0) {
    rh_window *window;
    must(rh_window_alloc(comm, bytes, NULL, &window));
    must(rh_window_pointer(window, rank, &memory));
  } else if (strcmp(kind, "malloc") == 0) {
    memory = malloc(bytes);
  }
  if (memory == NULL) {
    fprintf(stderr, "rank %d: no %s buffers of %zu bytes\n", (int)rank, kind, bytes);
    exit(1);
  }
  return memory;
}

void side_buffers(const char *kind, size_t bytes, float **send, float **recv) {
  int32_t rank = 0;
  must(rh_comm_rank(comm, &rank));
  *send = buffer(kind, rank, bytes);
  *recv = buffer(kind, rank, bytes);
}

void side_reduce(const float *send, float *recv, size_t count) {
  must(rh_all_reduce(send, recv, count, RH_F32, RH_SUM, comm, NULL));
}

void side_end(void) {
  leave_group();
}
