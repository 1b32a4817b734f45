// Runs of lanes: transfers between ranks with threads in blocks, in kernels that follow each other on each rank's stream; reductions to a root.
// The signatures, counters and deadlines of whole kernels are not part of it.
#ifndef RAILHEAD_KERNELS_MODEL_LANE_RUN_H_
#define RAILHEAD_KERNELS_MODEL_LANE_RUN_H_

#include <deque>
#include <string>
#include <vector>

#include "model/tiles.h"
#include "model/world.h"
#include "railhead/gpu/pipes.h"

namespace railhead::model {

constexpr uint32_t kModelLanes = 2, kModelSlots = 2, kModelSlotBytes = gpu::kLaneHeaderBytes + 16;  // a chunk is a tile

// What a kernel of a round does. kGroup: any sends and receives; kAllToAll: in place; kOdd: a group in which one rank's sends are something else.
enum class LaneKind { kGroup, kAllToAll, kReduce, kOdd };

struct LaneTransfer {
  int from, to;
  uint32_t bytes, lanes;
};
struct LaneRound {
  LaneKind kind;
  int root = 0;
  uint32_t bytes = 0, lanes = 1;            // of all but groups
  std::vector<LaneTransfer> transfers;      // of groups; those of a pipe in order
  std::vector<int> blocks, blockThreads;    // by rank
};
struct LaneShape {
  int worldSize = 2, reduceGroup = 2;
  uint32_t start = 0;  // count of all lanes
  std::vector<LaneRound> rounds;
  bool aborts = false;
};

struct LaneBlock {
  Barrier barrier;
  std::vector<char> votes;
  gpu::Shared shared;
};

// A thread of a kernel: what transfers and reductions need of a context.
class LaneContext {
 public:
  static constexpr uint32_t kMeetingMask = 15;
  static constexpr int kPullBatch = 2;

  LaneContext(World& world, const gpu::Call& call, std::deque<LaneBlock>& blocks, int blockThreads, int thread, LaneTeam lanes, uint32_t* abort)
      : world_(world), call_(call), blocks_(blocks), blockThreads_(static_cast<uint32_t>(blockThreads)), thread_(static_cast<uint32_t>(thread)), lanes_(lanes), abort_(abort) {}

  const gpu::Call& call() const { return call_; }
  LaneTeam lanes() const { return lanes_; }
  uint32_t thread() const { return thread_; }
  uint32_t threads() const { return static_cast<uint32_t>(blocks_.size()) * blockThreads_; }
  uint32_t blockThreads() const { return blockThreads_; }
  uint32_t block() const { return thread_ / blockThreads_; }
  uint32_t threadInBlock() const { return thread_ % blockThreads_; }
  uint32_t dataThreadsInBlock() const { return blockThreads_; }
  gpu::Shared& shared() { return blocks_[block()].shared; }
  bool dataAll(bool v) {
    if (v && waits_ && !stopped) world_.fail("goes on, and has not ended its wait: the next one would have its deadline");
    LaneBlock& b = blocks_[block()];
    b.votes[threadInBlock()] = v;
    world_.meet(b.barrier, false);
    bool all = true;
    for (const char vote : b.votes) all = all && vote != 0;
    world_.meet(b.barrier, false);
    return all;
  }

  bool keepWaiting() {
    if (world_.load(abort_, 4, Order::kRelaxed, "load") != 0) return false;
    world_.keepWaiting();
    waits_ = true;
    return true;
  }
  void endWait() { waits_ = false; }
  void giveUp(uint64_t missing) {
    stopped = true;
    if (missing == 0 || (missing >> call_.team.rank & 1) != 0) world_.fail("gives up, waiting for nobody or for itself");
  }
  // Ends the others too, as the host would.
  void mismatch(int, const gpu::SignedWay&, const gpu::SignedWay&) {
    stopped = differs = true;
    world_.store(abort_, 4, 1, Order::kRelaxed, "store");
  }
  gpu::SignedWay ours() const { return {sign(call_.call), 0}; }

