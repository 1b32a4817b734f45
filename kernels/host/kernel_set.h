// What the client calls: the kernels of the CPU target, compiled once for each instruction set, chosen when the library
// first needs them.
#ifndef RAILHEAD_KERNELS_HOST_KERNEL_SET_H_
#define RAILHEAD_KERNELS_HOST_KERNEL_SET_H_

#include <stddef.h>
#include <stdint.h>

#include "railhead/flags.h"

namespace railhead::host {

// How an operation ended. missing: bit r = rank r had not arrived when it gave up.
struct Outcome {
  Stop stop;
  uint64_t missing;
};

// The all-reduces of one element type. Buffers may have any address, and send may be recv.
struct AllReduceSet {
  Outcome (*oneshot)(const FlagTeam&, const void* send, void* recv, size_t count);
  Outcome (*twoshot)(const FlagTeam&, const void* send, void* recv, size_t count);
  // Offsets in every rank's heap. Returns without a result, having changed nothing but the epoch, when a rank's buffer is
  // not in its heap: *zeroCopy is then false, on every rank, and the caller takes another algorithm.
  Outcome (*pull)(const FlagTeam&, uint64_t send, uint64_t recv, size_t count, bool* zeroCopy);
};

struct KernelSet {
  const char* isa;  // "portable", "avx2", "avx512"
  AllReduceSet f32, bf16;
  Outcome (*barrier)(const FlagTeam&);
};

// The best set for this processor; RAILHEAD_ISA names a lesser one (for tests and comparisons).
const KernelSet& kernels();

// A set by name, nullptr if this build or processor does not have it.
const KernelSet* kernelsFor(const char* isa);

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_KERNEL_SET_H_
