// Dispatches and combines with RH_EP_DEAD_DROP, of which the last rank dies or is late (gpu_ep_faults.cc).
#ifndef RAILHEAD_KERNELS_TESTDATA_GPU_EP_DROPS_H_
#define RAILHEAD_KERNELS_TESTDATA_GPU_EP_DROPS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "gpu_ep_calls.h"

namespace {

// Survivors of the last rank. It has sent a dispatch, of which some words are taken away again.
class Drops {
 public:
  Drops(uint64_t seed, uint64_t timeoutNs) : dice_{std::mt19937_64(seed)}, world_(2 + static_cast<int>(dice_.below(3))), timeoutNs_(timeoutNs) {
    placement_ = placement(world_, 1 + dice_.below(4 * static_cast<uint32_t>(world_)));
    for (uint8_t& r : placement_.rankOf) r = static_cast<uint8_t>(dice_.below(static_cast<uint32_t>(world_)));
    when_ = static_cast<int>(dice_.below(3));
    // In ht a rank sends no row before it receives, so it does not die between its rows. Its rings have 4 positions, and it may have more copies.
    placement_.countsFirst = when_ != 1 && dice_.below(2) == 0;
    if (placement_.countsFirst) placement_.chunkTokens = 1;
    ranks_ = std::make_unique<EpGpuRanks>(placement_, 0);
  }
  Drops(int world, bool countsFirst, uint64_t timeoutNs) : Drops(uint64_t{7}, timeoutNs) {
    world_ = world;
    placement_ = placement(world, static_cast<uint32_t>(2 * world));
    placement_.countsFirst = countsFirst;
    if (countsFirst) placement_.chunkTokens = 1;
    ranks_ = std::make_unique<EpGpuRanks>(placement_, 0);
  }

