// The GPU target of dispatch and combine: it has shared memory of its own, and atomic operations there.
#ifndef RAILHEAD_KERNELS_CUDA_EP_TARGET_CUH_
#define RAILHEAD_KERNELS_CUDA_EP_TARGET_CUH_

#include "cuda/target.cuh"
#include "railhead/gpu/ep_slots.h"

namespace railhead::cuda {

class EpTarget : public Target {
 public:
  static constexpr bool kSurvivesDeaths = true, kPlans = true;
  RH_FN gpu::EpShared& epShared() {
    __shared__ gpu::EpShared shared;
    return shared;
  }
  // Threads of a warp, all of which call laneSums(): the sums of v of the lanes up to this one.
  static constexpr uint32_t kLanes = 32;
  RH_FN uint64_t laneSums(uint64_t v) {
    RH_UNROLL
    for (uint32_t distance = 1; distance < kLanes; distance *= 2) {
      const uint64_t other = __shfl_up_sync(0xffffffffu, static_cast<unsigned long long>(v), distance);
      v += threadIdx.x % kLanes >= distance ? other : 0;
    }
    return v;
  }
  // Of words that only this GPU uses.
  RH_FN void fenceDevice() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
  RH_FN void add(uint32_t* p, uint32_t n) { asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(n) : "memory"); }
  RH_FN uint32_t fetchAdd(uint32_t* p, uint32_t n) {
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(n) : "memory");
    return old;
  }
  RH_FN void add(uint64_t* p, uint64_t n) { asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(n) : "memory"); }
  // Barriers of the block order them.
  RH_FN uint32_t sharedOr(uint32_t* p, uint32_t bits) {
    uint32_t old;
    asm volatile("atom.relaxed.cta.or.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(bits) : "memory");
    return old;
  }
  RH_FN void sharedAdd(uint32_t* p, uint32_t n) { asm volatile("red.relaxed.cta.add.u32 [%0], %1;" ::"l"(p), "r"(n) : "memory"); }
  RH_FN void sharedMin(uint32_t* p, uint32_t v) { asm volatile("red.relaxed.cta.min.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
  RH_FN void sharedMax(uint32_t* p, uint32_t v) { asm volatile("red.relaxed.cta.max.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
};

using EpContext = gpu::Context<EpTarget>;

// Of calls without EpTeam::dropsDead: a shorter kernel.
class EpPlannedTarget : public EpTarget {
 public:
  static constexpr bool kSurvivesDeaths = false;
};
using EpPlannedContext = gpu::Context<EpPlannedTarget>;

// Of calls that have no plan either: shorter again.
class EpPlainTarget : public EpPlannedTarget {
 public:
  static constexpr bool kPlans = false;
};
using EpPlainContext = gpu::Context<EpPlainTarget>;

}  // namespace railhead::cuda

#endif  // RAILHEAD_KERNELS_CUDA_EP_TARGET_CUH_
