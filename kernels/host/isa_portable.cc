// The arithmetic for any machine: 16-byte vectors, SSE2 on x86-64 and NEON on arm64.
#pragma GCC optimize("fp-contract=off")  // the same bits whether or not there is a fused multiply-add
#include "host/instantiate.h"

namespace railhead::host {

namespace {
struct Portable {
  static constexpr int kVectorBytes = 16;
};
}  // namespace

// Constant-initialised, as in the other isa_*.cc.
extern constexpr KernelSet kPortableKernels = makeKernelSet<Portable>("portable");

}  // namespace railhead::host
