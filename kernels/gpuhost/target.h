// The GPU kernels on a CPU, for tests: a kernel is one block of one thread, on memory of the host.
#ifndef RAILHEAD_KERNELS_GPUHOST_TARGET_H_
#define RAILHEAD_KERNELS_GPUHOST_TARGET_H_

#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "gpuhost/kernels.h"
#include "railhead/base/target.h"
#include "railhead/exchange/inbox.h"
#include "railhead/gpu/context.h"

namespace railhead::gpuhost {

class Target {
 public:
  static constexpr bool kSurvivesDeaths = false;
  static constexpr uint32_t kControlThreads = 1;
  static constexpr uint32_t kEpochMask = 0xffffffffu, kMeetingMask = 0xffffffffu;
  static constexpr int kCellBatch = 4, kPacketBatch = 4, kPullBatch = 4;

  // grid: what was asked for. It runs as one thread nevertheless.
  Target(gpu::Shared* shared, Grid grid) : shared_(shared), grid_(grid) {}
  uint32_t launchedBlocks() const { return grid_.blocks; }
  uint32_t launchedThreads() const { return grid_.threads; }

  void storePacket(Packet* p, const Packet& v) {
    __atomic_store_n(&p->e[0], v.e[0], __ATOMIC_RELAXED);
    __atomic_store_n(&p->e[1], v.e[1], __ATOMIC_RELAXED);
  }
  Packet loadPacket(const Packet* p) { return {{__atomic_load_n(&p->e[0], __ATOMIC_RELAXED), __atomic_load_n(&p->e[1], __ATOMIC_RELAXED)}}; }
  Packet loadPacketAcquire(const Packet* p) { return {{__atomic_load_n(&p->e[0], __ATOMIC_ACQUIRE), __atomic_load_n(&p->e[1], __ATOMIC_ACQUIRE)}}; }
  void arrived(const Packet*) {}
  void fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

  uint32_t loadFlagAcquire(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
  uint32_t loadFlag(const uint32_t* p) { return loadHost(p); }
  void storeFlagRelease(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
  void storeFlag(uint32_t* p, uint32_t v) { storeHost(p, v); }

  template <class Elements>
  typename Elements::Raw loadElements(const Elements& e, const char* base, uint64_t tile, size_t count) {
    return e.load(base, tile, count);
  }
  template <class Elements>
  void storeElements(char* base, uint64_t tile, size_t count, const typename Elements::Raw& raw) {
    Elements::store(base, tile, count, raw);
  }

  void storeSlotTile(char* p, const Raw16& raw) { memcpy(p, &raw, sizeof raw); }
  Raw16 loadSlotTile(const char* p) {
    Raw16 raw;
    memcpy(&raw, p, sizeof raw);
    return raw;
  }
  void storeSlotWord(uint64_t* p, uint64_t v) { *p = v; }
  uint64_t loadSlotWord(const uint64_t* p) { return *p; }

  uint32_t loadState(const uint32_t* p) { return *p; }
  uint64_t loadState(const uint64_t* p) { return *p; }
  void storeState(uint32_t* p, uint32_t v) { *p = v; }
  void storeState(uint64_t* p, uint64_t v) { *p = v; }
  void addOne(uint32_t* p) { __atomic_fetch_add(p, 1, __ATOMIC_RELAXED); }
  void addFlag(uint32_t* p) { addOne(p); }
  uint32_t loadOwn(const uint32_t* p) { return loadHost(p); }
  uint64_t loadOwn(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
  void storeOwn(uint32_t* p, uint32_t v) { storeHost(p, v); }
  void storeOwn(uint64_t* p, uint64_t v) { storeHost(p, v); }
  uint32_t compareSwap(uint32_t* p, uint32_t expected, uint32_t desired) {
    __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
  }

  uint32_t loadHost(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
  void storeHost(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
  void storeHost(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
  void storeHostRelease(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

  uint64_t nowNs() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
  }
  // There may be more ranks than processors. A rank that waits for long leaves them to other work: a kernel that has waited for about a tenth of
  // a second in all naps longer.
  void pause() {
    constexpr timespec kNap = {0, 50 * 1000}, kLongNap = {0, 1000 * 1000};
    if (++pauses_ > 1000 && pauses_ % 16 == 0) nanosleep(pauses_ > 16000 ? &kLongNap : &kNap, nullptr);
    else sched_yield();
  }

  char* once(char* p) const { return p; }

  uint32_t gridThread() const { return 0; }
  uint32_t gridThreads() const { return 1; }
  uint32_t block() const { return 0; }
  uint32_t blocks() const { return 1; }
  uint32_t threadInBlock() const { return 0; }
  uint32_t blockThreads() const { return 1; }
  uint32_t dataThreadsInBlock() const { return 1; }
  void dataSync() {}
  void controlSync() {}
  bool dataAll(bool v) { return v; }
  bool controlAll(bool v) { return v; }
  uint64_t loadShared(const uint64_t* p) { return *p; }
  void storeShared(uint64_t* p, uint64_t v) { *p = v; }
  gpu::Shared& shared() { return *shared_; }

 private:
  gpu::Shared* shared_;
  Grid grid_;
  uint32_t pauses_ = 0;  // of the kernel
};

using Context = gpu::Context<Target>;

}  // namespace railhead::gpuhost

#endif  // RAILHEAD_KERNELS_GPUHOST_TARGET_H_
