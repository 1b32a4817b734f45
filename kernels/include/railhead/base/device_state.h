// Counters and stream ownership of a rank's operations. They lie in the rank's own memory and are advanced by the code that executes the
// operations, so that a replayed operation continues to count, whatever the host has called in between.
#ifndef RAILHEAD_KERNELS_BASE_DEVICE_STATE_H_
#define RAILHEAD_KERNELS_BASE_DEVICE_STATE_H_

#include "railhead/base/mutant.h"
#include "railhead/base/signature.h"
#include "railhead/base/target.h"

namespace railhead {

// Reader and writer: the code that executes the rank's operations, one at a time. Peers map this memory and could write to it, so a value
// is only counted with, or used modulo a bound.
struct DeviceState {
  uint64_t begun;        // operations begun; also the number of the newest flight record
  uint64_t collectives;  // of these, the collectives
  uint64_t history;      // hash of the collectives' signatures, 32 bits
  // The stream that executes an operation now, 0 = none. A stream takes the word by compare-and-swap (acquire) and gives it back by a
  // store (release), which publishes what its last operation wrote to the rank's heap. takeState and giveStateBack below.
  uint32_t holder;
  // 1 = the rank has left the group; replayed operations then do nothing. Writer: the host (release). Readers: acquire.
  uint32_t left;
  // Set when two streams executed operations at the same time: the holder in bits 0..31, the other one in bits 32..63; 0 = never. Writer:
  // the other stream, before it breaks the group.
  uint64_t clash;
};

// The signature of the rank's next collective. Fills in the call's sequence and history.
RH_FN Signature signNext(DeviceState* state, SignedCall call) {
  call.sequence = static_cast<uint32_t>(state->collectives++);
  call.history = static_cast<uint32_t>(state->history);
  const Signature s = sign(call);
  state->history = historyAfter(s);
  return s;
}

// Takes the state for a stream, whose number is not 0, before it executes an operation. False: *holder, another stream, has it.
template <class Mem>
RH_INLINE bool takeState(Mem& mem, DeviceState* state, uint32_t stream, uint32_t* holder) {
  if (mutated(Mutant::kStateTakenInTwoSteps)) {
    *holder = mem.loadAcquire(&state->holder);
    if (*holder == 0) mem.storeRelaxed(&state->holder, stream);
  } else {
    *holder = mem.swapAcquire(&state->holder, 0, stream);
  }
  return *holder == 0;
}
template <class Mem>
RH_INLINE void giveStateBack(Mem& mem, DeviceState* state) {
  mem.storeRelease(&state->holder, 0);
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_BASE_DEVICE_STATE_H_
