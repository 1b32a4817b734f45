// Control of a GPU kernel by more than one thread (railhead/gpu/control.h): one control thread finds that its rank has called something else, the
// other one hears from its rank. The kernel has not ended then: its mark is not counted, and its stream keeps the comm. And another stream may have the
// comm: then the kernel stops at once, whether the other ranks have called or not.
#include "check.h"
#include "gpu_group.h"
#include "gpu_threads.h"
#include "railhead/gpu/all_reduce.h"

namespace {

constexpr int kWorld = 3;
constexpr int kNone = -1;
constexpr gpuhost::Grid kGrid = {1, 4};  // two data threads and two of control

// A thread of a block whose last threads are control.
class ControlTarget : public ThreadTarget {
 public:
  static constexpr uint32_t kControlThreads = 2;

  ControlTarget(std::deque<ThreadBlock>* blocks, ThreadBarrier* control, uint32_t thread) : ThreadTarget(blocks, kGrid, thread), control_(control) {}

  uint32_t dataThreadsInBlock() const { return kGrid.threads - kControlThreads; }
  void controlSync() { control_->meet(true); }
  bool controlAll(bool v) { return control_->meet(v); }

 private:
  ThreadBarrier* control_;
};

template <class C>
void run(C& c, Way way) {
  c.setWay(way);
  runKernel<Cells<C>, Packets<C>>(c, Used{}, [](C& thread) { return thread.join(); });
}

// Runs the kernel of rank 0.
void runGridOf(const Call& call, Way way) {
  std::deque<ThreadBlock> blocks;
  blocks.emplace_back(kGrid.threads - ControlTarget::kControlThreads);
  ThreadBarrier control(ControlTarget::kControlThreads);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kGrid.threads; t++) {
    threads.emplace_back([&, t] {
      gpu::Context<ControlTarget> c(call, ControlTarget(&blocks, &control, t));
      run(c, way);
    });
  }
  for (std::thread& t : threads) t.join();
}

// Rank `odd` calls another count; kNone: none does. All calls have come before rank 0 begins. Control thread 0 compares ranks 0 and 2, thread 1, which counts, rank 1.
void differs(int odd) {
  Group group(kWorld);
  const Way way = 1;
  const auto callOf = [&](int r) {
    Call c = group.call(r);
    c.team.waitPolls = 1u << 30;  // no thread looks what the others have found
    c.call.count = r == odd ? 7 : 5;
    return c;
  };
  for (int r = 1; r < kWorld; r++) {
    gpu::Shared shared = {};
    const Call call = callOf(r);
    gpuhost::Context c(call, gpuhost::Target(&shared, {1, 1}));
    c.setWay(way);
    CHECK(c.join());  // publishes the call
  }
  const Call call = callOf(0);
  runGridOf(call, way);
  const GpuState& state = *group.state(0);
  if (odd == kNone) {
    CHECK(group.status[0].stop == 0 && state.lines == 1 && state.device.holder == 0 && state.device.begun == 1);
    return;
  }
  CHECK(group.status[0].stop == static_cast<uint32_t>(Stop::kMismatch) && group.status[0].missing == uint64_t{1} << odd);
  CHECK(state.lines == 0 && state.device.holder == call.stream);
}

// No other rank calls.
void clashes() {
  constexpr uint32_t kOther = 5;
  Group group(kWorld);
  GpuState& state = *group.state(0);
  state.device.holder = kOther;
  const Call call = group.call(0, 10000000000);  // at its end the kernel would report a time-out
  runGridOf(call, 1);
  CHECK(group.status[0].stop == static_cast<uint32_t>(Stop::kAborted) && group.status[0].clash == (uint64_t{call.stream} << 32 | kOther));
  CHECK(state.device.holder == kOther && state.device.begun == 0 && state.lines == 0);
}

}  // namespace

int main() {
  for (const int odd : {kNone, 1, 2}) differs(odd);
  clashes();
  return 0;
}
