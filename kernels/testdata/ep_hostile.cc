// Dispatch and combine of a rank whose buffer was filled with anything by the other ranks. The rank must access only its own memory
// (AddressSanitizer watches every array), and the rows of its own tokens must be whole.
#include <sanitizer/asan_interface.h>
#include <string.h>

#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "host/mem.h"
#include "railhead/ep/ep_combine.h"
#include "railhead/ep/ep_dispatch.h"
#include "railhead/ep/ep_plan.h"

using namespace railhead;

namespace {

using Mem = host::Mem;

constexpr int kWorld = 3, kRank = 1;  // has a predecessor and a successor
constexpr uint32_t kRowBytes = 20;
constexpr char kOwnByte = 0x5a;

struct Dice {
  std::mt19937_64 random;
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random() % n); }
  bool oneIn(uint32_t n) { return below(n) == 0; }
};

// Memory that ends after its last element.
template <class T>
std::unique_ptr<T[]> array(uint64_t n) {
  return std::make_unique<T[]>(n);
}
struct Freer {
  void operator()(char* p) const { free(p); }
};

struct Run {
  Dice dice;
  EpTeam team = {};
  FlagTeam flags = {};
  EpFlight flight = {}, other = {};
  std::vector<uint8_t> expertRank;
  std::vector<uint16_t> expertLocal, each, own;
  std::unique_ptr<char, Freer> buffers;  // with poisoned memory between them
  std::unique_ptr<EpCounters> counters = std::make_unique<EpCounters>();
  uint32_t abortWord = 0, quiet = 0, leases[kWorld] = {};
  uint64_t waitTurns[kWorld] = {};
  uint64_t waitingFor = 0, asleepSince = 0;
  Busy busy = {};

  std::unique_ptr<uint16_t[]> expert;
  std::unique_ptr<float[]> weight;
  std::unique_ptr<uint64_t[]> ranks;
  std::unique_ptr<uint32_t[]> tokenOf, copyOf, counts, nextRow, endRow;
  std::unique_ptr<uint8_t[]> listLength;
  std::unique_ptr<EpRowRef[]> list;

  // The caller's memory.
  std::vector<int32_t> route;
  std::unique_ptr<char[]> x, rows;
  std::unique_ptr<int64_t[]> begin;
  std::unique_ptr<float[]> weights, topkWeights;
  std::unique_ptr<int32_t[]> sourceRank, sourceToken, topkIdx;
  uint64_t rowCount = 0;
  EpOutput out = {};

  explicit Run(uint64_t seed) : dice{std::mt19937_64(seed)} {
    makeTeam();
    makeFlight();
    fillBuffer();
    makeRoute();
  }

  void makeTeam() {
    team.rank = kRank;
    team.worldSize = kWorld;
    team.maxTokens = 1 + dice.below(9);
    team.topk = 1 + dice.below(4);
    team.physical = team.logical = 1 + dice.below(8);
    team.countsFirst = dice.oneIn(2);
    team.dropsDead = dice.oneIn(2);
    for (uint16_t e = 0; e < team.physical; e++) {
      expertRank.push_back(static_cast<uint8_t>(dice.below(kWorld)));
      expertLocal.push_back(team.localExperts[expertRank[e]]++);
      if (expertRank[e] == kRank) own.push_back(e);
      each.push_back(e);
    }
    each.push_back(static_cast<uint16_t>(team.physical));
    team.maxLocal = 1;
    for (int r = 0; r < kWorld; r++) team.maxLocal = team.localExperts[r] > team.maxLocal ? team.localExperts[r] : team.maxLocal;
    team.layout = epLayoutOf({kWorld, team.maxTokens, team.topk, team.maxLocal, kRowBytes, kRowBytes, team.countsFirst});
    team.rowBytes = team.combineRowBytes = kRowBytes;
    team.expertRank = expertRank.data();
    team.expertLocal = expertLocal.data();
    team.replicaBegin = team.replicas = each.data();
    team.ownExperts = own.data();
    team.counters = counters.get();
    team.timeoutNs = 1;
    team.deathCheckNs = 5 * 1000 * 1000;
    team.waiterDeadlines = 4;
    team.abortWord = &abortWord;
    constexpr uint64_t kGap = 4096;
    team.bufferStride = team.layout.bytes + kGap;
    buffers.reset(static_cast<char*>(aligned_alloc(64, kWorld * team.bufferStride)));
    team.buffers = buffers.get();
    for (int r = 0; r < kWorld; r++) ASAN_POISON_MEMORY_REGION(team.base(r) + team.layout.bytes, kGap);
    team.leases = reinterpret_cast<const char*>(leases);
    team.leaseStride = sizeof *leases;
    team.waitTurns = reinterpret_cast<const char*>(waitTurns);
    team.waitTurnsStride = sizeof *waitTurns;
    flags.rank = kRank;
    flags.worldSize = kWorld;
    flags.timeoutNs = 1;
    flags.pollsPerTurn = 8;
    flags.longTurnNs = INT64_MAX;
    flags.busy = &busy;
    flags.recheckNs = 100 * 1000 * 1000;
    flags.abortWord = &abortWord;
    flags.waitingFor = &waitingFor;
    flags.asleepSince = &asleepSince;
    epPrepareFlags(team, &quiet, &flags);
  }

