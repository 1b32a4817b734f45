// The kernels for AVX2. Called only if the processor has it.
#if defined(__x86_64__)
#pragma GCC target("avx2")
#pragma GCC optimize("fp-contract=off")  // the same bits whether or not there is a fused multiply-add
#include "host/instantiate.h"

namespace railhead::host {

namespace {
struct Avx2 {
  static constexpr int kVectorBytes = 32;
  static constexpr bool kIsPortable = false;
};
}  // namespace

// Constant-initialised: no code of this file may run before the processor was checked.
extern constexpr KernelSet kAvx2Kernels = makeKernelSet<Avx2>("avx2");

}  // namespace railhead::host
#endif
