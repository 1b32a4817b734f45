// One run of the model: fibers, the scheduler, and the operations that a target's memory consists of. Any other fiber may run before each
// operation.
//
// Runs of all choices may be coarse: a fiber's consecutive loads, and the stores after them, then follow each other without a switch.
// This loses no behaviour: a load may be delayed, since it can still read the same store, and a store may be advanced, since others can
// still read and write as if it were not there. It does not hold for operations that read the newest store (add, futex) or the fences of
// others, so only packets of kernels of one block run like this.
//
// A waiting fiber is parked on the words that it has read, until one of them gets a new store. A run ends when all fibers have ended,
// when something is wrong, or when no fiber can run, which is a deadlock.
#ifndef RAILHEAD_KERNELS_MODEL_WORLD_H_
#define RAILHEAD_KERNELS_MODEL_WORLD_H_

#include <stdarg.h>
#include <stdio.h>

#include <deque>
#include <string>
#include <vector>

#include "model/choices.h"
#include "model/memory.h"
#include "model/orders.h"
#include "model/races.h"
#include "model/threads.h"

namespace railhead::model {

enum class End { kPassed, kFailed, kSeenBefore };

class World {
 public:
  World(Choices& choices, bool trace, bool coarse) : choices_(choices), trace_(trace), coarse_(coarse) {}

  Memory memory;

  void addFiber(int rank, int thread, std::function<void()> body) {
    const int number = static_cast<int>(fibers_.size());
    fibers_.push_back({});
    Fiber& f = fibers_.back();
    f.number = number;
    f.rank = rank;
    f.thread = thread;
    f.body = std::move(body);
    f.hash = mix(static_cast<uint64_t>(number), 1);
  }

  End run() {
    memory.begin(fibers_.size());
    races_.reset(memory.locations());
    for (Fiber& f : fibers_) {
      f.memory.view.reset(memory.locations(), fibers_.size());
      f.stack = stack(f.number);
      f.sp = f.stack->prepare(&enter);
    }
    current_ = this;
    running_ = nullptr;
    switchTo(next());
    return end_;
  }
  const std::string& failure() const { return failure_; }
  int steps() const { return step_; }
  const std::string& traceText() const { return traceText_; }

  // The end of a kernel is a fence of its threads.
  void letEndsFence() { endsFence_ = true; }
  // If no fiber can run, sleeps end without a wake-up, once between two stores. Otherwise a lost wake-up is a deadlock.
  void letSleepsEnd() { sleepEnds_ = 1; }
  // The same with a clock: every sleep that ends without a wake-up takes a tick. What a fiber reads between two sleeps may be stale, so
  // it is a deadlock only after many sleeps without a change. Time may also pass while other fibers could run: these are slow.
  // After a few ticks in which no fiber could run, what was stored has arrived everywhere.
  void letTimePass() {
    sleepEnds_ = 40;
    timePasses_ = true;
  }
  static constexpr int64_t kTickNs = 1000;
  int64_t now() const { return now_; }
  // The clock, as a fiber reads it.
  int64_t readClock() {
    observe(static_cast<uint64_t>(now_));
    return now_;
  }
  // A fiber has read something that is not in the model's memory.
  void observe(uint64_t value) { running_->hash = mix(running_->hash, value + 20); }
  // What a scenario is about has happened in this run.
  void mark() { marked_ = true; }
  bool isMarked() const { return marked_; }

  // The fiber ends before that step, in the middle of what it does. Then `then` runs, which is what the kernel does about the death; it
  // belongs to no rank.
  void killBefore(int fiber, int step, std::function<void()> then) {
    Fiber& f = fibers_[static_cast<size_t>(fiber)];
    f.stepsLeft = step;
    f.atDeath = std::move(then);
  }
  // The same before any step, or none.
  void mayDie(int fiber, std::function<void()> then) {
    Fiber& f = fibers_[static_cast<size_t>(fiber)];
    f.mayDie = true;
    f.atDeath = std::move(then);
  }

  // The following is called by fibers. in: the function of the protocols that asks for the order.

