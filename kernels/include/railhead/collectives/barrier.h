// Barrier: an exchange without data. It uses the same epochs as the all-reduces, so they may follow each other in any order.
#ifndef RAILHEAD_KERNELS_BARRIER_H_
#define RAILHEAD_KERNELS_BARRIER_H_

#include "railhead/base/target.h"

namespace railhead {

// What a rank wrote before the barrier is visible to every rank after it: the exchange publishes with release and awaits with acquire.
// Only for exchanges by flags; packets order no other memory. Returns false when the group broke.
template <class Exchange>
RH_FN bool barrier(Exchange& exchange) {
  exchange.beginEpoch();
  return exchange.meet(0);
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_BARRIER_H_
