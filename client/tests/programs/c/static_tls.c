/* A process with more thread-local variables than a small stack has room for: the C library puts them on the stacks of all threads. */
#include "check.h"

static _Thread_local volatile char large[1 << 20];

int main(void) {
  rh_session *session;
  rh_comm *comm = NULL;
  const rh_comm_config config = comm_config("thread-local", 0, 1);
  large[sizeof large - 1] = 1;
  session = open_session();
  OK(rh_comm_init(session, &config, &comm));
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
  return 0;
}
