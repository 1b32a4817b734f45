// Dispatch and combine of the CPU target: what the client calls. The protocol is one for all instruction sets; rows go through
// functions of the chosen one.
#ifndef RAILHEAD_KERNELS_HOST_EP_H_
#define RAILHEAD_KERNELS_HOST_EP_H_

#include <stdint.h>

#include "host/kernel_set.h"
#include "railhead/ep/ep_dispatch.h"

namespace railhead::host {

// What a combine adds up, and to where.
struct EpSums {
  const EpRowKernels* kernels;
  const EpRowFormat* format;
  Type y, out;
  bool weighted;      // y has been multiplied by the weights
  bool renormalize;
  const char* yRows;  // hidden elements each
  const char* addRows;  // nullptr: none
  char* outRows;
  char* scratch;      // a row of partial sums
};

// flags is the buffer's own (epPrepareFlags).
Outcome epDispatchSend(const FlagTeam& flags, const EpTeam& team, EpFlight* flight);
Outcome epAwaitCounts(const FlagTeam& flags, const EpTeam& team, EpFlight* flight);
Outcome epDispatchReceive(const FlagTeam& flags, const EpTeam& team, EpFlight* flight, const EpOutput& out);
Outcome epCombineSend(const FlagTeam& flags, const EpTeam& team, EpFlight* flight, const EpSums& sums);
Outcome epCombineReceive(const FlagTeam& flags, const EpTeam& team, EpFlight* flight, const EpSums& sums);

// Results of tokens that took no part: from .. to - 1.
void epFinishWithout(const EpSums& sums, uint32_t from, uint32_t to);

// After epAwaitCounts: rows of a local expert, and token copies, from all ranks.
uint64_t epRowsOf(const EpTeam& team, const EpFlight& flight, uint32_t local);
uint64_t epTokensOf(const EpTeam& team, const EpFlight& flight);

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_EP_H_