  uint32_t loadFlag(const uint32_t* p) { return static_cast<uint32_t>(world_.load(p, 4, Order::kRelaxed, "load")); }
  uint32_t loadFlagAcquire(const uint32_t* p, const char* in = __builtin_FUNCTION()) {
    return static_cast<uint32_t>(world_.load(p, 4, Order::kAcquire, "load.acquire", in));
  }
  void storeFlag(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) { world_.store(p, 4, v, Order::kRelaxed, "store", in); }
  void storeFlagRelease(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) { world_.store(p, 4, v, Order::kRelease, "store.release", in); }
  uint32_t loadState(const uint32_t* p) { return static_cast<uint32_t>(world_.load(p, 4, Order::kPlain, "load")); }
  void storeState(uint32_t* p, uint32_t v) { world_.store(p, 4, v, Order::kPlain, "store"); }
  uint64_t loadSlotWord(const uint64_t* p) { return world_.load(p, 8, Order::kPlain, "load"); }
  void storeSlotWord(uint64_t* p, uint64_t v) { world_.store(p, 8, v, Order::kPlain, "store"); }
  Raw16 loadSlotTile(const char* p) {
    Raw16 raw;
    for (int i = 0; i < 2; i++) {
      const uint64_t v = world_.load(p + 8 * i, 8, Order::kPlain, "load");
      memcpy(&raw.w[2 * i], &v, 8);
    }
    return raw;
  }
  void storeSlotTile(char* p, const Raw16& raw) {
    for (int i = 0; i < 2; i++) {
      uint64_t v;
      memcpy(&v, &raw.w[2 * i], 8);
      world_.store(p + 8 * i, 8, v, Order::kPlain, "store");
    }
  }

  bool stopped = false, differs = false;

 private:
  World& world_;
  const gpu::Call& call_;
  std::deque<LaneBlock>& blocks_;
  const uint32_t blockThreads_, thread_;
  const LaneTeam lanes_;
  uint32_t* abort_;
  bool waits_ = false;  // has polled in vain since it last ended a wait
};

class LaneRun {
 public:
  LaneRun(World& world, const LaneShape& shape) : world_(world), shape_(shape), jobs_(size(shape.worldSize)), ends_(size(shape.worldSize)) {
    setUpMemory();
    world.memory.add(&abort_, 4, 4, [](size_t) { return std::string("abort"); });
    for (int r = 0; r < shape.worldSize; r++) {
      int threads = 1;
      for (size_t k = 0; k < shape.rounds.size(); k++) {
        setUpJob(r, k);
        threads = std::max(threads, shape.rounds[k].blocks[size(r)] * shape.rounds[k].blockThreads[size(r)]);
      }
      ends_[size(r)].expected = threads;
      for (int t = 0; t < threads; t++) world.addFiber(r, t, [this, r, t] { thread(r, t); });
    }
    if (shape.aborts) world.addFiber(-1, 0, [this] { world_.store(&abort_, 4, 1, Order::kRelaxed, "store"); });
  }

  std::string check() const {
    for (int r = 0; r < shape_.worldSize; r++) {
      for (size_t k = 0; k < shape_.rounds.size(); k++) {
        if (const std::string wrong = checkJob(r, k); !wrong.empty()) return wrong;
      }
    }
    return "";
  }

 private:
  // A rank's part of a round. A word is 4 bytes; part p of an all-to-all begins at p times the words of a part.
  struct Job {
    std::vector<std::vector<uint32_t>> buffers;  // of groups by transfer, else send, recv
    gpu::GroupCall group;
    std::deque<LaneBlock> blocks;
    bool ran = false, stopped = false, differs = false;
  };

  static size_t size(int n) { return static_cast<size_t>(n); }

