// rh_group_start and rh_group_end: a thread's calls are noted and run together.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>

#include "base/error.h"
#include "base/fork.h"
#include "collectives/operation.h"
#include "comm/thread_group.h"

namespace railhead::client {

namespace {

constexpr int kMaxNoted = 4096;  // calls in a group

struct Noted {
  rh_comm* handle;
  void* stream;
  Operation operation;
};

// A thread's group, with the calls that it has noted.
struct Group : ThreadGroup {
  int n, capacity;
  Noted* noted;
};

Group* groupOfThread() { return static_cast<Group*>(threadGroup()); }

// The comm's count of noted calls; the comm may have ended.
void countNoted(rh_comm* handle, int32_t change) {
  Comms::Shared ref(comms(), handle);
  if (ref.get() != nullptr) __atomic_fetch_add(&ref.get()->noted, change, __ATOMIC_RELAXED);
}

void clear(Group* g) {
  for (int i = 0; i < g->n; i++) countNoted(g->noted[i].handle, -1);
  g->n = 0;
  g->depth = 0;
  g->failed = RH_OK;
}

// Runs when the thread ends, inside a group or not. Destructors of the application that run later may create a new group.
void dropGroup(void* p) {
  auto* g = static_cast<Group*>(p);
  setThreadGroup(nullptr);
  clear(g);
  free(g->noted);
  free(g);
}

pthread_key_t endOfThread;
int keyError = 0;

// The thread of a forked child is in no group.
ForkHandler forkHandler = {[] {
  Group* g = groupOfThread();
  if (g == nullptr) return;
  g->n = 0;
  g->depth = 0;
  g->failed = RH_OK;
}};

void makeKey() {
  keyError = pthread_key_create(&endOfThread, dropGroup);
  addForkHandler(&forkHandler);
}

Group* makeGroup() {
  if (Group* made = groupOfThread()) return made;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, makeKey);
  auto* g = static_cast<Group*>(calloc(1, sizeof(Group)));
  if (g == nullptr) return nullptr;
  if (keyError != 0 || pthread_setspecific(endOfThread, g) != 0) {
    free(g);
    return nullptr;
  }
  setThreadGroup(g);
  return g;
}

bool grow(Group* g) {
  if (g->n < g->capacity) return true;
  const int capacity = g->capacity == 0 ? 64 : 2 * g->capacity;
  auto* more = static_cast<Noted*>(realloc(g->noted, static_cast<size_t>(capacity) * sizeof(Noted)));
  if (more == nullptr) return false;
  g->noted = more;
  g->capacity = capacity;
  return true;
}

struct Gate;

// One comm's calls of a group, and their results.
struct Share {
  rh_comm* handle;
  Comm* comm;
  void* stream;  // the stream of all its calls
  const Noted* noted;
  int n;
  rh_result result;
  char message[sizeof(ThreadGroup::message)];
  pthread_t thread;
  Gate* gate;
  alignas(Comms::Exclusive) unsigned char guard[sizeof(Comms::Exclusive)];

