// What a thread of a kernel of dispatch and combine runs on in the model.
#ifndef RAILHEAD_KERNELS_MODEL_GPU_EP_TARGET_H_
#define RAILHEAD_KERNELS_MODEL_GPU_EP_TARGET_H_

#include <deque>

#include "model/gpu_run.h"
#include "railhead/gpu/ep_slots.h"

namespace railhead::model {

// Words that only a rank's own kernels use, and the caller's rows are plain: the order of kernels, barriers, and the wait for all blocks must order
// them. The words of control (gpu_run.h) may race.
class GpuEpTarget : public GpuTarget {
 public:
  struct Private {
    const char *begin, *end;
    bool has(const void* p) const { return p >= begin && p < end; }
  };

  GpuEpTarget(World& world, Grid& grid, std::deque<gpu::EpShared>& shared, Private own, Private state, int thread)
      : GpuTarget(world, grid, thread), world_(&world), shared_(&shared), own_(own), state_(state) {}

  gpu::EpShared& epShared() { return (*shared_)[block()]; }
  // Shared memory of a block is not part of the model's memory.
  uint32_t sharedOr(uint32_t* p, uint32_t bits) {
    const uint32_t old = *p;
    *p |= bits;
    return old;
  }
  static constexpr bool kSurvivesDeaths = true, kPlans = true;
  static constexpr uint32_t kLanes = 1;
  uint64_t laneSums(uint64_t v) { return v; }
  void add(uint32_t* p, uint32_t n, const char* in = __builtin_FUNCTION()) { world_->add(p, 4, n, "add", in); }
  void add(uint64_t*, uint64_t) { world_->fail("the buffers have no counters"); }
  uint32_t fetchAdd(uint32_t* p, uint32_t n, const char* in = __builtin_FUNCTION()) { return static_cast<uint32_t>(world_->add(p, 4, n, "add", in)); }
  void fenceDevice(const char* in = __builtin_FUNCTION()) { world_->fence(Fence::kBoth, in); }
  void sharedAdd(uint32_t* p, uint32_t n) { *p += n; }
  void sharedMin(uint32_t* p, uint32_t v) { *p = v < *p ? v : *p; }
  void sharedMax(uint32_t* p, uint32_t v) { *p = v > *p ? v : *p; }

  void storeFlag(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) { world_->store(p, 4, v, Order::kRelaxed, "store", in); }
  void storePacket(Packet* p, const Packet& v, const char* in = __builtin_FUNCTION()) {
    world_->store(&p->e[0], 8, v.e[0], Order::kRelaxed, "store", in);
    world_->store(&p->e[1], 8, v.e[1], Order::kRelaxed, "store", in);
  }
  uint32_t loadState(const uint32_t* p) {
    return isPlain(p) ? static_cast<uint32_t>(world_->load(p, 4, Order::kPlain, "load")) : GpuTarget::loadState(p);
  }
  uint64_t loadState(const uint64_t* p) { return isPlain(p) ? world_->load(p, 8, Order::kPlain, "load") : GpuTarget::loadState(p); }
  void storeState(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) {
    if (!isPlain(p)) return GpuTarget::storeState(p, v, in);
    world_->store(p, 4, v, Order::kPlain, "store");
  }
  void storeState(uint64_t* p, uint64_t v, const char* in = __builtin_FUNCTION()) {
    if (!isPlain(p)) return GpuTarget::storeState(p, v, in);
    world_->store(p, 8, v, Order::kPlain, "store");
  }
  uint64_t loadSlotWord(const uint64_t* p) { return world_->load(p, 8, Order::kPlain, "load"); }
  void storeSlotWord(uint64_t* p, uint64_t v) { world_->store(p, 8, v, Order::kPlain, "store"); }
  Raw16 loadSlotTile(const char* p) {
    Raw16 raw;
    for (int i = 0; i < 2; i++) {
      const uint64_t v = world_->load(p + 8 * i, 8, Order::kPlain, "load");
      memcpy(&raw.w[2 * i], &v, 8);
    }
    return raw;
  }
  void storeSlotTile(char* p, const Raw16& raw) {
    for (int i = 0; i < 2; i++) {
      uint64_t v;
      memcpy(&v, &raw.w[2 * i], 8);
      world_->store(p + 8 * i, 8, v, Order::kPlain, "store");
    }
  }

 private:
  bool isPlain(const void* p) const { return own_.has(p) || state_.has(p); }

  World* world_;
  std::deque<gpu::EpShared>* shared_;
  Private own_, state_;
};
using GpuEpContext = gpu::Context<GpuEpTarget>;

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_GPU_EP_TARGET_H_
