// Dispatch and combine on the CPU, on the device's side of the client. The protocol is compiled once for all instruction sets; rows go
// through functions of the chosen one.
#ifndef RAILHEAD_KERNELS_HOST_EP_H_
#define RAILHEAD_KERNELS_HOST_EP_H_

#include <stdint.h>

#include "host/kernel_set.h"
#include "railhead/ep/ep_calls.h"

namespace railhead::host {

// What a combine adds, and where it writes the result.
struct EpSums {
  Type y, out;
  bool weighted;      // y is already multiplied by the weights
  const char* yRows;  // rows of `hidden` elements; also the next two
  const char* addRows;  // nullptr: none
  char* outRows;
};

struct EpCombineSend {
  EpCell* cell;
  EpSums sums;
};

// What makes a token unfit for FP8: the value of EpProblems.nonFinite, whose k is the element. kScale: one of its scales.
enum class EpNonFinite : int64_t { kNaN, kPositive, kNegative, kScale };

struct EpBuffer : railhead::EpBuffer {
  FlagTeam flags;  // the comm's, changed for this buffer's waits (epPrepareFlags)
  EpRowFormat format;
  const EpRowKernels* rows;
  uint64_t streamAboveBytes;   // received rows of more than these bytes are written past the caches
  bool renormalizes;
  char* encoded[kEpInFlight];  // rows in wire format; nullptr: x is sent as it is
  char* scratch;               // one partial sum
  EpSums sums[kEpInFlight];    // of flights in phase kAdding

  uint32_t scaleBytes() const { return epScaleBytes(format); }
};

// Each writes the outcome to its cell's report.
EpError epSend(EpBuffer* buffer, const EpSend& call);
EpError epAwaitCounts(EpBuffer* buffer, EpCell* cell);
EpError epReceive(EpBuffer* buffer, const EpReceive& call);
EpError epCombineSend(EpBuffer* buffer, const EpCombineSend& call);
EpError epCombineReceive(EpBuffer* buffer, EpCell* cell);
// broken: the group is broken; then a dispatch ends in any phase.
EpError epRelease(EpBuffer* buffer, EpCell* cell, bool broken);

// Checks a routing and makes a plan for later dispatches.
EpError epMakePlan(const EpBuffer& buffer, const EpRouting& routing, EpPlan* plan, EpReport* report);

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_EP_H_
