// The GPU target: loads and stores in PTX's orders and scopes, threads, the clock.
#ifndef RAILHEAD_KERNELS_CUDA_TARGET_CUH_
#define RAILHEAD_KERNELS_CUDA_TARGET_CUH_

#include "railhead/base/target.h"
#include "railhead/exchange/inbox.h"
#include "railhead/gpu/context.h"

namespace railhead::cuda {

class Target {
 public:
  static constexpr bool kSurvivesDeaths = false;
  static constexpr uint32_t kControlThreads = 32;
  static constexpr uint32_t kEpochMask = 0xffffffffu, kMeetingMask = 0xffffffffu;
  // Ranks whose tiles are in flight together, where the world size is not known: 16, 32 and 16 registers.
  static constexpr int kCellBatch = 4, kPacketBatch = 4, kPullBatch = 4;

  // Packets and cells.
  RH_FN void storePacket(Packet* p, const Packet& v) {
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(v.e[0]), "l"(v.e[1]) : "memory");
  }
  RH_FN Packet loadPacket(const Packet* p) {
    Packet v;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(v.e[0]), "=l"(v.e[1]) : "l"(p) : "memory");
    return v;
  }
  RH_FN Packet loadPacketAcquire(const Packet* p) {
    Packet v;
    asm volatile("ld.acquire.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(v.e[0]), "=l"(v.e[1]) : "l"(p) : "memory");
    return v;
  }
  RH_FN void arrived(const Packet*) {}
  RH_FN void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

  // Flags of other ranks' blocks.
  RH_FN uint32_t loadFlagAcquire(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  RH_FN uint32_t loadFlag(const uint32_t* p) { return loadHost(p); }
  RH_FN void addFlag(uint32_t* p) { asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(p) : "memory"); }
  RH_FN void storeFlagRelease(uint32_t* p, uint32_t v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
  RH_FN void storeFlag(uint32_t* p, uint32_t v) { storeHost(p, v); }

  // Windows.
  template <class Elements>
  RH_FN typename Elements::Raw loadElements(const Elements& e, const char* base, uint64_t tile, size_t count) {
    return e.load(base, tile, count);
  }
  template <class Elements>
  RH_FN void storeElements(char* base, uint64_t tile, size_t count, const typename Elements::Raw& raw) {
    Elements::store(base, tile, count, raw);
  }

  // Slots of lanes. A flag orders them.
  RH_FN void storeSlotTile(char* p, const Raw16& raw) { *reinterpret_cast<uint4*>(p) = make_uint4(raw.w[0], raw.w[1], raw.w[2], raw.w[3]); }
  RH_FN Raw16 loadSlotTile(const char* p) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    return {{v.x, v.y, v.z, v.w}};
  }
  RH_FN void storeSlotWord(uint64_t* p, uint64_t v) { *p = v; }
  RH_FN uint64_t loadSlotWord(const uint64_t* p) { return *p; }

  // The rank's own state.
  RH_FN uint32_t loadState(const uint32_t* p) { return *p; }
  RH_FN uint64_t loadState(const uint64_t* p) { return *p; }
  RH_FN void storeState(uint32_t* p, uint32_t v) { *p = v; }
  RH_FN void storeState(uint64_t* p, uint64_t v) { *p = v; }
  RH_FN void addOne(uint32_t* p) { asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory"); }
  RH_FN uint32_t loadOwn(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  RH_FN uint64_t loadOwn(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  RH_FN void storeOwn(uint32_t* p, uint32_t v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
  RH_FN void storeOwn(uint64_t* p, uint64_t v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
  RH_FN uint32_t compareSwap(uint32_t* p, uint32_t expected, uint32_t desired) {
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(p), "r"(expected), "r"(desired) : "memory");
    return old;
  }

  // Pinned memory.
  RH_FN uint32_t loadHost(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  RH_FN void storeHost(uint32_t* p, uint32_t v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
  RH_FN void storeHost(uint64_t* p, uint64_t v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
  RH_FN void storeHostRelease(uint32_t* p, uint32_t v) { storeFlagRelease(p, v); }

  RH_FN uint64_t nowNs() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
  }

  RH_FN void pause() {}
  // The compiler would rather compute an address again at each use, which is an instruction's latency each.
  RH_FN char* once(char* p) const {
    asm volatile("" : "+l"(p));
    return p;
  }

  // Threads.
  RH_FN uint32_t gridThread() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  RH_FN uint32_t gridThreads() const { return gridDim.x * blockDim.x; }
  RH_FN uint32_t block() const { return blockIdx.x; }
  RH_FN uint32_t blocks() const { return gridDim.x; }
  RH_FN uint32_t threadInBlock() const { return threadIdx.x; }
  RH_FN uint32_t blockThreads() const { return blockDim.x; }
  RH_FN uint32_t launchedBlocks() const { return gridDim.x; }
  RH_FN uint32_t launchedThreads() const { return blockDim.x; }
  // The last warp of the grid does not handle data, unless it is the only one.
  RH_FN uint32_t dataThreadsInBlock() const {
    return blockIdx.x + 1 == gridDim.x && gridThreads() > kControlThreads ? blockDim.x - kControlThreads : blockDim.x;
  }
  // Barrier 1 is that of the block's data warps. Control's warp never comes to it.
  RH_FN void dataSync() { asm volatile("barrier.cta.sync.aligned 1, %0;" ::"r"(dataThreadsInBlock()) : "memory"); }
  RH_FN bool dataAll(bool v) {
    uint32_t all;
    __syncwarp();  // a warp's threads come from waits of different lengths, and to the barrier together
    asm volatile(
        "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.and.aligned.pred q, 1, %2, p; selp.u32 %0, 1, 0, q; }"
        : "=r"(all)
        : "r"(static_cast<uint32_t>(v)), "r"(dataThreadsInBlock())
        : "memory");
    return all != 0;
  }
  RH_FN void controlSync() { __syncwarp(); }
  RH_FN bool controlAll(bool v) { return __all_sync(0xffffffffu, v) != 0; }
  RH_FN uint64_t loadShared(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.relaxed.cta.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  RH_FN void storeShared(uint64_t* p, uint64_t v) { asm volatile("st.relaxed.cta.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
  RH_FN gpu::Shared& shared() {
    __shared__ gpu::Shared shared;
    return shared;
  }
};

using Context = gpu::Context<Target>;

}  // namespace railhead::cuda

#endif  // RAILHEAD_KERNELS_CUDA_TARGET_CUH_
