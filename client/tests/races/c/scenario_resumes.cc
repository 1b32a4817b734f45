// A session gets a new daemon while a thread is about to send its lease, while a call waits for the daemon to know the rank again, while comm_init
// waits for a daemon, or after the daemon has refused it.
#include "scenario.h"

namespace world {

namespace {

struct {
  rh_session* session;
  rh_comm* comm;
  bool connected, mayCall;
  int64_t began, ended;  // of the call that waits
  int leases;            // messages before it
} s;

// ---- The lease ----

// rh_connect sends Hello, then the lease, on the first connection. While it is about to send the lease the daemon restarts, and the control
// thread gets another connection. It must not close the first one meanwhile: the descriptor could be another file's by then. But before
// rh_connect has taken the connection (the lock of the session, its third), the control thread replaces it and sends the lease, which then
// must not be sent again.
void connectSlowly() {
  oneIn(2) ? holdAt("sendmsg", 2, [] { return s.mayCall; }) : holdAt("lock", 3, [] { return s.mayCall; });
  s.session = connectOrFail();
  s.connected = true;
}

void restartBeforeTheLease() {
  block("wait for a thread that is about to send", kNever, [] { return held() > 0 || s.connected; });
  if (s.connected) fail("no thread was held before it sent its lease");
  dieNow();
  block("wait for the daemon", kNever, [] { return listening; });
  sleepUntil(now() + 2 * kSecond);  // the client has tried several times by then
  s.mayCall = true;
}

void lease() {
  DaemonPlan plan;
  plan.mostAway = 300 * kMs;
  startDaemon(plan);
  start([](void*) { connectSlowly(); }, nullptr);
  restartBeforeTheLease();
  joinAll();
  rh_comm* comm = nullptr;
  const rh_comm_config config = configOf("g", 1, 0);
  want(rh_comm_init(s.session, &config, &comm), RH_OK, "comm_init after a restart");
  want(rh_comm_finalize(comm), RH_OK, "finalize");
  want(rh_close(s.session), RH_OK, "close");
}

// ---- A call that waits ----

// A call looks at the abort word every 100 ms. One that is woken goes on within a few steps, in which the clock may jump.
constexpr int64_t kWoken = 50 * kMs;

void callWhileAway() {
  block("wait for the death", kNever, [] { return s.mayCall; });
  s.began = now();
  rh_window* w = nullptr;
  const rh_result got = rh_window_alloc(s.comm, kGranule, nullptr, &w);
  const Resumed r = resumed("g", 0);
  if (r.refused != 0) {
    want(got, RH_ERR_LIMIT, "a call of a rank that the daemon refuses");
    wantMessage("no room here");
    if (now() - r.refused > kWoken + frozen(r.refused)) fail("a call goes on %.3f s after its rank was refused", static_cast<double>(now() - r.refused) / 1e9);
    return;
  }
  want(got, RH_OK, "a call that waited for the daemon");
  if (r.announced <= s.began) return;  // it came too late to wait
  if (r.called - r.announced > kWoken + frozen(r.announced)) {
    fail("a call goes on %.3f s after its rank came back", static_cast<double>(r.called - r.announced) / 1e9);
  }
}

void call() {
  DaemonPlan plan;
  plan.leastAway = 60 * kMs;
  plan.mostAway = kSecond;
  plan.refusesRanks = oneIn(3);
  startDaemon(plan);
  s.session = connectOrFail();
  const rh_comm_config config = configOf("g", 1, 0);
  want(rh_comm_init(s.session, &config, &s.comm), RH_OK, "comm_init");
  start([](void*) { callWhileAway(); }, nullptr);
  dieNow();
  sleepUntil(now() + 20 * kMs + static_cast<int64_t>(below(30 * kMs)));  // the client notices
  s.mayCall = true;
  joinAll();
  const rh_result got = rh_comm_finalize(s.comm);
  want(got, plan.refusesRanks ? RH_ERR_LIMIT : RH_OK, "finalize");
  want(rh_close(s.session), RH_OK, "close");
}

// ---- comm_init that waits ----

// It has no rank that could come back, so it waits for the connection alone.
void init() {
  DaemonPlan plan;
  plan.leastAway = 60 * kMs;
  plan.mostAway = kSecond;
  startDaemon(plan);
  s.session = connectOrFail();
  s.leases = sent.leases;
  dieNow();
  sleepUntil(now() + 20 * kMs + static_cast<int64_t>(below(30 * kMs)));  // the client notices
  start([](void*) {
    const rh_comm_config config = configOf("g", 1, 0);
    want(rh_comm_init(s.session, &config, &s.comm), RH_OK, "comm_init while there is no daemon");
    s.ended = now();
  }, nullptr);
  block("wait for the session's next connection", kNever, [] { return sent.leases > s.leases; });
  const int64_t connected = now();
  joinAll();
  if (s.ended - connected > kSlow + frozen(connected)) fail("comm_init ends %.3f s after the session has a daemon", static_cast<double>(s.ended - connected) / 1e9);
  want(rh_comm_finalize(s.comm), RH_OK, "finalize");
  want(rh_close(s.session), RH_OK, "close");
}

// ---- Refusals ----

// A daemon that refuses this client again and again is asked less and less often, at last every 2 s.
void refusals() {
  constexpr int kRefusals = 7;
  DaemonPlan plan;
  plan.mostAway = 300 * kMs;
  plan.refuseHelloOneIn = 1;
  plan.mostRefusals = kRefusals;
  startDaemon(plan);
  s.session = connectOrFail();
  dieNow();
  block("wait for the refusals", kNever, [] { return refusedHello(kRefusals - 1).at != 0; });
  sleepUntil(now() + 2 * kSecond + kSlow);  // then the client is accepted
  // The pauses begin with 50 ms; they may have grown to 200 ms while there was no daemon.
  int64_t least = 50 * kMs, most = 200 * kMs;
  for (int i = 1; i < kRefusals; i++) {
    const RefusedHello before = refusedHello(i - 1), again = refusedHello(i);
    const int64_t pause = again.at - before.at;
    if (again.connects != before.connects + 1) {  // a connect failed in between; then the pauses are those without a daemon
      least = 100 * kMs;
      continue;
    }
    if (pause < least) fail("after %d refusals the client tried again in %.3f s", i, static_cast<double>(pause) / 1e9);
    if (pause > most + kSlow + frozen(before.at)) fail("after %d refusals the client tried again only in %.3f s", i, static_cast<double>(pause) / 1e9);
    least *= 2;
    most = most * 2 < 2 * kSecond ? most * 2 : 2 * kSecond;
  }
  rh_comm* comm = nullptr;
  const rh_comm_config config = configOf("g", 1, 0);
  want(rh_comm_init(s.session, &config, &comm), RH_OK, "comm_init after refusals");
  want(rh_comm_finalize(comm), RH_OK, "finalize");
  want(rh_close(s.session), RH_OK, "close");
}

}  // namespace

void resumes() {
  switch (below(8)) {
    case 0: refusals(); break;
    case 1:
    case 2: lease(); break;
    case 3: init(); break;
    default: call();
  }
}

}  // namespace world
