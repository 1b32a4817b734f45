// Many threads use the library at once, also with calls that race with finalize, abort and close. In any order, every call must return
// one of the results that the header allows, and a sanitizer must find nothing. Ranks are threads of this process.
//
// Usage: stress SECONDS. RAILHEAD_SOCKET names the daemon. Prints the number of rounds.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

#include "check.h"

namespace {

constexpr int kWorld = 4;

std::atomic<int> groups{0};

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// A thread that runs a lambda, and is joined at the end of its scope.
template <class F>
class Thread {
 public:
  explicit Thread(F f) : f_(f) { CHECK(pthread_create(&thread_, nullptr, run, this) == 0); }
  ~Thread() { CHECK(pthread_join(thread_, nullptr) == 0); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

 private:
  static void* run(void* self) {
    static_cast<Thread*>(self)->f_();
    return nullptr;
  }
  F f_;
  pthread_t thread_;
};

bool oneOf(rh_result r, std::initializer_list<rh_result> allowed) {
  for (rh_result a : allowed) {
    if (r == a) return true;
  }
  fprintf(stderr, "result %s: %s\n", rh_result_string(r), rh_last_error_message());
  return false;
}

rh_comm* join(rh_session* session, const char* prefix, int number, int32_t rank, int32_t world) {
  char name[40];
  snprintf(name, sizeof name, "%s %d", prefix, number);
  const rh_comm_config config = comm_config(name, rank, world);
  rh_comm* comm = nullptr;
  OK(rh_comm_init(session, &config, &comm));
  return comm;
}

// How the ranks of a group end.
enum class End { kFinalize, kAbort, kClose, kCount };

struct Group {
  std::atomic<rh_comm*> comms[kWorld] = {};
  std::atomic<bool> over{false};
};

rh_result sum(rh_comm* comm, int32_t rank, int round, size_t count) {
  static float data[kWorld][40000];
  float* mine = data[rank];
  for (size_t i = 0; i < count; i++) mine[i] = static_cast<float>(rank + round);
  const rh_result r = rh_all_reduce(mine, mine, count, RH_F32, RH_SUM, comm, nullptr);
  if (r != RH_OK) return r;
  for (size_t i = 0; i < count; i++) CHECK(mine[i] == static_cast<float>(6 + 4 * round));
  return RH_OK;
}

rh_result share(rh_comm* comm, int32_t rank) {
  rh_window* window = nullptr;
  rh_result r = rh_window_alloc(comm, 5000, nullptr, &window);
  if (r != RH_OK) return r;
  void* theirs = nullptr;
  OK(rh_window_pointer(window, (rank + 1) % kWorld, &theirs));
  memset(theirs, rank, 5000);
  r = rh_barrier(comm, nullptr);
  if (r != RH_OK) return r;  // finalize frees the window
  void* mine = nullptr;
  OK(rh_window_pointer(window, rank, &mine));
  CHECK(static_cast<unsigned char*>(mine)[4999] == static_cast<unsigned char>((rank + kWorld - 1) % kWorld));
  return rh_window_free(window);
}

// One rank of a group. Works until its rounds are over or the group is broken, then leaves.
void rank(Group* group, int number, int32_t r, End end) {
  rh_session* session = open_session();
  rh_comm* comm = join(session, "stress", number, r, kWorld);
  group->comms[r] = comm;
  rh_result result = RH_OK;
  for (int round = 0; round < 20 && result == RH_OK; round++) {
    result = sum(comm, r, round, static_cast<size_t>(round * round * 97 % 40000));
    if (result == RH_OK && round % 4 == 0) result = share(comm, r);
    if (result == RH_OK) result = rh_barrier(comm, nullptr);
    if (round == 10 && r == 1 && end == End::kClose) break;
    if (round == 10 && r == 1 && end == End::kAbort) OK(rh_comm_abort(comm));
  }
  if (end == End::kFinalize) {
    CHECK(result == RH_OK);
    OK(rh_comm_finalize(comm));
  } else {
    CHECK(oneOf(result, {RH_OK, RH_ERR_ABORTED, RH_ERR_RANK_DEAD}));
    if (end == End::kAbort || r != 1) OK(rh_comm_finalize(comm));
  }
  OK(rh_close(session));
}

// Any thread may ask for the status of a comm at any time, also while another one finalizes it.
void askForStatus(Group* group) {
  while (!group->over) {
    for (auto& slot : group->comms) {
      rh_comm_status status = RH_COMM_STATUS_INIT;
      CHECK(oneOf(rh_comm_get_status(slot, &status), {RH_OK, RH_ERR_INVALID_HANDLE}));
      int32_t world = kWorld;
      CHECK(oneOf(rh_comm_world_size(slot, &world), {RH_OK, RH_ERR_INVALID_HANDLE}));
      CHECK(world == kWorld);
    }
    usleep(200);
  }
}

void wholeGroups(int round) {
  Group group;
  const int number = groups++;
  const End end = static_cast<End>(round % static_cast<int>(End::kCount));
  auto watch = [&] { askForStatus(&group); };
  Thread<decltype(watch)> watcher(watch);
  {
    auto one = [&](int32_t r) { return [&, r] { rank(&group, number, r, end); }; };
    Thread<decltype(one(0))> r0(one(0)), r1(one(1)), r2(one(2)), r3(one(3));
  }
  group.over = true;
}

// Four threads, each with its own comm on one session: comms and windows are made and freed at the same time.
void manyComms(int) {
  rh_session* session = open_session();
  {
    auto work = [&] {
      for (int i = 0; i < 5; i++) {
        rh_comm* comm = join(session, "own", groups++, 0, 1);
        rh_window* windows[3];
        for (auto& w : windows) OK(rh_window_alloc(comm, 100, nullptr, &w));
        OK(rh_window_free(windows[1]));
        OK(rh_comm_finalize(comm));
        void* p;
        FAILS(rh_window_pointer(windows[0], 0, &p), RH_ERR_INVALID_HANDLE, "window_pointer", "");
      }
    };
    Thread<decltype(work)> a(work), b(work), c(work), d(work);
  }
  OK(rh_close(session));
}

// One thread makes calls while another closes the session. The calls end with INVALID_HANDLE, or as if the rank had died; close returns
// BUSY until it returns OK.
void closeUnderCalls(int) {
  rh_session* session = open_session();
  rh_comm* comm = join(session, "closed", groups++, 0, 1);
  rh_comm* other = join(session, "closed", groups++, 0, 1);
  std::atomic<bool> started{false};
  auto work = [&] {
    char bytes[256];
    for (;;) {
      rh_result r = rh_all_reduce(bytes, bytes + 128, 32, RH_F32, RH_SUM, comm, nullptr);
      started = true;
      if (r == RH_OK || r == RH_ERR_BUSY) r = rh_barrier(other, nullptr);
      CHECK(oneOf(r, {RH_OK, RH_ERR_BUSY, RH_ERR_RANK_DEAD, RH_ERR_INVALID_HANDLE}));
      if (r == RH_ERR_INVALID_HANDLE) return;
    }
  };
  Thread<decltype(work)> worker(work);
  while (!started) {
  }
  for (;;) {
    const rh_result r = rh_close(session);
    if (r == RH_OK) return;
    CHECK(oneOf(r, {RH_ERR_BUSY}));
  }
}

// finalize and close at the same time: one of them ends the comm.
void closeUnderFinalize(int) {
  rh_session* session = open_session();
  rh_comm* comm = join(session, "raced", groups++, 0, 1);
  rh_window* window = nullptr;
  OK(rh_window_alloc(comm, 100, nullptr, &window));
  auto work = [&] {
    CHECK(oneOf(rh_comm_finalize(comm), {RH_OK, RH_ERR_BUSY, RH_ERR_INVALID_HANDLE, RH_ERR_DAEMON_LOST, RH_ERR_RANK_DEAD}));
  };
  Thread<decltype(work)> worker(work);
  for (;;) {
    const rh_result r = rh_close(session);
    if (r == RH_OK) return;
    CHECK(oneOf(r, {RH_ERR_BUSY}));
  }
}

// An init that waits for a missing rank, a close that ends it, and a second close.
void closeUnderInit(int) {
  rh_session* session = open_session();
  const int number = groups++;
  auto init = [&] {
    char name[40];
    snprintf(name, sizeof name, "init %d", number);
    const rh_comm_config config = comm_config(name, 0, 2);
    rh_comm* comm = nullptr;
    CHECK(oneOf(rh_comm_init(session, &config, &comm), {RH_ERR_DAEMON_LOST, RH_ERR_INVALID_HANDLE}));
  };
  auto close = [&] { CHECK(oneOf(rh_close(session), {RH_OK, RH_ERR_INVALID_HANDLE})); };
  Thread<decltype(init)> waiter(init);
  Thread<decltype(close)> first(close), second(close);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  const double end = now() + atof(argv[1]);
  int rounds = 0;
  for (; rounds < 10 || now() < end; rounds++) {
    for (auto scenario : {manyComms, closeUnderCalls, closeUnderFinalize, closeUnderInit}) scenario(rounds);
    wholeGroups(rounds);
  }
  printf("%d rounds\n", rounds);
  return 0;
}
