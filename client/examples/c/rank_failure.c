/* A rank dies during the work. The others name it, form a new group without it, and finish.
 *
 *   railhead run --daemon -n 4 -- ./rank_failure
 *
 * The last rank kills itself, so the command's exit status is 137 (128 + SIGKILL); all others exit with 0.
 */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <stdio.h>

#include "railhead.h"

enum { STEPS = 6, LAST_STEP_OF_VICTIM = 2, COUNT = 1000 };

static int failed(rh_result result) {
  if (result == RH_OK) return 0;
  fprintf(stderr, "%s: %s\n", rh_result_string(result), rh_last_error_message());
  return 1;
}

/* One step of the work. *right: whether the result is correct. The step is not in place, so that it can be repeated. */
static rh_result do_step(rh_comm *comm, int32_t rank, int32_t world, int64_t step, int *right) {
  static float send[COUNT], recv[COUNT];
  for (int i = 0; i < COUNT; i++) send[i] = (float)((rank + 1) * (step + 1));
  const rh_result result = rh_all_reduce(send, recv, COUNT, RH_F32, RH_SUM, comm, NULL);
  *right = 1;
  for (int i = 0; result == RH_OK && i < COUNT; i++) {
    if (recv[i] != (float)(world * (world + 1) / 2 * (step + 1))) *right = 0;
  }
  return result;
}

/* Replaces the broken group by one of the surviving ranks. Returns 0, or 1 if that fails. */
static int form_anew(rh_session *session, rh_comm **comm, int32_t *rank, int32_t *world, int64_t *step) {
  rh_comm_status status = RH_COMM_STATUS_INIT;
  rh_comm_config config = RH_COMM_CONFIG_INIT;
  if (failed(rh_comm_get_status(*comm, &status))) return 1;
  if (status.result != RH_ERR_RANK_DEAD || status.culprit < 0) {
    fprintf(stderr, "%s\n", rh_last_error_message());
    return 1;
  }
  printf("rank %d: rank %d died\n", (int)*rank, (int)status.culprit);
  const rh_result finalized = rh_comm_finalize(*comm); /* does not wait, because the group is broken; frees the group's name */
  *comm = NULL;
  if (failed(finalized)) return 1;

  *rank -= *rank > status.culprit;
  *world -= 1;
  config.rank = *rank;
  config.world_size = *world;
  if (failed(rh_comm_init(session, &config, comm))) return 1;
  /* A step that failed on one rank may have completed on another. All repeat the earliest step that failed. */
  return failed(rh_all_reduce(step, step, 1, RH_I64, RH_MIN, *comm, NULL));
}

/* Returns the exit status. */
static int work(rh_session *session, rh_comm **comm) {
  int32_t rank = -1, world = -1;
  if (failed(rh_comm_rank(*comm, &rank)) || failed(rh_comm_world_size(*comm, &world))) return 1;
  const int32_t victim = rank == world - 1 && world > 1;

  for (int64_t step = 0; step < STEPS;) {
    int right = 0;
    if (victim && step > LAST_STEP_OF_VICTIM) (void)raise(SIGKILL);
    if (do_step(*comm, rank, world, step, &right) != RH_OK) {
      if (form_anew(session, comm, &rank, &world, &step) != 0) return 1;
    } else if (right) {
      step++;
    } else {
      fprintf(stderr, "rank %d: the result of step %d is wrong\n", (int)rank, (int)step);
      return 1;
    }
  }
  printf("all %d steps are right, the last as rank %d of %d\n", STEPS, (int)rank, (int)world);
  return 0;
}

int main(void) {
  rh_session *session = NULL;
  rh_comm *comm = NULL;
  (void)signal(SIGTERM, SIG_IGN); /* `railhead run` sends it when a rank has failed, and kills the ranks 5 s later */
  if (failed(rh_connect(NULL, &session))) return 1;
  int status = failed(rh_comm_init(session, NULL, &comm));
  if (status == 0) {
    status = work(session, &comm);
    if (status != 0 && comm != NULL) (void)rh_comm_abort(comm);
    if (comm != NULL && failed(rh_comm_finalize(comm))) status = 1;
  }
  if (failed(rh_close(session))) status = 1;
  return status;
}