  Comms::Exclusive* exclusive() { return reinterpret_cast<Comms::Exclusive*>(guard); }
};

bool onStreams(const Share& s) { return s.comm->device->streams != nullptr; }

bool toItself(const Operation& o, const Comm* comm) { return isTransfer(o) && o.root == comm->rank; }

// A rank's sends to itself match its receives from itself, in order.
template <class Visit>
rh_result forEachOwnPair(const Share& s, Visit visit) {
  int send = -1, receive = -1;
  const auto next = [&](int from, uint32_t op) {
    for (int i = from + 1; i < s.n; i++) {
      const Noted& n = s.noted[i];
      if (n.handle == s.handle && toItself(n.operation, s.comm) && n.operation.op == op) return i;
    }
    return s.n;
  };
  for (;;) {
    send = next(send, RHW_OP_SEND);
    receive = next(receive, RHW_OP_RECV);
    if (send == s.n && receive == s.n) return RH_OK;
    if (send == s.n || receive == s.n) {
      return fail(RH_ERR_INVALID_ARGUMENT, "group_end: rank %d: a %s itself has no match", number(s.comm->rank), send == s.n ? "receive from" : "send to");
    }
    const Operation &from = s.noted[send].operation, &to = s.noted[receive].operation;
    if (from.count != to.count || from.dtype != to.dtype) {
      return fail(RH_ERR_INVALID_ARGUMENT, "group_end: rank %d sends %zu %s to itself and receives %zu %s", number(s.comm->rank), from.count,
                  dtypeName(from.dtype), to.count, dtypeName(to.dtype));
    }
    visit(from, to);
  }
}

// Runs all transfers concurrently, then the collectives in order.
rh_result runShare(const Share& s) {
  // This rank's transfers to itself come first, each followed by its receive.
  auto* transfers = static_cast<Operation*>(malloc(static_cast<size_t>(s.n) * sizeof(Operation)));
  if (transfers == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "group_end: rank %d: no memory for %d calls", number(s.comm->rank), s.n);
  int pairs = 0, n = 0;
  rh_result result = forEachOwnPair(s, [&](const Operation& from, const Operation& to) {
    transfers[2 * pairs] = from;
    transfers[2 * pairs++ + 1] = to;
  });
  for (int i = 0; i < s.n; i++) {
    const Noted& call = s.noted[i];
    if (call.handle == s.handle && isTransfer(call.operation) && !toItself(call.operation, s.comm)) transfers[2 * pairs + n++] = call.operation;
  }
  if (result == RH_OK && pairs + n > 0) result = submitTransfers(s.comm, transfers, pairs, n, RHW_OP_GROUP, s.stream);
  free(transfers);
  for (int i = 0; i < s.n && result == RH_OK; i++) {
    const Noted& call = s.noted[i];
    if (call.handle == s.handle && !isTransfer(call.operation)) result = submitOperation(s.comm, call.operation, s.stream);
  }
  return result;
}

void runAndKeepMessage(Share* s) {
  s->result = runShare(*s);
  if (s->result != RH_OK) snprintf(s->message, sizeof s->message, "%s", rh_last_error_message());
}

// Holds the threads of a group back until all exist. Their wait needs no deadline: the creating thread always opens the gate, whether it
// could create all of the threads or not.
struct Gate {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
  enum class State { kShut, kOpen, kCancelled } state = State::kShut;

  bool pass() {
    pthread_mutex_lock(&mutex);
    while (state == State::kShut) pthread_cond_wait(&opened, &mutex);
    pthread_mutex_unlock(&mutex);
    return state == State::kOpen;
  }
  void set(State to) {
    pthread_mutex_lock(&mutex);
    state = to;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&mutex);
  }
};

void* shareThread(void* p) {
  auto* s = static_cast<Share*>(p);
  if (s->gate->pass()) runAndKeepMessage(s);
  return nullptr;
}

