// Runs of a rank's state (device_state.h): streams that take it by a compare-and-swap, which races with the store by which another one gives
// it back.
#ifndef RAILHEAD_KERNELS_MODEL_STREAM_RUN_H_
#define RAILHEAD_KERNELS_MODEL_STREAM_RUN_H_

#include <string>

#include "model/mem.h"
#include "railhead/base/device_state.h"

namespace railhead::model {

struct StreamShape {
  int streams = 2;
  int operations = 2;    // of each stream
  bool ordered = false;  // the streams run in turn, ordered by an event
};

// An operation adds 1 to two words of the rank's heap, which are equal between operations. A stream that is refused skips its operation.
class StreamRun {
 public:
  StreamRun(World& world, const StreamShape& shape) : world_(world), shape_(shape) {
    world.memory.add(&state_.holder, 4, 4, [](size_t) { return std::string("holder"); });
    world.memory.add(heap_, sizeof heap_, 8, [](size_t unit) { return "heap word " + std::to_string(unit); });
    world.memory.add(&event_, 4, 4, [](size_t) { return std::string("event"); });
    for (int s = 0; s < shape.streams; s++) world.addFiber(0, s, [this, s] { run(static_cast<uint32_t>(s)); });
  }

  // After the run.
  std::string check() {
    if (newest(&state_.holder, 4) != 0) return "the state is held, and no stream runs";
    for (const uint64_t& word : heap_) {
      if (newest(&word, 8) != ran_) return std::to_string(ran_) + " operations ran, a heap word counts " + std::to_string(newest(&word, 8));
    }
    return "";
  }

 private:
  uint64_t newest(const void* p, size_t bytes) { return world_.memory.at(world_.memory.find(p, bytes)).newest().value; }

  void run(uint32_t stream) {
    FlagMem mem(world_);
    for (int n = 0; n < shape_.operations; n++) {
      const auto turn = static_cast<uint32_t>(n * shape_.streams) + stream;
      if (shape_.ordered) await(mem, turn);
      operate(mem, stream + 1);
      if (shape_.ordered) mem.storeRelease(&event_, turn + 1, "");
    }
  }
  void await(FlagMem& mem, uint32_t turn) {
    while (mem.loadAcquire(&event_, "") != turn) world_.keepWaiting();
  }
  void operate(FlagMem& mem, uint32_t stream) {
    uint32_t holder = 0;
    if (!takeState(mem, &state_, stream, &holder)) {
      if (shape_.ordered) world_.fail("stream %u is refused, since stream %u holds the state, which ran before it", stream, holder);
      if (holder == stream || holder > static_cast<uint32_t>(shape_.streams)) world_.fail("stream %u is refused because of stream %u", stream, holder);
      return;
    }
    const uint64_t before = world_.load(&heap_[0], 8, Order::kPlain, "load");
    world_.store(&heap_[0], 8, before + 1, Order::kPlain, "store");
    if (world_.load(&heap_[1], 8, Order::kPlain, "load") != before) world_.fail("stream %u reads an operation that has not ended", stream);
    world_.store(&heap_[1], 8, before + 1, Order::kPlain, "store");
    ran_++;
    giveStateBack(mem, &state_);
  }

  World& world_;
  const StreamShape& shape_;
  DeviceState state_ = {};
  uint64_t heap_[2] = {};
  uint32_t event_ = 0;
  uint64_t ran_ = 0;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_STREAM_RUN_H_