  // The host reports the death before the survivors call.
  void die() {
    const int when = when_;
    begin();
    onRanks(world_, [&](int r) {
      Calls& c = calls(r);
      const bool dies = when < 2 && r == last();
      c.dispatch.steps = dies ? kEpSends : kEpSends | kEpReceives;
      if (dies) ranks_->dispatch(&c.dispatch, kGrid);
    });
    if (when == 0) takeCounts();
    if (when == 1) takeHeaders();
    if (when < 2) {
      reportDeath();
      onRanks(last(), [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
    } else {
      onRanks(world_, [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
      reportDeath();
    }
    for (int r = 0; r < last(); r++) checkRows(r, when);
    onRanks(last(), [&](int r) { ranks_->combine(&calls(r).combine, kGrid); });
    for (int r = 0; r < last(); r++) checkSums(r);
    uint64_t lost = 0;  // copies of the last rank to ranks that lack some of its rows
    for (int r = 0; r < last(); r++) lost += tokensLack(r) ? copies(last(), r) : 0;
    goOn();
    if (when == 1) comeBack(lost);
  }
  // A rank dies between its rows, later another one before it sends. What the first one's dispatch lacks is not taken off the second one's tokens.
  void dieOneByOne() {
    when_ = 1;
    die();
    begin();
    const int second = last() - 1;
    const uint64_t secondBit = uint64_t{1} << second;
    reportDeaths(lastBit() | secondBit);
    onRanks(second, [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
    for (int r = 0; r < second; r++) {
      const EpReport& report = calls(r).cell[0].dispatched;
      uint64_t tokens = 0;
      for (int s = 0; s < second; s++) tokens += copies(s, r);
      CHECK(report.error == EpError::kNone && (report.lostRanks & secondBit) != 0 && report.tokens == tokens);
    }
  }
  // A rank dies between its rows. In the padded layout the last of them have no room: at their places are rows of the next expert, or nothing. World 3.
  void dieWithoutRoom() {
    constexpr size_t kLiving = 8, kRoom = 10;  // rows of an expert: 4 come from each rank
    begin();
    for (int r = 0; r < world_; r++) {
      Calls& c = calls(r);
      c.room(EpRowLayout::kPadded, kRoom, 2 * kRoom + 1);
      for (float& x : c.rows) x = -1;
    }
    calls(last()).dispatch.steps = kEpSends;
    ranks_->dispatch(&calls(last()).dispatch, kGrid);
    for (int r = 0; r < last(); r++) {
      const EpTeam& t = calls(r).dispatch.team;
      for (uint32_t i = 0; i < copies(last(), r); i++) *reinterpret_cast<uint32_t*>(t.header(t.slot(r, last(), 1), i)) = 0;
    }
    reportDeath();
    onRanks(last(), [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
    for (int r = 0; r < last(); r++) {
      const Calls& c = calls(r);
      CHECK(c.cell[0].dispatched.error == EpError::kNone);
      for (size_t row = 0; row < 2 * kRoom; row++) CHECK((c.rows[row * kHidden] > 0) == (row % kRoom < kLiving));
      CHECK(c.rows[2 * kRoom * kHidden] == -1);
    }
  }
  // Of two ranks one gives signs of life, as a rank that waits itself does, and sends nothing: it is given up after waiterDeadlines deadlines. False: it
  // was given up earlier, because a sign came late on a busy processor.
  bool awaitWaiter() {
    begin();
    EpCommonCall& call = calls(0).dispatch;
    auto* turns = &const_cast<EpState*>(call.team.stateOf(1))->waitTurns;
    std::atomic<bool> ended{false};
    const auto began = std::chrono::steady_clock::now();
    std::chrono::steady_clock::duration longest{};  // between two signs
    std::thread peer([&] {
      for (auto before = began; !ended;) {
        __atomic_fetch_add(turns, 1, __ATOMIC_RELAXED);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const auto now = std::chrono::steady_clock::now();
        longest = std::max(longest, now - before);
        before = now;
      }
    });
    onRanks(1, [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
    const auto took = std::chrono::steady_clock::now() - began;
    ended = true;
    peer.join();
    CHECK(calls(0).cell[0].dispatched.lostRanks == lastBit());
    if (took >= std::chrono::nanoseconds(static_cast<uint64_t>(call.team.waiterDeadlines) * timeoutNs_)) return true;
    CHECK(longest >= std::chrono::nanoseconds(timeoutNs_) / 2);
    return false;
  }
  // Of two ranks one does not come. It is given up after the limit of all waits of a call, which is much shorter than the deadline of one wait.
  void awaitToTheLimit() {
    begin();
    EpCommonCall& call = calls(0).dispatch;
    call.team.limitNs = 50 * kMs;
    const auto began = std::chrono::steady_clock::now();
    onRanks(1, [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
    const auto took = std::chrono::steady_clock::now() - began;
    CHECK(calls(0).cell[0].dispatched.lostRanks == lastBit());
    CHECK(took >= std::chrono::nanoseconds(call.team.limitNs) && took < std::chrono::nanoseconds(timeoutNs_) / 2);
  }
  // Of two ranks one has sent its tokens, and does not come to the combine. It is given up after its deadline, long before the limit of all waits.
  void awaitSums() {
    begin();
    EpCommonCall& call = calls(0).combine;
    const uint64_t timeoutNs = 100 * kMs, limitNs = 20000 * kMs;
    letDrop(&call, timeoutNs);
    call.team.waiterDeadlines = 1000;  // it gives no sign of life, for which it would have longer
    call.team.stateOf(1)->waitTurns = 7;  // of earlier waits
    call.team.limitNs = static_cast<int64_t>(limitNs);
    onRanks(world_, [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
    const auto began = std::chrono::steady_clock::now();
    onRanks(1, [&](int r) { ranks_->combine(&calls(r).combine, kGrid); });
    const auto took = std::chrono::steady_clock::now() - began;
    CHECK(calls(0).cell[0].combined.lostRanks == lastBit());
    CHECK(took >= std::chrono::nanoseconds(timeoutNs) && took < std::chrono::nanoseconds(limitNs) / 2);
  }
  // It does not come, and nobody reports a death.
  void stayAway(bool toCombine) {
    begin();
    const EpLayout& layout = calls(0).dispatch.team.layout;
    if (placement_.countsFirst) CHECK(copies(0, last()) > layout.slots * layout.chunkTokens && copies(0, 1) > layout.slots * layout.chunkTokens);  // credits lack
    onRanks(toCombine ? world_ : last(), [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
    for (int r = 0; r < last(); r++) checkRows(r, toCombine ? 2 : 0);
    onRanks(last(), [&](int r) { ranks_->combine(&calls(r).combine, kGrid); });
    for (int r = 0; r < last(); r++) checkSums(r);
    goOn();
  }
  // All others of a group of more than 32 ranks have died: masks have bits in both halves.
  void isAlone() {
    const uint64_t others = (lastBit() << 1) - 2;
    begin();
    reportDeaths(others);
    onRanks(1, [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
    CHECK(ranks_->group().status[0].stop == 0 && calls(0).cell[0].dispatched.error == EpError::kNone);
    CHECK(calls(0).cell[0].dispatched.lostRanks == others);
    const EpState& state = *calls(0).dispatch.team.state();
    CHECK(state.masked == others && state.gaveUp == others);  // gaveUp is what the others read
  }
  // An abort of the group stops the calls nevertheless.
  void breaks() {
    begin();
    std::thread host([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      for (Status& s : ranks_->group().status) {
        for (int b = 0; b < 4; b++) __atomic_store_n(&s.abort[b].word, 1, __ATOMIC_RELAXED);
      }
    });
    onRanks(last(), [&](int r) { ranks_->dispatch(&calls(r).dispatch, kGrid); });
    host.join();
    for (int r = 0; r < last(); r++) stopped(ranks_->group(), r, Stop::kAborted, 0);
  }

 private:
  int last() const { return world_ - 1; }
  uint64_t lastBit() const { return uint64_t{1} << last(); }
  Calls& calls(int r) { return *calls_[static_cast<size_t>(r)]; }

  void begin() {
    if (!calls_.empty()) ended_.push_back(std::move(calls_));
    calls_.clear();
    for (int r = 0; r < world_; r++) {
      auto c = std::make_unique<Calls>(*ranks_, r, placement_.logical, kMs);
      for (EpCommonCall* call : {static_cast<EpCommonCall*>(&c->dispatch), static_cast<EpCommonCall*>(&c->combine)}) {
        letDrop(call, timeoutNs_);
      }
      for (uint32_t t = 0; t < kTokens; t++) {
        for (uint32_t i = 0; i < kHidden; i++) c->x[t * kHidden + i] = element(r, t);
      }
      const uint32_t local = c->dispatch.team.localExperts[r];
      const auto layout = static_cast<EpRowLayout>(dice_.below(3));
      const uint64_t most = static_cast<uint64_t>(world_) * kTokens * kTopk;
      c->room(layout, most, layout == EpRowLayout::kPadded ? most * local : most);
      for (float& x : c->rows) x = -1;
      calls_.push_back(std::move(c));
    }
  }
  static float element(int r, uint32_t t) { return static_cast<float>(1 + 10 * r) + static_cast<float>(t); }

  void reportDeath() { reportDeaths(lastBit()); }
  void reportDeaths(uint64_t dead) {
    for (Status& s : ranks_->group().status) {
      for (auto& line : s.abort) {
        __atomic_store_n(&line.dead[0], static_cast<uint32_t>(dead), __ATOMIC_RELAXED);
        __atomic_store_n(&line.dead[1], static_cast<uint32_t>(dead >> 32), __ATOMIC_RELAXED);
        __atomic_store_n(&line.onlyDeaths, 1, __ATOMIC_RELEASE);
        __atomic_store_n(&line.word, 1, __ATOMIC_RELEASE);
      }
    }
  }
  // The last rank has died before it sent all counts; which ones were on their way is arbitrary.
  void takeCounts() {
    for (int r = 0; r < last(); r++) {
      const EpTeam& t = calls(r).dispatch.team;
      t.counts(r, last(), 1)[dice_.below(1u + t.localExperts[r])] = 0;
    }
  }
  void takeHeaders() {
    for (int r = 0; r < last(); r++) {
      const EpTeam& t = calls(r).dispatch.team;
      for (uint32_t i = 0; i < copies(last(), r); i++) {
        if (dice_.below(2) == 0) continue;
        *reinterpret_cast<uint32_t*>(t.header(t.slot(r, last(), 1), i)) = 0;
        missing_.push_back({r, i});
      }
    }
  }

  // ---- What must come of it ----

  uint32_t expertOf(int r, uint32_t t, uint32_t k) { return static_cast<uint32_t>(calls(r).idx[t * kTopk + k]); }
  bool isRepeated(int r, uint32_t t, uint32_t k) { return k == 1 && expertOf(r, t, 0) == expertOf(r, t, 1); }
  uint32_t expertsOn(int r, uint32_t t, int d) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < kTopk; k++) n += !isRepeated(r, t, k) && placement_.rankOf[expertOf(r, t, k)] == d;
    return n;
  }
  uint32_t copies(int r, int d) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < kTokens; t++) n += expertsOn(r, t, d) != 0;
    return n;
  }
  bool isMissing(int r, uint32_t copy) const {
    for (const auto& m : missing_) {
      if (m.first == r && m.second == copy) return true;
    }
    return false;
  }
  void checkRow(Calls& c, size_t row, int s, uint32_t t, bool isHere) {
    for (uint32_t i = 0; i < kHidden; i++) CHECK(c.rows[row * kHidden + i] == (isHere ? element(s, t) : 0));
    CHECK(c.sourceRank[row] == (isHere ? s : -1) && c.sourceToken[row] == (isHere ? static_cast<int32_t>(t) : -1));
    if (c.dispatch.receive.layout != EpRowLayout::kTokens) CHECK(c.weights[row] == (isHere ? 1 : 0));
  }
  // died: 0 before its counts came, 1 before its rows, 2 afterwards.
  void checkRows(int r, int died) {
    Calls& c = calls(r);
    const EpReport& report = c.cell[0].dispatched;
    const Status& status = ranks_->group().status[static_cast<size_t>(r)];
    if (status.stop != 0) fprintf(stderr, "rank %d stopped with %u, missing %#lx\n", r, status.stop, status.missing);
    CHECK(status.stop == 0 && report.error == EpError::kNone);
    const EpTeam& team = c.dispatch.team;
    const EpRowLayout layout = c.dispatch.receive.layout;
    size_t row = 0;
    uint64_t tokens = 0;
    for (uint32_t local = 0; local < (layout == EpRowLayout::kTokens ? 1 : team.localExperts[r]); local++) {
      if (layout == EpRowLayout::kPadded) row = local * c.dispatch.receive.capacity;
      for (int s = 0; s < (died == 0 ? last() : world_); s++) {
        uint32_t copy = 0;
        for (uint32_t t = 0; t < kTokens; t++) {
          if (expertsOn(s, t, r) == 0) continue;
          const bool isHere = s != last() || !isMissing(r, copy);
          copy++;
          if (layout == EpRowLayout::kTokens) {
            checkRow(c, row++, s, t, isHere);
            continue;
          }
          for (uint32_t k = 0; k < kTopk; k++) {
            if (!isRepeated(s, t, k) && expertOf(s, t, k) == team.ownExperts[local]) checkRow(c, row++, s, t, isHere);
          }
        }
      }
    }
    for (int s = 0; s < (died == 0 ? last() : world_); s++) {
      for (uint32_t copy = 0; copy < copies(s, r); copy++) tokens += s != last() || !isMissing(r, copy);
    }
    CHECK(report.tokens == tokens && c.totals[0] == report.rows && c.totals[1] == tokens);
    const bool mustMask = died == 0 || (died == 1 && tokensLack(r));
    CHECK(((report.lostRanks & lastBit()) != 0) == mustMask && report.lostCopies == (mustMask ? copies(r, last()) : 0));
  }
  bool tokensLack(int r) const {
    for (const auto& m : missing_) {
      if (m.first == r) return true;
    }
    return false;
  }
  void checkSums(int r) {
    Calls& c = calls(r);
    const EpReport& report = c.cell[0].combined;
    CHECK(ranks_->group().status[static_cast<size_t>(r)].stop == 0 && report.error == EpError::kNone);
    for (uint32_t t = 0; t < kTokens; t++) {
      uint32_t n = 0;
      for (int d = 0; d < last(); d++) {
        const bool isOneRow = calls(d).dispatch.receive.layout == EpRowLayout::kTokens;
        n += isOneRow && expertsOn(r, t, d) != 0 ? 1 : expertsOn(r, t, d);
      }
      for (uint32_t i = 0; i < kHidden; i++) CHECK(c.out[t * kHidden + i] == static_cast<float>(n) * element(r, t));
    }
    CHECK(report.lostCopies == copies(r, last()));
    if (report.lostCopies != 0) CHECK((report.lostRanks & lastBit()) != 0);
  }
  // Two more dispatches of the survivors, with both slots.
  void goOn() {
    for (int i = 0; i < 2; i++) {
      begin();
      onRanks(last(), [&](int r) {
        ranks_->dispatch(&calls(r).dispatch, kGrid);
        ranks_->combine(&calls(r).combine, kGrid);
      });
      for (int r = 0; r < last(); r++) {
        missing_.clear();
        CHECK(calls(r).cell[0].dispatched.error == EpError::kNone);
        checkSums(r);
      }
    }
    ranks_->checkGuards();
  }
  // The last rank was only late. It has tokens of the others, but those that have given it up in the dispatch do not add for it.
  void comeBack(uint64_t lost) {
    std::vector<std::unique_ptr<Calls>>& first = ended_.front();
    Calls& c = *first.back();
    c.dispatch.steps = kEpReceives;
    onRanks(1, [&](int) {
      ranks_->dispatch(&c.dispatch, kGrid);
      ranks_->combine(&c.combine, kGrid);
    });
    const Status& status = ranks_->group().status[static_cast<size_t>(last())];
    CHECK(status.stop == 0 && c.cell[0].dispatched.error == EpError::kNone && c.cell[0].combined.error == EpError::kNone);
    CHECK(c.cell[0].combined.lostCopies == lost);
  }

  Dice dice_;
  int world_;
  int when_ = 0;  // the last rank dies: 0 before its counts, 1 between its rows, 2 before its combine
  const uint64_t timeoutNs_;
  EpPlacement placement_;
  std::unique_ptr<EpGpuRanks> ranks_;
  std::vector<std::unique_ptr<Calls>> calls_;
  std::vector<std::vector<std::unique_ptr<Calls>>> ended_;
  std::vector<std::pair<int, uint32_t>> missing_;
};

}  // namespace

#endif  // RAILHEAD_KERNELS_TESTDATA_GPU_EP_DROPS_H_