  uint64_t load(const void* p, size_t bytes, Order order, const char* what, const char* in = "") {
    Fiber& f = *running_;
    const int location = locate(p, bytes, what);
    order = Orders::of(order, in, what, memory, location);
    if (f.spinsOn == location) return spunValue(location);  // how often it polls makes no difference
    step(Kind::kLoad);
    checkRace(location, false, order, what);
    f.spinsOn = -1;
    int n = memory.readable(f.memory, location);
    const Time newerThan = lastReadAt(location);
    if (n > 1 && memory.at(location).stores[memory.at(location).stores.size() - static_cast<size_t>(n)].time == newerThan) n--;
    if (coarse_ && f.readsAgain) {
      // The first turn found nothing although there was a newer store. Another run reads that at once, see keepWaiting().
      if (memory.at(location).newest().time != newerThan) leaveRun(End::kSeenBefore);
      n = 1;
    }
    const int back = choices_.store(n);
    const Store& s = memory.load(f.memory, location, back, order == Order::kAcquire);
    f.lastRead = {location, s.time, f.hash};
    f.hash = mix(f.hash, mix(s.id, static_cast<uint64_t>(location)));
    f.reads.push_back(f.lastRead);
    if (trace_) traceLoad(what, location, s, back);
    return s.value;
  }

  void store(void* p, size_t bytes, uint64_t value, Order order, const char* what, const char* in = "") {
    Fiber& f = *running_;
    const int location = locate(p, bytes, what);
    if (Orders::leavesOut(in, what, memory, location)) return;
    order = Orders::of(order, in, what, memory, location);
    step(Kind::kStore);
    if (!memory.mayHold(location, f.rank, value)) fail("%s of %#lx to %s, which this rank may not write", what, value, memory.name(location).c_str());
    checkRace(location, true, order, what);
    f.lastReads.clear();
    f.reads.clear();
    f.readsAgain = false;
    memory.places(f.memory, location, &backs_);
    const int back = backs_[static_cast<size_t>(choices_.place(static_cast<int>(backs_.size()) - 1))];
    f.hash = mix(f.hash, static_cast<uint64_t>(back));
    memory.store(f.memory, location, value, back, order == Order::kRelease, f.number, step_, f.hash);
    sleepEndsLeft_ = sleepEnds_;
    if (trace_) {
      traceLine("%-14s %s = %s%s", what, memory.name(location).c_str(), show(value).c_str(),
                back > 0 ? ", placed before the store of step " : "");
      if (back > 0) traceText_ += std::to_string(memory.at(location).stores[memory.at(location).stores.size() - static_cast<size_t>(back)].step);
    }
    unpark(location);
  }

  uint64_t add(void* p, size_t bytes, uint64_t value, const char* what, const char* in = "") {
    Fiber& f = *running_;
    const int location = locate(p, bytes, what);
    if (Orders::leavesOut(in, what, memory, location)) return 0;
    step();
    checkRace(location, true, Order::kRelaxed, what);
    memory.addable(f.memory, location, &backs_);
    const int back = backs_[static_cast<size_t>(choices_.store(static_cast<int>(backs_.size())))];
    const auto& stores = memory.at(location).stores;
    f.hash = mix(f.hash, stores[stores.size() - 1 - static_cast<size_t>(back)].id);
    const uint64_t mask = bytes == 4 ? 0xffffffffu : ~uint64_t{0};
    const uint64_t old = memory.add(f.memory, location, back, value, mask, false, f.number, step_, f.hash);
    if (trace_) traceLine("%-14s %s: %s becomes %s", what, memory.name(location).c_str(), show(old).c_str(), show((old + value) & mask).c_str());
    unpark(location);
    return old;
  }

  // Returns what it has read. The order is that of a swap that succeeds.
  uint64_t swap(void* p, size_t bytes, uint64_t expected, uint64_t value, Order order, const char* what, const char* in = "") {
    Fiber& f = *running_;
    const int location = locate(p, bytes, what);
    order = Orders::of(order, in, what, memory, location);
    step();
    memory.swappable(f.memory, location, expected, &backs_);
    const int back = backs_[static_cast<size_t>(choices_.store(static_cast<int>(backs_.size())))];
    const auto& stores = memory.at(location).stores;
    const Store read = stores[stores.size() - 1 - static_cast<size_t>(back)];
    const bool swaps = read.value == expected;
    checkRace(location, swaps, swaps ? order : Order::kRelaxed, what);
    f.hash = mix(f.hash, read.id);
    if (trace_) traceLine("%-14s %s: %s%s%s", what, memory.name(location).c_str(), show(read.value).c_str(), swaps ? " becomes " : " stays", swaps ? show(value).c_str() : "");
    if (!swaps) return memory.load(f.memory, location, back, false).value;
    const uint64_t mask = bytes == 4 ? 0xffffffffu : ~uint64_t{0};
    memory.add(f.memory, location, back, value - expected, mask, order == Order::kAcquire, f.number, step_, f.hash);
    unpark(location);
    return expected;
  }

