// What the GPU kernels of MoE dispatch and combine do when other ranks fail.
//
//   gpu_ep_faults stop WORLD             a rank that does not come to a dispatch or a combine; an abort
//   gpu_ep_faults hostile SEED ROUNDS    the other ranks have filled this rank's buffer with anything. It must access only its own memory, which
//                                        AddressSanitizer watches, and its own tokens' rows must be whole
#include <string.h>

#include <chrono>
#include <random>
#include <thread>

#include "ep_gpu.h"

namespace {

constexpr uint32_t kTokens = 6, kTopk = 2, kHidden = 24;
constexpr uint64_t kMs = 1000000;
constexpr TestGrid kGrid = {2, kOnDevice ? 64 : 3};

EpPlacement placement(int world, uint32_t experts) {
  EpPlacement p = {};
  p.world = world;
  p.maxTokens = kTokens;
  p.topk = kTopk;
  p.logical = experts;
  for (uint32_t e = 0; e < experts; e++) {
    p.logicalOf.push_back(static_cast<uint16_t>(e));
    p.rankOf.push_back(static_cast<uint8_t>(e % static_cast<uint32_t>(world)));
  }
  p.format = {host::Type::kF32, host::Type::kF32, host::Type::kF32, host::EpScale::kF32, 0, kHidden};
  p.dropsInvalid = true;
  return p;
}

// A dispatch of a rank, and its combine.
struct Calls {
  SharedArray<int32_t> idx;
  SharedArray<float> x, rows, out, weights;
  SharedArray<int32_t> sourceRank, sourceToken, topkIdx, counts;
  SharedArray<EpCell> cell = SharedArray<EpCell>(1);
  EpDispatchCall dispatch = {};
  EpCombineCall combine = {};

  Calls(EpGpuRanks& ranks, int r, uint32_t experts, uint64_t timeoutNs) {
    cell[0] = {};
    cell[0].flight = -1;
    for (uint32_t i = 0; i < kTokens * kTopk; i++) idx.push_back(static_cast<int32_t>((i + static_cast<uint32_t>(r)) % experts));
    x.assign(kTokens * kHidden, static_cast<float>(r + 1));
    out.resize(x.size());
    static_cast<EpCommonCall&>(dispatch) = static_cast<EpCommonCall&>(combine) = ranks.common(r, cell.data(), timeoutNs);
    dispatch.steps = combine.steps = kEpSends | kEpReceives;
    dispatch.dropsInvalid = true;
    dispatch.routing = {idx.data(), false, nullptr, kTokens};
    dispatch.x = reinterpret_cast<const char*>(x.data());
    const uint64_t most = static_cast<uint64_t>(dispatch.team.worldSize) * kTokens * kTopk;
    room(EpRowLayout::kFlat, most, most);
    combine.yRows = dispatch.receive.x;
    combine.outRows = reinterpret_cast<char*>(out.data());
  }
  void room(EpRowLayout layout, uint64_t capacity, uint64_t all) {
    rows.resize(all * kHidden);
    sourceRank.resize(all);
    sourceToken.resize(all);
    weights.resize(all);
    topkIdx.resize(all * kTopk);
    counts.resize(dispatch.team.localExperts[dispatch.team.rank]);
    EpReceive& to = dispatch.receive;
    to.layout = layout;
    to.alignment = 1;
    to.capacity = capacity;
    to.x = reinterpret_cast<char*>(rows.data());
    to.counts = counts.data();
    to.sourceRank = sourceRank.data();
    to.sourceToken = sourceToken.data();
    to.weights = layout == EpRowLayout::kTokens ? nullptr : weights.data();
    to.topkIdx = layout == EpRowLayout::kTokens ? topkIdx.data() : nullptr;
    combine.yRows = to.x;
  }
};

// missing: a rank that it must name; 0 = none.
void stopped(const Group& group, int r, Stop why, uint64_t missing) {
  const Status& s = group.status[static_cast<size_t>(r)];
  if (s.stop != static_cast<uint32_t>(why) || (s.missing & missing) != missing) {
    fprintf(stderr, "rank %d stopped with %u, missing %#lx, instead of %u, %#lx\n", r, s.stop, s.missing, static_cast<uint32_t>(why), missing);
    CHECK(!"wrong report");
  }
}

// The last rank does not come to what begins with `from`: 0 a dispatch, 1 its combine.
void stops(int world, int from, bool aborts) {
  const EpPlacement p = placement(world, static_cast<uint32_t>(2 * world));
  EpGpuRanks ranks(p, 0);
  const uint64_t last = uint64_t{1} << (world - 1);
  const uint64_t timeoutNs = aborts ? 60000 * kMs : 1000 * kMs;  // the others come much earlier
  std::vector<std::unique_ptr<Calls>> calls;
  for (int r = 0; r < world; r++) calls.push_back(std::make_unique<Calls>(ranks, r, p.logical, timeoutNs));
  std::thread host;
  if (aborts) {
    host = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      for (Status& s : ranks.group().status) {
        for (int b = 0; b < 4; b++) __atomic_store_n(&s.abort[b].word, 1, __ATOMIC_RELAXED);
      }
    });
  }
  if (from == 1) onRanks(world, [&](int r) { ranks.dispatch(&calls[static_cast<size_t>(r)]->dispatch, kGrid); });
  const auto call = [&](int r, int which) {
    Calls& c = *calls[static_cast<size_t>(r)];
    if (which == 0) {
      ranks.dispatch(&c.dispatch, kGrid);
    } else {
      ranks.combine(&c.combine, kGrid);
    }
  };
  onRanks(world - 1, [&](int r) {
    call(r, from);
    call(r, from);  // returns at once
  });
  if (aborts) host.join();
  for (int r = 0; r < world - 1; r++) {
    // Every rank that waits has tokens for the last one's experts, and its experts have tokens of the last one. At an abort control may be the first
    // to see it, which waits for no rank.
    stopped(ranks.group(), r, aborts ? Stop::kAborted : Stop::kTimeout, aborts ? 0 : last);
  }
}

