// The race check. Two accesses of two threads to one location, of which at least one is a store, must be ordered by happens-before. So a
// store to a slot comes after every other thread's last load of what it overwrites, and a load after the store of what it reads. Values
// alone cannot show the first: this memory performs no store before an earlier load of its thread, but arm64 and GPUs do.
//
// Which accesses may race, and why, is in README.md. Happens-before is in the clocks of views, which releases and acquires pass on (memory.h).
#ifndef RAILHEAD_KERNELS_MODEL_RACES_H_
#define RAILHEAD_KERNELS_MODEL_RACES_H_

#include <stdint.h>

#include <vector>

#include "model/memory.h"

namespace railhead::model {

// How a word is accessed.
//   kPlain    not atomic: data
//   kRelaxed  atomic, races with other atomic accesses. In a region of ordered words it counts as plain: there the code's accesses are
//             atomic because words must not tear, and a flag must order them nevertheless
//   kArrived  atomic load of a word that has carried its own flag and that this thread is known to have received. It need not come after the
//             store, but no later store may overtake it
enum class Order { kPlain, kRelaxed, kArrived, kAcquire, kRelease };

class Races {
 public:
  struct Access {
    int fiber;
    bool stores;
    Order order;
    uint32_t clock;  // of its fiber, at the access
    int step;        // of the run, for the message
    const char* what;
  };

  void reset(size_t locations) { accesses_.assign(locations, {}); }

  // Notes an access, and returns an earlier one that it races with, or nullptr. A load that may race is not noted.
  const Access* note(int location, Thread& t, const Access& access) {
    auto& earlier = accesses_[static_cast<size_t>(location)];
    Access* own = nullptr;
    for (Access& e : earlier) {
      if (e.fiber == access.fiber) {
        if (e.stores == access.stores && e.order == access.order) own = &e;
      } else if (conflict(e, access) && e.clock > t.view.clock(e.fiber)) {
        return &e;
      }
    }
    if (!access.stores && (access.order == Order::kRelaxed || access.order == Order::kAcquire)) return nullptr;
    if (own == nullptr) own = &earlier.emplace_back();
    *own = access;
    own->clock = ++t.view.clock(access.fiber);
    return nullptr;
  }

 private:
  static bool conflict(const Access& a, const Access& b) {
    if (!a.stores && !b.stores) return false;
    if (a.order == Order::kPlain || b.order == Order::kPlain) return true;
    // A word that has arrived is protected from later stores only.
    return a.order == Order::kArrived && b.stores;
  }

  std::vector<std::vector<Access>> accesses_;  // by location: the last of each kind of each thread
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_RACES_H_