  void fence(Fence fence, const char* in) {
    if (!Orders::of(&fence, in)) return;
    Fiber& f = *running_;
    step(fence == Fence::kConsistent ? Kind::kOther : Kind::kStore);
    f.hash = mix(f.hash, fence == Fence::kConsistent ? memory.fenceHash() : 3);
    memory.fence(f.memory, fence, f.hash);
    if (trace_) traceLine("%s", nameOf(fence));
  }

  // Called between two polls of a loop: until the fiber's next other operation, polls of this location return the same.
  void relax() { running_->spinsOn = running_->lastRead.location; }
  void unspin() { running_->spinsOn = -1; }

  // Called between two turns of a wait. Parks unless there is something newer than what this turn has read. From the second turn on it is
  // known what a turn reads: each one reads only what the previous one has read.
  void keepWaiting() {
    Fiber& f = *running_;
    const bool first = f.lastReads.empty();
    if (first) {
      f.firstTurn = f.reads;
    } else if (f.firstTurn.size() >= f.reads.size()) {
      // Of what turns without success have read, only the view is kept.
      f.hash = mix(f.firstTurn[f.firstTurn.size() - f.reads.size()].hashBefore, f.memory.view.hash());
      if (f.memory.readAny) f.hash = mix(f.hash, f.memory.read.hash());
    }
    f.lastReads.swap(f.reads);
    f.reads.clear();
    f.readsAgain = first;
    if (first) return;
    for (const Fiber::Read& l : f.lastReads) {
      if (memory.at(l.location).newest().time == l.time) continue;
      // The turn found nothing although there is a newer store. With all choices, another run reads that at once.
      if (coarse_) leaveRun(End::kSeenBefore);
      return;
    }
    f.parkedOn.clear();
    for (const Fiber::Read& l : f.lastReads) f.parkedOn.push_back(l.location);
    if (trace_) traceLine("waits");
    park(Fiber::State::kWaiting);
  }

  void futexWaitAny(const uint32_t* const* words, const uint32_t* values, int n) {
    Fiber& f = *running_;
    std::vector<int> locations;
    for (int i = 0; i < n; i++) locations.push_back(locate(words[i], 4, "futexWait"));
    step();
    bool same = true;
    for (int i = 0; i < n; i++) {
      const Store& s = memory.load(f.memory, locations[static_cast<size_t>(i)], 0, false);
      f.hash = mix(f.hash, s.id);
      same = same && s.value == values[i];
    }
    if (trace_) traceLine("%-14s %s is %s%s: %s", "futexWait", memory.name(locations[0]).c_str(), show(memory.at(locations[0]).newest().value).c_str(), n > 2 ? ", and others" : "", same ? "sleeps" : "returns");
    if (!same) return;
    if (choices_.spurious()) return tick();
    f.parkedOn = locations;
    park(Fiber::State::kAsleep);
  }
  void futexWakeAll(const void* p, const char* in = "") {
    const int location = locate(p, 4, "futexWake");
    if (Orders::leavesOut(in, "wake", memory, location)) return;
    step();
    if (trace_) traceLine("%-14s %s", "futexWake", memory.name(location).c_str());
    wake(location, Fiber::State::kAsleep);
  }

  void meet(Barrier& barrier, bool kernelEnds) {
    Fiber& f = *running_;
    step();
    barrier.here.push_back(&f);
    if (trace_) traceLine(kernelEnds ? "ends its kernel" : "blockSync");
    if (static_cast<int>(barrier.here.size()) < barrier.expected) {
      park(Fiber::State::kAtBarrier);
    } else {
      open(barrier, kernelEnds);
    }
  }
  void leave(Barrier& barrier) {
    barrier.expected--;
    if (!barrier.here.empty() && static_cast<int>(barrier.here.size()) == barrier.expected) open(barrier, false);
  }

  __attribute__((format(printf, 2, 3))) [[noreturn]] void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[400];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    failure_ = running_ == nullptr ? text : who(*running_) + ": " + text;
    leaveRun(End::kFailed);
    __builtin_unreachable();
  }

 private:
  enum class Kind { kLoad, kStore, kOther };
  static constexpr int kStaleTicks = 2;
  static constexpr int kMaxSteps = 100000;  // a longer run is taken for an endless loop

