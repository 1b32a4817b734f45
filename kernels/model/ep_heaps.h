// The memory of dispatch and combine: the ranks' buffers, lease words, and the memory of flights.
#ifndef RAILHEAD_KERNELS_MODEL_EP_HEAPS_H_
#define RAILHEAD_KERNELS_MODEL_EP_HEAPS_H_

#include <string>
#include <vector>

#include "model/ep_script.h"
#include "model/mem.h"
#include "railhead/ep/ep_links.h"

namespace railhead::model {

// When each rank has last counted a turn of a wait.
struct EpTurns {
  int64_t last[kMaxWorldSize] = {};
};

// Counters order nothing, so they are not part of the model's memory.
class EpMem : public FlagMem {
 public:
  EpMem(World& world, const std::vector<EpCounters>& counters, EpTurns& turns) : FlagMem(world), world_(world), counters_(counters), turns_(turns) {}

  uint64_t loadWord(const uint64_t* p) {
    if (!counts(p)) return FlagMem::loadWord(p);
    const int rank = rankOfTurns(p);
    if (rank >= 0) {
      if (seen_[rank].first < 0) seen_[rank].first = world_.now();
      seen_[rank].last = world_.now();
      seen_[rank].turn = turns_.last[rank];
    }
    world_.observe(*p);
    return *p;
  }
  void storeWord(uint64_t* p, uint64_t v, const char* in = __builtin_FUNCTION()) {
    if (!counts(p)) return FlagMem::storeWord(p, v, in);
    *p = v;
    const int rank = rankOfTurns(p);
    if (rank >= 0) turns_.last[rank] = world_.now();
  }

  // What this rank has seen in a wait of another rank's turns: when it looked first and last, and when the newest turn then was. Never: -1.
  struct Seen {
    int64_t first, last, turn;
  };
  void beginWatching() {
    for (Seen& s : seen_) s = {-1, -1, -1};
    for (Looks& l : looks_) l = {nullptr, 0, 0};
  }
  // A wait loads with acquire only the other ranks' gaveUp, once in each piece.
  uint64_t loadWordAcquire(const uint64_t* p, const char* in = __builtin_FUNCTION()) {
    const uint64_t v = FlagMem::loadWordAcquire(p, in);
    for (Looks& l : looks_) {
      if (l.word != nullptr && l.word != p) continue;
      l = {p, l.last, v};
      break;
    }
    return v;
  }
  // What this rank saw in the word in the last piece but one of the wait; 0 if the wait had one piece.
  uint64_t seenBefore(const uint64_t* word) const {
    for (const Looks& l : looks_) {
      if (l.word == word) return l.before;
    }
    return 0;
  }
  const Seen& seen(int rank) const { return seen_[rank]; }

 private:
  bool counts(const uint64_t* p) const {
    const auto at = reinterpret_cast<uintptr_t>(p), first = reinterpret_cast<uintptr_t>(counters_.data());
    return at >= first && at < first + counters_.size() * sizeof(EpCounters);
  }
  // The rank whose waitTurns this is, or -1.
  int rankOfTurns(const uint64_t* p) const {
    for (size_t r = 0; r < counters_.size(); r++) {
      if (p == &counters_[r].waitTurns) return static_cast<int>(r);
    }
    return -1;
  }

  World& world_;
  const std::vector<EpCounters>& counters_;  // of all ranks
  EpTurns& turns_;
  Seen seen_[kMaxWorldSize];
  struct Looks {
    const uint64_t* word;
    uint64_t before, last;
  };
  Looks looks_[kMaxWorldSize] = {};
};

// A flight with its arrays.
struct EpFlightMemory {
  EpFlight flight = {};
  std::vector<uint16_t> expert;
  std::vector<float> weight;
  std::vector<uint64_t> ranks;
  std::vector<uint32_t> tokenOf, copyOf, counts, nextRow, endRow;
  std::vector<uint8_t> listLength;
  std::vector<EpRowRef> list;

  explicit EpFlightMemory(const EpTeam& t) {
    const size_t tokens = t.maxTokens, world = static_cast<size_t>(t.worldSize), local = t.maxLocal;
    take(&expert, tokens * t.topk, &flight.expert);
    take(&weight, tokens * t.topk, &flight.weight);
    take(&ranks, tokens, &flight.ranks);
    take(&tokenOf, world * tokens, &flight.tokenOf);
    take(&copyOf, world * tokens, &flight.copyOf);
    take(&counts, world * local, &flight.counts);
    take(&nextRow, world * local, &flight.nextRow);
    take(&endRow, world * local, &flight.endRow);
    take(&listLength, world * tokens, &flight.listLength);
    flight.listStride = t.topk < t.maxLocal ? t.topk : t.maxLocal;
    take(&list, world * tokens * flight.listStride, &flight.list);
  }

