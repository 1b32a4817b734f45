// A thread of a GPU kernel: what the kernel reads first, waits with their ends, and the report of what stopped it.
#ifndef RAILHEAD_KERNELS_GPU_CONTEXT_H_
#define RAILHEAD_KERNELS_GPU_CONTEXT_H_

#include "railhead/base/mutant.h"
#include "railhead/base/target.h"
#include "railhead/exchange/inbox.h"
#include "railhead/exchange/lanes.h"
#include "railhead/gpu/launch.h"

namespace railhead::gpu {

// A rank's call, for one peer: 64 bytes, eight elements of {data32, mark32}, each of them atomic. The mark is GpuState::lines + 1. Writer: a
// control thread of the peer (relaxed, system scope), in every kernel of all ranks. Readers: threads of the rank. Half lines & 1 is used, and
// every line of a half is written again two such kernels later: after its writer has received this rank's line of the kernel between, so after
// this rank's kernel that read it has ended.
struct alignas(64) Line {
  Packet p[4];
};

// What ranks compare.
struct SignedWay {
  Signature signature;
  Way way;
};
RH_FN bool isEqual(const SignedWay& a, const SignedWay& b) {
  return a.signature.call == b.signature.call && a.signature.count == b.signature.count && a.signature.detail == b.signature.detail && a.way == b.way;
}

template <class Context>
RH_COLD void publishCall(typename Context::TargetType target, const Call& call, Way way);  // control.h

// What a kernel reads of GpuState.
struct Begin {
  uint64_t begun, collectives;
  uint32_t history, left, lines;
  GpuState::Start start;
};
// Memory of a block.
struct Shared {
  // One for the block's data threads, one for the grid's control threads if they handle no data. They never wait for each other. Writer: the first of
  // the threads, before their barrier.
  struct Threads {
    Begin begin;
    uint64_t firstLook;  // at the clock, of any of the threads; 0 = none. Relaxed
  } of[2];
  // Transfers (transfers.h). Writer: the block's first thread, between two barriers.
  char* slot;
  int32_t chosen;
  struct Unit {
    uint32_t transfer, chunk;  // the next to be moved
  } units[kMaxUnits];
};

// Of a way: the kernel sends no lines, because not all ranks take part.
constexpr Way kWithoutLines = 0x80;
// Of a way: the kernel goes on when another rank has died or is late. Its Team::timeoutNs is the length of a piece of a wait, and limitNs that of all.
constexpr Way kDropsDead = 0x40;

// Target has, besides what the exchanges list:
//   loadState, storeState                words of GpuState, plain
//   addOne(word), loadOwn, storeOwn, compareSwap   words of GpuState, relaxed, device scope
//   addFlag(word)                        a word of this rank that other ranks read, relaxed, system scope
//   loadHost(word)                       pinned memory or a word that the host writes, relaxed
//   storeHost, storeHostRelease          pinned memory, system scope
//   nowNs()
//   pause()                              between two polls
//   once(p)                              p, which is computed here and nowhere else
//   gridThread(), gridThreads(), block(), blocks(), threadInBlock(), dataThreadsInBlock()
//   launchedBlocks(), launchedThreads()  the grid that ranks compare
//   kControlThreads                      threads that run at the same pace: a warp
//   kSurvivesDeaths                      whether there are kernels with kDropsDead
//   dataSync()                           barrier of the block's data threads
//   controlSync()                        barrier of the control threads
//   controlAll(v)                        whether v is true in all control threads
//   shared()                             the block's Shared
//   loadShared, storeShared              a word of it, relaxed
template <class Target>
class Context : public Target {
 public:
  using TargetType = Target;

  // At the start of a kernel: the first data thread of a block begins to load what join() shares.
  RH_FN Context(const Call& call, const Target& target) : Target(target), call_(call), isAlone_(hasControlAlone()), pollsLeft_(call.team.waitPolls) {
    if (this->threadInBlock() != 0 || isAlone_) return;
    if (mutated(Mutant::kArrivesBeforeItReads)) this->addOne(&state()->arrived);
    begin_ = load();
  }

  // Of functions out of line, which must not take the address of the thread's context: that would keep it out of registers.
  RH_FN Context(const Target& target, const Call& call, Way way)
      : Target(target), call_(call), isAlone_(hasControlAlone()), way_(way), pollsLeft_(call.team.waitPolls) {}