// ---- Hostile ranks ----

struct Dice {
  std::mt19937_64 random;
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random() % n); }
};

// What another rank may have written: half of the words are plausible.
void fillBuffer(Dice& dice, const EpTeam& t) {
  char* own = t.base(t.rank);
  for (uint64_t at = t.layout.links; at < t.layout.combine; at += 4) {
    const uint32_t w = static_cast<uint32_t>(dice.random()) >> dice.below(32);
    memcpy(own + at, &w, 4);
  }
  for (int s = 0; s < t.worldSize; s++) {
    if (s == t.rank) continue;
    t.line(t.rank, s).head.value = 0;
    for (uint32_t number = 0; number < 2; number++) {
      uint32_t* counts = t.counts(t.rank, s, number);
      for (uint32_t e = 0; e <= t.localExperts[t.rank]; e++) {
        counts[e] = EpCountWord::of(dice.below(4) == 0 ? static_cast<uint32_t>(dice.random()) >> 1 : dice.below(kTokens + 3), 1);
      }
      for (uint32_t i = 0; i < t.maxTokens; i++) {
        auto* header = reinterpret_cast<uint32_t*>(t.header(t.slot(t.rank, s, number), i));
        *header |= EpFirstWord::kHere;
        if (dice.below(2) == 0) *header = EpFirstWord::of(dice.below(kTokens), dice.below(4));
      }
    }
  }
  for (uint64_t at = t.layout.combine; at < t.layout.bytes; at += 8) {
    const uint64_t w = dice.random();
    memcpy(own + at, &w, 8);
  }
}

bool hostile(uint64_t seed) {
  Dice dice{std::mt19937_64(seed)};
  constexpr int kWorld = 3, kRank = 1;
  const EpPlacement p = placement(kWorld, 1 + dice.below(9));
  EpGpuRanks ranks(p, 0);
  Calls calls(ranks, kRank, p.logical, 20 * kMs);
  const EpTeam& t = calls.dispatch.team;
  fillBuffer(dice, t);
  const uint32_t local = t.localExperts[kRank];
  const auto layout = static_cast<EpRowLayout>(dice.below(3));
  // Room for what the clamped counts may ask for, or less.
  const uint64_t most = layout == EpRowLayout::kTokens ? kWorld * kTokens : uint64_t{kWorld} * kTokens * (local + 1);
  const uint64_t capacity = layout == EpRowLayout::kPadded ? 1 + dice.below(kWorld * kTokens) : dice.below(3) == 0 ? dice.below(20) : most;
  calls.room(layout, capacity, layout == EpRowLayout::kPadded ? capacity * local : capacity);
  onRanks(1, [&](int) { ranks.dispatch(&calls.dispatch, kGrid); });
  ranks.checkGuards();
  const Status& s = ranks.group().status[kRank];
  if (s.stop != 0 || calls.cell[0].dispatched.error != EpError::kNone) return false;
  for (size_t row = 0; row < calls.sourceRank.size() && layout == EpRowLayout::kTokens; row++) {
    if (row >= calls.cell[0].dispatched.rows || calls.sourceRank[row] != kRank) continue;
    for (uint32_t i = 0; i < kHidden; i++) CHECK(calls.rows[row * kHidden + i] == 2);
  }
  onRanks(1, [&](int) { ranks.combine(&calls.combine, kGrid); });
  ranks.checkGuards();
  return s.stop == 0 && calls.cell[0].combined.error == EpError::kNone;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 3);
  const std::string what = argv[1];
  if (what == "stop") {
    for (const bool aborts : {false, true}) {
      for (const int from : {0, 1}) stops(atoi(argv[2]), from, aborts);
    }
    return 0;
  }
  CHECK(what == "hostile" && argc == 4);
  const uint64_t first = strtoull(argv[2], nullptr, 0), rounds = strtoull(argv[3], nullptr, 0);
  uint64_t ended = 0;
  for (uint64_t seed = first; seed != first + rounds; seed++) ended += hostile(seed);
  printf("%lu of %lu ended\n", ended, rounds);
  CHECK(ended > rounds / 4);
  return 0;
}
