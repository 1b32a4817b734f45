// Mutexes, conditions, futexes and time of the world.
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "host/futex.h"
#include "daemon.h"
#include "real.h"
#include "world.h"

using namespace world;

namespace {

// ---- Mutexes ----

struct Held {
  const pthread_mutex_t* mutex;
  int thread;
};
constexpr int kMaxHeld = 64;
Held held[kMaxHeld];
int heldCount = 0;

int indexOf(const pthread_mutex_t* m) {
  for (int i = 0; i < heldCount; i++) {
    if (held[i].mutex == m) return i;
  }
  return -1;
}

void take(pthread_mutex_t* m) {
  if (const int i = indexOf(m); i >= 0 && held[i].thread == self()) fail("a thread locks a mutex that it holds");
  block("wait for a mutex", kNever, [m] { return indexOf(m) < 0; });
  if (heldCount == kMaxHeld) fail("more than %d mutexes are held", kMaxHeld);
  held[heldCount++] = {m, self()};
  __real_pthread_mutex_lock(m);  // it is free, so this does not wait
}

void release(pthread_mutex_t* m) {
  const int i = indexOf(m);
  if (i < 0 || held[i].thread != self()) fail("a thread unlocks a mutex that it does not hold");
  held[i] = held[--heldCount];
  __real_pthread_mutex_unlock(m);
}

// ---- Conditions ----

struct Sleeper {
  const void* on;  // a condition; nullptr = the entry is free
  bool woken;
};
constexpr int kMaxSleepers = 64;
Sleeper sleepers[kMaxSleepers];

Sleeper* sleepOn(const void* condition) {
  for (Sleeper& s : sleepers) {
    if (s.on != nullptr) continue;
    s = {condition, false};
    return &s;
  }
  fail("more than %d threads sleep", kMaxSleepers);
}

// Conditions whose clock is not CLOCK_MONOTONIC, which the library must not use for deadlines.
constexpr int kMaxConditions = 64;
const pthread_cond_t* monotonic[kMaxConditions];

int waitOn(pthread_cond_t* c, pthread_mutex_t* m, int64_t deadline) {
  Sleeper* s = sleepOn(c);
  release(m);
  // A condition may wake a thread without a reason.
  const bool spurious = oneIn(64);
  const bool woken = block("wait for a condition", deadline, [&] { return s->woken || spurious; });
  s->on = nullptr;
  take(m);
  return woken ? 0 : ETIMEDOUT;
}

int64_t nsOf(const timespec& t) { return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec; }

// ---- Futexes ----

struct Waiter {
  bool used, woken;
  const railhead::host::FutexWaitv* words;
  int count;
};
constexpr int kMaxWaiters = 16;
Waiter waiters[kMaxWaiters];

Key keyOfWord(const void* address) {
  Key key;
  return keyOf(address, &key) ? key : Key{0, reinterpret_cast<uint64_t>(address)};
}

long futexWait(const railhead::host::FutexWaitv* words, int n, const timespec* until) {
  for (int i = 0; i < n; i++) {
    if (__atomic_load_n(reinterpret_cast<const uint32_t*>(words[i].address), __ATOMIC_SEQ_CST) != words[i].value) {
      errno = EAGAIN;
      return -1;
    }
  }
  for (Waiter& w : waiters) {
    if (w.used) continue;
    w = {true, false, words, n};
    const bool spurious = oneIn(64);
    const bool woken = block("sleep on futexes", nsOf(*until), [&] { return w.woken || spurious; });
    w.used = false;
    if (woken) return 0;
    errno = ETIMEDOUT;
    return -1;
  }
  fail("more than %d threads sleep on futexes", kMaxWaiters);
}

}  // namespace

namespace world {

RobustList robust;

void wake(Key key) {
  noteWake(key);
  for (Waiter& w : waiters) {
    for (int i = 0; w.used && i < w.count; i++) {
      if (keyOfWord(reinterpret_cast<const void*>(w.words[i].address)) == key) w.woken = true;
    }
  }
}

void checkMutexes() {
  if (heldCount != 0) fail("a mutex is held at the end");
}

}  // namespace world

