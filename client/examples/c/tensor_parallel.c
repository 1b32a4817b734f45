/* A layer split over the ranks, as in tensor parallelism: y = W x, where each rank holds some columns of W. Each rank computes a partial
 * sum of every element of y, and an all-reduce adds the partial sums. y is in a window, which all ranks have mapped, so the all-reduce
 * is zero-copy.
 *
 *   railhead run --daemon -n 4 -- ./tensor_parallel
 */
#include <stdio.h>

#include "railhead.h"

enum { ROWS = 1 << 16, COLUMNS = 64 };

static int failed(rh_result result) {
  if (result == RH_OK) return 0;
  fprintf(stderr, "%s: %s\n", rh_result_string(result), rh_last_error_message());
  return 1;
}

/* The layer and its input. Small integers, so that sums are exact and can be compared with ==. */
static float weight(int row, int column) { return (float)((row + 3 * column) % 7 - 3); }
static float input(int column) { return (float)(column % 5); }

/* y += W x for the columns [begin, end). */
static void multiply(float *y, int begin, int end) {
  for (int row = 0; row < ROWS; row++) {
    for (int column = begin; column < end; column++) y[row] += weight(row, column) * input(column);
  }
}

static int check(const float *y, int32_t rank) {
  static float want[ROWS];
  multiply(want, 0, COLUMNS);
  for (int row = 0; row < ROWS; row++) {
    if (y[row] == want[row]) continue;
    fprintf(stderr, "rank %d: row %d is %g, not %g\n", (int)rank, row, (double)y[row], (double)want[row]);
    return 1;
  }
  return 0;
}

static int work(rh_comm *comm) {
  int32_t rank = -1, world = -1;
  rh_window *window = NULL;
  void *pointer = NULL;
  rh_comm_status status = RH_COMM_STATUS_INIT;
  if (failed(rh_comm_rank(comm, &rank)) || failed(rh_comm_world_size(comm, &world))) return 1;

  /* Once, when the engine starts. Collective. The memory is zero. */
  if (failed(rh_window_alloc(comm, ROWS * sizeof(float), NULL, &window))) return 1;
  if (failed(rh_window_pointer(window, rank, &pointer))) return 1;
  float *y = pointer;

  /* For every layer of every step. */
  multiply(y, COLUMNS * rank / world, COLUMNS * (rank + 1) / world);
  if (failed(rh_all_reduce(y, y, ROWS, RH_F32, RH_SUM, comm, NULL))) return 1;

  if (check(y, rank) != 0 || failed(rh_comm_get_status(comm, &status))) return 1;
  printf("rank %d of %d: %d rows are right, added up by %s\n", (int)rank, (int)world, ROWS, status.algorithm_name);
  return failed(rh_window_free(window)); /* collective */
}

int main(void) {
  rh_session *session = NULL;
  rh_comm *comm = NULL;
  if (failed(rh_connect(NULL, &session))) return 1;
  int status = failed(rh_comm_init(session, NULL, &comm));
  if (status == 0) {
    status = work(comm);
    if (status != 0) (void)rh_comm_abort(comm);
    if (failed(rh_comm_finalize(comm))) status = 1;
  }
  if (failed(rh_close(session))) status = 1;
  return status;
}
