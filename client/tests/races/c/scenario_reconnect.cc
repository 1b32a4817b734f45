// Ranks make set-up calls and collectives while the daemon dies and comes back. Every call ends once, with the outcome that the ledger has
// for it and for no other call.
#include <stdio.h>

#include "scenario.h"

namespace world {

namespace {

enum class Op { kAlloc, kFree, kBarrier, kAllReduce };
constexpr int kMostOps = 10;

struct {
  int world;
  bool sharedSession;
  rh_session* session;
  Op script[kMostOps];
  int ops;
} s;

struct Windows {
  rh_window* handles[kMostOps];
  int count = 0;
};

// Checks the result of this rank's set-up call number n.
void check(int n, uint32_t op, rh_result got, int64_t began) {
  if (endedCallsOf("g") < n) fail("call %d, which has not ended, returned %s: %s", n, rh_result_string(got), rh_last_error_message());
  const Ended& e = endedCall("g", n);
  if (e.op != op) fail("call %d is operation %u of the rank, %u of the daemon", n, op, e.op);
  want(got, e.code, "a set-up call");
  char text[32];
  snprintf(text, sizeof text, "outcome %d", n);
  if (e.code != RH_OK && strcmp(rh_last_error_message(), text) != 0) fail("call %d ended with \"%s\"", n, rh_last_error_message());
  if (now() - began > kTimeout + kGrace + kSlow + frozen()) fail("call %d took %.3f s", n, static_cast<double>(now() - began) / 1e9);
}

void allocate(rh_comm* comm, int n, Windows* windows) {
  const int64_t began = now();
  rh_window* w = nullptr;
  const rh_result r = rh_window_alloc(comm, kGranule, nullptr, &w);
  check(n, RHW_OP_WINDOW_ALLOC, r, began);
  if (r != RH_OK) return;
  rh_window_info info = RH_WINDOW_INFO_INIT;
  want(rh_window_get_info(w, &info), RH_OK, "window_get_info");
  const uint64_t offset = endedCall("g", n).offset;
  if (info.offset != offset) fail("call %d gave the window at %llu, want %llu", n, static_cast<unsigned long long>(info.offset), static_cast<unsigned long long>(offset));
  windows->handles[windows->count++] = w;
}

void free(int n, Windows* windows) {
  const int64_t began = now();
  rh_window* w = windows->handles[--windows->count];
  check(n, RHW_OP_WINDOW_FREE, rh_window_free(w), began);
  rh_window_info info = RH_WINDOW_INFO_INIT;
  want(rh_window_get_info(w, &info), RH_ERR_INVALID_HANDLE, "window_get_info of a freed window");
}

void runRank(int rank) {
  rh_session* session = s.sharedSession ? s.session : connectOrFail();
  rh_comm* comm = nullptr;
  const rh_comm_config config = configOf("g", s.world, rank);
  want(rh_comm_init(session, &config, &comm), RH_OK, "comm_init");
  int calls = 1;
  Windows windows;
  for (int i = 0; i < s.ops; i++) {
    if (oneIn(8)) freezeSoon();
    if (oneIn(8)) freezeAt("sendmsg");  // a connection that a thread is about to use is not replaced
    float one = 1, sum = 0;
    switch (s.script[i]) {
      case Op::kAlloc: allocate(comm, ++calls, &windows); break;
      case Op::kFree:
        if (windows.count > 0) free(++calls, &windows);
        break;
      case Op::kBarrier: want(rh_barrier(comm, nullptr), RH_OK, "barrier"); break;
      case Op::kAllReduce:
        want(rh_all_reduce(&one, &sum, 1, RH_F32, RH_SUM, comm, nullptr), RH_OK, "all_reduce");
        if (sum != static_cast<float>(s.world)) fail("all_reduce gave %g", static_cast<double>(sum));
    }
  }
  const int64_t began = now();
  check(++calls, RHW_OP_FINALIZE, rh_comm_finalize(comm), began);
  want(rh_barrier(comm, nullptr), RH_ERR_INVALID_HANDLE, "barrier on a finalized comm");
  if (!s.sharedSession) want(rh_close(session), RH_OK, "close");
}

}  // namespace

void reconnect() {
  DaemonPlan plan;
  plan.restarts = static_cast<int>(below(4));
  plan.errorOneIn = below(3) * 2;
  plan.refuseHelloOneIn = below(2) * 8;
  plan.mostAway = kSecond;
  startDaemon(plan);
  s.world = static_cast<int>(1 + below(3));
  s.sharedSession = oneIn(3);
  s.ops = static_cast<int>(1 + below(kMostOps));
  for (int i = 0; i < s.ops; i++) s.script[i] = static_cast<Op>(below(4));
  if (s.sharedSession) s.session = connectOrFail();
  for (int r = 0; r < s.world; r++) {
    start([](void* rank) { runRank(static_cast<int>(reinterpret_cast<intptr_t>(rank))); }, reinterpret_cast<void*>(static_cast<intptr_t>(r)));
  }
  joinAll();
  if (s.sharedSession) want(rh_close(s.session), RH_OK, "close");
}

}  // namespace world
