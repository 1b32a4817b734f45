/* Groups of calls that meet the end of a thread, an abort, or buffers that overlap. One rank. */
#include <pthread.h>
#include <stdint.h>

#include "check.h"

static rh_comm *comm;
static int late_calls = 0;

/* Runs when the thread ends, after the library has dropped the thread's group: the library's key was created earlier. */
static void late(void *unused) {
  (void)unused;
  OK(rh_barrier(comm, NULL));
  OK(rh_group_start());
  OK(rh_barrier(comm, NULL));
  OK(rh_group_end());
  late_calls++;
}

static void *end_within_group(void *unused) {
  static pthread_key_t key;
  OK(rh_group_start());
  OK(rh_barrier(comm, NULL));
  CHECK(pthread_key_create(&key, late) == 0);
  CHECK(pthread_setspecific(key, &key) == 0);
  return unused;
}

static void thread_ends(void) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, end_within_group, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(late_calls == 1);
}

static void to_itself(const float *send, float *recv, rh_result want, const char *word) {
  OK(rh_group_start());
  OK(rh_send(send, 3, RH_F32, 0, comm, NULL));
  OK(rh_recv(recv, 3, RH_F32, 0, comm, NULL));
  FAILS(rh_group_end(), want, word, "");
}

int main(void) {
  float values[4] = {1, 2, 3, 4};
  const rh_comm_config config = comm_config("group", 0, 1);
  rh_session *session = open_session();
  OK(rh_comm_init(session, &config, &comm));
  thread_ends();
  to_itself(values, values + 1, RH_OK, "");
  CHECK(values[0] == 1 && values[1] == 1 && values[2] == 2 && values[3] == 3);
  OK(rh_comm_abort(comm));
  to_itself(values + 1, values, RH_ERR_ABORTED, "rank 0");
  CHECK(values[1] == 1 && values[2] == 2);
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
  return 0;
}
