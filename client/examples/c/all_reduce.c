/* The smallest complete rank: connect, join the group, all-reduce, leave.
 *
 *   railhead run --daemon -n 4 -- ./all_reduce
 */
#include <stdio.h>

#include "railhead.h"

enum { COUNT = 1000 };

/* Every call returns an rh_result. The message names the rank and the operation, and says what happened and what to do. */
static int failed(rh_result result) {
  if (result == RH_OK) return 0;
  fprintf(stderr, "%s: %s\n", rh_result_string(result), rh_last_error_message());
  return 1;
}

/* Returns the exit status. */
static int work(rh_comm *comm) {
  static float x[COUNT];
  int32_t rank = -1, world = -1;
  if (failed(rh_comm_rank(comm, &rank)) || failed(rh_comm_world_size(comm, &world))) return 1;

  for (int i = 0; i < COUNT; i++) x[i] = (float)(i + rank);
  if (failed(rh_all_reduce(x, x, COUNT, RH_F32, RH_SUM, comm, NULL))) return 1; /* in place */

  for (int i = 0; i < COUNT; i++) {
    const float want = (float)(i * world + world * (world - 1) / 2);
    if (x[i] == want) continue;
    fprintf(stderr, "rank %d: element %d is %g, not %g\n", (int)rank, i, (double)x[i], (double)want);
    return 1;
  }
  printf("rank %d of %d: the sum begins with %g, %g, %g\n", (int)rank, (int)world, (double)x[0], (double)x[1], (double)x[2]);
  return 0;
}

int main(void) {
  rh_session *session = NULL;
  rh_comm *comm = NULL;
  if (failed(rh_connect(NULL, &session))) return 1;        /* $RAILHEAD_SOCKET */
  int status = failed(rh_comm_init(session, NULL, &comm)); /* rank and job come from the launcher */
  if (status == 0) {
    status = work(comm);
    if (status != 0) (void)rh_comm_abort(comm); /* the other ranks fail now instead of at their deadline */
    if (failed(rh_comm_finalize(comm))) status = 1;
  }
  if (failed(rh_close(session))) status = 1;
  return status;
}