  template <class T>
  void take(std::unique_ptr<T[]>* memory, uint64_t n, T** at) {
    *memory = array<T>(n);
    *at = memory->get();
  }
  void makeFlight() {
    const uint64_t tokens = team.maxTokens;
    take(&expert, tokens * team.topk, &flight.expert);
    take(&weight, tokens * team.topk, &flight.weight);
    take(&ranks, tokens, &flight.ranks);
    take(&tokenOf, kWorld * tokens, &flight.tokenOf);
    take(&copyOf, kWorld * tokens, &flight.copyOf);
    take(&counts, kWorld * uint64_t{team.maxLocal}, &flight.counts);
    take(&nextRow, kWorld * uint64_t{team.maxLocal}, &flight.nextRow);
    take(&endRow, kWorld * uint64_t{team.maxLocal}, &flight.endRow);
    take(&listLength, kWorld * tokens, &flight.listLength);
    flight.listStride = team.topk < team.maxLocal ? team.topk : team.maxLocal;
    take(&list, kWorld * tokens * flight.listStride, &flight.list);
    flight.other = &other;
  }

  // Fills all of the buffer with what other ranks may have written, the rank's own state included.
  void fillBuffer() {
    char* mine = team.base(kRank);
    for (uint64_t i = 0; i < team.layout.bytes; i += 8) {
      const uint64_t word = dice.oneIn(2) ? dice.random() : dice.random() >> dice.below(64);
      memcpy(mine + i, &word, 8);
    }
    if (!dice.oneIn(4)) team.state()->masked = 0;
    for (int r = 0; r < kWorld; r++) {
      fillLine(r);
      if (r != kRank && dice.oneIn(2)) plausibleCounts(team.counts(kRank, r, team.state()->dispatches + 1));
    }
  }
  // Most lines claim that everything has arrived, some only the counts: then the rows that were counted are missing.
  void fillLine(int r) {
    EpLine& line = team.line(kRank, r);
    Flag* const all[] = {&line.counts, &line.tail, &line.combineTail, &line.countsHead, &line.head, &line.combineHead};
    for (Flag* flag : all) flag->sleepers = 0;  // waking no thread would take time
    if (dice.oneIn(8)) return;
    constexpr uint32_t kAhead = 1000;
    const EpState& state = *team.state();
    line.counts.value = line.countsHead.value = state.dispatches + kAhead;
    line.tail.value = state.read[r] + (team.countsFirst && dice.oneIn(4) ? 0 : kAhead);
    line.head.value = state.sent[r] + kAhead;
    line.combineTail.value = state.combineRead[r] + kAhead;
    line.combineHead.value = state.combineSent[r] + kAhead;
  }
  // Plausible counts, with which the protocol gets further than with random ones.
  void plausibleCounts(uint32_t* told) {
    for (uint32_t i = 0; i <= team.maxLocal; i++) told[i] = dice.below(team.maxTokens + 2);
  }

