// The front of every rank's heap, which the collectives use. The same layout on every rank, target and device.
#ifndef RAILHEAD_KERNELS_SCRATCH_H_
#define RAILHEAD_KERNELS_SCRATCH_H_

#include <stdint.h>

namespace railhead {

constexpr int kMaxWorldSize = 64;
constexpr uint64_t kScratchHeaderBytes = 4096;

// A flag and the count of those who sleep on it. It has a cache line of its own.
struct alignas(64) PublishedLine {
  // The newest epoch whose block this rank has published. Writer: its rank (store release, after the block's bytes).
  // Readers: all ranks (load acquire). Value e publishes the bytes of buffer e & 1, and says that its rank has finished
  // reading every buffer of epoch e - 1 and older: that is what makes two buffers enough.
  // A generation: it only grows, and compares by difference, so the wrap at 2^32 needs no care.
  uint32_t epoch;
  // Ranks asleep on epoch. Writers: the sleepers (atomic add, then a full fence, then they look at epoch once more).
  // Reader: the publishing rank (after a full fence behind its store to epoch): one of the two sees the other.
  uint32_t sleepers;
  uint8_t pad[56];
};

// Byte 0 of a heap. The two buffers of blockBytes each follow at kScratchHeaderBytes.
struct ScratchHeader {
  // The epoch this rank used last. It lives here and not in the host's memory so that a replayed graph goes on counting.
  // Reader and writer: its own rank.
  alignas(64) uint32_t epoch;
  PublishedLine published;
};

static_assert(sizeof(PublishedLine) == 64 && sizeof(ScratchHeader) == 128, "scratch layout");
static_assert(sizeof(ScratchHeader) <= kScratchHeaderBytes, "scratch layout");

// True once a rank that shows `seen` has published `epoch`; the two are never 2^31 apart.
inline bool reached(uint32_t seen, uint32_t epoch) { return static_cast<int32_t>(seen - epoch) >= 0; }

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_SCRATCH_H_
