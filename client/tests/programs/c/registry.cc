// Threads that add to a registry at the same time: every entry is found afterwards, once.
#include <pthread.h>
#include <sched.h>

#include <atomic>

#include "base/registry.h"
#include "check.h"

namespace {

constexpr int kThreads = 4, kEntries = 5000, kRounds = 50;

struct Entry {
  int found;
  Entry* next;
};
using Registry = railhead::client::Registry<Entry>;

struct Round {
  Registry registry;
  std::atomic<int> ready{0};
  Entry entries[kThreads][kEntries] = {};
};

struct Adder {
  Round* round;
  Entry* entries;
};

void* add(void* p) {
  const auto* adder = static_cast<Adder*>(p);
  adder->round->ready.fetch_add(1);
  while (adder->round->ready.load() != kThreads) sched_yield();
  for (int i = 0; i < kEntries; i++) adder->round->registry.add(&adder->entries[i]);
  return nullptr;
}

void play() {
  auto* round = new Round();
  pthread_t threads[kThreads];
  Adder adders[kThreads];
  for (int t = 0; t < kThreads; t++) {
    adders[t] = {round, round->entries[t]};
    CHECK(pthread_create(&threads[t], nullptr, add, &adders[t]) == 0);
  }
  for (const pthread_t t : threads) CHECK(pthread_join(t, nullptr) == 0);
  for (Entry* e = round->registry.first(); e != nullptr; e = e->next) e->found++;
  for (const auto& of : round->entries) {
    for (const Entry& e : of) CHECK(e.found == 1);
  }
  delete round;
}

}  // namespace

int main() {
  for (int i = 0; i < kRounds; i++) play();
  return 0;
}
