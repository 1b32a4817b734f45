// Rows of dispatch on a GPU: a block's threads load all tiles of a row that they have registers for, before they store the first.
#ifndef RAILHEAD_KERNELS_GPU_EP_TILES_H_
#define RAILHEAD_KERNELS_GPU_EP_TILES_H_

#include "railhead/gpu/elements.h"
#include "railhead/gpu/ep_slots.h"

namespace railhead::gpu {

constexpr uint32_t kEpTiles = 4;  // of a thread, in flight

// A row at any address, or in a slot.
struct EpRow {
  const char* at;
  bool isInSlot;
};

// visit(at, tiles, step, raw): the tiles of 16 bytes at offsets at, at + step, ... of the row's `bytes`; the last one of the row may be shorter.
template <class C, class Visit>
RH_FN void epForTiles(C& c, EpRow row, uint32_t bytes, Visit visit) {
  const uint32_t step = 16 * c.dataThreadsInBlock();
  RH_ROLLED
  for (uint32_t at = 16 * c.threadInBlock(); at < bytes; at += kEpTiles * step) {
    const uint32_t all = (bytes - at + step - 1) / step, tiles = all < kEpTiles ? all : kEpTiles;
    Raw16 raw[kEpTiles] = {};
    if (row.isInSlot) {
      RH_UNROLL
      for (uint32_t q = 0; q < kEpTiles; q++) {
        if (q < tiles) raw[q] = c.loadSlotTile(row.at + at + q * step);
      }
    } else if (((reinterpret_cast<uintptr_t>(row.at) | bytes) & 15) == 0) {
      RH_UNROLL
      for (uint32_t q = 0; q < kEpTiles; q++) {
        if (q < tiles) raw[q] = loadTile<true>(row.at + at + q * step, 16);
      }
    } else {
      RH_UNROLL
      for (uint32_t q = 0; q < kEpTiles; q++) {
        const uint32_t here = at + q * step;
        if (q < tiles) raw[q] = loadTile<false>(row.at + here, bytes - here < 16 ? bytes - here : 16);
      }
    }
    visit(at, tiles, step, raw);
  }
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_EP_TILES_H_
