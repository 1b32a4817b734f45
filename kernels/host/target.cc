// How a rank waits on the CPU: it spins briefly, then sleeps on the flag and on the abort word together.
#include "host/target.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace railhead::host {

namespace {

// Looks at the clock and at the abort word come once every so many looks at the flag.
constexpr int kLooksPerClock = 64;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace

// The ranks that have not published epoch. Acquire is not needed: the answer is for a report.
uint64_t Target::behind(uint32_t epoch) const {
  uint64_t mask = 0;
  for (int r = 0; r < team_.worldSize; r++) {
    if (!reached(__atomic_load_n(&header(r)->published.epoch, __ATOMIC_RELAXED), epoch)) mask |= uint64_t{1} << r;
  }
  return mask;
}

bool Target::awaitSlowly(int peer, uint32_t epoch) {
  PublishedLine& line = header(peer)->published;
  const int64_t start = nowNs();
  const int64_t deadline = start + team_.timeoutNs;
  const int64_t spinUntil = start + team_.spinNs < deadline ? start + team_.spinNs : deadline;
  do {
    for (int i = 0; i < kLooksPerClock; i++) {
      if (reached(loadAcquire(&line.epoch), epoch)) return true;
      relax();
    }
    if (aborted()) {
      stop_ = Stop::kAborted;
      missing_ = behind(epoch);
      return false;
    }
  } while (nowNs() < spinUntil);

  __atomic_store_n(team_.waitingFor, behind(epoch), __ATOMIC_RELAXED);
  const bool arrived = sleepOn(line, epoch, deadline);
  // The peer was late even if it has come since: without its bit nobody might be named.
  if (!arrived) missing_ = behind(epoch) | uint64_t{1} << peer;
  __atomic_store_n(team_.waitingFor, missing_, __ATOMIC_RELAXED);
  return arrived;
}

bool Target::sleepOn(PublishedLine& line, uint32_t epoch, int64_t deadlineNs) {
  // The full fence keeps the next look at the flag behind the announcement; it pairs with the one in publish().
  __atomic_fetch_add(&line.sleepers, 1, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  bool arrived = false;
  for (;;) {
    const uint32_t seen = loadAcquire(&line.epoch);
    if (reached(seen, epoch)) {
      arrived = true;
      break;
    }
    if (aborted()) {
      stop_ = Stop::kAborted;
      break;
    }
    if (nowNs() >= deadlineNs) {
      stop_ = Stop::kTimeout;
      break;
    }
    // The kernel compares both words again before it sleeps, so neither a publish nor an abort in between is missed.
    futexWait2(&line.epoch, seen, team_.abortWord, 0, deadlineNs);
  }
  __atomic_fetch_sub(&line.sleepers, 1, __ATOMIC_RELAXED);
  return arrived;
}

}  // namespace railhead::host
