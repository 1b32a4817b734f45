// Eager and captured calls on streams from several threads at once, and their ends, for the sanitizers. Argument: seconds to run for at
// least.
#include "rounds.h"

namespace {

constexpr size_t kCount = 3000;
constexpr int kLaunches = 20;

// Queues a copy, a collective, and a group of a send and a receive.
void put(rh_comm* comm, int rank, float* in, float* out, rht_stream* stream) {
  const int32_t next = (rank + 1) % kWorld, before = (rank + kWorld - 1) % kWorld;
  OK(rht_copy(out, in, kCount * sizeof(float), stream));
  OK(rh_all_reduce(in, out, kCount, RH_F32, RH_SUM, comm, stream));
  OK(rh_group_start());
  OK(rh_send(in, kCount, RH_F32, next, comm, stream));
  OK(rh_recv(out, kCount, RH_F32, before, comm, stream));
  OK(rh_group_end());
}

// Replays and eager calls. In every second round rank 2 aborts while the other ranks replay.
void* runRank(void* p) {
  const auto* r = static_cast<Rank*>(p);
  rh_session* session = open_session();
  rh_comm* comm = joinRound(session, *r);
  rht_stream *stream = nullptr, *other = nullptr;
  rht_event* event = nullptr;
  OK(rht_stream_create(&stream));
  OK(rht_stream_create(&other));
  OK(rht_event_create(&event));
  rh_window* window = nullptr;
  void* part = nullptr;
  OK(rh_window_alloc(comm, 2 * kCount * sizeof(float), nullptr, &window));
  OK(rh_window_pointer(window, r->rank, &part));
  float *in = static_cast<float*>(part), *out = in + kCount, *plain = static_cast<float*>(calloc(kCount, sizeof(float)));
  OK(rht_begin_capture(stream));
  put(comm, r->rank, in, out, stream);
  put(comm, r->rank, in, plain, stream);
  rht_exec* exec = instantiate(stream);
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
    OK(rh_comm_finalize(comm));  // waits for the queued calls
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

int main(int argc, char** argv) { return runRounds(argc, argv, 4, runRank); }
