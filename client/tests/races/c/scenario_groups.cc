// Groups of calls on several comms, for which the library starts threads. A thread may not start, or a call may be wrong: then nothing has run, and
// every comm is as it was before. A session is not closed while a group has noted calls on its comms.
#include "scenario.h"

namespace world {

namespace {

constexpr int kMostComms = 4;
constexpr size_t kCount = 12;
constexpr float kUntouched = -1;

struct {
  int comms;
  rh_comm* comm[kMostComms];
  float send[kCount], recv[kMostComms][kCount];
  bool closeReturned;
} s;

// Groups of one rank, whose calls wait for nobody.
void makeComms(rh_session* session) {
  s.comms = static_cast<int>(2 + below(kMostComms - 1));
  for (int i = 0; i < s.comms; i++) {
    const char name[] = {static_cast<char>('a' + i), '\0'};
    const rh_comm_config config = configOf(name, 1, 0);
    want(rh_comm_init(session, &config, &s.comm[i]), RH_OK, "comm_init");
  }
  for (size_t k = 0; k < kCount; k++) s.send[k] = static_cast<float>(k + 1);
}

// A group with an all-reduce on each comm. unmatched: the comm on which this rank also sends to itself what it does not receive; -1 = none.
rh_result runGroup(int unmatched) {
  for (int i = 0; i < s.comms; i++) {
    for (float& x : s.recv[i]) x = kUntouched;
  }
  want(rh_group_start(), RH_OK, "group_start");
  for (int i = 0; i < s.comms; i++) {
    if (i == unmatched) want(rh_send(s.send, kCount, RH_F32, 0, s.comm[i], nullptr), RH_OK, "send in a group");
    want(rh_all_reduce(s.send, s.recv[i], kCount, RH_F32, RH_SUM, s.comm[i], nullptr), RH_OK, "all_reduce in a group");
  }
  return rh_group_end();
}

void checkResults(bool ran) {
  for (int i = 0; i < s.comms; i++) {
    for (size_t k = 0; k < kCount; k++) {
      const float wanted = ran ? s.send[k] : kUntouched;
      if (s.recv[i][k] != wanted) fail("element %zu of comm %d is %g, want %g", k, i, static_cast<double>(s.recv[i][k]), static_cast<double>(wanted));
    }
  }
}

// Another thread tries to close the session while this thread's group has noted a call on one of its comms.
void closeDuringAGroup(rh_session* session) {
  const auto i = static_cast<int>(below(static_cast<uint64_t>(s.comms)));
  want(rh_group_start(), RH_OK, "group_start");
  want(rh_all_reduce(s.send, s.recv[i], kCount, RH_F32, RH_SUM, s.comm[i], nullptr), RH_OK, "all_reduce in a group");
  s.closeReturned = false;
  start(
      [](void* of) {
        want(rh_close(static_cast<rh_session*>(of)), RH_ERR_BUSY, "close while a group has noted a call");
        s.closeReturned = true;
      },
      session);
  block("wait for rh_close", kNever, [] { return s.closeReturned; });
  want(rh_group_end(), RH_OK, "group_end after a refused close");
}

// The control thread of the library's first session does not start.
void connectWithoutThread() {
  rh_session* session = nullptr;
  rh_session_config config = RH_SESSION_CONFIG_INIT;
  config.socket_path = "/the/daemon.sock";
  failThread(1);
  want(rh_connect(&config, &session), RH_ERR_SYSTEM, "connect without a thread");
  wantMessage("cannot start the control thread");
}

void run(void*) {
  if (oneIn(4)) connectWithoutThread();
  rh_session* session = connectOrFail();
  makeComms(session);
  for (int n = static_cast<int>(1 + below(4)); n > 0; n--) {
    switch (below(4)) {
      case 0:
        want(runGroup(-1), RH_OK, "a group");
        checkResults(true);
        break;
      case 1:
        failThread(static_cast<int>(1 + below(static_cast<uint64_t>(s.comms - 1))));  // the first comm's calls run in this thread
        want(runGroup(-1), RH_ERR_SYSTEM, "a group without a thread");
        wantMessage("nothing was run");
        checkResults(false);
        break;
      case 2:
        want(runGroup(static_cast<int>(below(static_cast<uint64_t>(s.comms)))), RH_ERR_INVALID_ARGUMENT, "a group with a send that nobody receives");
        wantMessage("has no match");
        checkResults(false);
        break;
      case 3:
        closeDuringAGroup(session);
    }
  }
  for (int i = 0; i < s.comms; i++) want(rh_comm_finalize(s.comm[i]), RH_OK, "finalize");
  want(rh_close(session), RH_OK, "close");
}

}  // namespace

// The calls come from a thread that ends: what the library keeps of a thread's group is freed with it.
void groups() {
  startDaemon(DaemonPlan());
  start(run, nullptr);
}

}  // namespace world
