// A wake-up of a word reaches every thread that sleeps on it, also one that sleeps on several words. The word does not change, so only the
// wake-up ends their sleep. It is made once all of them are inside the system call.
//
// Usage: wake
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "host/mem.h"

using namespace railhead;

namespace {

constexpr int kSleepers = 6;
constexpr int64_t kPatience = int64_t{120} * 1000000000;

uint32_t words[3] = {7, 8, 9};
std::atomic<int> ids[kSleepers];

int sleepOn(int sleeper) {
  const int64_t deadline = host::nowNs() + kPatience;
  if (sleeper % 2 == 0) return host::futexWait2(&words[1], 8, &words[2], 9, deadline);
  const uint32_t* const all[] = {&words[0], &words[1], &words[2]};
  return host::futexWaitAny(all, words, 3, deadline);
}

// Whether the kernel shows the thread in futex_waitv.
bool isAsleep(int id) {
  char path[64], text[32] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/syscall", id);
  FILE* f = fopen(path, "re");
  CHECK(f != nullptr);
  const bool read = fgets(text, sizeof text, f) != nullptr;
  fclose(f);
  return read && atol(text) == host::kSysFutexWaitv && strncmp(text, "running", 7) != 0;
}

}  // namespace

int main() {
  std::thread threads[kSleepers];
  std::atomic<int> woken{0};
  for (int i = 0; i < kSleepers; i++) {
    threads[i] = std::thread([i, &woken] {
      ids[i] = static_cast<int>(syscall(SYS_gettid));
      const int error = sleepOn(i);
      if (error == 0) woken++;
    });
  }
  for (int i = 0; i < kSleepers; i++) {
    for (const int64_t until = host::nowNs() + kPatience / 2; ids[i] == 0 || !isAsleep(ids[i]); usleep(1000)) CHECK(host::nowNs() < until);
  }
  host::Mem().futexWakeAll(&words[1]);
  for (const int64_t until = host::nowNs() + kPatience / 4; woken < kSleepers; usleep(1000)) CHECK(host::nowNs() < until);
  for (std::thread& t : threads) t.join();
}
