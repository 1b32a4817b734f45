// Operations by the GPU's copy engines, which hold no multiprocessor while the data moves: all ranks meet, each copies the other ranks' data from
// their windows into its own result, and all ranks meet again. A meeting is a barrier's kernel, of one block.
//
// Only copies into the rank's own result: those behind a meeting that has failed run all the same, and so do those of graphs that are launched
// after the group has broken. They read windows, which stay mapped as long as a graph or the comm exists, and whoever looks at the result sees by
// the stop word that it has none.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_COPIES_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_COPIES_H_

#include <stdint.h>

#include "device/cuda/context.h"
#include "device/device.h"

namespace railhead::client::cuda {

// Streams beside the caller's, so that the copies of a call run at the same time.
struct CopyStreams {
  // A copy engine moves 388 GB/s of a link's 450 (H200, NV18), so one stream does for two ranks. How many are best for more is not measured.
  static constexpr int kMost = 3;
  CUstream streams[kMost] = {};
  CUevent begun = nullptr;         // on the caller's stream: the copies may begin
  CUevent ended[kMost] = {};       // on each of the streams
};

// False: *why says why; closeCopyStreams ends what was made.
bool openCopyStreams(const Context& context, CopyStreams* out, Failure* why);
// Nothing may run on them any more.
void closeCopyStreams(const Context& context, CopyStreams* streams);

// Whether the operation can be copied, and this rank has offered what the other ranks read. All ranks must have, at the same place of their windows (placeOfCopies).
bool canCopy(const Comm* comm, const CollectiveCall& c);
// Of a call that can be copied: a number for where the other ranks read. Ranks whose numbers differ must not copy.
uint64_t placeOfCopies(const Comm* comm, const CollectiveCall& c);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_COPIES_H_
