// The target of dispatch and combine on a CPU: it has shared memory of its own, and atomic operations there.
#ifndef RAILHEAD_KERNELS_GPUHOST_EP_TARGET_H_
#define RAILHEAD_KERNELS_GPUHOST_EP_TARGET_H_

#include "gpuhost/target.h"
#include "railhead/gpu/ep_slots.h"

namespace railhead::gpuhost {

class EpTarget : public Target {
 public:
  EpTarget(gpu::Shared* shared, gpu::EpShared* ep, Grid grid) : Target(shared, grid), ep_(ep) {}
  gpu::EpShared& epShared() { return *ep_; }
  static constexpr bool kSurvivesDeaths = true, kPlans = true;
  static constexpr uint32_t kLanes = 1;
  uint64_t laneSums(uint64_t v) { return v; }
  void fenceDevice() { fence(); }
  void add(uint32_t* p, uint32_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
  uint32_t fetchAdd(uint32_t* p, uint32_t n) { return __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
  void add(uint64_t* p, uint64_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
  // One thread has them.
  uint32_t sharedOr(uint32_t* p, uint32_t bits) {
    const uint32_t old = *p;
    *p |= bits;
    return old;
  }
  void sharedAdd(uint32_t* p, uint32_t n) { *p += n; }
  void sharedMin(uint32_t* p, uint32_t v) { *p = v < *p ? v : *p; }
  void sharedMax(uint32_t* p, uint32_t v) { *p = v > *p ? v : *p; }

 private:
  gpu::EpShared* ep_;
};

using EpContext = gpu::Context<EpTarget>;

}  // namespace railhead::gpuhost

#endif  // RAILHEAD_KERNELS_GPUHOST_EP_TARGET_H_