  void makeRoute() {
    flight.tokens = dice.below(team.maxTokens + 1);
    for (uint32_t i = 0; i < flight.tokens * team.topk; i++) {
      route.push_back(static_cast<int32_t>(dice.below(team.logical + 2)) - 1);
    }
    x = array<char>(uint64_t{flight.tokens} * kRowBytes);
    memset(x.get(), kOwnByte, uint64_t{flight.tokens} * kRowBytes);
    flight.rows = x.get();
    flight.rowStride = kRowBytes;
    const EpRouting routing = {route.data(), false, nullptr, flight.tokens};
    for (uint32_t t = 0; t < flight.tokens; t++) epMapToken(team, routing, t, &flight);
    flight.number = ++team.state()->dispatches;
    epPlace(team, &flight);
    flight.lostRanks = flight.masked;
    flight.lostCopies = flight.maskedCopies;
  }

  // Lays out rows as the client does.
  void layOut() {
    const uint32_t local = team.localExperts[kRank];
    out.perToken = dice.oneIn(3);
    out.padded = !out.perToken && dice.oneIn(2);
    begin = array<int64_t>(local);
    const uint64_t room = dice.below(team.maxTokens * 2);
    for (int s = 0; s < kWorld && out.perToken; s++) rowCount += flight.received[s];
    for (uint32_t e = 0; e < local && !out.perToken; e++) {
      begin[e] = static_cast<int64_t>(rowCount);
      for (int s = 0; s < kWorld && !out.padded; s++) rowCount += flight.counts[static_cast<uint64_t>(s) * team.maxLocal + e];
      if (out.padded) rowCount += room;
    }
    out.capacity = out.padded ? room : rowCount;
    out.begin = begin.get();
    out.dataBytes = kRowBytes;
    take(&rows, rowCount * kRowBytes, &out.x);
    take(&weights, rowCount, &out.weights);
    take(&sourceRank, rowCount, &out.sourceRank);
    take(&sourceToken, rowCount, &out.sourceToken);
    if (!out.perToken) return;
    take(&topkIdx, rowCount * team.topk, &out.topkIdx);
    take(&topkWeights, rowCount * team.topk, &out.topkWeights);
  }

  void checkOwnRow(uint64_t row) const {
    CHECK(sourceRank[row] == kRank);
    for (uint32_t i = 0; i < kRowBytes; i++) CHECK(rows[row * kRowBytes + i] == kOwnByte);
  }
  void checkOwnRows() const {
    if (out.perToken) {
      for (uint32_t i = 0; i < flight.copies[kRank]; i++) checkOwnRow(flight.received[0] + uint64_t{i});
      return;
    }
    for (uint32_t e = 0; e < team.localExperts[kRank]; e++) {
      const uint64_t first = static_cast<uint64_t>(begin[e]) + flight.counts[e], n = flight.counts[team.maxLocal + e];
      for (uint64_t row = first; row < first + n; row++) {
        if (!out.padded || row - static_cast<uint64_t>(begin[e]) < out.capacity) checkOwnRow(row);
      }
    }
  }

  struct Sums {
    Run& run;
    void partial(const EpRowRef* list, uint32_t n, char* to) const {
      CHECK(n <= (run.out.perToken ? 1 : run.flight.listStride));
      for (uint32_t i = 0; i < n; i++) CHECK(list[i].row < run.rowCount);
      memset(to, 1, kRowBytes);
    }
    void finish(uint32_t token, const char* const* partials, int n, bool, float) const {
      CHECK(token < run.flight.tokens && n <= kWorld);
      char sum[kRowBytes];
      for (int i = 0; i < n; i++) memcpy(sum, partials[i], kRowBytes);
    }
  };

  // Whether dispatch and combine ended. They end early if a flag claims nothing.
  bool play() {
    Mem mem;
    EpLinks<Mem> links(mem, flags, team);
    EpDispatch<Mem> dispatch(mem, team, links, flight);
    if (!dispatch.send() || !dispatch.awaitCounts()) return false;
    const uint32_t received = flight.received[0];
    layOut();
    if (!dispatch.receive(out)) return false;
    if (!out.perToken || flight.received[0] == received) checkOwnRows();
    Sums sums = {*this};
    std::unique_ptr<char[]> scratch = array<char>(kRowBytes);
    EpCombine<Mem, Sums> combine(mem, team, links, flight, sums, scratch.get(), dice.oneIn(2));
    combine.send();
    return combine.receive();
  }
};

constexpr int kAwaited = kWorld - 1;