  // Every data thread of the kernel calls it once. False: the rank has left the group, or an earlier kernel has stopped.
  RH_FN bool join() {
    if (this->threadInBlock() == 0) {
      share(begin_);
      if (!mutated(Mutant::kArrivesBeforeItReads)) this->addOne(&state()->arrived);
    }
    if (!mutated(Mutant::kJoinsAlone)) this->dataSync();
    start_ = started().start;
    if ((started().left | start_.stop) != 0) return false;
    if (isCombined() && hasLines()) publishCall<Context>(*this, call_, way_);
    return true;
  }
  // The same for control threads that handle no data. They read for themselves, so that no thread waits for the others.
  RH_FN bool joinControl() {
    if (controlThread() == 0) share(load());
    this->controlSync();
    return (started().left | started().start.stop) == 0;
  }
  RH_FN bool begin(bool cells, uint32_t* epoch) {
    if (!join()) return false;
    *epoch = cells ? start_.cellEpoch : start_.packetEpoch;
    return true;
  }
  // Where joinControl() returned false: a block of this kernel has given up before control began, and no rank knows the call.
  RH_FN bool mustStillPublish() { return started().left == 0 && this->loadOwn(&state()->published) != mark(); }
  // After join() or joinControl().
  RH_FN const Begin& started() { return ofThreads().begin; }

  // Threads that handle data, numbered from 0. A grid of no more than kControlThreads threads does both.
  RH_FN bool isCombined() const { return this->gridThreads() <= Target::kControlThreads; }
  RH_FN uint32_t threads() const { return this->gridThreads() - (isCombined() ? 0 : Target::kControlThreads); }
  RH_FN uint32_t thread() const { return this->gridThread(); }
  RH_FN bool isControl() const { return isAlone_ || isCombined(); }
  RH_FN bool isData() const { return !isAlone_; }
  // Blocks that have data threads.
  RH_FN uint32_t dataBlocks() const { return this->blocks() - (!isCombined() && this->blockThreads() <= Target::kControlThreads ? 1 : 0); }
  RH_FN uint32_t controlThread() const { return this->gridThread() - (this->gridThreads() - controlThreads()); }
  RH_FN uint32_t controlThreads() const { return this->gridThreads() < Target::kControlThreads ? this->gridThreads() : Target::kControlThreads; }

  // Between two polls.
  RH_FN bool keepWaiting() {
    this->pause();
    if (--pollsLeft_ != 0) return true;
    pollsLeft_ = call_.team.waitPolls;
    since_ = look(*this, call_, way_, since_);
    return since_ >= kCodes;
  }
  // When the wait has looked at the clock first; 0 = it has not, as of a wait that ends within waitPolls polls.
  RH_FN uint64_t waitBegan() const { return since_ >= kCodes ? since_ : 0; }
  RH_FN void endWait() { since_ = 0; }
  // After keepWaiting() has returned false: whether the kernel waits on, since only a piece of the wait has ended, or the host has only told of deaths.
  RH_FN bool survives() {
    if constexpr (Target::kSurvivesDeaths) {
      if ((way_ & kDropsDead) == 0 || since_ == kStopped || !isSurvivable(*this, call_, way_, since_)) return false;
      since_ = 0;
      return true;
    }
    return false;
  }
  // After keepWaiting() has returned false.
  RH_FN void giveUp(uint64_t missing) {
    if (since_ != kStopped) report(*this, call_, way_, static_cast<Stop>(since_), missing, 0);
  }
  // Rank r has called something else.
  RH_FN void mismatch(int r) {
    SignedWay theirs;
    hasLine(r, &theirs);
    mismatch(r, theirs, ours());
  }
  RH_FN void mismatch(int r, const SignedWay& theirs, const SignedWay& ours) { reportMismatch(*this, call_, way_, r, theirs, ours); }

  RH_FN void clash(uint64_t streams) { report(*this, call_, way_, Stop::kAborted, 0, streams); }

  RH_FN const Call& call() const { return call_; }
  RH_FN int worldSize() const { return call_.team.worldSize; }
  RH_FN GpuState* state() const { return reinterpret_cast<GpuState*>(heapOf(call_.team.rank)); }
  RH_FN char* heapOf(int r) const { return call_.team.base + static_cast<uint64_t>(static_cast<uint32_t>(r)) * call_.team.stride; }

