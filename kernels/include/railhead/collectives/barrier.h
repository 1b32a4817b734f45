// Barrier: an exchange without bytes. It uses the same epochs as the all-reduces, so they may follow each other in any
// order.
#ifndef RAILHEAD_KERNELS_BARRIER_H_
#define RAILHEAD_KERNELS_BARRIER_H_

#include "railhead/base/target.h"

namespace railhead {

// What a rank wrote before is visible to every rank after: an exchange publishes with release and awaits with acquire.
// For exchanges with flags; packets carry no order for other memory. Returns false when the group broke.
template <class Exchange>
RH_FN bool barrier(Exchange& exchange) {
  exchange.beginEpoch();
  return exchange.meet(0);
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_BARRIER_H_