  static void enter() {
    World& w = *current_;
    w.running_->hash = mix(w.running_->hash, 6);
    w.running_->body();
    w.endFiber();
  }
  [[noreturn]] void endFiber() {
    running_->state = Fiber::State::kEnded;
    reschedule();
    __builtin_unreachable();
  }
  void die() {
    running_->rank = -1;
    running_->mayDie = false;
    observe(1);
    running_->atDeath();
    endFiber();
  }
  void tick() {
    if (timePasses_) now_ += kTickNs;
  }
  static Stack* stack(int number) {
    static std::deque<Stack> stacks;
    while (stacks.size() <= static_cast<size_t>(number)) stacks.emplace_back();
    return &stacks[static_cast<size_t>(number)];
  }

  // Counts a step, and lets other fibers run. The fiber's next operation follows without another switch.
  void step(Kind kind = Kind::kOther) {
    if (++step_ > kMaxSteps) fail("not finished after %d steps", kMaxSteps);
    const bool goesOn = coarse_ && (kind == Kind::kStore || (kind == Kind::kLoad && running_->justLoaded));
    if (!goesOn) reschedule();
    if (running_->stepsLeft > 0 && --running_->stepsLeft == 0) die();
    if (running_->mayDie && choices_.dies()) die();
    running_->justLoaded = kind == Kind::kLoad;
    running_->hash = mix(running_->hash, 2);
  }
  void park(Fiber::State state) {
    running_->state = state;
    running_->hash = mix(running_->hash, static_cast<uint64_t>(state) + 10);
    reschedule();
    running_->justLoaded = true;
    running_->hash = mix(running_->hash, 7);
  }
  void reschedule() {
    Fiber* before = running_;
    if (before->stack->overflowed()) fail("stack overflow");
    Fiber* after = next();
    if (after == before) return;
    switchTo(after);
  }
  void endSleeps() {
    tick();
    for (Fiber& f : fibers_) {
      if (f.state != Fiber::State::kAsleep) continue;
      f.parkedOn.clear();
      f.state = Fiber::State::kReady;
      ready_.insert(std::lower_bound(ready_.begin(), ready_.end(), f.number), f.number);
    }
  }
  // nullptr: the run is over.
  Fiber* next() {
    ready_.clear();
    bool ended = true;
    for (Fiber& f : fibers_) {
      if (f.state == Fiber::State::kReady) ready_.push_back(f.number);
      ended = ended && f.state == Fiber::State::kEnded;
    }
    if (ready_.empty() && sleepEndsLeft_ > 0) {
      sleepEndsLeft_--;
      if (sleepEnds_ - sleepEndsLeft_ > kStaleTicks) {
        for (Fiber& f : fibers_) {
          memory.showAll(f.memory);
          f.hash = mix(f.hash, memory.hash());
        }
      }
      endSleeps();
    } else if (timePasses_ && !ready_.empty() && choices_.timePasses()) {
      endSleeps();
    }
    if (ready_.empty()) {
      end_ = End::kPassed;
      if (!ended) {
        end_ = End::kFailed;
        failure_ = "deadlock:";
        for (Fiber& f : fibers_) describeWait(f);
      }
      return nullptr;
    }
    uint64_t hash = 0;
    if (choices_.wantsStateHash()) {
      hash = mix(memory.hash(), static_cast<uint64_t>(now_ * 64 + sleepEndsLeft_));
      for (Fiber& f : fibers_) hash += mix(f.hash, static_cast<uint64_t>(f.state));
    }
    const int at = choices_.fiber(ready_, running_ == nullptr ? -1 : running_->number, hash);
    if (at < 0) {
      end_ = End::kSeenBefore;
      return nullptr;
    }
    return &fibers_[static_cast<size_t>(ready_[static_cast<size_t>(at)])];
  }
  void switchTo(Fiber* f) {
    void** saved = running_ == nullptr ? &main_ : &running_->sp;
    running_ = f;
    railheadModelSwitch(saved, f == nullptr ? main_ : f->sp);
  }
  void leaveRun(End end) {
    end_ = end;
    void* ignored;
    railheadModelSwitch(&ignored, main_);
  }

