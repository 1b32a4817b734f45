// The arithmetic for AVX2 and F16C. Called only if the processor has both.
#if defined(__x86_64__)
#pragma GCC target("avx2,f16c")
#pragma GCC optimize("fp-contract=off")  // the same bits whether or not there is a fused multiply-add
#include "host/instantiate.h"

namespace railhead::host {

namespace {
struct Avx2 {
  static constexpr int kVectorBytes = 32;
};
}  // namespace

// Constant-initialised: no code of this file may run before the processor was checked.
extern constexpr KernelSet kAvx2Kernels = makeKernelSet<Avx2>("avx2");

}  // namespace railhead::host
#endif
