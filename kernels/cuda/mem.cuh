// The GPU target's memory: packets and words in system scope, waits with a deadline and an abort.
#ifndef RAILHEAD_KERNELS_CUDA_MEM_CUH_
#define RAILHEAD_KERNELS_CUDA_MEM_CUH_

#include "railhead/base/target.h"
#include "railhead/exchange/block_exchange.h"
#include "railhead/exchange/packet_exchange.h"

namespace railhead::cuda {

// What a wait reads, and what it reports. In memory that the host maps.
struct WaitControl {
  const uint32_t* abortWord;  // 0 = no abort
  uint64_t timeoutNs;         // of all waits of a kernel together, from the first poll that finds nothing
  uint32_t* stop;             // a Stop: why a thread gave up
  uint64_t* missing;          // bit r: rank r had not arrived when a thread gave up, or made a bad offer
};

class Mem {
 public:
  static constexpr int kPacketBatch = 8;  // 8 ranks of 32 bytes: 64 registers of loads in flight
  static constexpr uint32_t kEpochMask = 0xffffffffu;

  RH_FN explicit Mem(const WaitControl& control) : control_(control) {}

  RH_FN void storePacket(Packet* p, const Packet& v) {
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(v.e[0]), "l"(v.e[1]) : "memory");
  }
  RH_FN Packet loadPacket(const Packet* p) {
    Packet v;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(v.e[0]), "=l"(v.e[1]) : "l"(p) : "memory");
    return v;
  }
  RH_FN void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

  // The abort word is in host memory, and reading the clock is slow. Both are checked once in kPollsPerCheck turns.
  RH_FN bool keepWaiting() {
    if ((++polls_ & (kPollsPerCheck - 1)) != 0) return true;
    uint32_t aborted;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(aborted) : "l"(control_.abortWord) : "memory");
    if (aborted != 0) return giveUp(Stop::kAborted);
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (since_ == 0) since_ = now;
    return now - since_ <= control_.timeoutNs || giveUp(Stop::kTimeout);
  }
  RH_FN void refuse(int r) {
    missing(r);
    giveUp(Stop::kBadOffer);
  }
  RH_FN void missing(int r) { atomicOr(reinterpret_cast<unsigned long long*>(control_.missing), 1ull << r); }

  RH_FN uint32_t loadState(const uint32_t* p) { return *p; }
  RH_FN void storeState(uint32_t* p, uint32_t v) { *p = v; }
  RH_FN uint64_t loadState(const uint64_t* p) { return *p; }
  RH_FN void storeState(uint64_t* p, uint64_t v) { *p = v; }
  RH_FN void blockSync() { __syncthreads(); }
  RH_FN bool blockAll(bool v) { return __syncthreads_and(v) != 0; }
  RH_FN uint64_t* blockWords() {
    __shared__ uint64_t words[2 * kMaxWorldSize];
    return words;
  }

  RH_FN uint64_t loadFlagAcquire(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  RH_FN void storeFlagRelease(uint64_t* p, uint64_t v) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
  RH_FN uint64_t loadFlag(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  RH_FN void storeFlag(uint64_t* p, uint64_t v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
  RH_FN uint64_t loadOffer(const uint64_t* p) { return loadFlag(p); }
  RH_FN void storeOffer(uint64_t* p, uint64_t v) { *p = v; }
  template <class Elements>
  RH_FN typename Elements::Raw loadElements(const char* base, uint64_t tile, size_t count) {
    return Elements::load(base + tile * 16, 0, count - tile * Elements::kElements);
  }
  template <class Elements>
  RH_FN void storeElements(char* base, uint64_t tile, size_t count, const typename Elements::Raw& raw) {
    Elements::store(base + tile * 16, 0, count - tile * Elements::kElements, raw);
  }
  RH_FN bool countBlock(uint32_t* word) {
    if (gridDim.x == 1) return true;
    if (atomicAdd(word, 1u) != gridDim.x - 1) return false;
    *word = 0;
    return true;
  }

  RH_FN uint32_t thread() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  RH_FN uint32_t threads() const { return gridDim.x * blockDim.x; }
  RH_FN uint32_t threadInBlock() const { return threadIdx.x; }
  RH_FN uint32_t block() const { return blockIdx.x; }
  RH_FN uint32_t blockThreads() const { return blockDim.x; }
  RH_FN float rsqrt(float v) const { return rsqrtf(v); }

  // A row is assigned to a cluster of blocks. Spread over several multiprocessors, its loads and stores take less time.
  RH_FN uint32_t row() const { return blockIdx.x / clusterBlocks(); }
  RH_FN uint32_t rows() const { return gridDim.x / clusterBlocks(); }
  RH_FN uint32_t threadInRow() const { return clusterRank() * blockDim.x + threadIdx.x; }
  RH_FN uint32_t rowThreads() const { return clusterBlocks() * blockDim.x; }

  // The sum of v over the row's threads, in all of them, always added in the same order. blockDim.x is a multiple of 32.
  RH_FN float rowSum(float v) const {
    __shared__ float warps[32];
    __shared__ float block;
    v = warpSum(v);
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
      v = warpSum(threadIdx.x < blockDim.x >> 5 ? warps[threadIdx.x] : 0.f);
      if (threadIdx.x == 0) block = v;
    }
    // Arrives with release and waits with acquire: the blocks' sums are then readable. They must not change before the second one.
    clusterSync();
    float total = 0;
    RH_ROLLED
    for (uint32_t b = 0; b < clusterBlocks(); b++) total += readShared(&block, b);
    clusterSync();
    return total;
  }

 private:
  static constexpr uint32_t kPollsPerCheck = 256;

  RH_FN static uint32_t clusterBlocks() {
    uint32_t n;
    asm("mov.u32 %0, %cluster_nctaid.x;" : "=r"(n));
    return n;
  }
  RH_FN static uint32_t clusterRank() {
    uint32_t n;
    asm("mov.u32 %0, %cluster_ctaid.x;" : "=r"(n));
    return n;
  }
  RH_FN static void clusterSync() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  }
  // A float in the shared memory of another block of the cluster.
  RH_FN static float readShared(const float* own, uint32_t rank) {
    const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(own));
    uint32_t there;
    float v;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
  }
  RH_FN static float warpSum(float v) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
  }

  RH_FN bool giveUp(Stop why) {
    *control_.stop = static_cast<uint32_t>(why);
    return false;
  }

  const WaitControl& control_;
  uint32_t polls_ = 0;
  uint64_t since_ = 0;
};

}  // namespace railhead::cuda

#endif  // RAILHEAD_KERNELS_CUDA_MEM_CUH_
