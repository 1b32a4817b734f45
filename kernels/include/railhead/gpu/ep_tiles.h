// Rows of dispatch on a GPU: a block's threads load all tiles of a row that they have registers for, before they store the first.
#ifndef RAILHEAD_KERNELS_GPU_EP_TILES_H_
#define RAILHEAD_KERNELS_GPU_EP_TILES_H_

#include "railhead/gpu/elements.h"
#include "railhead/gpu/ep_slots.h"

namespace railhead::gpu {

constexpr uint32_t kEpTiles = 4;  // of a thread, in flight

// Whether tiles of a row of so many bytes are whole and aligned.
RH_FN bool epIsEven(const char* row, uint32_t bytes) { return ((reinterpret_cast<uintptr_t>(row) | bytes) & 15) == 0; }

// load(q, at) is the row's tile of 16 bytes at offset `at`, the q-th of a thread's. visit(at, tiles, step, raw): tiles at, at + step, ... of the row's
// `bytes`. isEven: of all rows that they use; else a thread has one tile at a time, and the last one of a row may be short.
template <class C, class Load, class Visit>
RH_FN void epForTiles(C& c, uint32_t bytes, bool isEven, Load load, Visit visit) {
  const uint32_t step = 16 * c.dataThreadsInBlock(), most = isEven ? kEpTiles : 1;
  RH_ROLLED
  for (uint32_t at = 16 * c.threadInBlock(); at < bytes; at += most * step) {
    const uint32_t all = (bytes - at + step - 1) / step, tiles = all < most ? all : most;
    Raw16 raw[kEpTiles] = {};
    RH_UNROLL
    for (uint32_t q = 0; q < kEpTiles; q++) {
      if (q < tiles) raw[q] = load(q, at + q * step);
    }
    visit(at, tiles, step, raw);
  }
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_TILES_H_