 private:
  template <class T>
  static void take(std::vector<T>* memory, size_t n, T** at) {
    memory->resize(n);
    *at = memory->data();
  }
};

class EpHeaps {
 public:
  EpHeaps(World& world, const EpScript& script) : world_(world), script_(script), layout_(layoutOf(script)) {
    const auto n = static_cast<size_t>(script.worldSize);
    placeExperts();
    world.memory.add(&abort_, 4, 4, [](size_t) { return std::string("abort"); }, isNoRanks);
    world.memory.add(&quiet_, 4, 4, [](size_t) { return std::string("quiet word"); }, [](size_t, int, uint64_t) { return false; });
    counters_.resize(n);
    leases_.resize(n);
    world.memory.add(leases_.data(), 4 * n, 4, [](size_t unit) { return "lease of rank " + std::to_string(unit); }, isNoRanks);
    for (uint32_t& l : leases_) world.memory.initial(&l, 1);  // held
    bufferLines_ = layout_.bytes / 64 + 1;
    buffers_.resize(n * bufferLines_);
    teams_.resize(n);
    flags_.resize(n);
    for (int r = 0; r < script.worldSize; r++) makeTeam(r);
    for (int r = 0; r < script.worldSize; r++) {
      addBuffer(r);
      startCounting(r);
    }
  }

  EpTeam& team(int r) { return teams_[static_cast<size_t>(r)]; }
  FlagTeam& flags(int r) { return flags_[static_cast<size_t>(r)]; }
  uint32_t* abortWord() { return &abort_; }
  uint32_t* lease(int r) { return &leases_[static_cast<size_t>(r)]; }
  const std::vector<EpCounters>& counters() const { return counters_; }
  EpTurns& turns() { return turns_; }
  // Whether the rank is dead, by its lease or the abort word.
  bool isGone(int r) const {
    const uint64_t abort = newest(&abort_);
    const bool isCulprit = (abort & kAbortCode) == kAbortRankDead && abort >> kAbortCulpritShift == static_cast<uint64_t>(r);
    return isCulprit || newest(&leases_[static_cast<size_t>(r)]) != 1;
  }
  // Whether the newest value of the flag has reached the value.
  bool hasReached(const Flag& flag, uint32_t value) const {
    return Flags<EpMem>::reached(static_cast<uint32_t>(newest(&flag.value)), value);
  }
  uint64_t newestGaveUp(int r) { return world_.memory.at(world_.memory.find(&team(r).state()->gaveUp, 8)).newest().value; }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };
  uint64_t newest(const uint32_t* p) const { return world_.memory.at(world_.memory.find(p, 4)).newest().value; }
  static bool isNoRanks(size_t, int rank, uint64_t) { return rank < 0; }

  static uint32_t mostLocal(const EpScript& s) {
    uint32_t most = 1;
    for (int r = 0; r < s.worldSize; r++) {
      uint32_t n = 0;
      for (const uint8_t owner : s.expertRank) n += owner == r;
      most = n > most ? n : most;
    }
    return most;
  }
  // As epLayoutOf, but with chunks of any number of tokens, and rows and counts without padding, since each word is a location.
  static EpLayout layoutOf(const EpScript& s) {
    const auto world = static_cast<uint32_t>(s.worldSize);
    const EpShape shape = {world, s.maxTokens, s.topk, mostLocal(s), sizeof(EpRow), sizeof(EpRow), s.countsFirst};
    EpLayout l = epLayoutOf(shape);
    const uint64_t peers = shape.worldSize - 1;
    if (s.countsFirst) l.chunkTokens = s.chunkTokens;
    l.rowStride = l.combineStride = sizeof(EpRow);
    l.slotBytes = epAlign(l.chunkTokens * l.headerStride) + l.chunkTokens * l.rowStride;
    l.combineSlotBytes = l.chunkTokens * l.combineStride;
    l.combine = l.dispatch + peers * l.slots * l.slotBytes;
    l.bytes = l.combine + peers * l.slots * l.combineSlotBytes;
    return l;
  }

  void placeExperts() {
    const auto n = static_cast<uint16_t>(script_.expertRank.size());
    own_.resize(static_cast<size_t>(script_.worldSize));
    for (uint16_t e = 0; e < n; e++) {
      auto& own = own_[script_.expertRank[e]];
      expertLocal_.push_back(static_cast<uint16_t>(own.size()));
      own.push_back(e);
      each_.push_back(e);
    }
    each_.push_back(n);
  }