// Makes of a run a rank that waits for a word of kAwaited, which never comes.
void prepareWait(Run* run, int64_t timeoutNs) {
  run->team.dropsDead = true;
  run->team.timeoutNs = timeoutNs;
  run->team.state()->masked = 0;
  const_cast<EpState*>(run->team.stateOf(kAwaited))->gaveUp = 0;
  for (uint32_t& lease : run->leases) lease = 1;
  epPrepareFlags(run->team, &run->quiet, &run->flags);
}

// Any rank can write the abort word. A culprit that the group does not have is no rank's death: the wait goes on to its deadline.
void awaitDespiteUnknownCulprit() {
  Run run(1);
  prepareWait(&run, 50 * 1000 * 1000);
  run.abortWord = kAbortRankDead | (64u + kAwaited) << kAbortCulpritShift;
  Mem mem;
  EpLinks<Mem> links(mem, run.flags, run.team);
  Flag never = {};
  links.clear();
  links.add(never, 1, kAwaited);
  const int64_t began = mem.nowNs();
  CHECK(links.wait() && links.isMasked(kAwaited) && mem.nowNs() - began >= run.team.timeoutNs);
}

// Signs of life without an end do not keep a wait going: after waiterDeadlines deadlines the rank is masked.
void awaitOneThatOnlyWaits() {
  Run run(1);
  prepareWait(&run, 20 * 1000 * 1000);
  Mem mem;
  EpLinks<Mem> links(mem, run.flags, run.team);
  Flag never = {};
  links.clear();
  links.add(never, 1, kAwaited);
  const int64_t began = mem.nowNs(), most = 2000 * 1000 * int64_t{1000};
  bool ended = false;
  std::thread peer([&] {  // not for ever, so that the check fails
    while (!__atomic_load_n(&ended, __ATOMIC_RELAXED) && mem.nowNs() - began < most) {
      __atomic_fetch_add(&run.waitTurns[kAwaited], 1, __ATOMIC_RELAXED);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const bool goesOn = links.wait();
  const int64_t took = mem.nowNs() - began;
  __atomic_store_n(&ended, true, __ATOMIC_RELAXED);
  peer.join();
  CHECK(goesOn && links.isMasked(kAwaited) && took < most);
}

// A call ends although each of its waits succeeds long before the deadline: limitNs is of all waits together, counted from the first one.
void awaitOneThatDrips() {
  Run run(1);
  constexpr int64_t kMs = 1000 * 1000;
  prepareWait(&run, 60000 * kMs);
  run.team.limitNs = 60 * kMs;
  Mem mem;
  EpLinks<Mem> links(mem, run.flags, run.team);
  Flag drips = {};
  const int64_t began = mem.nowNs(), most = 2000 * kMs;
  bool ended = false;
  std::thread peer([&] {
    for (uint32_t n = 1; !__atomic_load_n(&ended, __ATOMIC_RELAXED); n++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than a piece of a wait
      __atomic_store_n(&drips.value, n, __ATOMIC_RELEASE);
    }
  });
  bool goesOn = true;
  for (uint32_t n = 1; goesOn && !links.isMasked(kAwaited) && mem.nowNs() - began < most; n++) {
    links.clear();
    links.add(drips, n, kAwaited);
    goesOn = links.wait();
  }
  const int64_t took = mem.nowNs() - began;
  __atomic_store_n(&ended, true, __ATOMIC_RELAXED);
  peer.join();
  CHECK(goesOn && links.isMasked(kAwaited) && took >= run.team.limitNs && took < most);
}

// A wait that ends at its deadline names every rank that it waited for.
void awaitTwo() {
  Run run(1);
  run.team.dropsDead = false;
  Mem mem;
  EpLinks<Mem> links(mem, run.flags, run.team);
  Flag never[2] = {};
  links.clear();
  links.add(never[0], 1, 0);
  links.add(never[1], 1, kAwaited);
  CHECK(!links.wait() && links.stop() == Stop::kTimeout && links.missing() == (1 | 1 << kAwaited));
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  awaitDespiteUnknownCulprit();
  awaitOneThatOnlyWaits();
  awaitOneThatDrips();
  awaitTwo();
  const auto first = strtoull(argv[1], nullptr, 10), n = strtoull(argv[2], nullptr, 10);
  unsigned long long ended = 0;
  for (auto seed = first; seed < first + n; seed++) ended += Run(seed).play();
  fprintf(stderr, "%llu of %llu ended\n", ended, n);
  CHECK(ended > n / 4);
  return 0;
}
