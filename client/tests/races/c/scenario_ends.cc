// A session ends while other threads use it: rh_close, or a daemon that breaks the protocol. It refuses to close under a call on a comm;
// once it has ended it connects no more, announces nothing and leaves no comm.
#include <string.h>

#include "comm/comm.h"
#include "scenario.h"

namespace world {

namespace {

struct {
  rh_session* session;
  rh_comm* comm;
  rh_comm* child;
  bool over[2];      // the threads' calls have returned
  bool mayGoOn[2];   // they are held until then
  bool aborted;
  rh_result splitResult;
} s;

void connectAndInit(int world) {
  s.session = connectOrFail();
  const rh_comm_config config = configOf("g", world, 0);
  want(rh_comm_init(s.session, &config, &s.comm), RH_OK, "comm_init");
}

// A session that has ended announces no lease. It connects at most once more, if it was about to.
void checkEnded() {
  if (firstShutdown.at == 0) fail("no session has ended");
  if (sent.leases != firstShutdown.before.leases) fail("a session that has ended announces its lease to a daemon");
  const int more = sent.connects - firstShutdown.before.connects;
  if (more > (firstShutdown.wasUp ? 0 : 1)) fail("a session that has ended connects %d times more", more);
}

// ---- A call on a comm ----

void waitInBarrier() {
  const rh_result got = rh_barrier(s.comm, nullptr);
  if (!s.aborted) fail("a barrier without the other rank returned %s: %s", rh_result_string(got), rh_last_error_message());
  want(got, RH_ERR_ABORTED, "an aborted barrier");
}

bool isInBarrier() {
  rh_comm_status status = RH_COMM_STATUS_INIT;
  want(rh_comm_get_status(s.comm, &status), RH_OK, "comm_get_status");
  return strcmp(status.operation_name, "barrier") == 0;
}

// A call waits for a rank that never comes. rh_close does not end it.
void closeUnderACall() {
  DaemonPlan plan;
  startDaemon(plan);
  playRank("g", 2, 1, true);
  s.session = connectOrFail();
  rh_comm_config config = configOf("g", 2, 0);
  config.timeout_ms = 20 * kTimeoutMs;
  want(rh_comm_init(s.session, &config, &s.comm), RH_OK, "comm_init");
  start([](void*) { waitInBarrier(); }, nullptr);
  while (!isInBarrier()) sleepUntil(now() + kMs);
  for (int i = static_cast<int>(1 + below(3)); i > 0; i--) {
    want(rh_close(s.session), RH_ERR_BUSY, "close while a thread is in a call");
    sleepUntil(now() + static_cast<int64_t>(below(300 * kMs)));
  }
  s.aborted = true;
  want(rh_comm_abort(s.comm), RH_OK, "abort");
  joinAll();
  want(rh_comm_finalize(s.comm), RH_OK, "finalize");
  want(rh_close(s.session), RH_OK, "close");
}

// ---- A new connection ----

// comm_init waits for a rank that does not come. It is no call on a comm, so the session may be closed meanwhile.
void initInVain(int number) {
  rh_comm* comm = nullptr;
  const rh_comm_config config = configOf(number == 0 ? "m0" : "m1", 2, 0);
  if (number == 0) holdAt("sendmsg", 1, [] { return s.mayGoOn[0]; });  // the connection stays until then
  else holdAt("unlock", static_cast<int>(1 + below(4)), [] { return s.mayGoOn[1]; });  // the session does
  const rh_result got = rh_comm_init(s.session, &config, &comm);
  if (got != RH_ERR_INVALID_HANDLE) want(got, RH_ERR_DAEMON_LOST, "comm_init on a session that is closed");
  s.over[number] = true;
}

// At any point of getting a new connection.
void closeWhileItConnects() {
  DaemonPlan plan;
  plan.mostAway = 300 * kMs;
  startDaemon(plan);
  s.session = connectOrFail();
  for (intptr_t i = 0; i < 2; i++) start([](void* number) { initInVain(static_cast<int>(reinterpret_cast<intptr_t>(number))); }, reinterpret_cast<void*>(i));
  block("wait for two threads that are held", kNever, [] { return held() == 2; });
  if (!oneIn(4)) dieNow();
  sleepUntil(now() + static_cast<int64_t>(below(600 * kMs)));
  start([](void*) { want(rh_close(s.session), RH_OK, "close"); }, nullptr);
  block("wait for the end", kNever, [] { return firstShutdown.at != 0; });
  sleepUntil(now() + static_cast<int64_t>(below(100 * kMs)));
  if (oneIn(4) && listening) dieNow();
  s.mayGoOn[0] = true;
  sleepUntil(now() + static_cast<int64_t>(below(kSecond)));
  s.mayGoOn[1] = true;
  joinAll();
  checkEnded();
}

// ---- A daemon that breaks the protocol ----

void endByTheDaemon() {
  DaemonPlan plan;
  plan.mostAway = 300 * kMs;
  startDaemon(plan);
  connectAndInit(1);
  breakProtocol();
  block("wait for the end", kNever, [] { return firstShutdown.at != 0; });
  if (oneIn(2)) dieNow();
  sleepUntil(now() + static_cast<int64_t>(below(3 * kSecond)));
  rh_window* w = nullptr;
  want(rh_window_alloc(s.comm, kGranule, nullptr, &w), RH_ERR_DAEMON_LOST, "a call on a session that has ended");
  wantMessage("does not reconnect");
  want(rh_barrier(s.comm, nullptr), RH_OK, "barrier without a daemon");
  want(rh_close(s.session), RH_OK, "close");
  checkEnded();
}

// ---- A split ----

// The next comm of the process takes the last slot of the table, and the one after it the first.
void useAllSlotsButTheLast() {
  keepRunning(true);
  auto* any = reinterpret_cast<railhead::client::Comm*>(&s);  // the table does not look at it
  for (int i = 0; i < railhead::client::kMaxComms - 1; i++) railhead::client::comms().remove(railhead::client::comms().insert(any));
  keepRunning(false);
}

void split() {
  block("wait for the thread that closes", kNever, [] { return held() == 1; });
  // Somewhere in the call: at its end the new comm is about to get a slot.
  holdAt("lock", static_cast<int>(1 + below(16)), [] { return firstShutdown.at != 0 && now() >= firstShutdown.at + 2 * kMs; });
  s.splitResult = rh_comm_split(s.comm, 0, 0, &s.child);
  s.over[1] = true;
}

// rh_close has found no thread in a call; then a split begins. Its comm gets a slot that rh_close has passed already.
void closeWhileItSplits() {
  DaemonPlan plan;
  startDaemon(plan);
  useAllSlotsButTheLast();
  connectAndInit(1);
  start([](void*) { split(); }, nullptr);
  holdAt("lock", 1, [] { return held() == 2 || s.over[1]; });
  want(rh_close(s.session), RH_OK, "close");
  joinAll();
  checkEnded();
  want(rh_barrier(s.comm, nullptr), RH_ERR_INVALID_HANDLE, "barrier of a closed session");
  if (s.splitResult == RH_OK) want(rh_barrier(s.child, nullptr), RH_ERR_INVALID_HANDLE, "barrier of a comm that was split from a closed session's");
}

}  // namespace

void ends() {
  switch (below(4)) {
    case 0: return closeUnderACall();
    case 1: return closeWhileItConnects();
    case 2: return endByTheDaemon();
    default: return closeWhileItSplits();
  }
}

}  // namespace world
