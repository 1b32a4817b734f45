// Buffers of MoE dispatch and combine for tests without a client: the placement of experts, and the CPU's buffer of each rank.
#ifndef RAILHEAD_KERNELS_TESTDATA_EP_CPU_H_
#define RAILHEAD_KERNELS_TESTDATA_EP_CPU_H_

#include <stdlib.h>
#include <string.h>

#include <memory>
#include <vector>

#include "check.h"
#include "host/ep.h"

namespace {

// The same on all ranks.
struct EpPlacement {
  int world;
  uint32_t maxTokens, topk, logical;
  std::vector<uint16_t> logicalOf;  // [physical]
  std::vector<uint8_t> rankOf;      // [physical]
  railhead::host::EpRowFormat format;
  bool dropsInvalid, renormalizes;
  uint64_t masked = 0;  // by all other ranks, from the start
  bool countsFirst = false;  // ht
  bool onGpu = false;        // the layout of GPUs
  uint32_t chunkTokens = 0;  // of ht; 0: as many as the layout has

  uint32_t physical() const { return static_cast<uint32_t>(rankOf.size()); }
};

// Tables of a rank, in memory of Allocator.
template <template <class> class Allocator>
struct EpTables {
  template <class T>
  using Array = std::vector<T, Allocator<T>>;
  Array<uint8_t> expertRank;
  Array<uint16_t> expertLocal, replicaBegin, replicas, own;

  // Chunks of fewer tokens, so that dispatches have many.
  static void limitChunks(uint32_t tokens, int world, railhead::EpLayout* l) {
    if (l->chunkTokens > tokens) l->chunkTokens = tokens;
    const uint64_t peers = static_cast<uint64_t>(world - 1);
    l->slotBytes = railhead::epAlign(l->chunkTokens * l->headerStride) + l->chunkTokens * l->rowStride;
    l->combineSlotBytes = l->chunkTokens * l->combineStride;
    l->combine = l->dispatch + peers * l->slots * l->slotBytes;
    l->bytes = l->combine + peers * l->slots * l->combineSlotBytes;
  }
  // Fills in all of the team but the addresses of buffers and what a target adds.
  EpTables(const EpPlacement& p, int rank, railhead::EpTeam* team) {
    *team = {};
    team->rank = rank;
    team->worldSize = p.world;
    team->maxTokens = p.maxTokens;
    team->topk = p.topk;
    team->logical = p.logical;
    team->physical = p.physical();
    for (uint32_t e = 0; e < p.physical(); e++) {
      expertRank.push_back(p.rankOf[e]);
      expertLocal.push_back(team->localExperts[p.rankOf[e]]++);
      if (p.rankOf[e] == rank) own.push_back(static_cast<uint16_t>(e));
    }
    for (uint32_t e = 0; e < p.logical; e++) {
      replicaBegin.push_back(static_cast<uint16_t>(replicas.size()));
      for (uint32_t i = 0; i < p.physical(); i++) {
        if (p.logicalOf[i] == e) replicas.push_back(static_cast<uint16_t>(i));
      }
    }
    replicaBegin.push_back(static_cast<uint16_t>(replicas.size()));
    for (int r = 0; r < p.world; r++) team->maxLocal = team->localExperts[r] > team->maxLocal ? team->localExperts[r] : team->maxLocal;
    team->rowBytes = railhead::host::epRowBytes(p.format);
    team->combineRowBytes = railhead::host::epCombineRowBytes(p.format);
    const auto world = static_cast<uint32_t>(p.world);
    team->layout = railhead::epLayoutOf({world, p.maxTokens, p.topk, team->maxLocal, team->rowBytes, team->combineRowBytes, p.countsFirst, p.onGpu});
    team->countsFirst = p.countsFirst;
    if (p.chunkTokens != 0) limitChunks(p.chunkTokens, p.world, &team->layout);
    team->bufferStride = (team->layout.bytes + 255) / 256 * 256;
    team->expertRank = expertRank.data();
    team->expertLocal = expertLocal.data();
    team->replicaBegin = replicaBegin.data();
    team->replicas = replicas.data();
    team->ownExperts = own.data();
  }
};

// The ranks of a group on the CPU. They wait for each other in threads of this process.
class EpCpuRanks {
 public:
  EpCpuRanks(const EpPlacement& p, const railhead::host::EpRowKernels& rows) {
    for (int r = 0; r < p.world; r++) ranks_.push_back(std::make_unique<Rank>());
    for (int r = 0; r < p.world; r++) setUp(p, rows, r);
  }
  railhead::host::EpBuffer* buffer(int r) { return &ranks_[static_cast<size_t>(r)]->buffer; }