  int locate(const void* p, size_t bytes, const char* what) {
    const int location = memory.find(p, bytes);
    if (location < 0) fail("%s of %zu bytes at %p, which is no location", what, bytes, p);
    return location;
  }
  void checkRace(int location, bool stores, Order order, const char* what) {
    Fiber& f = *running_;
    if (order == Order::kRelaxed && memory.isOrdered(location)) order = Order::kPlain;
    const Races::Access* other = races_.note(location, f.memory, {f.number, stores, order, 0, step_, what});
    if (other == nullptr) return;
    fail("race: %s (%s) of %s is not ordered after %s (%s) of %s, step %d", what, stores ? "stores" : "loads", memory.name(location).c_str(),
         other->what, other->stores ? "stores" : "loads", who(fibers_[static_cast<size_t>(other->fiber)]).c_str(), other->step);
  }
  Time lastReadAt(int location) {
    const auto& reads = running_->lastReads;
    for (auto l = reads.rbegin(); l != reads.rend(); ++l) {
      if (l->location == location) return l->time;
    }
    running_->lastReads.clear();
    running_->readsAgain = false;
    return ~Time{0};
  }
  uint64_t spunValue(int location) {
    for (const Store& s : memory.at(location).stores) {
      if (s.time == running_->lastRead.time) return s.value;
    }
    return 0;
  }

  void unpark(int location) { wake(location, Fiber::State::kWaiting); }
  void wake(int location, Fiber::State from) {
    for (Fiber& f : fibers_) {
      if (f.state != from || std::find(f.parkedOn.begin(), f.parkedOn.end(), location) == f.parkedOn.end()) continue;
      f.parkedOn.clear();
      f.hash = mix(f.hash, 4);
      f.state = Fiber::State::kReady;
    }
  }
  void open(Barrier& barrier, bool kernelEnds) {
    std::vector<Thread*> threads;
    uint64_t hash = 5;
    for (Fiber* f : barrier.here) {
      threads.push_back(&f->memory);
      hash += f->hash;
    }
    if (kernelEnds) {
      memory.joinKernels(threads, endsFence_);
    } else {
      memory.joinViews(threads);
    }
    for (Fiber* f : barrier.here) {
      f->hash = mix(f->hash, hash);
      f->state = Fiber::State::kReady;
    }
    barrier.here.clear();
  }

  static std::string who(const Fiber& f) {
    return f.rank < 0 ? std::string("aborter") : "rank " + std::to_string(f.rank) + "." + std::to_string(f.thread);
  }
  void describeWait(const Fiber& f) {
    if (f.state == Fiber::State::kEnded) return;
    failure_ += " " + who(f) + (f.state == Fiber::State::kAsleep ? " sleeps" : f.state == Fiber::State::kAtBarrier ? " is at a barrier" : " waits");
    // The newest values show what has not arrived.
    std::vector<int> told;
    for (int location : f.parkedOn) {
      if (std::find(told.begin(), told.end(), location) != told.end() || told.size() == 4) continue;
      told.push_back(location);
      failure_ += (told.size() == 1 ? " on " : ", ") + memory.name(location) + "=" + show(memory.at(location).newest().value);
    }
    failure_ += ";";
  }
  // Packets are shown as epoch:data.
  static std::string show(uint64_t value) {
    char text[40];
    if (value >> 32 != 0) {
      snprintf(text, sizeof text, "%u:%#x", static_cast<uint32_t>(value >> 32), static_cast<uint32_t>(value));
    } else {
      snprintf(text, sizeof text, "%#x", static_cast<uint32_t>(value));
    }
    return text;
  }
  void traceLoad(const char* what, int location, const Store& s, int back) {
    traceLine("%-14s %s reads %s", what, memory.name(location).c_str(), show(s.value).c_str());
    traceText_ += s.fiber < 0 ? " (the initial value" : " (of " + who(fibers_[static_cast<size_t>(s.fiber)]) + ", step " + std::to_string(s.step);
    if (back > 0) traceText_ += "; stale, newest is " + show(memory.at(location).newest().value) + " of step " + std::to_string(memory.at(location).newest().step);
    traceText_ += ")";
  }
  __attribute__((format(printf, 2, 3))) void traceLine(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[400];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char head[64];
    snprintf(head, sizeof head, "\n%6d  %-9s ", step_, who(*running_).c_str());
    traceText_ += head;
    traceText_ += text;
  }

  static inline World* current_ = nullptr;
  Choices& choices_;
  bool trace_, coarse_;
  std::deque<Fiber> fibers_;
  Races races_;
  Fiber* running_ = nullptr;
  std::vector<int> ready_, backs_;
  void* main_ = nullptr;
  int step_ = 0;
  int sleepEnds_ = 0, sleepEndsLeft_ = 0;  // how often sleeps end without a wake-up between two stores; and how often before the next
                                           // store
  bool timePasses_ = false, marked_ = false, endsFence_ = false;
  int64_t now_ = 0;
  End end_ = End::kPassed;
  std::string failure_, traceText_;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_WORLD_H_
