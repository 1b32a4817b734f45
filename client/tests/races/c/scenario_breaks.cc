// A group breaks while its ranks wait, call or do nothing: a rank aborts or closes its session, or a rank of another process aborts or dies, with a daemon, with
// one that hangs, and without one. Every rank gets the cause and the culprit, soon.
#include <stdio.h>

#include "scenario.h"

namespace world {

namespace {

// A rank that dies in finalize may have completed it, so its peers do not report it; their deadline ends the wait.
enum class Cause { kAbort, kPlayedAborts, kPlayedDies, kPlayedDiesInFinalize, kCloses };
enum class Daemon { kThere, kHangs, kAway };

struct {
  int world, played;  // the last rank is played
  Cause cause;
  Daemon daemon;
  bool setUpCalls;    // ranks wait in set-up calls too
  bool byThread;      // another thread calls rh_comm_abort, not the rank itself
  rh_comm* comms[kMaxWorld];
  int ready, ended, waiting;  // ranks
  int64_t firstBegan;
  bool mayClose;     // the culprit closes its session now
  bool breaking;     // from here on calls may end
  int64_t brokenAt;  // from here on they must
  int culprit;
} s;

rh_result wantedResult() {
  if (s.cause == Cause::kPlayedDiesInFinalize) return RH_ERR_TIMEOUT;
  return s.cause == Cause::kPlayedDies || s.cause == Cause::kCloses ? RH_ERR_RANK_DEAD : RH_ERR_ABORTED;
}

// How long after the break a call may return. The client polls for deaths every 25 ms without a daemon, and every second with one; a
// set-up call looks at the abort word every 100 ms.
int64_t bound(bool setUpCall, int64_t since) {
  int64_t most = 60 * kMs;  // latencies of the daemon and jumps of the clock
  if (s.cause == Cause::kPlayedDies && s.daemon == Daemon::kAway) most += 25 * kMs;
  if (s.cause == Cause::kPlayedDies && s.daemon == Daemon::kHangs) most += 1000 * kMs;
  if (setUpCall) most += 100 * kMs;
  // The deadline counts from when a rank begins to wait, which it may do late.
  return most + frozen(s.cause == Cause::kPlayedDiesInFinalize ? 0 : since);
}

void checkCause(rh_comm* comm) {
  char who[32];
  snprintf(who, sizeof who, "rank %d (pid %d)", s.culprit, 1000 + s.culprit);
  wantMessage(who);
  rh_comm_status status = RH_COMM_STATUS_INIT;
  want(rh_comm_get_status(comm, &status), RH_OK, "comm_get_status");
  if (status.result != wantedResult() || status.culprit != s.culprit) fail("the status says %s of rank %d", rh_result_string(status.result), status.culprit);
}

rh_result callOnce(rh_comm* comm, int op) {
  if (op == 0) return rh_barrier(comm, nullptr);
  rh_window* w = nullptr;
  return rh_window_alloc(comm, kGranule, nullptr, &w);
}

void closeSession(rh_session* session, rh_comm* comm) {
  block("wait to close", kNever, [] { return s.mayClose; });
  s.breaking = true;
  freezeSoon();
  want(rh_close(session), RH_OK, "close with a comm");
  s.brokenAt = now();
  want(rh_barrier(comm, nullptr), RH_ERR_INVALID_HANDLE, "barrier of a closed session");
}

void runRank(int rank) {
  rh_session* session = connectOrFail();
  rh_comm* comm = nullptr;
  rh_comm_config config = configOf("g", s.world, rank);
  if (s.cause != Cause::kPlayedDiesInFinalize) config.timeout_ms = 10 * kTimeoutMs;  // frozen threads break the group late
  want(rh_comm_init(session, &config, &comm), RH_OK, "comm_init");
  s.comms[rank] = comm;
  s.ready++;
  if (s.cause == Cause::kCloses && rank == s.culprit) return closeSession(session, comm);
  // Some ranks do nothing until the group is broken.
  const bool idle = (oneIn(4) && s.cause != Cause::kPlayedDiesInFinalize) || (rank == s.culprit && !s.byThread && s.cause == Cause::kAbort);
  if (idle) block("wait for the break", kNever, [] { return s.breaking; });
  // Ranks that call different things break the group for another reason, so all make the same.
  s.waiting++;
  const int64_t began = now();
  if (s.firstBegan == 0) s.firstBegan = began;
  const rh_result got = callOnce(comm, s.setUpCalls ? 1 : 0);
  if (!s.breaking) fail("a call returned %s before the break: %s", rh_result_string(got), rh_last_error_message());
  if (s.cause == Cause::kPlayedDiesInFinalize) s.brokenAt = s.firstBegan + kTimeout;
  int64_t since = began > s.brokenAt ? began : s.brokenAt;
  if (s.brokenAt == 0) since = now();
  want(got, wantedResult(), "a call in a broken group");
  if (now() < since) fail("a call returned %s %.3f s before the deadline", rh_result_string(got), static_cast<double>(since - now()) / 1e9);
  if (now() - since > bound(s.setUpCalls, since)) fail("a call returned %.3f s after the break", static_cast<double>(now() - since) / 1e9);
  checkCause(comm);
  if (oneIn(2)) want(rh_comm_abort(comm), RH_OK, "abort of a broken group");  // changes nothing: the first cause counts
  want(rh_barrier(comm, nullptr), wantedResult(), "a later barrier");
  checkCause(comm);
  s.ended++;
  if (oneIn(2)) sleepUntil(now() + static_cast<int64_t>(below(2 * kSecond)));  // a daemon may come back, to which the group is not announced
  want(rh_comm_finalize(comm), RH_OK, "finalize of a broken group");
  want(rh_close(session), RH_OK, "close");
}

void waitForReady() {
  block("wait for the ranks", kNever, [] { return s.ready == s.world - s.played; });
  sleepUntil(now() + static_cast<int64_t>(below(100 * kMs)));
}

// Without a daemon: long enough for the sessions to notice.
void loseDaemon() {
  if (s.daemon == Daemon::kHangs) hang(true);
  if (s.daemon == Daemon::kAway) {
    dieNow();
    sleepUntil(now() + 50 * kMs + static_cast<int64_t>(below(300 * kMs)));
  }
}

void breakIt() {
  waitForReady();
  loseDaemon();
  const int64_t thawed = now();
  block("wait for the frozen", thawed + 5 * kSecond, [] { return !anyFrozen(); });
  s.mayClose = true;
  if (s.cause == Cause::kCloses) return;
  s.breaking = true;
  freezeSoon();
  switch (s.cause) {
    case Cause::kCloses: break;  // by the rank itself
    case Cause::kAbort: want(rh_comm_abort(s.comms[s.culprit]), RH_OK, "abort"); break;
    case Cause::kPlayedAborts: abortAs("g", s.culprit, RH_ERR_ABORTED, RHW_OP_BARRIER); break;
    case Cause::kPlayedDiesInFinalize: setOperation("g", s.culprit, RHW_OP_FINALIZE); [[fallthrough]];
    case Cause::kPlayedDies: killRank("g", s.culprit); break;
  }
  if (s.brokenAt == 0) s.brokenAt = now();
}

}  // namespace

void breaks() {
  DaemonPlan plan;
  s.cause = static_cast<Cause>(below(5));
  s.daemon = static_cast<Daemon>(s.cause == Cause::kPlayedDiesInFinalize ? 1 + below(2) : below(3));
  s.setUpCalls = s.cause != Cause::kPlayedDiesInFinalize && s.daemon != Daemon::kHangs && oneIn(3);  // with a daemon that hangs they wait for their deadline
  // A daemon that restarts meanwhile does not know the ranks again before the group breaks, or it does.
  plan.leastAway = s.daemon == Daemon::kAway ? oneIn(2) || s.cause == Cause::kPlayedDiesInFinalize ? 20 * kSecond : 100 * kMs : 0;
  plan.mostAway = plan.leastAway + kSecond;
  startDaemon(plan);
  s.world = static_cast<int>(2 + below(2));
  s.played = 1;
  s.byThread = oneIn(2);
  s.culprit = s.cause == Cause::kAbort || s.cause == Cause::kCloses ? static_cast<int>(below(static_cast<uint64_t>(s.world - 1))) : s.world - 1;
  playRank("g", s.world, s.world - 1, true);
  for (int r = 0; r < s.world - s.played; r++) {
    start([](void* rank) { runRank(static_cast<int>(reinterpret_cast<intptr_t>(rank))); }, reinterpret_cast<void*>(static_cast<intptr_t>(r)));
  }
  start([](void*) { breakIt(); }, nullptr);
  joinAll();
}

}  // namespace world