  void makeTeam(int r) {
    EpTeam& t = team(r);
    t = {};
    t.rank = r;
    t.worldSize = script_.worldSize;
    t.maxTokens = script_.maxTokens;
    t.topk = script_.topk;
    t.logical = t.physical = static_cast<uint32_t>(script_.expertRank.size());
    t.maxLocal = mostLocal(script_);
    t.countsFirst = script_.countsFirst;
    t.dropsDead = script_.dropsDead;
    t.layout = layout_;
    t.rowBytes = t.combineRowBytes = sizeof(EpRow);
    t.expertRank = script_.expertRank.data();
    t.expertLocal = expertLocal_.data();
    t.replicaBegin = each_.data();  // every expert has one replica
    t.replicas = each_.data();
    t.ownExperts = own_[static_cast<size_t>(r)].data();
    for (int q = 0; q < script_.worldSize; q++) t.localExperts[q] = static_cast<uint16_t>(own_[static_cast<size_t>(q)].size());
    t.buffers = reinterpret_cast<char*>(buffers_.data());
    t.bufferStride = bufferLines_ * sizeof(Line);
    t.leases = reinterpret_cast<const char*>(leases_.data());
    t.leaseStride = sizeof(uint32_t);
    t.waitTurns = reinterpret_cast<const char*>(&counters_[0].waitTurns);
    t.waitTurnsStride = sizeof(EpCounters);
    t.counters = &counters_[static_cast<size_t>(r)];
    t.timeoutNs = script_.ticks == 0 ? INT64_MAX / 16 : script_.ticks * World::kTickNs;
    t.limitNs = script_.limitTicks * World::kTickNs;
    t.deathCheckNs = 5 * 1000 * 1000;
    t.waiterDeadlines = 4;
    t.abortWord = &abort_;
    FlagTeam& f = flags(r);
    f = {};
    f.rank = r;
    f.worldSize = script_.worldSize;
    f.timeoutNs = World::kTickNs;
    f.pollsPerTurn = 8;
    f.longTurnNs = INT64_MAX;
    f.busy = &busy_;
    f.recheckNs = 100 * 1000 * 1000;
    f.abortWord = &abort_;
    f.waitingFor = &waitingFor_;
    f.asleepSince = &asleepSince_;
    epPrepareFlags(t, &quiet_, &f);
  }

  void addBuffer(int r) {
    const EpTeam& t = team(r);
    const std::string of = " of rank " + std::to_string(r);
    world_.memory.add(
        t.base(r) + layout_.links, sizeof(EpLine) * static_cast<size_t>(t.worldSize), 4,
        [=](size_t unit) {
          static const char* const names[] = {"ep counts", "ep tail", "ep combine tail", "ep counts head", "ep head", "ep combine head"};
          const size_t flag = unit % 16 / 2;
          const std::string from = std::string(flag < 6 ? names[flag] : "nothing") + " from " + std::to_string(unit / 16) + of;
          return unit % 2 == 0 ? from : "sleepers of " + from;
        },
        [](size_t unit, int rank, uint64_t) { return unit % 2 != 0 || rank == static_cast<int>(unit / 16); });
    world_.memory.add(
        &t.state()->gaveUp, 8, 8, [=](size_t) { return "ranks masked by" + of.substr(3); }, [=](size_t, int rank, uint64_t) { return rank == r; });
    for (int q = 0; q < t.worldSize; q++) {
      if (q != r) addPipes(t, q, " from " + std::to_string(q) + of);
    }
  }
  void addPipes(const EpTeam& t, int q, const std::string& from) {
    for (uint32_t i = 0; i < kEpInFlight; i++) {
      addOf(t.counts(t.rank, q, i), layout_.countsStride, 4, q, "counts " + std::to_string(i) + from);
    }
    for (uint32_t i = 0; i < layout_.slots; i++) {
      const std::string slot = "slot " + std::to_string(i) + from;
      char* at = t.slot(t.rank, q, i);
      addOf(t.header(at, 0), layout_.chunkTokens * layout_.headerStride, 8, q, "header word of " + slot);
      addOf(t.row(at, 0), layout_.chunkTokens * layout_.rowStride, 4, q, "row word of " + slot);
    }
    addOf(t.combineRow(t.rank, q, 0, 0), layout_.slots * layout_.combineSlotBytes, 4, q, "partial sums" + from);
  }
  // Memory that another rank writes. Counts and header words are atomic, and ordered by flags.
  void addOf(void* at, size_t bytes, size_t unitBytes, int writer, const std::string& name) {
    Region& region = world_.memory.add(
        at, bytes, unitBytes, [=](size_t unit) { return name + " " + std::to_string(unit); },
        [=](size_t, int rank, uint64_t) { return rank == writer; });
    region.ordered = true;
  }

  // Starts as if that many dispatches, and chunks of each kind between every two ranks, had come before.
  void startCounting(int r) {
    const EpTeam& t = team(r);
    EpState* state = t.state();
    state->dispatches = state->combines = script_.start;
    const uint32_t n = script_.start & FlagMem::kGenerationMask;
    for (int q = 0; q < t.worldSize; q++) {
      state->sent[q] = state->read[q] = state->combineSent[q] = state->combineRead[q] = n;
      EpLine& line = t.line(r, q);
      for (Flag* flag : {&line.counts, &line.tail, &line.combineTail, &line.countsHead, &line.head, &line.combineHead}) {
        world_.memory.initial(&flag->value, n);
      }
    }
  }

  World& world_;
  const EpScript& script_;
  const EpLayout layout_;
  size_t bufferLines_ = 0;  // of a rank
  std::vector<Line> buffers_;
  std::vector<EpTeam> teams_;
  std::vector<FlagTeam> flags_;
  std::vector<uint32_t> leases_;
  std::vector<uint16_t> expertLocal_, each_;
  std::vector<std::vector<uint16_t>> own_;
  std::vector<EpCounters> counters_;
  EpTurns turns_;
  uint32_t abort_ = 0, quiet_ = 0;
  uint64_t waitingFor_ = 0, asleepSince_ = 0;
  Busy busy_ = {};
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_EP_HEAPS_H_
