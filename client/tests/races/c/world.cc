// The scheduler: threads that pass a baton, the clock, the trace.
#include "world.h"

#include <linux/futex.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "heap.h"
#include "real.h"

extern "C" {
// Functions of ThreadSanitizer's run-time library.
__attribute__((weak)) void AnnotateIgnoreReadsBegin(const char*, int);
__attribute__((weak)) void AnnotateIgnoreReadsEnd(const char*, int);
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char*, int);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char*, int);
}

namespace world {

Hidden::Hidden() {
  if (AnnotateIgnoreReadsBegin == nullptr) return;
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
Hidden::~Hidden() {
  if (AnnotateIgnoreReadsBegin == nullptr) return;
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

namespace {

constexpr int kMaxThreads = 32;
constexpr int64_t kStart = 1000 * kSecond;
constexpr uint64_t kMaxSteps = 300'000;  // far more than a seed needs
// While threads can run, time may still jump to the next timer, if it is this near: threads are slow at times.
constexpr int64_t kMaxJump = 10 * kMs;
// In a seed a few threads are frozen at a random point for a random time, as by a debugger or a machine that swaps. The points of a seed
// are of one kind, so that each of the few calls that matter most is such a point in some seeds.
constexpr int kKinds = 8;
int kindOf(const char* what) { return what[0] % kKinds; }
constexpr int kMostFreezes = 3, kMostSoon = 8;
constexpr int64_t kMostFrozen = 1500 * kMs;

struct Thread {
  bool used = false, over = false;
  std::atomic<uint32_t> turn{0};      // futex: 1 = the baton is here
  bool (*ready)(void*) = nullptr;     // nullptr = can run
  void* argument = nullptr;
  int64_t deadline = kNever;
  int64_t frozenUntil = 0;
  int freezeIn = 0;  // steps; 0 = not soon
  const char* freezeAt = nullptr;
  const char* holdAt = nullptr;
  int holdIn = 0;  // steps of that name; 0 = not held
  bool (*holdUntil)() = nullptr;
  bool held = false;
  const char* what = "start";
  void* (*run)(void*) = nullptr;
  void* input = nullptr;
  pthread_t id;
  bool mine = false;  // started by the test, not by the library
};

struct {
  uint64_t seed = 0, random = 0;
  int64_t now = kStart;
  uint64_t steps = 0, fingerprint = 0;
  uint64_t switchOneIn = 1;
  uint64_t freezeOneIn = 1;
  int freezeKind = 0;
  int freezesLeft = 0;
  struct {
    int64_t from, until;
  } freezes[kMostFreezes + kMostSoon];
  int frozen = 0;  // freezes so far
  Actor actor = {};
  void (*invariant)() = nullptr;
  Thread threads[kMaxThreads];
  int count = 0;
  bool failing = false;
  bool keepRunning = false;
} w;

thread_local Thread* me = nullptr;

struct Line {
  int thread;
  int64_t at;
  const char* what;
};
constexpr int kTrace = 150;
Line trace[kTrace];
uint64_t traced = 0;

void note(int thread, const char* what) {
  trace[traced++ % kTrace] = {thread, w.now, what};
  const uint64_t line = static_cast<uint64_t>(w.now) * 64 + static_cast<uint64_t>(thread + 1);
  w.fingerprint = (w.fingerprint ^ line) * 0x9e3779b97f4a7c15;
}

void printTrace() {
  const uint64_t first = traced > kTrace ? traced - kTrace : 0;
  for (uint64_t i = first; i < traced; i++) {
    const Line& l = trace[i % kTrace];
    fprintf(stderr, "  %10.6f s  thread %d  %s\n", static_cast<double>(l.at - kStart) / 1e9, l.thread, l.what);
  }
  for (int i = 0; i < w.count; i++) {
    const Thread& t = w.threads[i];
    if (!t.over) fprintf(stderr, "  thread %d %s in %s\n", i, t.ready != nullptr ? "waits" : "can run", t.what);
  }
}

int numberOf(const Thread* t) { return static_cast<int>(t - w.threads); }

bool canRun(const Thread& t) { return !t.over && t.frozenUntil <= w.now && (t.ready == nullptr || t.deadline <= w.now || t.ready(t.argument)); }

int64_t nextTimer() {
  int64_t next = w.actor.due != nullptr ? w.actor.due() : kNever;
  for (int i = 0; i < w.count; i++) {
    const Thread& t = w.threads[i];
    if (t.over) continue;
    if (t.frozenUntil > w.now) next = t.frozenUntil < next ? t.frozenUntil : next;
    else if (t.ready != nullptr && t.deadline < next) next = t.deadline;
  }
  return next;
}

void give(Thread* to) {
  to->turn.store(1);
  real_syscall(SYS_futex, &to->turn, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void awaitTurn() {
  while (me->turn.load() == 0) real_syscall(SYS_futex, &me->turn, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
  me->turn.store(0);
}

// The thread that runs next; the actor acts as often as it is chosen before.
Thread* choose() {
  for (;;) {
    Thread* able[kMaxThreads];
    uint64_t n = 0;
    for (int i = 0; i < w.count; i++) {
      if (canRun(w.threads[i])) able[n++] = &w.threads[i];
    }
    const bool acts = w.actor.due != nullptr && w.actor.due() <= w.now;
    if (n == 0 && !acts) {
      const int64_t next = nextTimer();
      if (next == kNever) fail("every thread waits, and no deadline ends a wait");
      if (next > w.now) w.now = next;
      continue;
    }
    if (oneIn(256)) {
      const int64_t next = nextTimer();
      if (next > w.now && next - w.now <= kMaxJump) w.now = next;
    }
    const uint64_t chosen = below(n + (acts ? 1 : 0));
    if (chosen < n) return able[chosen];
    note(-1, "act");
    w.actor.act();
  }
}

void freeze(int64_t most) {
  if (w.frozen == kMostFreezes + kMostSoon) return;
  const auto duration = static_cast<int64_t>(below(static_cast<uint64_t>(most)));
  me->frozenUntil = w.now + duration;
  w.freezes[w.frozen++] = {w.now, me->frozenUntil};
  note(self(), "frozen");
}

void maybeFreeze() {
  if (me->freezeIn > 0 && --me->freezeIn == 0) {
    freeze(oneIn(2) ? 300 * kMs : kMostFrozen);
  } else if (me->freezeAt != nullptr && strcmp(me->freezeAt, me->what) == 0) {
    me->freezeAt = nullptr;
    freeze(kMostFrozen);
  } else if (w.freezesLeft > 0 && self() != 0 && kindOf(me->what) == w.freezeKind && oneIn(w.freezeOneIn)) {
    w.freezesLeft--;
    freeze(kMostFrozen);
  }
}

void maybeHold() {
  if (me->holdIn == 0 || strcmp(me->holdAt, me->what) != 0 || --me->holdIn > 0) return;
  const char* what = me->what;
  me->held = true;
  block("held", kNever, me->holdUntil);
  me->held = false;
  me->what = what;
}

void switchAway() {
  Thread* next = choose();
  if (next == me) return;
  Thread* self = me;
  give(next);
  if (!self->over) awaitTurn();
}

}  // namespace

void beginDescriptors();  // descriptors.cc

void begin(uint64_t seed) {
  beginDescriptors();
  w.seed = seed;
  w.random = seed * 0x9e3779b97f4a7c15 + 0x1234567;
  constexpr uint64_t rates[] = {1, 2, 4, 16, 64};
  w.switchOneIn = rates[below(5)];
  constexpr uint64_t freezes[] = {5, 50, 300};
  w.freezeKind = static_cast<int>(below(kKinds));
  w.freezeOneIn = freezes[below(3)];
  w.freezesLeft = static_cast<int>(below(kMostFreezes + 1));
  w.count = 1;
  me = &w.threads[0];
  me->used = true;
}

void fail(const char* format, ...) {
  if (!w.failing) {
    w.failing = true;
    printTrace();
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "seed %llu, thread %d, %.6f s: ", static_cast<unsigned long long>(w.seed), self(), static_cast<double>(w.now - kStart) / 1e9);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
  }
  _exit(1);
}

uint64_t below(uint64_t n) {
  // SplitMix64.
  uint64_t z = (w.random += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (z ^ (z >> 31)) % n;
}

void freezeSoon() {
  if (w.frozen < kMostSoon && oneIn(2)) me->freezeIn = static_cast<int>(1 + below(24));
}

void freezeAt(const char* what) {
  if (w.frozen < kMostSoon) me->freezeAt = what;
}

void holdAt(const char* what, int n, bool (*until)()) {
  me->holdAt = what;
  me->holdIn = n;
  me->holdUntil = until;
}

int held() {
  int n = 0;
  for (int i = 0; i < w.count; i++) n += w.threads[i].held;
  return n;
}

bool anyFrozen() {
  for (int i = 0; i < w.count; i++) {
    if (w.threads[i].frozenUntil > w.now) return true;
  }
  return false;
}

int64_t frozen(int64_t since) {
  int64_t sum = 0;
  for (int i = 0; i < w.frozen; i++) {
    const int64_t from = w.freezes[i].from < since ? since : w.freezes[i].from;
    if (w.freezes[i].until > from) sum += w.freezes[i].until - from;
  }
  return sum;
}
int64_t now() { return w.now; }
int self() { return me == nullptr ? -1 : numberOf(me); }

void setActor(Actor actor) { w.actor = actor; }
void setInvariant(void (*check)()) { w.invariant = check; }
void checkInvariant() {
  if (w.invariant != nullptr) w.invariant();
}

uint64_t fingerprint() { return w.fingerprint; }

void step(const char* what) {
  Hidden hidden;
  checkInvariant();
  me->what = what;
  note(self(), what);
  w.now += 100;
  if (++w.steps > kMaxSteps) fail("no end after %llu steps: a thread repeats without waiting", static_cast<unsigned long long>(w.steps));
  if (w.keepRunning) return;
  maybeHold();
  maybeFreeze();
  if (me->frozenUntil > w.now || below(w.switchOneIn) == 0) switchAway();
}

bool keepRunning(bool on) {
  const bool before = w.keepRunning;
  w.keepRunning = on;
  return before;
}

bool block(const char* what, int64_t deadline, bool (*ready)(void*), void* argument) {
  Hidden hidden;
  checkInvariant();
  me->what = what;
  note(self(), what);
  w.now += 100;
  me->deadline = deadline;
  me->argument = argument;
  me->ready = ready;
  switchAway();
  me->ready = nullptr;
  return ready(argument);
}

namespace {

Thread* newThread() {
  for (int i = 0; i < kMaxThreads; i++) {
    Thread& t = w.threads[i];
    if (t.used) continue;
    t.used = true;
    t.over = false;
    t.ready = nullptr;
    t.what = "start";
    t.turn.store(0);
    if (i >= w.count) w.count = i + 1;
    return &t;
  }
  fail("more than %d threads", kMaxThreads);
}

void* enter(void* thread) {
  me = static_cast<Thread*>(thread);
  {
    Hidden hidden;
    awaitTurn();
  }
  void* result = me->run(me->input);
  Hidden hidden;
  note(self(), "thread ends");
  me->over = true;
  switchAway();
  return result;
}

}  // namespace

}  // namespace world

using namespace world;

namespace {
thread_local int threadsUntilFailure = 0;  // as failThread says; 0 = none fails
}  // namespace

void world::failThread(int n) { threadsUntilFailure = n; }

extern "C" int __wrap_pthread_create(pthread_t* id, const pthread_attr_t* attributes, void* (*run)(void*), void* input) {
  step("pthread_create");
  if (threadsUntilFailure > 0 && --threadsUntilFailure == 0) return EAGAIN;
  Thread* t = newThread();
  t->run = run;
  t->input = input;
  const int error = __real_pthread_create(&t->id, attributes, enter, t);
  if (error != 0) fail("pthread_create: error %d", error);
  *id = t->id;
  return 0;
}

extern "C" int __wrap_pthread_join(pthread_t id, void** result) {
  Thread* t = nullptr;
  for (int i = 0; i < w.count; i++) {
    if (w.threads[i].used && pthread_equal(w.threads[i].id, id) != 0 && i != 0) t = &w.threads[i];
  }
  if (t == nullptr) fail("pthread_join of a thread that was joined, or never started");
  block("pthread_join", kNever, [&] { return t->over; });
  const int error = __real_pthread_join(id, result);
  t->used = false;
  return error;
}

namespace world {

void start(void (*run)(void*), void* argument) {
  Thread* t = newThread();
  t->mine = true;
  struct Start {
    void (*run)(void*);
    void* argument;
  };
  static Start starts[kMaxThreads];
  Start& s = starts[numberOf(t)];
  s = {run, argument};
  t->run = [](void* p) -> void* {
    auto* given = static_cast<Start*>(p);
    given->run(given->argument);
    return nullptr;
  };
  t->input = &s;
  if (__real_pthread_create(&t->id, nullptr, enter, t) != 0) fail("pthread_create");
}

void joinAll() {
  for (int i = 1; i < w.count; i++) {
    Thread& t = w.threads[i];
    if (!t.used || !t.mine) continue;
    block("join a thread of the test", kNever, [&] { return t.over; });
    __real_pthread_join(t.id, nullptr);
    t.used = t.mine = false;
  }
}

namespace {
void checkThreads() {
  for (int i = 1; i < w.count; i++) {
    if (w.threads[i].used) fail("thread %d was not joined", i);
  }
}
}  // namespace

void checkDescriptors();  // descriptors.cc
void checkMutexes();      // threads.cc

void end() {
  checkThreads();
  checkMutexes();
  checkDescriptors();
  if (checkHeap != nullptr) checkHeap();
}

}  // namespace world