 private:
  struct Rank {
    railhead::host::EpBuffer buffer = {};
    std::unique_ptr<EpTables<std::allocator>> tables;
    std::unique_ptr<railhead::EpCounters> counters = std::make_unique<railhead::EpCounters>();
    std::vector<std::unique_ptr<char[]>> memory;
    uint64_t waitingFor = 0, asleepSince = 0;
    railhead::Busy busy = {};

    template <class T>
    void take(T** at, uint64_t n) {
      memory.push_back(std::make_unique<char[]>(n * sizeof(T) + 64));
      const uintptr_t p = reinterpret_cast<uintptr_t>(memory.back().get());
      *at = reinterpret_cast<T*>((p + 63) / 64 * 64);
    }
  };

  void setUp(const EpPlacement& p, const railhead::host::EpRowKernels& rows, int r) {
    Rank& rank = *ranks_[static_cast<size_t>(r)];
    railhead::host::EpBuffer& b = rank.buffer;
    rank.tables = std::make_unique<EpTables<std::allocator>>(p, r, &b.team);
    if (r == 0) {
      buffers_.resize(b.team.bufferStride * static_cast<uint64_t>(p.world) + 64);
      leases_.assign(static_cast<size_t>(p.world), 1);
    }
    b.team.buffers = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(buffers_.data()) + 63) / 64 * 64);
    b.team.counters = rank.counters.get();
    b.team.state()->masked = b.team.state()->gaveUp = p.masked;
    b.team.timeoutNs = b.team.deathCheckNs = int64_t{60} * 1000000000;
    b.team.waiterDeadlines = 4;
    b.team.abortWord = &abort_;
    b.team.leases = reinterpret_cast<const char*>(leases_.data());
    b.team.leaseStride = sizeof(uint32_t);
    b.dropsInvalid = p.dropsInvalid;
    b.renormalizes = p.renormalizes;
    b.format = p.format;
    b.rows = &rows;
    b.streamAboveBytes = ~uint64_t{0};
    rank.take(&b.begin, b.team.maxLocal + 1);
    rank.take(&b.scratch, b.team.layout.combineStride);
    for (int i = 0; i < railhead::kEpInFlight; i++) setUpFlight(p, &rank, &b.flights[i], &b.encoded[i], &b.flights[1 - i]);
    railhead::FlagTeam& f = b.flags;
    f.rank = r;
    f.worldSize = p.world;
    f.timeoutNs = b.team.timeoutNs;
    f.pollsPerTurn = 8;
    f.longTurnNs = INT64_MAX;
    f.yieldNs = 1000;
    f.spinNs = 20000;
    f.busy = &rank.busy;
    f.recheckNs = 100 * 1000 * 1000;
    f.abortWord = &abort_;
    f.waitingFor = &rank.waitingFor;
    f.asleepSince = &rank.asleepSince;
  }
  static void setUpFlight(const EpPlacement& p, Rank* rank, railhead::EpFlight* f, char** encoded, const railhead::EpFlight* other) {
    const railhead::EpTeam& t = rank->buffer.team;
    const uint64_t world = static_cast<uint64_t>(p.world), tokens = p.maxTokens;
    rank->take(&f->own.expert, tokens * t.topk);
    rank->take(&f->own.weight, tokens * t.topk);
    rank->take(&f->own.ranks, tokens);
    rank->take(&f->own.tokenOf, world * tokens);
    rank->take(&f->own.copyOf, world * tokens);
    rank->take(&f->counts, world * t.maxLocal);
    rank->take(&f->nextRow, world * t.maxLocal);
    rank->take(&f->endRow, world * t.maxLocal);
    rank->take(&f->listLength, world * tokens);
    f->listStride = t.topk < t.maxLocal ? t.topk : t.maxLocal;
    rank->take(&f->list, world * tokens * f->listStride);
    f->other = other;
    const railhead::host::EpRowFormat& format = p.format;
    const bool hasScales = format.wire == railhead::host::Type::kE4M3 && format.scale != railhead::host::EpScale::kStatic;
    if (format.in != format.wire || hasScales) rank->take(encoded, tokens * t.layout.rowStride);
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<char> buffers_;
  std::vector<uint32_t> leases_;
  uint32_t abort_ = 0;
};

}  // namespace

#endif  // RAILHEAD_KERNELS_TESTDATA_EP_CPU_H_
