/* railhead_side.h - common code of Railhead's sides: a rank joins its group through the C ABI, as any program does. */
#ifndef SIDEBYSIDE_RAILHEAD_SIDE_H_
#define SIDEBYSIDE_RAILHEAD_SIDE_H_

#include <stdio.h>
#include <stdlib.h>

#include "railhead.h"

static rh_session *session;
static rh_comm *comm;

static void must(rh_result result) {
  if (result == RH_OK) return;
  fprintf(stderr, "%s\n", rh_last_error_message());
  exit(1);
}

/* Joins the group of RAILHEAD_SOCKET, RAILHEAD_GROUP, RANK and WORLD_SIZE. */
static void join_group(int *rank, int *ranks) {
  int32_t own = 0, all = 0;
  must(rh_connect(NULL, &session));
  must(rh_comm_init(session, NULL, &comm));
  must(rh_comm_rank(comm, &own));
  must(rh_comm_world_size(comm, &all));
  *rank = own;
  *ranks = all;
}

static void leave_group(void) {
  must(rh_comm_finalize(comm));
  must(rh_close(session));
}

#endif