extern "C" {

int __wrap_pthread_mutex_lock(pthread_mutex_t* m) {
  step("lock");
  Hidden hidden;
  take(m);
  return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t* m) {
  {
    Hidden hidden;
    release(m);
  }
  step("unlock");
  return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t* m) {
  Hidden hidden;
  if (indexOf(m) >= 0) fail("a mutex is destroyed while a thread holds it");
  return __real_pthread_mutex_destroy(m);
}

int __wrap_pthread_cond_init(pthread_cond_t* c, const pthread_condattr_t* attributes) {
  Hidden hidden;
  clockid_t clock = CLOCK_REALTIME;
  if (attributes != nullptr) pthread_condattr_getclock(attributes, &clock);
  for (const pthread_cond_t*& m : monotonic) {
    if (m == c) m = nullptr;
  }
  for (const pthread_cond_t*& m : monotonic) {
    if (clock != CLOCK_MONOTONIC || m != nullptr) continue;
    m = c;
    break;
  }
  return __real_pthread_cond_init(c, attributes);
}

int __wrap_pthread_cond_destroy(pthread_cond_t* c) {
  Hidden hidden;
  for (const Sleeper& s : sleepers) {
    if (s.on == c) fail("a condition is destroyed while a thread waits for it");
  }
  return __real_pthread_cond_destroy(c);
}

int __wrap_pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* m) {
  Hidden hidden;
  return waitOn(c, m, kNever);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t* c, pthread_mutex_t* m, const timespec* until) {
  Hidden hidden;
  bool good = false;
  for (const pthread_cond_t* other : monotonic) good = good || other == c;
  if (!good) fail("a wait with a deadline for a condition whose clock is not CLOCK_MONOTONIC");
  return waitOn(c, m, nsOf(*until));
}

int __wrap_pthread_cond_broadcast(pthread_cond_t* c) {
  Hidden hidden;
  for (Sleeper& s : sleepers) {
    if (s.on == c) s.woken = true;
  }
  step("broadcast");
  return 0;
}

// Another thread would wait inside the C library, without passing the baton, so nothing switches inside.
int __wrap_pthread_once(pthread_once_t* once, void (*routine)()) {
  step("once");
  const bool before = keepRunning(true);  // routine may call pthread_once too
  const int error = __real_pthread_once(once, routine);
  keepRunning(before);
  return error;
}

int __wrap_clock_gettime(clockid_t clock, timespec* out) {
  if (clock != CLOCK_MONOTONIC) fail("clock %d is read", clock);
  step("clock");
  *out = {static_cast<time_t>(now() / 1000000000), static_cast<long>(now() % 1000000000)};
  return 0;
}

int __wrap_nanosleep(const timespec* duration, timespec*) {
  sleepUntil(now() + nsOf(*duration));
  return 0;
}

int __wrap_sched_yield() {
  step("yield");
  return 0;
}

pid_t __wrap_getpid() { return 4242; }

long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& x : a) x = va_arg(list, long);
  va_end(list);
  switch (number) {
    case SYS_gettid: return __real_syscall(SYS_gettid);
    case SYS_set_robust_list:
      robust = {reinterpret_cast<const void*>(a[0]), static_cast<int>(__real_syscall(SYS_gettid))};
      return 0;
    case SYS_pidfd_open:
      step("pidfd_open");
      return placeholder();
    case railhead::host::kSysFutexWaitv: {
      step("futex_waitv");
      Hidden hidden;
      return futexWait(reinterpret_cast<const railhead::host::FutexWaitv*>(a[0]), static_cast<int>(a[1]), reinterpret_cast<const timespec*>(a[3]));
    }
    case SYS_futex: {
      if (a[1] != FUTEX_WAKE) fail("futex operation %ld", a[1]);
      step("futex wake");
      Hidden hidden;
      wake(keyOfWord(reinterpret_cast<const void*>(a[0])));
      return 0;
    }
    default: fail("system call %ld", number);
  }
}

}  // extern "C"
