// Dispatch and combine of the CPU target, as they run: what the client calls where the device runs. The protocol is one for all
// instruction sets; rows go through functions of the chosen one.
#ifndef RAILHEAD_KERNELS_HOST_EP_H_
#define RAILHEAD_KERNELS_HOST_EP_H_

#include <stdint.h>

#include "host/kernel_set.h"
#include "railhead/ep/ep_calls.h"

namespace railhead::host {

// What a combine adds up, and to where.
struct EpSums {
  Type y, out;
  bool weighted;      // y has been multiplied by the weights
  const char* yRows;  // hidden elements each
  const char* addRows;  // nullptr: none
  char* outRows;
};

struct EpCombineSend {
  EpCell* cell;
  EpSums sums;
};

// What a token has that fp8 cannot scale: the value of EpProblems.nonFinite, whose k is the element.
enum class EpNonFinite : int64_t { kNaN, kPositive, kNegative, kScale };

struct EpBuffer : railhead::EpBuffer {
  FlagTeam flags;  // the comm's, for this buffer's waits (epPrepareFlags)
  EpRowFormat format;
  const EpRowKernels* rows;
  uint64_t streamAboveBytes;   // more received rows than these are written past the caches
  bool renormalizes;
  char* encoded[kEpInFlight];  // rows as they travel, where x is not sent as it is; else nullptr
  char* scratch;               // a row of partial sums
  EpSums sums[kEpInFlight];    // of kAdding

  uint32_t scaleBytes() const { return epScaleBytes(format); }
};

// What each leaves in its cell's report says why it did not do it.
EpError epSend(EpBuffer* buffer, const EpSend& call);
EpError epAwaitCounts(EpBuffer* buffer, EpCell* cell);
EpError epReceive(EpBuffer* buffer, const EpReceive& call);
EpError epCombineSend(EpBuffer* buffer, const EpCombineSend& call);
EpError epCombineReceive(EpBuffer* buffer, EpCell* cell);
// broken: the group is; then a dispatch ends wherever it is.
EpError epRelease(EpBuffer* buffer, EpCell* cell, bool broken);

// Checks a routing, and gives each copy its place: a plan for dispatches to come.
EpError epMakePlan(const EpBuffer& buffer, const EpRouting& routing, EpPlan* plan, EpReport* report);

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_EP_H_