  void setUpMemory() {
    const size_t n = size(shape_.worldSize), lanes = n * kModelLanes;
    stride_ = lanes * (sizeof(LaneFlags) + sizeof(LaneCounts) + kModelSlots * kModelSlotBytes);
    memory_.resize(n * stride_ / 8);
    for (size_t r = 0; r < n; r++) {
      for (size_t i = 0; i < lanes; i++) {
        const int peer = static_cast<int>(i / kModelLanes);
        const auto lane = static_cast<uint32_t>(i % kModelLanes);
        const LaneTeam team = teamOf(static_cast<int>(r));
        const std::string of = " of lane " + std::to_string(lane) + " of rank " + std::to_string(r) + " and " + std::to_string(peer);
        LaneFlags* flags = team.flags(static_cast<int>(r), peer, lane);
        addWord(&flags->tail, "tail" + of, peer);
        addWord(&flags->head, "head" + of, peer);
        LaneCounts* counts = team.counts(peer, lane);
        addWord(&counts->written, "written" + of, static_cast<int>(r));
        addWord(&counts->read, "read" + of, static_cast<int>(r));
        for (uint32_t s = 0; s < kModelSlots; s++) {
          char* slot = team.slot(static_cast<int>(r), peer, lane, s);
          const auto mayHold = [=](size_t, int rank, uint64_t) { return rank == peer; };
          world_.memory.add(slot, sizeof(LaneHeader), 8, [=](size_t unit) { return "header word " + std::to_string(unit) + " of slot " + std::to_string(s) + of; }, mayHold);
          world_.memory.add(slot + gpu::kLaneHeaderBytes, 16, 8, [=](size_t unit) { return "data " + std::to_string(unit) + " of slot " + std::to_string(s) + of; }, mayHold);
        }
      }
    }
  }
  void addWord(uint32_t* word, const std::string& name, int writer) {
    world_.memory.add(word, 4, 4, [=](size_t) { return name; }, [=](size_t, int rank, uint64_t) { return rank == writer; });
    world_.memory.initial(word, shape_.start);
  }
  LaneTeam teamOf(int r) {
    const size_t lanes = size(shape_.worldSize) * kModelLanes;
    return {reinterpret_cast<char*>(memory_.data()), stride_, r, 0, lanes * sizeof(LaneFlags), lanes * (sizeof(LaneFlags) + sizeof(LaneCounts)),
            kModelLanes, kModelSlots, kModelSlotBytes};
  }

  static uint32_t word(size_t k, size_t transfer, size_t i) { return contribution(static_cast<int>(k), static_cast<int>(transfer), i); }

  void setUpJob(int r, size_t k) {
    const LaneRound& round = shape_.rounds[k];
    jobs_[size(r)].emplace_back();
    Job& job = jobs_[size(r)].back();
    job.blocks.resize(size(round.blocks[size(r)]));
    for (LaneBlock& b : job.blocks) {
      b.barrier.expected = round.blockThreads[size(r)];
      b.votes.resize(size(round.blockThreads[size(r)]));
    }
    gpu::Call& c = job.group.call;
    memset(static_cast<void*>(&job.group), 0, sizeof job.group);
    c.team.rank = r;
    c.team.worldSize = shape_.worldSize;
    c.team.reduceGroup = shape_.reduceGroup;
    c.call = {static_cast<uint32_t>(round.kind) + 1, 0, 0, kNoRoot, round.bytes, 0, static_cast<uint32_t>(k), 0};
    c.detail = round.lanes;
    c.root = round.root;
    if (round.kind == LaneKind::kGroup || round.kind == LaneKind::kOdd) return setUpGroup(r, k, &job);
    const size_t words = round.bytes / 4;
    job.buffers.resize(2);
    job.buffers[0].resize(round.kind == LaneKind::kAllToAll ? words * size(shape_.worldSize) : words);
    job.buffers[1].resize(words);
    for (size_t i = 0; i < job.buffers[0].size(); i++) job.buffers[0][i] = word(k, size(r), i);
    c.send = reinterpret_cast<const char*>(job.buffers[0].data());
    c.recv = reinterpret_cast<char*>(job.buffers[round.kind == LaneKind::kAllToAll ? 0 : 1].data());
    c.count = round.kind == LaneKind::kReduce ? words : round.bytes;
  }
  void setUpGroup(int r, size_t k, Job* job) {
    const LaneRound& round = shape_.rounds[k];
    gpu::GroupCall& g = job->group;
    job->buffers.resize(round.transfers.size());
    for (int pipe = 0; pipe < 2 * shape_.worldSize; pipe++) {
      const bool sends = pipe % 2 == 0;
      uint32_t lanes = 0;
      for (size_t i = 0; i < round.transfers.size(); i++) {
        const LaneTransfer& t = round.transfers[i];
        if ((sends ? t.from : t.to) != r || (sends ? t.to : t.from) != pipe / 2) continue;
        std::vector<uint32_t>& buffer = job->buffers[i];
        buffer.resize(t.bytes / 4);
        for (size_t w = 0; sends && w < buffer.size(); w++) buffer[w] = word(k, i, w);
        const bool odd = round.kind == LaneKind::kOdd && sends && r == round.root;
        g.list[g.transfers++] = {reinterpret_cast<char*>(buffer.data()), t.bytes, static_cast<uint8_t>(pipe / 2), sends, static_cast<uint8_t>(odd ? 8 : 0),
                                 static_cast<uint8_t>(t.lanes), static_cast<uint16_t>(g.units), 0};
        lanes = std::max(lanes, t.lanes);
      }
      g.units += lanes;
    }
  }

