// Inboxes: memory of each rank that the others store to. How ranks on GPUs exchange data that is its own flag (cells.h, packets.h).
#ifndef RAILHEAD_KERNELS_INBOX_H_
#define RAILHEAD_KERNELS_INBOX_H_

#include "railhead/base/target.h"

namespace railhead {

// 16 bytes that are stored and loaded as two 64-bit elements, each of them atomic (PTX guarantees atomicity for each element, not for the
// vector).
struct Packet {
  uint64_t e[2];
};

// 16 bytes of the caller's data.
struct Raw16 {
  uint32_t w[4];
};

constexpr int kPhases = 2;  // exchanges of an epoch that have slots of their own

// An inbox has two halves; epoch e uses half e & 1. A half has kPhases phases, a phase has a slot for each rank, which only that rank
// stores data to. Filled in by the host.
struct Inbox {
  char* base;          // the inbox of rank r begins at base + r * stride, as this rank sees it
  uint64_t stride;
  uint32_t slotBytes;  // a multiple of 128; an inbox is below 4 GiB
  int rank;
  int worldSize;
  int reduceGroup;

  RH_FN char* of(int r) const { return base + static_cast<uint64_t>(static_cast<uint32_t>(r)) * stride; }
  // Offsets in an inbox: of the half of an epoch, and in it of a slot.
  RH_FN uint32_t half(uint32_t epoch) const { return (epoch & 1) * kPhases * static_cast<uint32_t>(worldSize) * slotBytes; }
  RH_FN uint32_t slot(int phase, int source) const { return static_cast<uint32_t>(phase * worldSize + source) * slotBytes; }
};

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_INBOX_H_