  RH_FN LaneTeam lanes() const {
    const Team& team = call_.team;
    const Layout l = layoutOf(team.worldSize, team.slotBytes);
    return {team.base, team.stride, team.rank, l.laneFlagsOffset, l.laneCountsOffset, l.laneSlotsOffset, kMaxLanes, kLaneSlots, laneSlotBytes(team.slotBytes)};
  }

  // Lines: to rank `reader`, from rank `writer`, of this call.
  RH_FN Line* line(int reader, int writer) {
    const uint64_t half = mutated(Mutant::kOneLine) ? 0 : started().lines & 1;
    return reinterpret_cast<Line*>(heapOf(reader) + layoutOf(worldSize(), call_.team.slotBytes).linesOffset) +
           half * static_cast<uint32_t>(worldSize()) + static_cast<uint32_t>(writer);
  }
  RH_FN uint32_t mark() { return started().lines + 1; }
  RH_FN SignedWay ours() {
    SignedCall c = call_.call;
    c.sequence = static_cast<uint32_t>(started().collectives);
    c.history = started().history;
    return {sign(c), way_};
  }
  RH_FN Way way() const { return way_; }
  // When a thread of the block has looked at the clock first, in a wait; 0 = none has.
  RH_FN uint64_t beganWaiting() { return this->loadShared(&ofThreads().firstLook); }
  RH_FN bool hasLines() const { return (way_ & kWithoutLines) == 0; }
  RH_FN void setWay(Way way) { way_ = way; }
  // acquires: if it returns true, what earlier kernels of rank r have stored is visible. The packet that is acquired is loaded last, so that it holds
  // up no other.
  RH_FN bool hasLine(int r, SignedWay* theirs, bool acquires = false) {
    const Line* at = line(call_.team.rank, r);
    uint32_t late = 0, w[8];
    RH_UNROLL
    for (int i = 3; i >= 0; i--) {
      const Packet p = acquires && i == 0 ? this->loadPacketAcquire(&at->p[i]) : this->loadPacket(&at->p[i]);
      RH_UNROLL
      for (int j = 0; j < 2; j++) {
        const uint32_t differs = static_cast<uint32_t>(p.e[j] >> 32) ^ mark();
        late |= mutated(Mutant::kLineChecksOneMark) && i + j != 0 ? 0 : differs;
        w[2 * i + j] = static_cast<uint32_t>(p.e[j]);
      }
    }
    theirs->signature = {joined(w[0], w[1]), joined(w[2], w[3]), joined(w[4], w[5])};
    theirs->way = joined(w[6], w[7]);
    return late == 0;
  }

 private:
  // Of since_: a Stop that this thread wants to report, or that another one has reported.
  static constexpr uint64_t kStopped = 8, kCodes = 16;

  RH_FN static uint64_t joined(uint32_t low, uint32_t high) { return uint64_t{low} | uint64_t{high} << 32; }

  // Whether to go on, after waitPolls polls. Returns when the wait began, or a code.
  RH_COLD static uint64_t look(Target target, const Call& call, Way way, uint64_t since) {
    Context c(target, call, way);
    const Team& team = call.team;
    if (c.loadOwn(&c.state()->start.stop) != 0) return kStopped;
    if (c.isControl() && c.hasLines() && c.findMismatch()) return kStopped;
    if (c.loadHost(&team.status->abort[c.block()].word) != 0) return static_cast<uint64_t>(Stop::kAborted);
    const uint64_t now = c.nowNs();
    uint64_t* firstLook = &c.ofThreads().firstLook;
    uint64_t first = c.loadShared(firstLook);
    if (first == 0) c.storeShared(firstLook, first = now);
    if (since == 0) since = now;
    // Clocks of several multiprocessors may differ a little.
    const bool late = (now > since && now - since > team.timeoutNs) || (now > first && now - first > team.limitNs);
    return late ? static_cast<uint64_t>(Stop::kTimeout) : since;
  }
  RH_COLD static bool isSurvivable(Target target, const Call& call, Way way, uint64_t why) {
    Context c(target, call, way);
    if (why == static_cast<uint64_t>(Stop::kTimeout)) return c.nowNs() - c.loadShared(&c.ofThreads().firstLook) <= call.team.limitNs;
    // look() has not come to the clock.
    uint64_t* firstLook = &c.ofThreads().firstLook;
    if (c.loadShared(firstLook) == 0) c.storeShared(firstLook, c.nowNs());
    c.fence();  // the host stores onlyDeaths before the word
    return c.loadHost(&call.team.status->abort[c.block()].onlyDeaths) != 0;
  }
  // Of threads that wait for one rank, or for data, when another rank has called something else.
  RH_FN bool findMismatch() {
    RH_ROLLED
    for (int r = 0; r < worldSize(); r++) {
      SignedWay theirs;
      if (r == call_.team.rank || !hasLine(r, &theirs) || isEqual(theirs, ours())) continue;
      mismatch(r);
      return true;
    }
    return false;
  }

