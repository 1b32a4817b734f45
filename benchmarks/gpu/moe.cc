// Times the GPU kernels of MoE dispatch and combine (kernels/cuda/ep.cu) with virtual ranks: streams of one process on one GPU, which have the latency
// of its memory and not of a link between GPUs. docs/kernels.md says how to build it.
//
//   moe IMAGE [MODE [WORLD [BLOCKS ...]]]   ll or ht; 2 ranks, 16, 32 and 64 blocks of 512 threads
//
// Rows have 7168 elements and go to 8 of 256 experts, drawn uniformly. Each rank plays kRounds times a dispatch and a release, or a dispatch and a
// combine, on its stream, all in one graph: a time is that of a replay over kRounds, the median of kRepeats. `cached` is a dispatch with a cached
// routing, `release` a release that is refused, `empty` a dispatch of a comm that has stopped, which ends at the entry.
#include <string.h>

#include <random>

#include "../../kernels/testdata/ep_cpu.h"
#include "ranks.h"
#include "railhead/gpu/ep_call.h"

using namespace virtual_ranks;

namespace {

constexpr int kRounds = 20;
constexpr uint32_t kHidden = 7168, kTopk = 8, kExperts = 256, kMostTokens = 512, kThreads = 512;

template <class T>
T* allocate(uint64_t n, int fill = 0) {
  T* p;
  CHECK_CUDA(cudaMalloc(&p, n * sizeof(T) + 64));
  CHECK_CUDA(cudaMemset(p, fill, n * sizeof(T) + 64));
  return p;
}
template <class T>
T* copied(const T* from, uint64_t n) {
  T* p = allocate<T>(n);
  CHECK_CUDA(cudaMemcpy(p, from, n * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

struct Rank {
  EpTeam team;
  EpRankState* state;
  EpFlightArrays flights[kEpInFlight];
  EpCell* cell;  // pinned memory of the host, as the client has it
  int32_t* flight;
  uint32_t* read;
  const uint16_t* home;
  int64_t* idx;
  float *weights, *rowWeights;
  char *x, *rows, *scales, *y, *out;
  int32_t *counts, *sourceRank, *sourceToken;
  int64_t* offsets;
  uint64_t* totals;
  EpCachedPlan plan;
};

class Ranks {
 public:
  Ranks(const char* image, int world, bool isHt, bool isFP8) : group_(makeGroup(world, 1024)), isFP8_(isFP8) {
    CHECK_CUDA(cudaLibraryLoadFromFile(&library_, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    placement_.world = world;
    placement_.maxTokens = kMostTokens;
    placement_.topk = kTopk;
    placement_.logical = kExperts;
    for (uint32_t e = 0; e < kExperts; e++) {
      placement_.logicalOf.push_back(static_cast<uint16_t>(e));
      placement_.rankOf.push_back(static_cast<uint8_t>(e * static_cast<uint32_t>(world) / kExperts));
    }
    placement_.format.in = host::Type::kBF16;
    placement_.format.wire = isFP8 ? host::Type::kE4M3 : host::Type::kBF16;
    placement_.format.combine = host::Type::kBF16;
    placement_.format.scale = host::EpScale::kF32;
    placement_.format.hidden = kHidden;
    placement_.dropsInvalid = true;
    placement_.countsFirst = isHt;
    placement_.onGpu = true;
    ranks_.resize(static_cast<size_t>(world));
    for (int r = 0; r < world; r++) setUp(r);
  }
  ~Ranks() {
    for (void* p : memory_) CHECK_CUDA(cudaFree(p));
    for (Rank& k : ranks_) CHECK_CUDA(cudaFreeHost(k.cell));
    freeGroup(group_);
    CHECK_CUDA(cudaLibraryUnload(library_));
  }

  Group& group() { return group_; }
  cudaKernel_t kernel(const char* name) {
    cudaKernel_t k;
    CHECK_CUDA(cudaLibraryGetKernel(&k, library_, name));
    return k;
  }
  cudaLibrary_t library() { return library_; }

  void encode(int r, uint32_t tokens, int blocks) {
    EpEncodeCall call = {};
    static_cast<EpCommonCall&>(call) = common(r);
    call.counts = false;
    call.tokens = tokens;
    call.x = at(r).x;
    if (isFP8_) launch("rh_ep_encode_bf16", r, &call, blocks);
  }
  // Caches the routing of so many tokens.
  void plan(int r, uint32_t tokens, int blocks) {
    EpDispatchCall call = dispatchOf(r, tokens);
    for (EpFlightArrays& f : call.flights) f.unfit = nullptr;
    call.plan = at(r).plan;
    launch("rh_ep_plan", r, &call, blocks);
  }
  void dispatch(int r, uint32_t tokens, int blocks) {
    EpDispatchCall call = dispatchOf(r, tokens);
    launch(placement_.countsFirst ? "rh_ep_dispatch_ht" : "rh_ep_dispatch_ll_plain", r, &call, blocks);
  }
  void dispatchCached(int r, uint32_t tokens, int blocks) {
    EpDispatchCall call = dispatchOf(r, tokens);
    call.plan = at(r).plan;
    call.routing = {call.plan.idx, true, call.plan.weights, tokens};
    launch(placement_.countsFirst ? "rh_ep_dispatch_ht" : "rh_ep_dispatch_ll_planned", r, &call, blocks);
  }
  void combine(int r, int blocks) {
    EpCombineCall call = {};
    static_cast<EpCommonCall&>(call) = common(r);
    call.steps = kEpSends | kEpReceives;
    call.y = call.out = EpType::kBF16;
    call.yRows = at(r).y;
    call.outRows = at(r).out;
    launch(placement_.countsFirst ? "rh_ep_combine_ht_bf16" : "rh_ep_combine_ll_bf16", r, &call, blocks);
  }
  void release(int r) {
    EpCommonCall call = common(r);
    launch("rh_ep_release", r, &call, 1);
  }
  EpReport dispatched(int r) { return cell(r).dispatched; }
  EpReport combined(int r) { return cell(r).combined; }

 private:
  Rank& at(int r) { return ranks_[static_cast<size_t>(r)]; }
  const EpCell& cell(int r) { return *at(r).cell; }
  uint64_t rowCapacity() const { return static_cast<uint64_t>(placement_.world) * kMostTokens * kTopk; }
  template <class T>
  void take(T** p, uint64_t n, int fill = 0) {
    *p = allocate<T>(n, fill);
    memory_.push_back(*p);
  }
  template <class T>
  void give(const T** p, const T* from, uint64_t n) {
    T* to = copied(from, n);
    memory_.push_back(to);
    *p = to;
  }

  void setUp(int r) {
    Rank& k = at(r);
    EpTeam& t = k.team;
    const EpTables<std::allocator> tables(placement_, r, &t);
    const EpTeam host = t;
    if (r == 0) take(&buffers_, t.bufferStride * static_cast<uint64_t>(placement_.world));
    t.buffers = buffers_;
    CHECK_CUDA(cudaMemset(t.base(r) + t.layout.combine, 0xff, t.layout.bytes - t.layout.combine));
    give(&t.expertRank, tables.expertRank.data(), tables.expertRank.size());
    give(&t.expertLocal, tables.expertLocal.data(), tables.expertLocal.size());
    give(&t.replicaBegin, tables.replicaBegin.data(), tables.replicaBegin.size());
    give(&t.replicas, tables.replicas.data(), tables.replicas.size());
    give(&t.ownExperts, tables.own.data(), tables.own.size());
    std::vector<uint16_t> home;
    for (uint32_t e = 0; e < kExperts; e++) home.push_back(epHomeOf(host, e));
    give(&k.home, home.data(), home.size());
    take(&k.state, 1);
    const uint64_t world = static_cast<uint64_t>(placement_.world), tokens = kMostTokens;
    for (EpFlightArrays& f : k.flights) {
      f = {};
      take(&f.ranks, tokens);
      take(&f.entries, tokens * kTopk);
      take(&f.weights, tokens * kTopk);
      take(&f.copyOf, world * tokens);
      take(&f.copies, world);
      take(&f.received, world);
      take(&f.own, 1u + t.localExperts[r]);
      take(&f.lengths, world * tokens);
      take(&f.lists, world * tokens * kTopk);
      take(&f.sums, tokens * t.layout.combineStride);
      if (isFP8_) take(&f.encoded, tokens * t.layout.rowStride);
      if (isFP8_) take(&f.unfit, tokens);
    }
    CHECK_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&k.cell), sizeof(EpCell), cudaHostAllocDefault));
    take(&k.flight, 1, 0xff);
    take(&k.read, 2 * world * t.layout.slots * t.layout.chunkTokens);
    std::mt19937_64 random(static_cast<uint64_t>(r) + 1);
    std::vector<int64_t> idx;
    for (uint32_t i = 0; i < kMostTokens; i++) {
      std::vector<bool> has(kExperts);
      for (uint32_t n = 0; n < kTopk;) {
        const auto e = static_cast<size_t>(random() % kExperts);
        if (has[e]) continue;
        has[e] = true;
        idx.push_back(static_cast<int64_t>(e));
        n++;
      }
    }
    k.idx = copied(idx.data(), idx.size());
    memory_.push_back(k.idx);
    take(&k.weights, tokens * kTopk, 0x3d);
    take(&k.x, tokens * kHidden * 2, 0x3c);
    take(&k.rows, rowCapacity() * kHidden * 2);
    take(&k.scales, rowCapacity() * (kHidden / 128) * 4);
    take(&k.y, rowCapacity() * kHidden * 2, 0x3c);
    take(&k.out, tokens * kHidden * 2);
    take(&k.rowWeights, rowCapacity());
    take(&k.sourceRank, rowCapacity());
    take(&k.sourceToken, rowCapacity());
    take(&k.counts, kExperts);
    take(&k.offsets, kExperts + 1);
    take(&k.totals, 2);
    take(&k.plan.idx, tokens * kTopk);
    take(&k.plan.weights, tokens * kTopk);
    take(&k.plan.entries, tokens * kTopk);
    take(&k.plan.ranks, tokens);
    take(&k.plan.copyOf, world * tokens);
    take(&k.plan.totals, t.physical + world + 4);
  }

  EpCommonCall common(int r) {
    Rank& k = at(r);
    EpCommonCall call = {};
    Shape none;
    call.call = callOf(group_, r, none).call;
    call.call.call.operation = 15;
    call.team = k.team;
    call.state = k.state;
    for (int i = 0; i < kEpInFlight; i++) call.flights[i] = k.flights[i];
    call.format = {static_cast<EpType>(placement_.format.in), static_cast<EpType>(placement_.format.wire), EpScaling::kF32, 0, kHidden};
    call.home = k.home;
    call.cell = k.cell;
    call.flight = k.flight;
    call.read = k.read;
    call.counts = true;
    return call;
  }
  EpDispatchCall dispatchOf(int r, uint32_t tokens) {
    Rank& k = at(r);
    EpDispatchCall call = {};
    static_cast<EpCommonCall&>(call) = common(r);
    call.steps = kEpSends | kEpReceives;
    call.dropsInvalid = true;
    call.routing = {k.idx, true, k.weights, tokens};
    call.x = k.x;
    call.receive.layout = EpRowLayout::kFlat;
    call.receive.alignment = 1;
    call.receive.capacity = rowCapacity();
    call.receive.x = k.rows;
    call.receive.scales = isFP8_ ? k.scales : nullptr;
    call.receive.counts = k.counts;
    call.receive.offsets = k.offsets;
    call.receive.weights = k.rowWeights;
    call.receive.sourceRank = k.sourceRank;
    call.receive.sourceToken = k.sourceToken;
    call.receive.rows = &k.totals[0];
    call.receive.tokens = &k.totals[1];
    return call;
  }
  void launch(const char* name, int r, EpCommonCall* call, int blocks) {
    void* arguments[] = {call};
    CHECK_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(kernel(name)), dim3(static_cast<unsigned>(blocks)),
                                dim3(blocks == 1 ? 32 : kThreads), arguments, 0, group_.streams[static_cast<size_t>(r)]));
  }

  Group group_;
  bool isFP8_;
  EpPlacement placement_ = {};
  cudaLibrary_t library_;
  std::vector<Rank> ranks_;
  std::vector<void*> memory_;
  char* buffers_ = nullptr;
};

double timeUs(Ranks& ranks, const std::function<void(int)>& body) { return medianUs(ranks.group(), kRounds, body); }

void checkReport(const char* what, const EpReport& report) {
  if (report.error == EpError::kNone) return;
  fprintf(stderr, "%s was refused: %u\n", what, static_cast<unsigned>(report.error));
  exit(1);
}

void table(const char* image, int world, bool isHt, bool isFP8, const std::vector<int>& grids) {
  Ranks ranks(image, world, isHt, isFP8);
  printf("%s, %d ranks, %s\n", isHt ? "ht" : "ll", world, isFP8 ? "FP8 (encode and dispatch)" : "bf16");
  const double release = timeUs(ranks, [&](int r) { ranks.release(r); });
  printf("  release %.2f us\n  tokens blocks  dispatch   cached  combine\n", release);
  for (const uint32_t tokens : {0u, 1u, 8u, 32u, 128u, 512u}) {
    for (const int blocks : grids) {
      const auto dispatch = [&](int r) {
        ranks.encode(r, tokens, blocks);
        ranks.dispatch(r, tokens, blocks);
      };
      const double released = timeUs(ranks, [&](int r) {
        dispatch(r);
        ranks.release(r);
      });
      checkReport("a dispatch", ranks.dispatched(0));
      for (int r = 0; r < world; r++) ranks.plan(r, tokens, blocks);
      CHECK_CUDA(cudaDeviceSynchronize());
      const double cached = timeUs(ranks, [&](int r) {
        ranks.encode(r, tokens, blocks);
        ranks.dispatchCached(r, tokens, blocks);
        ranks.release(r);
      });
      checkReport("a dispatch with a cached routing", ranks.dispatched(0));
      const double combined = timeUs(ranks, [&](int r) {
        dispatch(r);
        ranks.combine(r, blocks);
      });
      checkReport("a combine", ranks.combined(0));
      printf("  %6u %6d %9.2f %8.2f %8.2f\n", tokens, blocks, released - release, cached - release, combined - released + release);
      fflush(stdout);
      if (hasStopped(ranks.group())) exit(1);
    }
  }
  const uint32_t stop = 1;
  for (int r = 0; r < world; r++) {
    CHECK_CUDA(cudaMemcpy(&ranks.group().state(r)->start.stop, &stop, 4, cudaMemcpyHostToDevice));
  }
  for (const int blocks : grids) printf("  empty, %d blocks: %.2f us\n", blocks, timeUs(ranks, [&](int r) { ranks.dispatch(r, 1, blocks); }));
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 2);
  const bool isHt = argc > 2 && strcmp(argv[2], "ht") == 0;
  CHECK(isHt || argc <= 2 || strcmp(argv[2], "ll") == 0);
  const int world = argc > 3 ? atoi(argv[3]) : 2;
  std::vector<int> grids;
  for (int i = 4; i < argc; i++) grids.push_back(atoi(argv[i]));
  if (grids.empty()) grids = {16, 32, 64};
  for (const bool isFP8 : {false, true}) table(argv[1], world, isHt, isFP8, grids);
  return 0;
}
