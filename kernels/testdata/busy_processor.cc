// Waits of one rank on a processor whose clock the program sets: a poll takes 50 ns, and a yield as long as the other processes run that
// use the processor.
#include <string.h>

#include <vector>

#include "check.h"
#include "railhead/exchange/flag_waits.h"

using namespace railhead;

namespace {

constexpr int64_t kUs = 1000, kMs = 1000 * kUs;
constexpr int64_t kIdleYieldNs = kUs, kBusyYieldNs = 20 * kMs;

struct Processor {
  static constexpr uint32_t kGenerationMask = 0xffffffffu;

  int64_t clock = 1000 * kMs, yieldNs = kIdleYieldNs;
  int64_t sleptAt = 0;
  int yields = 0, sleeps = 0;
  uint32_t* arrivesInSleep = nullptr;  // the flag is written while the rank sleeps
  uint32_t* arrivesInYield = nullptr;  // ... while others run
  uint64_t callWord = 0;

  uint32_t loadAcquire(const uint32_t* p) { return *p; }
  uint32_t loadRelaxed(const uint32_t* p) { return *p; }
  uint64_t loadWord(const uint64_t* p) { return *p; }
  uint64_t loadWordAcquire(const uint64_t* p) { return *p; }
  void storeWord(uint64_t* p, uint64_t v) { *p = v; }
  void storeWordRelease(uint64_t* p, uint64_t v) { *p = v; }
  void add(uint32_t* p, uint32_t v) { *p += v; }
  void fence() {}
  void fenceAcquire() {}
  void fenceRelease() {}
  void report(uint64_t* p, uint64_t v) { *p = v; }
  int64_t nowNs() { return clock; }
  void relax() { clock += 50; }
  void yield() {
    yields++;
    clock += yieldNs;
    if (arrivesInYield != nullptr) ++*arrivesInYield;
    arrivesInYield = nullptr;
  }
  void futexWait2(const uint32_t*, uint32_t, const uint32_t*, uint32_t, int64_t) {
    sleeps++;
    sleptAt = clock;
    clock += 10 * kUs;
    ++*arrivesInSleep;
  }
  void futexWaitAny(const uint32_t* const*, const uint32_t*, int, int64_t) { futexWait2(nullptr, 0, nullptr, 0, 0); }
};

// Rank 0 of 2, which waits for rank 1's broadcastTail.
struct Waiter {
  Processor processor;
  FlagTeam team = {};
  Busy busy = {};
  std::vector<uint64_t> heaps = std::vector<uint64_t>(2 * sizeof(ScratchHeader) / sizeof(uint64_t));
  uint32_t abortWord = 0;
  uint64_t waitingFor = 0, asleepSince = 0;
  bool several;  // waits by FlagWaits
  uint32_t next = 0;
  int yields = 0, sleeps = 0;  // of the last wait
  int64_t spunNs = 0;          // until it slept

  Waiter(int64_t yieldNs, int64_t busySpinNs, bool several) : several(several) {
    team.worldSize = 2;
    team.spinNs = 500 * kUs;
    team.yieldNs = yieldNs;
    team.pollsPerTurn = 8;
    team.longTurnNs = kMs;
    team.busySpinNs = busySpinNs;
    team.busyNs = 10 * kMs;
    team.busyMostNs = 50 * kMs;
    team.busy = &busy;
    team.recheckNs = team.timeoutNs = 1000 * kMs;
    team.heaps = reinterpret_cast<char*>(heaps.data());
    team.heapStride = sizeof(ScratchHeader);
    team.abortWord = &abortWord;
    team.waitingFor = &waitingFor;
    team.asleepSince = &asleepSince;
  }

  // Waits for the flag, which rank 1 writes when this rank sleeps, or in its first yield.
  void wait(bool arrivesInYield = false) {
    Flags<Processor> flags(processor, team);
    Flag& flag = flags.header(1)->broadcastTail;
    processor.arrivesInSleep = &flag.value;
    processor.arrivesInYield = arrivesInYield ? &flag.value : nullptr;
    const int yieldsBefore = processor.yields, sleepsBefore = processor.sleeps;
    const int64_t began = processor.clock;
    if (several) {
      FlagWaits<Processor> waits(processor, team, flags);
      waits.clear();
      waits.add(flag, ++next, 1);
      CHECK(waits.wait());
    } else {
      CHECK(flags.await(flag, ++next, 1));
    }
    yields = processor.yields - yieldsBefore;
    sleeps = processor.sleeps - sleepsBefore;
    spunNs = processor.sleptAt - began;
  }
  // A wait that does not yield, and sleeps in the turn in which busySpinNs ends.
  bool sleptSoon() const { return yields == 0 && sleeps == 1 && spunNs >= team.busySpinNs && spunNs <= team.busySpinNs + kUs; }
};

void check(int64_t yieldNs, int64_t busySpinNs, bool several) {
  Waiter w(yieldNs, busySpinNs, several);
  // On an idle processor a wait yields until it has spun for spinNs.
  w.wait();
  CHECK(w.yields > 100 && w.sleeps == 1 && w.spunNs >= w.team.spinNs && w.busy.forNs == 0);

  // On a busy one it sleeps after its first yield, and the next ones without one.
  w.processor.yieldNs = kBusyYieldNs;
  w.wait();
  CHECK(w.yields == 1 && w.sleeps == 1 && w.busy.forNs == w.team.busyNs);
  while (w.processor.clock < w.busy.untilNs) {
    w.wait();
    CHECK(w.sleptSoon());
  }

  // Then one yields. If the processor is still busy the time doubles, up to the most.
  for (int64_t want : {20 * kMs, 40 * kMs, 50 * kMs, 50 * kMs}) {
    w.wait();
    CHECK(w.yields == 1 && w.sleeps == 1 && w.busy.forNs == want && w.busy.untilNs > w.processor.clock);
    w.wait();
    CHECK(w.sleptSoon());
    w.processor.clock = w.busy.untilNs;
  }

  // If it is not, waits yield again, and the next time is the first.
  w.processor.yieldNs = kIdleYieldNs;
  w.wait();
  CHECK(w.yields > 100 && w.spunNs >= w.team.spinNs);
  w.processor.clock += 1000 * kMs;
  w.processor.yieldNs = kBusyYieldNs;
  // Also if the flag was written while the others ran, so that the wait ends without a sleep.
  w.wait(true);
  CHECK(w.yields == 1 && w.sleeps == 0 && w.busy.forNs == w.team.busyNs);
  w.wait();
  CHECK(w.sleptSoon());
}

}  // namespace

int main() {
  for (int64_t yieldNs : {int64_t{0}, 4 * kUs}) {
    for (int64_t busySpinNs : {int64_t{0}, 50 * kUs}) {
      for (bool several : {false, true}) check(yieldNs, busySpinNs, several);
    }
  }
  return 0;
}
