// Where a run of the model can continue in several ways, it asks here. Choices are made at random from a seed, or all of them in turn.
#ifndef RAILHEAD_KERNELS_MODEL_CHOICES_H_
#define RAILHEAD_KERNELS_MODEL_CHOICES_H_

#include <stdint.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace railhead::model {

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // 0 .. n - 1
  int below(int n) { return static_cast<int>((next() >> 32) * static_cast<uint64_t>(n) >> 32); }
  bool oneIn(int n) { return n > 0 && below(n) == 0; }

 private:
  uint64_t state_;
};

class Choices {
 public:
  virtual ~Choices() = default;
  // Which of the ready fibers (numbers, ascending) is next; `running` was last. An index into ready, or -1: this state was seen before,
  // and the run may end here. stateHash is valid if wantsStateHash().
  virtual int fiber(const std::vector<int>& ready, int running, uint64_t stateHash) = 0;
  virtual bool wantsStateHash() const { return false; }
  // Which of n stores a load reads; 0 is the newest.
  virtual int store(int n) = 0;
  // How many of the n newest stores, which the writer has not seen, a new store precedes.
  virtual int place(int n) = 0;
  // Whether a sleep ends now without a wake-up.
  virtual bool spurious() = 0;
  // Whether time passes now although fibers could run.
  virtual bool timePasses() = 0;
  // Whether a fiber that may die dies before its next step.
  virtual bool dies() = 0;
};

// A seed also chooses the manner: how long fibers run before a switch, whether some are held back, how stale loads are, how fast time
// passes.
class RandomChoices : public Choices {
 public:
  RandomChoices(uint64_t seed, int fibers) : random_(seed), held_(static_cast<size_t>(fibers), 0), priority_(held_) {
    manner_ = static_cast<Manner>(random_.below(4));
    stay_ = random_.below(3) * 4;
    const int odds[] = {0, 16, 4, 2, 1};
    stale_ = odds[random_.below(5)];
    reorder_ = odds[random_.below(5)];
    const int oddsOfTime[] = {0, 60, 20, 6};
    time_ = oddsOfTime[random_.below(4)];
    for (auto& p : priority_) p = random_.below(1 << 20);
  }

  int fiber(const std::vector<int>& ready, int running, uint64_t) override {
    step_++;
    const auto at = std::find(ready.begin(), ready.end(), running);
    switch (manner_) {
      case Manner::kPriority: return highest(ready, running);
      case Manner::kHold: hold(ready); return pickUnheld(ready);
      case Manner::kUniform: break;
      case Manner::kHoldOne:
        if (victim_ < 0 || random_.oneIn(500)) victim_ = any(ready);
        held_[static_cast<size_t>(victim_)] = step_ + 1;
        return pickUnheld(ready);
    }
    if (stay_ > 0 && at != ready.end() && !random_.oneIn(stay_)) return static_cast<int>(at - ready.begin());
    return random_.below(static_cast<int>(ready.size()));
  }
  int store(int n) override { return random_.oneIn(stale_) ? random_.below(n) : 0; }
  int place(int n) override { return random_.oneIn(reorder_) ? random_.below(n + 1) : 0; }
  bool spurious() override { return random_.oneIn(64); }
  bool timePasses() override { return random_.oneIn(time_); }
  bool dies() override { return false; }  // a run with a death names its step

 private:
  enum class Manner { kUniform, kPriority, kHold, kHoldOne };

  // The fiber with the highest priority runs until it waits. Now and then one gets the lowest priority.
  int highest(const std::vector<int>& ready, int running) {
    if (running >= 0 && random_.oneIn(60)) priority_[static_cast<size_t>(running)] = -step_;
    size_t best = 0;
    for (size_t i = 1; i < ready.size(); i++) {
      if (priority_[static_cast<size_t>(ready[i])] > priority_[static_cast<size_t>(ready[best])]) best = i;
    }
    return static_cast<int>(best);
  }
  int any(const std::vector<int>& ready) { return ready[static_cast<size_t>(random_.below(static_cast<int>(ready.size())))]; }
  void hold(const std::vector<int>& ready) {
    if (random_.oneIn(40)) held_[static_cast<size_t>(any(ready))] = step_ + random_.below(800);
  }
  // A held fiber runs only if no other one can.
  int pickUnheld(const std::vector<int>& ready) {
    const int begin = random_.below(static_cast<int>(ready.size()));
    for (size_t i = 0; i < ready.size(); i++) {
      const size_t at = (static_cast<size_t>(begin) + i) % ready.size();
      if (held_[static_cast<size_t>(ready[at])] <= step_) return static_cast<int>(at);
    }
    return begin;
  }

  Random random_;
  Manner manner_;
  int stay_, stale_, reorder_, time_;
  int step_ = 0, victim_ = -1;
  std::vector<int> held_;      // step until which a fiber is held back
  std::vector<int> priority_;
};

// Depth first over all choices. A state that is reached again is not explored again. A fiber is a function of what it has read, so the
// hash of that, of the memory and of the fibers' states is the whole state.
class AllChoices : public Choices {
 public:
  int fiber(const std::vector<int>& ready, int, uint64_t stateHash) override {
    if (wantsStateHash() && !seen_.insert(stateHash).second) return -1;
    return next(static_cast<int>(ready.size()));
  }
  bool wantsStateHash() const override { return !again_ && depth_ >= path_.size(); }
  int store(int n) override { return next(n); }
  int place(int n) override { return next(n + 1); }
  bool spurious() override { return false; }
  bool timePasses() override { return false; }
  bool dies() override { return next(2) != 0; }

  // Called before each run except the first. False: all is explored.
  bool advance() {
    while (!path_.empty() && path_.back().taken + 1 == path_.back().of) path_.pop_back();
    depth_ = 0;
    if (path_.empty()) return false;
    path_.back().taken++;
    return true;
  }
  // Repeats the last run.
  void rewind() {
    depth_ = 0;
    again_ = true;
  }
  size_t states() const { return seen_.size(); }

 private:
  struct Choice {
    int taken, of;
  };
  int next(int n) {
    if (n == 1) return 0;
    if (depth_ == path_.size()) path_.push_back({0, n});
    return path_[depth_++].taken;
  }

  std::vector<Choice> path_;
  size_t depth_ = 0;
  bool again_ = false;
  std::unordered_set<uint64_t> seen_;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_CHOICES_H_
