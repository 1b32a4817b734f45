// All-reduces that stand in for the GPU's kernels on the fake driver: a thread a rank, in place of blocks. They keep the ABI of
// railhead/gpu/launch.h towards the host: counting, signatures, deadlines, aborts and the status. How they exchange data is their own: a rank
// publishes a piece in its own scratch and reads those of the others.
#include <string.h>
#include <time.h>

#include "device/cuda/fake/c/hooks.h"
#include "railhead/gpu/launch.h"

using namespace railhead;
using namespace railhead::gpu;

namespace {

// A rank's words, from flagsOffset of its own scratch. The epoch is published with release, after the data and the call of the epoch. Pieces
// and calls of epoch e are at index e modulo 2: they are written again in epoch e + 2, which begins once all ranks have published e + 1, and so
// have read e.
struct Words {
  uint64_t epoch;
  struct {
    uint64_t way;
    Signature call;
  } of[2];
};

uint64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

class Rank {
 public:
  Rank(const Call& c, uint32_t algo, const fake_cuda_launch& l)
      : c_(c), t_(c.team), layout_(layoutOf(t_.worldSize, t_.slotBytes)), way_(algo | uint64_t{l.grid[0]} << 8 | uint64_t{l.block[0]} << 20 | (c.detail ^ c.detail >> 32) << 32) {}

  // False: nothing is to be done.
  bool begin() {
    GpuState* s = state();
    if (__atomic_load_n(&s->device.left, __ATOMIC_ACQUIRE) != 0 || __atomic_load_n(&s->start.stop, __ATOMIC_ACQUIRE) != 0) return false;
    uint32_t holder = 0;
    if (!__atomic_compare_exchange_n(&s->device.holder, &holder, c_.stream, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      __atomic_store_n(&t_.status->clash, uint64_t{c_.stream} << 32 | holder, __ATOMIC_RELAXED);
      giveUp(Stop::kAborted, 0);
      return false;
    }
    s->device.begun++;
    call_ = signNext(&s->device, c_.call);
    return true;
  }
  void end() { __atomic_store_n(&state()->device.holder, 0, __ATOMIC_RELEASE); }

  char* piece(int rank) { return heap(rank) + layout_.inboxOffset + (epoch_ & 1) * t_.slotBytes; }

  void beginPiece() { epoch_ = words(t_.rank)->epoch + 1; }

  // Publishes this rank's piece and waits for all others'.
  bool exchange() {
    Words* own = words(t_.rank);
    own->of[epoch_ & 1] = {way_, call_};
    __atomic_store_n(&own->epoch, epoch_, __ATOMIC_RELEASE);
    const uint64_t since = now();
    for (;;) {
      uint64_t missing = 0;
      for (int r = 0; r < t_.worldSize; r++) {
        if (__atomic_load_n(&words(r)->epoch, __ATOMIC_ACQUIRE) < epoch_) missing |= uint64_t{1} << r;
      }
      if (missing == 0) return agree();
      if (__atomic_load_n(&t_.status->abort[0].word, __ATOMIC_RELAXED) != 0) return giveUp(Stop::kAborted, missing);
      if (now() - since > t_.timeoutNs) return giveUp(Stop::kTimeout, missing);
      const timespec pause = {0, 20000};
      nanosleep(&pause, nullptr);
    }
  }

 private:
  char* heap(int rank) const { return t_.base + static_cast<uint64_t>(rank) * t_.stride; }
  GpuState* state() const { return reinterpret_cast<GpuState*>(heap(t_.rank)); }
  Words* words(int rank) const { return reinterpret_cast<Words*>(heap(rank) + layout_.flagsOffset); }

  bool agree() {
    for (int r = 0; r < t_.worldSize; r++) {
      const auto& w = words(r)->of[epoch_ & 1];
      if (w.call == call_ && w.way == way_) continue;
      t_.status->difference = {w.call, call_};
      t_.status->theirWay = w.way;
      t_.status->ourWay = way_;
      return giveUp(Stop::kMismatch, uint64_t{1} << r);
    }
    return true;
  }

  bool giveUp(Stop why, uint64_t missing) {
    uint32_t none = 0;
    if (!__atomic_compare_exchange_n(&state()->start.stop, &none, static_cast<uint32_t>(why), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return false;
    t_.status->operation = c_.call.operation;
    t_.status->missing = missing;
    t_.status->number = state()->device.begun;
    __atomic_store_n(&t_.status->stop, static_cast<uint32_t>(why), __ATOMIC_RELEASE);
    return false;
  }

  const Call& c_;
  const Team& t_;
  const Layout layout_;
  const uint64_t way_;
  Signature call_ = {};
  uint64_t epoch_ = 0;
};

template <class T>
void sum(const Call& c, Rank* rank, size_t from, size_t n) {
  auto* out = reinterpret_cast<T*>(c.recv) + from;
  for (size_t i = 0; i < n; i++) {
    T total = reinterpret_cast<const T*>(rank->piece(0))[i];
    for (int r = 1; r < c.team.worldSize; r++) total = static_cast<T>(total + reinterpret_cast<const T*>(rank->piece(r))[i]);
    out[i] = total;
  }
}

template <class T>
void allReduce(const void* parameter, const fake_cuda_launch* launch, uint32_t algo) {
  const Call& c = *static_cast<const Call*>(parameter);
  Rank rank(c, algo, *launch);
  if (!rank.begin()) return;
  const size_t most = c.team.slotBytes / sizeof(T);
  size_t from = 0;
  do {  // once also for no elements: ranks compare their calls
    const size_t n = c.count - from < most ? c.count - from : most;
    rank.beginPiece();
    memcpy(rank.piece(c.team.rank), c.send + from * sizeof(T), n * sizeof(T));
    if (!rank.exchange()) return;
    sum<T>(c, &rank, from, n);
    from += n;
  } while (from < c.count);
  rank.end();
}

}  // namespace

#define STANDIN(algo, number, name, type) \
  extern "C" void rh_all_reduce_##algo##_##name(const void* p, const fake_cuda_launch* l) { allReduce<type>(p, l, number); }
#define STANDINS(algo, number)               \
  STANDIN(algo, number, f32, float)          \
  STANDIN(algo, number, i32, uint32_t)
STANDINS(oneshot, 1)
STANDINS(twoshot, 2)
STANDINS(pull, 3)

extern "C" size_t fake_cuda_kernel_parameter_bytes(const char*) { return sizeof(Call); }
