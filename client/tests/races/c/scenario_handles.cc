// Threads use the same handles at the same time and end them: comms of groups of one, windows, sessions. A call either works on the object
// of its handle or says that the handle has ended or is busy. Each object ends once.
#include <stdio.h>

#include <initializer_list>

#include "scenario.h"

namespace world {

namespace {

constexpr int kMostThreads = 4, kMostHandles = 64;

struct {
  rh_session* session;
  rh_comm* comms[kMostHandles];
  rh_window* windows[kMostHandles];
  int windowOf[kMostHandles];  // index of the comm
  int comm, window;            // how many were made
  int finalized[kMostHandles];  // 0 = live, 1 = a thread may have finalized it, 2 = it has
  int freeing[kMostHandles];    // calls that free the window, ended or not
  bool freed[kMostHandles];
  bool aborted[kMostHandles];
  int closed;
  bool missingRank;            // a comm_init waits for a rank that does not come
  int names;
  bool finalizes;              // the threads do nothing but finalize, while the session is closed
} s;

bool isOneOf(rh_result r, std::initializer_list<rh_result> allowed) {
  for (const rh_result a : allowed) {
    if (a == r) return true;
  }
  return false;
}

void allow(rh_result got, std::initializer_list<rh_result> allowed, const char* call) {
  if (!isOneOf(got, allowed)) fail("%s: %s: %s", call, rh_result_string(got), rh_last_error_message());
}

// A session that is closed breaks the groups of its comms, and a call that began before sees that.
void allowOnComm(int i, rh_result got, const char* call) {
  if (got == RH_ERR_ABORTED && s.aborted[i]) return;
  if (got == RH_ERR_INVALID_HANDLE && s.finalized[i] == 0 && s.closed == 0) fail("%s of a live comm: %s", call, rh_last_error_message());
  if (got == RH_OK && s.finalized[i] == 2) fail("%s of a finalized comm works", call);
  allow(got, {RH_OK, RH_ERR_BUSY, RH_ERR_INVALID_HANDLE, RH_ERR_RANK_DEAD, RH_ERR_DAEMON_LOST}, call);
  if (isOneOf(got, {RH_ERR_RANK_DEAD, RH_ERR_DAEMON_LOST}) && s.closed == 0) fail("%s: %s: %s", call, rh_result_string(got), rh_last_error_message());
}

void makeComm() {
  if (s.comm == kMostHandles || s.names == 6) return;
  char name[16];
  snprintf(name, sizeof name, "g%d", s.names++);
  rh_comm* comm = nullptr;
  const rh_comm_config config = configOf(name, 1, 0);
  const bool fails = s.comm > 0 && oneIn(4);
  failMap(fails ? static_cast<int>(1 + below(4)) : 0);
  const rh_result got = rh_comm_init(s.session, &config, &comm);
  failMap(0);
  if (fails && got == RH_ERR_OUT_OF_MEMORY) return;
  allow(got, {RH_OK, RH_ERR_DAEMON_LOST, RH_ERR_INVALID_HANDLE}, "comm_init");
  if (got != RH_OK && s.closed == 0) fail("comm_init: %s: %s", rh_result_string(got), rh_last_error_message());
  if (got == RH_OK) s.comms[s.comm++] = comm;
}

void allocate(int i) {
  rh_window* w = nullptr;
  const rh_result got = rh_window_alloc(s.comms[i], kGranule, nullptr, &w);
  allowOnComm(i, got, "window_alloc");
  if (got != RH_OK) return;
  for (int k = 0; k < s.window; k++) {
    if (s.windows[k] == w) fail("a window has the handle of an earlier one");
  }
  if (s.window == kMostHandles) fail("more than %d windows", kMostHandles);
  s.windowOf[s.window] = i;
  s.windows[s.window++] = w;
}

void freeWindow() {
  if (s.window == 0) return;
  const auto k = static_cast<int>(below(static_cast<uint64_t>(s.window)));
  s.freeing[k]++;
  freezeSoon();
  const rh_result got = rh_window_free(s.windows[k]);
  if (got == RH_OK && s.freed[k]) fail("a window is freed twice");
  if (got != RH_ERR_INVALID_HANDLE || s.freeing[k] == 1) allowOnComm(s.windowOf[k], got, "window_free");
  if (got == RH_OK) s.freed[k] = true;
}

void lookAtWindow() {
  if (s.window == 0) return;
  const auto k = static_cast<int>(below(static_cast<uint64_t>(s.window)));
  const bool before = s.freed[k] || s.finalized[s.windowOf[k]] == 2;
  rh_window_info info = RH_WINDOW_INFO_INIT;
  freezeSoon();
  const rh_result got = rh_window_get_info(s.windows[k], &info);
  allow(got, {RH_OK, RH_ERR_INVALID_HANDLE}, "window_get_info");
  if (got == RH_OK && before) fail("an ended window has information");
  if (got != RH_OK && s.freeing[k] == 0 && s.finalized[s.windowOf[k]] == 0 && s.closed == 0) fail("a live window has no information");
  if (got == RH_OK && info.bytes != kGranule) fail("a window has %zu bytes", static_cast<size_t>(info.bytes));
}

void finalize(int i) {
  const bool before = s.finalized[i] == 2;
  if (s.finalized[i] == 0) s.finalized[i] = 1;  // from here on it may have ended
  freezeSoon();
  const rh_result got = rh_comm_finalize(s.comms[i]);
  allowOnComm(i, got, "finalize");
  if (got != RH_OK) return;
  if (before) fail("a comm is finalized twice");
  s.finalized[i] = 2;
}

void abort(int i) {
  const bool before = s.aborted[i];
  s.aborted[i] = true;
  const rh_result got = rh_comm_abort(s.comms[i]);
  allowOnComm(i, got, "abort");
  if (got != RH_OK && !before) s.aborted[i] = true;
}

void look(int i) {
  rh_comm_status status = RH_COMM_STATUS_INIT;
  freezeSoon();
  allowOnComm(i, rh_comm_get_status(s.comms[i], &status), "comm_get_status");
  int32_t world = 0;
  const rh_result got = rh_comm_world_size(s.comms[i], &world);
  if (got == RH_OK && world != 1) fail("a comm has %d ranks", world);
}

bool close() {
  freezeSoon();
  const rh_result got = rh_close(s.session);
  if (got == RH_OK) {
    if (s.closed == 2) fail("a session is closed twice");
    s.closed = 2;
    return true;
  }
  allow(got, {RH_ERR_BUSY, RH_ERR_INVALID_HANDLE}, "close");
  if (got == RH_ERR_INVALID_HANDLE && s.closed == 0) fail("close of a live session: %s", rh_last_error_message());
  return got == RH_ERR_INVALID_HANDLE;
}

void useHandles() {
  if (s.finalizes) {
    for (int i = s.comm - 1; i >= 0; i--) finalize(i);
    return;
  }
  for (int n = static_cast<int>(2 + below(8)); n > 0; n--) {
    if (s.comm == 0 || oneIn(8)) {
      makeComm();
      continue;
    }
    const auto i = static_cast<int>(below(static_cast<uint64_t>(s.comm)));
    switch (below(8)) {
      case 0: case 1: allocate(i); break;
      case 2: freeWindow(); break;
      case 3: lookAtWindow(); break;
      case 4: allowOnComm(i, rh_barrier(s.comms[i], nullptr), "barrier"); break;
      case 5: finalize(i); break;
      case 6: look(i); break;
      case 7: oneIn(4) ? abort(i) : look(i);
    }
  }
}

// Closing the session ends the wait.
void initInVain() {
  rh_comm* comm = nullptr;
  const rh_comm_config config = configOf("missing", 2, 0);
  const int64_t began = now();
  const rh_result got = rh_comm_init(s.session, &config, &comm);
  if (s.closed == 0) {
    want(got, RH_ERR_DAEMON_LOST, "comm_init without the other rank");
    if (now() - began > kTimeout + kGrace + kSlow + frozen()) fail("comm_init took %.3f s", static_cast<double>(now() - began) / 1e9);
    return;
  }
  allow(got, {RH_ERR_DAEMON_LOST, RH_ERR_INVALID_HANDLE}, "comm_init on a session that is closed");
}

}  // namespace

void handles() {
  DaemonPlan plan;
  plan.restarts = oneIn(2) ? 1 : 0;
  plan.deathWithin = 30;
  plan.mostAway = 300 * kMs;
  startDaemon(plan);
  s.session = connectOrFail();
  makeComm();
  s.finalizes = oneIn(4);
  if (s.finalizes) makeComm();
  const auto users = static_cast<int>(1 + below(kMostThreads - 1));
  for (int i = 0; i < users; i++) start([](void*) { useHandles(); }, nullptr);
  s.missingRank = oneIn(3);
  if (s.missingRank) start([](void*) { initInVain(); }, nullptr);
  sleepUntil(now() + static_cast<int64_t>(below(s.finalizes ? 200 * kUs : oneIn(2) ? 60 * kMs : 400 * kMs)));
  if (oneIn(3)) block("wait for a frozen thread", now() + 400 * kMs, [] { return anyFrozen(); });
  const int64_t began = now();
  if (oneIn(2)) {
    if (s.closed == 0) s.closed = 1;  // from here on it may have ended
    for (int tries = 0; !close(); tries++) sleepUntil(now() + (tries < 100 ? 10 * kUs : kMs));
    if (now() - began > kGrace + kSlow + frozen()) fail("close took %.3f s", static_cast<double>(now() - began) / 1e9);
  }
  joinAll();
  s.closed = s.closed == 0 ? 1 : s.closed;
  if (s.closed == 1) want(rh_close(s.session), RH_OK, "close");
  s.closed = 2;
  want(rh_close(s.session), RH_ERR_INVALID_HANDLE, "close of a closed session");
  for (int i = 0; i < s.comm; i++) want(rh_barrier(s.comms[i], nullptr), RH_ERR_INVALID_HANDLE, "barrier after close");
  for (int i = 0; i < s.window; i++) want(rh_window_free(s.windows[i]), RH_ERR_INVALID_HANDLE, "window_free after close");
}

}  // namespace world