  // The first thread of a comm that gives up reports; later kernels of the comm return at once.
  RH_COLD static void report(Target target, const Call& call, Way way, Stop why, uint64_t missing, uint64_t clash) {
    Context c(target, call, way);
    if (c.compareSwap(&c.state()->start.stop, 0, static_cast<uint32_t>(why)) != 0) return;
    // Ranks that have not called at all are behind; else those whose data has not come.
    uint64_t behind = 0;
    RH_ROLLED
    for (int r = 0; r < c.worldSize() && c.hasLines(); r++) {
      SignedWay ignored;
      if (r != call.team.rank && !c.hasLine(r, &ignored)) behind |= uint64_t{1} << r;
    }
    if (behind != 0) missing = behind;
    publishStop(c, why, missing, clash);
  }
  RH_COLD static void reportMismatch(Target target, const Call& call, Way way, int r, SignedWay theirs, SignedWay ours) {
    Context c(target, call, way);
    if (c.compareSwap(&c.state()->start.stop, 0, static_cast<uint32_t>(Stop::kMismatch)) != 0) return;
    Status* s = call.team.status;
    storeSignatureTo(c, &s->difference.theirs, theirs.signature);
    storeSignatureTo(c, &s->difference.ours, ours.signature);
    c.storeHost(&s->theirWay, theirs.way);
    c.storeHost(&s->ourWay, ours.way);
    publishStop(c, Stop::kMismatch, uint64_t{1} << r, 0);
  }
  RH_FN static void publishStop(Context& c, Stop why, uint64_t missing, uint64_t clash) {
    const Call& call = c.call();
    Status* s = call.team.status;
    c.storeHost(&s->operation, call.call.operation);
    c.storeHost(&s->missing, missing & ~(uint64_t{1} << call.team.rank));
    c.storeHost(&s->number, c.started().begun + 1);
    c.storeHost(&s->clash, clash);
    c.storeHostRelease(&s->stop, static_cast<uint32_t>(why));
  }
  RH_FN static void storeSignatureTo(Context& c, Signature* to, const Signature& s) {
    c.storeHost(&to->call, s.call);
    c.storeHost(&to->count, s.count);
    c.storeHost(&to->detail, s.detail);
  }

  RH_FN bool hasControlAlone() const { return thread() >= threads(); }
  RH_FN Shared::Threads& ofThreads() { return this->shared().of[isAlone_ ? 1 : 0]; }
  RH_FN Begin load() {
    GpuState* s = state();
    Begin begin = {};
    begin.begun = this->loadState(&s->device.begun);
    begin.collectives = this->loadState(&s->device.collectives);
    begin.history = static_cast<uint32_t>(this->loadState(&s->device.history));
    begin.left = this->loadHost(&s->device.left);
    begin.lines = this->loadState(&s->lines);
    begin.start.cellEpoch = this->loadState(&s->start.cellEpoch);
    begin.start.packetEpoch = this->loadState(&s->start.packetEpoch);
    begin.start.flagEpoch = this->loadState(&s->start.flagEpoch);
    begin.start.stop = this->loadOwn(&s->start.stop);
    return begin;
  }
  RH_FN void share(const Begin& begin) {
    ofThreads().begin = begin;
    ofThreads().firstLook = 0;
  }

  const Call& call_;
  const bool isAlone_;  // a control thread that handles no data
  Begin begin_ = {};    // of the block's first data thread, until join()
  GpuState::Start start_ = {};  // of a data thread, after join(): one load has all of it
  Way way_ = 0;
  uint32_t pollsLeft_;
  uint64_t since_ = 0;  // the wait's first look at the clock, 0 = none yet; or a code
};

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_CONTEXT_H_
