// The daemon hangs, stays away for longer than calls wait for it, or dies again and again. Calls end with DAEMON_LOST at their deadline, not
// earlier and not later, and can be made again.
#include "scenario.h"

namespace world {

namespace {

// kHangs: it ends without working again. kWorksAgain: it answers a call that was given up, and dies soon.
// kCrashes: it dies soon after each start, for longer than a call may take.
enum class Kind { kAway, kHangs, kWorksAgain, kCrashes };

struct {
  int world;
  Kind kind;
  int64_t diedAt;
  bool gone;    // it hangs or has died
  bool gaveUp;  // a rank has
  bool over;    // the daemon is back for good
  int ready;
} s;

constexpr int64_t kPatience = 5 * kSecond;  // kRestartNs of session.h

// A call that may find no daemon. True: it was not lost.
bool once(rh_result got, int64_t began, const char* call) {
  const int64_t took = now() - began;
  if (got == RH_OK) return true;
  want(got, RH_ERR_DAEMON_LOST, call);
  // A daemon that hangs is waited for until the deadline of the call and the grace; one that is away for 5 s after its death.
  // A call that loses its daemons begins again until the deadline of its first attempt, and waits for the next daemon as long.
  const bool dies = s.diedAt != 0 || s.kind == Kind::kCrashes;
  const int64_t least = dies ? kPatience : kTimeout + kGrace;
  int64_t most = kTimeout + kGrace + (dies ? kPatience : 0) + kSlow;
  if (s.diedAt != 0 && began > s.diedAt + kSlow && !listening) most = kPatience + 20 * kMs;
  if (took < least) fail("%s gave up after %.3f s: %s", call, static_cast<double>(took) / 1e9, rh_last_error_message());
  if (took > most + frozen()) fail("%s took %.3f s", call, static_cast<double>(took) / 1e9);
  return false;
}

// Makes the call until it is not lost.
void allocate(rh_comm* comm) {
  for (int lost = 0;; lost++) {
    if (lost > 6) fail("%d calls were lost", lost);
    rh_window* w = nullptr;
    const int64_t began = now();
    if (!once(rh_window_alloc(comm, kGranule, nullptr, &w), began, "window_alloc")) {
      s.gaveUp = true;
      continue;
    }
    rh_window_info info = RH_WINDOW_INFO_INIT;
    want(rh_window_get_info(w, &info), RH_OK, "window_get_info");
    const Ended& e = endedCall("g", endedCallsOf("g"));
    if (s.world == 1 && (e.op != RHW_OP_WINDOW_ALLOC || e.offset != info.offset)) fail("window_alloc has the outcome of another call");
    return;
  }
}

void runRank(int rank) {
  rh_session* session = connectOrFail();
  rh_comm* comm = nullptr;
  const rh_comm_config config = configOf("g", s.world, rank);
  want(rh_comm_init(session, &config, &comm), RH_OK, "comm_init");
  rh_window* first = nullptr;
  want(rh_window_alloc(comm, kGranule, nullptr, &first), RH_OK, "window_alloc");
  s.ready++;
  if (s.kind == Kind::kWorksAgain) {
    block("wait for the daemon to hang", kNever, [] { return s.gone; });
    const int64_t began = now();
    if (oneIn(2)) {
      once(rh_window_free(first), began, "window_free");
    } else {  // its answers come late, with descriptors
      rh_comm* other = nullptr;
      const rh_comm_config late = configOf("late", 1, 0);
      want(rh_comm_init(session, &late, &other), RH_ERR_DAEMON_LOST, "comm_init while the daemon hangs");
    }
    s.gaveUp = true;
  }
  for (int i = 0; i < 4; i++) {
    allocate(comm);
    // Of two ranks one may have given up while the other calls the next daemon, and waits there.
    if (s.world == 1) want(rh_barrier(comm, nullptr), RH_OK, "barrier without a daemon");
    sleepUntil(now() + static_cast<int64_t>(below(200 * kMs)));
  }
  // finalize ends the handle whatever it returns, so make sure of the daemon first.
  block("wait for the daemon", kNever, [] { return s.over; });
  allocate(comm);
  want(rh_comm_finalize(comm), RH_OK, "finalize");
  want(rh_close(session), RH_OK, "close");
}

void crash() {
  const auto actions = 1 + below(10);
  const int64_t until = now() + 25 * kSecond;
  while (now() < until) {
    block("wait for the daemon", kNever, [] { return listening; });
    dieAfter(static_cast<int>(below(actions)));
    block("wait for the death", now() + kSecond, [] { return !listening; });
  }
  dieAfter(-1);
}

void disturb() {
  block("wait for the ranks", kNever, [] { return s.ready == s.world; });
  if (s.kind != Kind::kWorksAgain) sleepUntil(now() + static_cast<int64_t>(below(400 * kMs)));
  if (s.kind == Kind::kHangs || s.kind == Kind::kWorksAgain) hang(true);
  s.gone = true;
  if (s.kind == Kind::kCrashes) crash();
  if (s.kind == Kind::kHangs) sleepUntil(now() + static_cast<int64_t>(below(12 * kSecond)));
  if (s.kind == Kind::kWorksAgain) {
    block("wait for a rank to give up", kNever, [] { return s.gaveUp; });
    sleepUntil(now() + static_cast<int64_t>(below(10 * kUs)));
    hang(false);
    dieAfter(static_cast<int>(1 + below(6)));
    block("wait for the death", now() + kSecond, [] { return !listening; });
    dieAfter(-1);
  }
  s.diedAt = now();
  if (listening) dieNow();
  block("wait for the daemon", kNever, [] { return listening; });
  s.over = true;
}

}  // namespace

void lost() {
  DaemonPlan plan;
  s.kind = static_cast<Kind>(below(4));
  // Of a daemon that hangs, one rank may have an answer and another give up (architecture.md, limitations).
  s.world = s.kind != Kind::kAway ? 1 : static_cast<int>(1 + below(2));
  plan.mostAway = s.kind != Kind::kAway ? kSecond : 25 * kSecond;
  plan.leastAway = s.kind != Kind::kAway ? 0 : 3 * kSecond;
  plan.ignoresHello = s.world == 1 && oneIn(3);
  startDaemon(plan);
  for (int r = 0; r < s.world; r++) {
    start([](void* rank) { runRank(static_cast<int>(reinterpret_cast<intptr_t>(rank))); }, reinterpret_cast<void*>(static_cast<intptr_t>(r)));
  }
  start([](void*) { disturb(); }, nullptr);
}

}  // namespace world
