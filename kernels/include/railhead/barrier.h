// Barrier: a one-shot exchange without bytes. It uses the same epochs as the all-reduce, so the two may follow each
// other in any order.
#ifndef RAILHEAD_KERNELS_BARRIER_H_
#define RAILHEAD_KERNELS_BARRIER_H_

#include <stdint.h>

namespace railhead {

// What a rank wrote before is visible to every rank after: publish is a release, await an acquire.
// Returns false when the group broke.
template <class Target>
bool barrier(Target& target) {
  const uint32_t epoch = target.beginEpoch();
  target.publish(epoch);
  for (int r = 0; r < target.worldSize(); r++) {
    if (r != target.rank() && !target.await(r, epoch)) return false;
  }
  return true;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_BARRIER_H_
