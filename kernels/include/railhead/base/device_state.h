// What a rank's operations count, in memory of the rank, read and advanced by the code that runs them: operations that are
// replayed go on counting, whatever the host has called meanwhile.
#ifndef RAILHEAD_KERNELS_BASE_DEVICE_STATE_H_
#define RAILHEAD_KERNELS_BASE_DEVICE_STATE_H_

#include "railhead/base/signature.h"
#include "railhead/base/target.h"

namespace railhead {

// Reader and writer: what runs the rank's operations, one at a time. Its peers could write here too; a number is only ever used
// as one, or modulo a bound.
struct DeviceState {
  uint64_t begun;        // operations; also the number of the newest flight record
  uint64_t collectives;  // of those, the ones that all ranks take part in; and
  uint64_t history;      // a hash of their signatures, 32 bits
  // The stream that runs an operation, 0 = none does. Taken by compare-and-swap with acquire, given back with release: the
  // words of the rank's heap that the last operation wrote.
  uint32_t holder;
  // 1 = the rank has left the group: an operation that is replayed does nothing. Writer: the host, release; readers: acquire.
  uint32_t left;
  // Two streams that ran operations at the same time: the holder, and above 32 bits the other; 0 = none have. Writer: the other, before
  // it breaks the group.
  uint64_t clash;
};

// Signs the rank's next collective: sequence and history of the call are filled in here.
RH_FN Signature signNext(DeviceState* state, SignedCall call) {
  call.sequence = static_cast<uint32_t>(state->collectives++);
  call.history = static_cast<uint32_t>(state->history);
  const Signature s = sign(call);
  state->history = historyAfter(s);
  return s;
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_BASE_DEVICE_STATE_H_