  void thread(int r, int t) {
    for (size_t k = 0; k < shape_.rounds.size(); k++) {
      Job& job = jobs_[size(r)][k];
      const int blockThreads = shape_.rounds[k].blockThreads[size(r)];
      if (t < static_cast<int>(job.blocks.size()) * blockThreads) {
        LaneContext c(world_, job.group.call, job.blocks, blockThreads, t, teamOf(r), &abort_);
        const bool good = kernel(c, k, job);
        job.ran = true;
        job.stopped = job.stopped || !good;
        job.differs = job.differs || c.differs;
        if (!good && !shape_.aborts && !isOdd()) world_.fail("gave up");
      }
      world_.meet(ends_[size(r)], true);
      if (job.stopped) break;
    }
  }
  bool isOdd() const { return shape_.rounds.back().kind == LaneKind::kOdd; }

  bool kernel(LaneContext& c, size_t k, Job& job) {
    const LaneRound& round = shape_.rounds[k];
    if (round.kind == LaneKind::kGroup || round.kind == LaneKind::kOdd) return gpu::runTransfers(c, gpu::Group{job.group});
    if (round.kind == LaneKind::kAllToAll) {
      auto parts = gpu::partsOf(c, -1, true, true, round.bytes, round.bytes);
      parts.pairs = true;
      return gpu::runTransfers(c, parts);
    }
    using E = Tiles<Raw16>;
    const E e;
    if (round.root == c.call().team.rank) return gpu::reduceAtRoot(c, e);
    return gpu::runTransfers(c, gpu::partsOf(c, e));
  }

  std::string checkJob(int r, size_t k) const {
    const LaneRound& round = shape_.rounds[k];
    const Job& job = jobs_[size(r)][k];
    if (round.kind == LaneKind::kOdd) return checkOdd(r, k);
    if (!job.ran || job.stopped) return "";
    const auto wrong = [&](size_t i, uint32_t have, uint32_t want) {
      return "rank " + std::to_string(r) + ", round " + std::to_string(k) + ", word " + std::to_string(i) + ": " + std::to_string(have) + " instead of " + std::to_string(want);
    };
    const size_t words = round.bytes / 4;
    if (round.kind == LaneKind::kGroup) {
      for (size_t t = 0; t < round.transfers.size(); t++) {
        for (size_t i = 0; i < job.buffers[t].size(); i++) {
          if (job.buffers[t][i] != word(k, t, i)) return wrong(i, job.buffers[t][i], word(k, t, i));
        }
      }
    }
    for (size_t i = 0; round.kind == LaneKind::kAllToAll && i < job.buffers[0].size(); i++) {
      const uint32_t want = word(k, i / words, size(r) * words + i % words);
      if (job.buffers[0][i] != want) return wrong(i, job.buffers[0][i], want);
    }
    for (size_t i = 0; round.kind == LaneKind::kReduce && r == round.root && i < words; i++) {
      const uint32_t want = foldOf([&](int from) { return withOneNaN(word(k, size(from), i)); }, shape_.worldSize, shape_.reduceGroup);
      if (job.buffers[1][i] != want) return wrong(i, job.buffers[1][i], want);
    }
    return "";
  }
  // Whoever receives from the odd rank finds the difference, unless another rank has found it before.
  std::string checkOdd(int, size_t k) const {
    const LaneRound& round = shape_.rounds[k];
    bool receives = false, differs = false;
    for (const LaneTransfer& t : round.transfers) receives = receives || t.from == round.root;
    for (const auto& jobs : jobs_) differs = differs || jobs[k].differs;
    return receives == differs ? "" : receives ? "no rank has found the difference" : "a difference, and there is none";
  }

  World& world_;
  const LaneShape& shape_;
  std::vector<uint64_t> memory_;
  uint64_t stride_ = 0;
  uint32_t abort_ = 0;
  std::vector<std::deque<Job>> jobs_;
  std::vector<Barrier> ends_;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_LANE_RUN_H_