// Starts one thread for each comm but the first, or none at all: ranks that ran one after another would wait for each other. All signals
// are blocked, because signals belong to the application. Comms with streams need no thread; they come first.
rh_result runShares(Share* shares, int n) {
  Gate gate;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Share* first = nullptr;
  int last = -1, error = 0;
  for (int i = 0; i < n && error == 0; i++) {
    if (onStreams(shares[i])) continue;
    if (first == nullptr) {
      first = &shares[i];
      continue;
    }
    shares[i].gate = &gate;
    error = pthread_create(&shares[i].thread, nullptr, shareThread, &shares[i]);
    if (error != 0) shares[i].gate = nullptr;
    last = i;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (int i = 0; i < n && error == 0; i++) {
    if (onStreams(shares[i])) runAndKeepMessage(&shares[i]);
  }
  gate.set(error == 0 ? Gate::State::kOpen : Gate::State::kCancelled);
  if (error == 0 && first != nullptr) runAndKeepMessage(first);
  for (int i = 0; i <= last; i++) {
    if (shares[i].gate != nullptr) pthread_join(shares[i].thread, nullptr);
  }
  if (error == 0) return RH_OK;
  return fail(RH_ERR_SYSTEM, "group_end: rank %d: nothing was run: no thread for comm %d of %d of the group: %s",
              number(shares[0].comm->rank), last + 1, n, strerror(error));
}

// All calls of one comm in a group use one stream, and no other comm of the group uses it, because the comms must run concurrently.
rh_result checkStreams(const Share* shares, int n) {
  for (int i = 0; i < n; i++) {
    const Share& s = shares[i];
    if (!onStreams(s)) continue;
    for (int k = 0; k < s.n; k++) {
      if (s.noted[k].handle != s.handle || s.noted[k].stream == s.stream) continue;
      return fail(RH_ERR_INVALID_ARGUMENT, "group_end: rank %d: calls of one comm on two streams; end the group between them", number(s.comm->rank));
    }
    for (int k = 0; k < i; k++) {
      if (shares[k].stream != s.stream) continue;
      return fail(RH_ERR_INVALID_ARGUMENT, "group_end: rank %d: two comms on one stream, where one would wait for the other; give each comm "
                  "a stream of its own", number(s.comm->rank));
    }
  }
  return RH_OK;
}

// A replay runs only captured calls, so either all comms of a group are captured or none is. Check that before recording anything.
rh_result checkCaptures(const Share* shares, int n) {
  int captured = -1, run = -1;
  for (int i = 0; i < n; i++) {
    uint64_t capture = 0;
    const Comm* comm = shares[i].comm;
    const rh_result bad = onStreams(shares[i]) ? comm->device->streams->captureOf(comm, shares[i].stream, &capture) : RH_OK;
    if (bad != RH_OK) return bad;
    (capture != 0 ? captured : run) = i;
  }
  if (captured < 0 || run < 0) return RH_OK;
  return fail(RH_ERR_UNSUPPORTED, "group_end: rank %d: nothing was run or captured: the stream of group \"%s\" is being captured, that of group "
              "\"%s\" is not: calls of a group run together; end the group between them", number(shares[captured].comm->rank),
              shares[captured].comm->name, shares[run].comm->name);
}

// Takes exclusive access to the comms of the group. *n counts those taken, even if one could not be.
rh_result takeComms(const Group* g, Share* shares, int* n) {
  for (int i = 0; i < g->n; i++) {
    rh_comm* handle = g->noted[i].handle;
    bool known = false;
    for (int k = 0; k < *n && !known; k++) known = shares[k].handle == handle;
    if (known) continue;
    Share& s = shares[*n];
    s.handle = handle;
    s.stream = g->noted[i].stream;
    s.noted = g->noted;
    s.n = g->n;
    new (s.guard) Comms::Exclusive(comms(), handle);
    (*n)++;
    s.comm = s.exclusive()->get();
    rh_result result = s.comm == nullptr ? checkGuard(*s.exclusive(), "group_end") : RH_OK;
    if (result == RH_OK) result = forEachOwnPair(s, [](const Operation&, const Operation&) {});
    if (result != RH_OK) return result;
  }
  return RH_OK;
}

rh_result runGroup(const Group* g) {
  if (g->n == 0) return RH_OK;
  int comms = 0;
  const size_t most = g->n < kMaxComms ? static_cast<size_t>(g->n) : size_t{kMaxComms};
  auto* shares = static_cast<Share*>(calloc(most, sizeof(Share)));
  if (shares == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "group_end: no memory for %zu comms", most);
  rh_result result = takeComms(g, shares, &comms);
  if (result == RH_OK) result = checkStreams(shares, comms);
  if (result == RH_OK) result = checkCaptures(shares, comms);
  if (result == RH_OK) {
    result = runShares(shares, comms);
    for (int i = 0; i < comms && result == RH_OK; i++) {
      if (shares[i].result != RH_OK) result = fail(shares[i].result, "%s", shares[i].message);
    }
  }
  for (int i = 0; i < comms; i++) shares[i].exclusive()->~Exclusive();
  free(shares);
  return result;
}

}  // namespace

rh_result noteOperation(rh_comm* handle, const Operation& operation, void* stream) {
  Group* g = groupOfThread();
  // Exclusive: another thread may be creating an op of the comm.
  Comms::Exclusive guard(comms(), handle);
  Comm* comm = guard.get();
  if (comm == nullptr) return failGroup(checkGuard(guard, operationName(operation.op)));
  Noted call = {handle, stream, operation};
  const rh_result bad = checkOperation(comm, &call.operation, stream);
  if (bad != RH_OK) return failGroup(bad);
  if (g->n == kMaxNoted) {
    return failGroup(fail(RH_ERR_LIMIT, "%s: rank %d: the group has %d calls, the most there can be; end it earlier", operationName(operation.op),
                      number(comm->rank), kMaxNoted));
  }
  if (!grow(g)) return failGroup(fail(RH_ERR_OUT_OF_MEMORY, "%s: rank %d: no memory to note the call", operationName(operation.op), number(comm->rank)));
  g->noted[g->n++] = call;
  __atomic_fetch_add(&comm->noted, 1, __ATOMIC_RELAXED);
  return RH_OK;
}

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_group_start(void) {
  Group* g = makeGroup();
  if (g == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "group_start: no memory for this thread's group");
  g->depth++;
  return RH_OK;
}

extern "C" rh_result rh_group_end(void) {
  if (!inGroup()) return fail(RH_ERR_INVALID_ARGUMENT, "group_end: this thread is in no group; call rh_group_start first");
  Group* g = groupOfThread();
  if (g->depth > 1) {
    g->depth--;
    return RH_OK;
  }
  const rh_result result = g->failed == RH_OK ? runGroup(g) : fail(g->failed, "group_end: nothing was run: %s", g->message);
  clear(g);
  return result;
}
