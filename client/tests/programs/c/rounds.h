// The ranks of streams.cc and ep_streams.cc are threads of one process, on the device of client/device/threads. In every round they form
// a new group.
#ifndef RAILHEAD_CTEST_ROUNDS_H_
#define RAILHEAD_CTEST_ROUNDS_H_

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "device/threads/threads.h"
#include "railhead.h"

constexpr int kWorld = 3;
constexpr uint32_t kPatienceMs = 60000;

struct Rank {
  int rank, round;
  pthread_t thread;
};

static pthread_barrier_t met;  // of the ranks, in the middle of a round

inline rh_comm* joinRound(rh_session* session, const Rank& r) {
  char name[32];
  snprintf(name, sizeof name, "round %d", r.round);
  rh_comm_config config = comm_config(name, r.rank, kWorld);
  config.device_kind = static_cast<int32_t>(rht_device_kind());
  rh_comm* comm = nullptr;
  OK(rh_comm_init(session, &config, &comm));
  return comm;
}

// Ends a capture and makes it ready to be launched.
inline rht_exec* instantiate(rht_stream* stream) {
  rht_graph* graph = nullptr;
  rht_exec* exec = nullptr;
  OK(rht_end_capture(stream, &graph));
  OK(rht_graph_instantiate(graph, &exec));
  OK(rht_graph_destroy(graph));
  return exec;
}

// Runs at least so many rounds, and for at least the seconds of the program's argument. runRank(Rank*) is the thread of a rank.
inline int runRounds(int argc, char** argv, int least, void* (*runRank)(void*)) {
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
  } while (round < least || time(nullptr) < end);
  printf("%d rounds\n", round);
  return 0;
}

#endif  // RAILHEAD_CTEST_ROUNDS_H_
