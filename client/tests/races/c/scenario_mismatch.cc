// A rank calls another collective than the others. Whoever finds that first writes both calls into its line and breaks the group; every rank's
// message names both.
#include "scenario.h"

namespace world {

namespace {

constexpr size_t kCount = 12;

struct {
  int world;
  int odd;     // the rank that calls something else
  int before;  // barriers that all make before
} s;

void runRank(int rank) {
  rh_session* session = connectOrFail();
  rh_comm* comm = nullptr;
  rh_comm_config config = configOf("g", s.world, rank);
  config.timeout_ms = 10 * kTimeoutMs;
  want(rh_comm_init(session, &config, &comm), RH_OK, "comm_init");
  for (int i = 0; i < s.before; i++) want(rh_barrier(comm, nullptr), RH_OK, "a barrier that all make");
  freezeSoon();
  float send[kCount] = {}, recv[kCount] = {};
  want(rank == s.odd ? rh_all_reduce(send, recv, kCount, RH_F32, RH_SUM, comm, nullptr) : rh_barrier(comm, nullptr), RH_ERR_MISMATCH, "different calls");
  wantMessage("all_reduce of 12 f32 sum");
  wantMessage("barrier");
  want(rh_comm_finalize(comm), RH_OK, "finalize of a broken group");
  want(rh_close(session), RH_OK, "close");
}

}  // namespace

void mismatch() {
  startDaemon(DaemonPlan());
  s.world = static_cast<int>(2 + below(2));
  s.odd = static_cast<int>(below(static_cast<uint64_t>(s.world)));
  s.before = static_cast<int>(below(3));
  for (int r = 0; r < s.world; r++) {
    start([](void* rank) { runRank(static_cast<int>(reinterpret_cast<intptr_t>(rank))); }, reinterpret_cast<void*>(static_cast<intptr_t>(r)));
  }
}

}  // namespace world
