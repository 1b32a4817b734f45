// The private memory of a buffer: tables of expert placement, and the state of dispatches in flight. It is allocated when the buffer is
// created, so dispatch and combine allocate nothing.
#include <stdlib.h>
#include <string.h>

#include "ep/ep.h"

namespace railhead::client {

namespace {

// Carves parts out of one block; without a block it only counts bytes.
class Parts {
 public:
  explicit Parts(char* block) : block_(block) {}
  template <class T>
  void take(T** part, uint64_t n) {
    if (block_ != nullptr) *part = reinterpret_cast<T*>(block_ + used_);
    used_ += epAlign(n * sizeof(T));
  }
  uint64_t used() const { return used_; }

 private:
  char* block_;
  uint64_t used_ = 0;
};

struct Tables {
  uint8_t* expertRank;
  uint16_t *expertLocal, *replicaBegin, *replicas, *ownExperts;
};

// x is sent without conversion.
bool sendsAsItIs(const host::EpRowFormat& f) {
  return f.in == f.wire && (f.wire != host::Type::kE4M3 || f.scale == host::EpScale::kStatic);
}

void takePlan(Parts* parts, const EpTeam& t, EpPlanArrays* p) {
  const uint64_t world = static_cast<uint64_t>(t.worldSize), tokens = t.maxTokens;
  parts->take(&p->expert, tokens * t.topk);
  parts->take(&p->weight, tokens * t.topk);
  parts->take(&p->ranks, tokens);
  parts->take(&p->tokenOf, world * tokens);
  parts->take(&p->copyOf, world * tokens);
}

void takeFlight(Parts* parts, const Ep& ep, EpFlight* f, char** encoded) {
  const EpTeam& t = ep.team();
  const uint64_t world = static_cast<uint64_t>(t.worldSize), tokens = t.maxTokens;
  takePlan(parts, t, &f->own);
  parts->take(&f->counts, world * t.maxLocal);
  parts->take(&f->nextRow, world * t.maxLocal);
  parts->take(&f->endRow, world * t.maxLocal);
  parts->take(&f->listLength, world * tokens);
  f->listStride = t.topk < t.maxLocal ? t.topk : t.maxLocal;
  parts->take(&f->list, world * tokens * f->listStride);
  if (!sendsAsItIs(ep.buffer.format)) parts->take(encoded, tokens * t.layout.rowStride);
}

uint64_t takeAll(Ep* ep, char* block, Tables* tables) {
  Parts parts(block);
  host::EpBuffer* b = &ep->buffer;
  parts.take(&tables->expertRank, b->team.physical);
  parts.take(&tables->expertLocal, b->team.physical);
  parts.take(&tables->replicaBegin, b->team.logical + uint64_t{1});
  parts.take(&tables->replicas, b->team.physical);
  parts.take(&tables->ownExperts, b->team.maxLocal);
  if (ep->experts() != nullptr) return parts.used();  // the device has its own
  parts.take(&b->begin, b->team.maxLocal + uint64_t{1});
  parts.take(&b->scratch, b->team.layout.combineStride);
  for (int i = 0; i < kEpInFlight; i++) {
    takeFlight(&parts, *ep, &b->flights[i], &b->encoded[i]);
    b->flights[i].other = &b->flights[1 - i];
  }
  return parts.used();
}

void fillTables(Ep* ep, const Tables& t) {
  const rh_ep_config& c = ep->config;
  EpTeam& team = ep->buffer.team;
  for (uint32_t p = 0; p < team.physical; p++) {
    const LocalRank rank = ep->comm->localOf(epRankOf(c, ep->comm->worldSize, p));
    t.expertRank[p] = static_cast<uint8_t>(number(rank));
    t.expertLocal[p] = team.localExperts[number(rank)]++;
    if (rank == ep->comm->localRank) t.ownExperts[t.expertLocal[p]] = static_cast<uint16_t>(p);
  }
  uint16_t n = 0;
  for (uint32_t e = 0; e < team.logical; e++) {
    t.replicaBegin[e] = n;
    for (uint32_t p = 0; p < team.physical; p++) {
      const bool of = c.physical_expert == nullptr ? p == e : c.physical_expert[p] == static_cast<int32_t>(e);
      if (of) t.replicas[n++] = static_cast<uint16_t>(p);
    }
  }
  t.replicaBegin[team.logical] = n;
  team.expertRank = t.expertRank;
  team.expertLocal = t.expertLocal;
  team.replicaBegin = t.replicaBegin;
  team.replicas = t.replicas;
  team.ownExperts = t.ownExperts;
}

}  // namespace

bool allocateEp(Ep* ep) {
  Tables tables = {};
  const uint64_t bytes = takeAll(ep, nullptr, &tables);
  ep->memory = static_cast<char*>(aligned_alloc(64, bytes));
  if (ep->memory == nullptr) return false;
  ep->memoryBytes = takeAll(ep, ep->memory, &tables);
  fillTables(ep, tables);
  return true;
}

bool allocatePlan(const Ep* ep, EpCached* cached) {
  Parts size(nullptr);
  takePlan(&size, ep->team(), &cached->plan);
  cached->memory = static_cast<char*>(aligned_alloc(64, size.used()));
  if (cached->memory == nullptr) return false;
  Parts parts(cached->memory);
  takePlan(&parts, ep->team(), &cached->plan);
  return true;
}

}  // namespace railhead::client
