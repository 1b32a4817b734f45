// The daemon hangs, or stays away for longer than calls wait for it. Calls end with DAEMON_LOST at their deadline, not earlier and not
// later, and can be made again.
#include "scenario.h"

namespace world {

namespace {

struct {
  int world;
  bool hangs;
  int64_t goneAt;
  bool over;  // the daemon is back for good
  int ready;
} s;

constexpr int64_t kPatience = 5 * kSecond;  // kRestartNs of session.h

// A call that may find no daemon. True: it was not lost.
bool once(rh_result got, int64_t began, const char* call) {
  const int64_t took = now() - began;
  if (got == RH_OK) return true;
  want(got, RH_ERR_DAEMON_LOST, call);
  // A daemon that hangs is waited for until the deadline of the call and the grace; one that is away for 5 s after each loss.
  const int64_t least = s.hangs ? kTimeout + kGrace : kPatience;
  const int64_t most = s.hangs ? kTimeout + kGrace + kSlow : kTimeout + kGrace + kPatience + kSlow;
  if (took < least) fail("%s gave up after %.3f s: %s", call, static_cast<double>(took) / 1e9, rh_last_error_message());
  if (took > most + frozen()) fail("%s took %.3f s", call, static_cast<double>(took) / 1e9);
  return false;
}

void runRank(int rank) {
  rh_session* session = connectOrFail();
  rh_comm* comm = nullptr;
  const rh_comm_config config = configOf("g", s.world, rank);
  want(rh_comm_init(session, &config, &comm), RH_OK, "comm_init");
  s.ready++;
  int windows = 0;
  while (windows < 4) {
    rh_window* w = nullptr;
    const int64_t began = now();
    if (once(rh_window_alloc(comm, kGranule, nullptr, &w), began, "window_alloc")) windows++;
    // Of two ranks one may have given up while the other calls the next daemon, and waits there.
    if (s.world == 1) want(rh_barrier(comm, nullptr), RH_OK, "barrier without a daemon");
    sleepUntil(now() + static_cast<int64_t>(below(200 * kMs)));
  }
  for (;;) {
    const int64_t began = now();
    rh_window* w = nullptr;
    // finalize ends the handle whatever it returns, so make sure of the daemon first.
    if (s.over) break;
    block("wait for the daemon", kNever, [] { return s.over; });
    if (once(rh_window_alloc(comm, kGranule, nullptr, &w), began, "window_alloc")) break;
  }
  want(rh_comm_finalize(comm), RH_OK, "finalize");
  want(rh_close(session), RH_OK, "close");
}

void disturb() {
  block("wait for the ranks", kNever, [] { return s.ready == s.world; });
  sleepUntil(now() + static_cast<int64_t>(below(400 * kMs)));
  s.goneAt = now();
  if (s.hangs) {
    hang(true);
    sleepUntil(now() + static_cast<int64_t>(below(12 * kSecond)));
  }
  dieNow();
  block("wait for the daemon", kNever, [] { return listening; });
  s.over = true;
}

}  // namespace

void lost() {
  DaemonPlan plan;
  s.hangs = oneIn(2);
  // Of a daemon that hangs, one rank may have an answer and another give up (architecture.md, limitations).
  s.world = s.hangs ? 1 : static_cast<int>(1 + below(2));
  plan.mostAway = s.hangs ? kSecond : 12 * kSecond;
  plan.leastAway = s.hangs ? 0 : 3 * kSecond;
  startDaemon(plan);
  for (int r = 0; r < s.world; r++) {
    start([](void* rank) { runRank(static_cast<int>(reinterpret_cast<intptr_t>(rank))); }, reinterpret_cast<void*>(static_cast<intptr_t>(r)));
  }
  start([](void*) { disturb(); }, nullptr);
}

}  // namespace world
