// Three ranks in three threads make set-up calls and collectives while their daemon is replaced again and again (restart_test.go), until
// the test closes stdin.
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

namespace {

constexpr int kRanks = 3;
int over = 0;  // atomic

void useWindow(rh_comm* comm, int rank) {
  rh_window* window = nullptr;
  void* memory = nullptr;
  OK(rh_window_alloc(comm, 100000, nullptr, &window));
  OK(rh_window_pointer(window, rank, &memory));
  memset(memory, rank, 100000);
  OK(rh_barrier(comm, nullptr));
  OK(rh_window_free(window));
}

void useOwn(rh_comm* comm) {
  static thread_local char own[4096];
  rh_register_config config = RH_REGISTER_CONFIG_INIT;
  rh_window* window = nullptr;
  config.pointer = own;
  config.bytes = sizeof own;
  OK(rh_window_register(comm, &config, &window));
  OK(rh_window_free(window));
}

void* live(void* number) {
  const int rank = static_cast<int>(reinterpret_cast<intptr_t>(number));
  rh_session* session = open_session();
  rh_comm_config config = comm_config("loop", rank, kRanks);
  rh_comm* comm = nullptr;
  OK(rh_comm_init(session, &config, &comm));
  for (float stop = 0; stop == 0;) {
    useWindow(comm, rank);
    useOwn(comm);
    rh_comm* half = nullptr;
    OK(rh_comm_split(comm, rank % 2, 0, &half));
    OK(rh_barrier(half, nullptr));
    OK(rh_comm_finalize(half));
    const float mine = rank == 0 && __atomic_load_n(&over, __ATOMIC_ACQUIRE) != 0 ? 1.f : 0.f;
    OK(rh_all_reduce(&mine, &stop, 1, RH_F32, RH_SUM, comm, nullptr));
  }
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
  return nullptr;
}

}  // namespace

int main() {
  pthread_t threads[kRanks];
  for (int r = 0; r < kRanks; r++) CHECK(pthread_create(&threads[r], nullptr, live, reinterpret_cast<void*>(static_cast<intptr_t>(r))) == 0);
  char word;
  while (read(0, &word, 1) > 0) {
  }
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  for (pthread_t t : threads) CHECK(pthread_join(t, nullptr) == 0);
  return 0;
}
