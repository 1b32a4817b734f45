// Calls on streams, captured and not, from several threads at once, with what ends them: for the sanitizers. The ranks of a group are
// threads of this process. Arguments: seconds to go on for.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "device/threads/threads.h"
#include "railhead.h"

namespace {

constexpr int kWorld = 3;
constexpr size_t kCount = 3000;
constexpr int kLaunches = 20;
constexpr uint32_t kPatienceMs = 60000;

struct Rank {
  int rank, round;
  pthread_t thread;
};

pthread_barrier_t met;  // of the threads, in the middle of a round

float* floats() { return static_cast<float*>(calloc(kCount, sizeof(float))); }

rh_comm* form(rh_session* session, const char* name, int rank) {
  rh_comm_config config = comm_config(name, rank, kWorld);
  config.device_kind = static_cast<int32_t>(rht_device_kind());
  rh_comm* comm = nullptr;
  OK(rh_comm_init(session, &config, &comm));
  return comm;
}

// One call of each kind of work.
void put(rh_comm* comm, int rank, float* in, float* out, rht_stream* stream) {
  const int32_t next = (rank + 1) % kWorld, before = (rank + kWorld - 1) % kWorld;
  OK(rht_copy(out, in, kCount * sizeof(float), stream));
  OK(rh_all_reduce(in, out, kCount, RH_F32, RH_SUM, comm, stream));
  OK(rh_group_start());
  OK(rh_send(in, kCount, RH_F32, next, comm, stream));
  OK(rh_recv(out, kCount, RH_F32, before, comm, stream));
  OK(rh_group_end());
}

// Replays and calls; rank 2 ends every other round by an abort while the others wait.
void* runRank(void* p) {
  const auto* r = static_cast<Rank*>(p);
  char name[32];
  snprintf(name, sizeof name, "round %d", r->round);
  rh_session* session = open_session();
  rh_comm* comm = form(session, name, r->rank);
  rht_stream *stream = nullptr, *other = nullptr;
  rht_event* event = nullptr;
  OK(rht_stream_create(&stream));
  OK(rht_stream_create(&other));
  OK(rht_event_create(&event));
  rh_window* window = nullptr;
  void* part = nullptr;
  OK(rh_window_alloc(comm, 2 * kCount * sizeof(float), nullptr, &window));
  OK(rh_window_pointer(window, r->rank, &part));
  float *in = static_cast<float*>(part), *out = in + kCount, *plain = floats();
  rht_graph* graph = nullptr;
  rht_exec* exec = nullptr;
  OK(rht_begin_capture(stream));
  put(comm, r->rank, in, out, stream);
  put(comm, r->rank, in, plain, stream);
  OK(rht_end_capture(stream, &graph));
  OK(rht_graph_instantiate(graph, &exec));
  OK(rht_graph_destroy(graph));
  for (int i = 0; i < kLaunches; i++) {
    OK(rht_exec_launch(exec, stream));
    put(comm, r->rank, plain, out, stream);
    OK(rht_event_record(event, stream));
    OK(rht_stream_wait(other, event));
    put(comm, r->rank, in, plain, other);
    OK(rht_event_record(event, other));
    OK(rht_stream_wait(stream, event));
  }
  FAILS(rh_window_free(window), RH_ERR_BUSY, "window_free", "captured graphs");
  const bool aborts = r->round % 2 == 1;
  if (aborts) {
    OK(rht_stream_synchronize(stream, kPatienceMs));
    pthread_barrier_wait(&met);
    if (r->rank == 2) {
      OK(rh_comm_abort(comm));
    } else {
      OK(rht_exec_launch(exec, stream));
      FAILS(rht_stream_synchronize(stream, kPatienceMs), RH_ERR_ABORTED, "rank 2", "rh_comm_abort");
    }
    OK(rh_comm_finalize(comm));
  } else {
    OK(rh_comm_finalize(comm));  // waits for all of it
    OK(rht_stream_synchronize(stream, kPatienceMs));
    OK(rht_exec_launch(exec, stream));
    FAILS(rht_stream_synchronize(stream, kPatienceMs), RH_ERR_INVALID_HANDLE, "has been finalized", "nothing was done");
  }
  OK(rh_close(session));
  OK(rht_exec_destroy(exec));
  OK(rht_event_destroy(event));
  OK(rht_stream_destroy(other));
  OK(rht_stream_destroy(stream));
  free(plain);
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const time_t end = time(nullptr) + (argc > 1 ? atoi(argv[1]) : 1);
  CHECK(pthread_barrier_init(&met, nullptr, kWorld) == 0);
  int round = 0;
  do {
    Rank ranks[kWorld];
    for (int i = 0; i < kWorld; i++) {
      ranks[i].rank = i;
      ranks[i].round = round;
      CHECK(pthread_create(&ranks[i].thread, nullptr, runRank, &ranks[i]) == 0);
    }
    for (Rank& r : ranks) CHECK(pthread_join(r.thread, nullptr) == 0);
    round++;
  } while (round < 4 || time(nullptr) < end);
  printf("%d rounds\n", round);
  return 0;
}
