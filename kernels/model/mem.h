// The model target's memory, in two personalities: packets and flags of blocks, as on a GPU, and flags, as on a CPU.
#ifndef RAILHEAD_KERNELS_MODEL_MEM_H_
#define RAILHEAD_KERNELS_MODEL_MEM_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <vector>

#include "model/world.h"
#include "railhead/exchange/inbox.h"

namespace railhead::model {

// A block and the grid of one kernel of one rank, shared by its threads.
struct Block {
  Barrier barrier;
  std::vector<float> partial;
};
struct Grid {
  int blocks, blockThreads;
  std::vector<Block> block;
};

// A tile of a window. Each element is a location.
template <class Elements>
typename Elements::Raw loadWindow(World& world, const char* base, uint64_t tile, size_t count) {
  typename Elements::Raw raw = {};
  for (size_t i = 0; i < Elements::kElements && tile * Elements::kElements + i < count; i++) {
    raw.w[i] = static_cast<uint32_t>(world.load(base + (tile * Elements::kElements + i) * 4, 4, Order::kPlain, "load"));
  }
  return raw;
}
template <class Elements>
void storeWindow(World& world, char* base, uint64_t tile, size_t count, const typename Elements::Raw& raw) {
  for (size_t i = 0; i < Elements::kElements && tile * Elements::kElements + i < count; i++) {
    world.store(base + (tile * Elements::kElements + i) * 4, 4, raw.w[i], Order::kPlain, "store");
  }
}

// Cells and packets of one kernel of one rank.
class PacketMem {
 public:
  static constexpr int kCellBatch = 2, kPacketBatch = 2;
  static constexpr uint32_t kEpochMask = 15;

  // abortWord may be null. epoch: the last one used before this kernel.
  PacketMem(World& world, Grid& grid, int thread, const uint32_t* abortWord, uint32_t epoch)
      : world_(world), grid_(grid), thread_(static_cast<uint32_t>(thread)), abortWord_(abortWord), epoch_(epoch) {}

  // Two elements, stored one after the other.
  void storePacket(Packet* p, const Packet& v) {
    world_.store(&p->e[0], 8, v.e[0], Order::kRelaxed, "store");
    world_.store(&p->e[1], 8, v.e[1], Order::kRelaxed, "store");
  }
  Packet loadPacket(const Packet* p) {
    Packet v;
    v.e[0] = world_.load(&p->e[0], 8, Order::kRelaxed, "load");
    v.e[1] = world_.load(&p->e[1], 8, Order::kRelaxed, "load");
    return v;
  }
  void arrived(const Packet* p) {
    world_.load(&p->e[0], 8, Order::kArrived, "load arrived");
    world_.load(&p->e[1], 8, Order::kArrived, "load arrived");
  }
  bool keepWaiting() {
    if (abortWord_ != nullptr && world_.load(abortWord_, 4, Order::kAcquire, "load.acquire", __builtin_FUNCTION()) != 0) return false;
    world_.keepWaiting();
    return true;
  }
  void endWait() {}
  void giveUp(uint64_t missing) { missing_ |= missing; }
  uint64_t missing() const { return missing_; }
  void fence(const char* in = __builtin_FUNCTION()) { world_.fence(Fence::kBoth, in); }
  bool begin(bool, uint32_t* epoch) {
    *epoch = epoch_;
    return true;
  }

  uint32_t thread() const { return thread_; }
  uint32_t threads() const { return static_cast<uint32_t>(grid_.blocks * grid_.blockThreads); }

  // A row is assigned to a block.
  uint32_t row() const { return thread_ / rowThreads(); }
  uint32_t rows() const { return static_cast<uint32_t>(grid_.blocks); }
  uint32_t threadInRow() const { return thread_ % rowThreads(); }
  uint32_t rowThreads() const { return static_cast<uint32_t>(grid_.blockThreads); }
  float rsqrt(float v) const { return v; }
  float rowSum(float v) {
    Block& mine = grid_.block[row()];
    mine.partial[threadInRow()] = v;
    world_.meet(mine.barrier, false);
    float sum = 0;
    for (float p : mine.partial) sum += p;
    world_.meet(mine.barrier, false);
    return sum;
  }

 private:
  World& world_;
  Grid& grid_;
  uint32_t thread_;
  const uint32_t* abortWord_;
  uint32_t epoch_;
  uint64_t missing_ = 0;
};

class FlagMem {
 public:
  static constexpr uint32_t kGenerationMask = 15;
  static constexpr uint32_t kStep = 1;  // an access moves one tile

  explicit FlagMem(World& world) : world_(world) {}

