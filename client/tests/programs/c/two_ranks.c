/* Two ranks, which are threads of one process, use the basic calls. Compiled as C11 and as C++17. */
#include <pthread.h>
#include <stdint.h>

#include "check.h"

enum { kWorld = 2, kCount = 1000 };

static void sum(rh_comm *comm, int32_t rank) {
  static float in_place[kWorld][kCount];
  static uint16_t send[kWorld][kCount], recv[kWorld][kCount];
  for (int i = 0; i < kCount; i++) {
    in_place[rank][i] = (float)(i + rank);
    send[rank][i] = rank == 0 ? 0x3f80 : 0x4000; /* 1 and 2 in bf16 */
  }
  OK(rh_all_reduce(in_place[rank], in_place[rank], kCount, RH_F32, RH_SUM, comm, NULL));
  OK(rh_all_reduce(send[rank], recv[rank], kCount, RH_BF16, RH_SUM, comm, NULL));
  for (int i = 0; i < kCount; i++) {
    CHECK(in_place[rank][i] == (float)(2 * i + 1));
    CHECK(recv[rank][i] == 0x4040); /* 3 */
  }
}

static void share(rh_comm *comm, int32_t rank) {
  rh_window *window = NULL;
  void *mine = NULL, *theirs = NULL;
  rh_window_info info = RH_WINDOW_INFO_INIT;
  OK(rh_window_alloc(comm, 1000, NULL, &window));
  OK(rh_window_get_info(window, &info));
  CHECK(info.bytes == 1000);
  OK(rh_window_pointer(window, rank, &mine));
  OK(rh_window_pointer(window, 1 - rank, &theirs));
  for (size_t i = 0; i < info.bytes; i++) CHECK(((unsigned char *)mine)[i] == 0);
  OK(rh_barrier(comm, NULL));
  memset(theirs, 10 + rank, info.bytes);
  OK(rh_barrier(comm, NULL));
  for (size_t i = 0; i < info.bytes; i++) CHECK(((unsigned char *)mine)[i] == 10 + 1 - rank);
  OK(rh_window_free(window));
}

static void *run(void *argument) {
  const int32_t rank = *(const int32_t *)argument;
  int32_t got = -1;
  rh_comm_status status = RH_COMM_STATUS_INIT;
  rh_session *session = open_session();
  rh_comm *comm = NULL;
  const rh_comm_config config = comm_config("two ranks", rank, kWorld);
  OK(rh_comm_init(session, &config, &comm));
  OK(rh_comm_rank(comm, &got));
  CHECK(got == rank);
  OK(rh_comm_world_size(comm, &got));
  CHECK(got == kWorld);
  sum(comm, rank);
  share(comm, rank);
  OK(rh_comm_get_status(comm, &status));
  CHECK(status.result == RH_OK && status.rank == rank && status.culprit == -1);
  CHECK(status.operation == 6 && strcmp(status.operation_name, "none") == 0);
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
  return NULL;
}

int main(void) {
  static const int32_t ranks[kWorld] = {0, 1};
  pthread_t threads[kWorld];
  CHECK(rh_get_version() == RH_VERSION_MAJOR * 10000 + RH_VERSION_MINOR * 100 + RH_VERSION_PATCH);
  CHECK(strcmp(rh_last_error_message(), "") == 0);
  for (int i = 0; i < kWorld; i++) CHECK(pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)&ranks[i]) == 0);
  for (int i = 0; i < kWorld; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  for (int result = 0; result < 32; result++) printf("%d %s\n", result, rh_result_string((rh_result)result));
  return 0;
}