  uint32_t loadAcquire(const uint32_t* p, const char* in = __builtin_FUNCTION()) { return static_cast<uint32_t>(world_.load(p, 4, Order::kAcquire, "load.acquire", in)); }
  uint32_t loadRelaxed(const uint32_t* p) { return static_cast<uint32_t>(world_.load(p, 4, Order::kRelaxed, "load")); }
  void storeRelease(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) { world_.store(p, 4, v, Order::kRelease, "store.release", in); }
  void storeRelaxed(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) { world_.store(p, 4, v, Order::kRelaxed, "store", in); }
  void add(uint32_t* p, uint32_t v, const char* in = __builtin_FUNCTION()) { world_.add(p, 4, v, "add", in); }
  uint32_t swapAcquire(uint32_t* p, uint32_t expected, uint32_t v, const char* in = __builtin_FUNCTION()) {
    return static_cast<uint32_t>(world_.swap(p, 4, expected, v, Order::kAcquire, "swap.acquire", in));
  }
  void fence(const char* in = __builtin_FUNCTION()) { world_.fence(Fence::kConsistent, in); }
  void fenceRelease(const char* in = __builtin_FUNCTION()) { world_.fence(Fence::kRelease, in); }
  void fenceAcquire(const char* in = __builtin_FUNCTION()) { world_.fence(Fence::kAcquire, in); }
  uint64_t loadWord(const uint64_t* p) { return world_.load(p, 8, Order::kRelaxed, "load"); }
  void storeWord(uint64_t* p, uint64_t v, const char* in = __builtin_FUNCTION()) { world_.store(p, 8, v, Order::kRelaxed, "store", in); }
  uint64_t loadArrivedWord(const uint64_t* p) { return world_.load(p, 8, Order::kArrived, "load arrived"); }
  uint64_t loadWordAcquire(const uint64_t* p, const char* in = __builtin_FUNCTION()) { return world_.load(p, 8, Order::kAcquire, "load.acquire", in); }
  void storeWordRelease(uint64_t* p, uint64_t v, const char* in = __builtin_FUNCTION()) { world_.store(p, 8, v, Order::kRelease, "store.release", in); }
  void report(uint64_t*, uint64_t) {}  // no rank of the model reads it

  void futexWait2(const uint32_t* a, uint32_t va, const uint32_t* b, uint32_t vb, int64_t) {
    const uint32_t* const words[] = {a, b};
    const uint32_t values[] = {va, vb};
    world_.futexWaitAny(words, values, 2);
  }
  void futexWaitAny(const uint32_t* const* words, const uint32_t* values, int n, int64_t) { world_.futexWaitAny(words, values, n); }
  void futexWakeAll(const uint32_t* p, const char* in = __builtin_FUNCTION()) { world_.futexWakeAll(p, in); }
  // Time stands still unless the world lets it pass. With spinNs = 0, spinning then ends when the clock is first read, and a deadline
  // never passes.
  int64_t nowNs() {
    world_.unspin();
    return world_.readClock();
  }
  void relax() { world_.relax(); }
  void yield() {}

  // A tile is one location: a stale one shows in the result.
  template <class Raw>
  Raw loadTile(const char* p, uint32_t) {
    static_assert(sizeof(Raw) == 8);
    const uint64_t v = world_.load(p, 8, Order::kPlain, "load tile");
    Raw raw;
    memcpy(&raw, &v, 8);
    return raw;
  }
  template <class Raw>
  Raw takeTile(const char* p, uint32_t tiles) {
    return loadTile<Raw>(p, tiles);
  }
  template <class Raw>
  void storeTile(char* p, const Raw& raw, uint32_t) {
    static_assert(sizeof(Raw) == 8);
    uint64_t v;
    memcpy(&v, &raw, 8);
    world_.store(p, 8, v, Order::kPlain, "store tile");
  }
  uint64_t loadOffer(const uint64_t* p) { return world_.load(p, 8, Order::kRelaxed, "load"); }
  void storeOffer(uint64_t* p, uint64_t v, const char* in = __builtin_FUNCTION()) { world_.store(p, 8, v, Order::kRelaxed, "store", in); }
  // Chunks in slots: a location is 4 bytes.
  void copyToSlot(char* slot, const char* from, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += 4) world_.store(slot + i, 4, *reinterpret_cast<const uint32_t*>(from + i), Order::kPlain, "store");
  }
  void copyFromSlot(char* to, const char* slot, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += 4) *reinterpret_cast<uint32_t*>(to + i) = static_cast<uint32_t>(world_.load(slot + i, 4, Order::kPlain, "load"));
  }
  void copyLocal(char* to, const char* from, uint64_t bytes) { memcpy(to, from, bytes); }
  void clearLocal(char* to, uint64_t bytes) { memset(to, 0, bytes); }
  void fanOutFromSlot(const char* slot, void* const* to, uint32_t n, uint32_t bytes, bool) {
    for (uint32_t i = 0; i < n; i++) copyFromSlot(static_cast<char*>(to[i]), slot, bytes);
  }
  void fanOutLocal(const char* from, void* const* to, uint32_t n, uint32_t bytes, bool) {
    for (uint32_t i = 0; i < n; i++) copyLocal(static_cast<char*>(to[i]), from, bytes);
  }
  // A rank is one thread.
  uint32_t row() const { return 0; }
  uint32_t rows() const { return 1; }
  template <class Raw>
  Raw loadSlotTile(const char* p, uint32_t) {
    Raw raw;
    copyFromSlot(reinterpret_cast<char*>(&raw), p, sizeof raw);
    return raw;
  }
  template <class Raw>
  void storeSlotTile(char* p, const Raw& raw) {
    copyToSlot(p, reinterpret_cast<const char*>(&raw), sizeof raw);
  }
  // Tiles of this rank's own memory.
  template <class Raw>
  Raw loadLocalTile(const char* p, uint32_t) {
    Raw raw;
    memcpy(&raw, p, sizeof raw);
    return raw;
  }
  template <class Raw>
  void storeLocalTile(char* p, const Raw& raw) {
    memcpy(p, &raw, sizeof raw);
  }
  template <class Elements>
  typename Elements::Raw loadElements(const char* base, uint64_t tile, size_t count) {
    return loadWindow<Elements>(world_, base, tile, count);
  }
  template <class Elements>
  void storeElements(char* base, uint64_t tile, size_t count, const typename Elements::Raw& raw) {
    storeWindow<Elements>(world_, base, tile, count, raw);
  }

 private:
  World& world_;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_MEM_H_
