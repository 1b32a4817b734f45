// The arithmetic for AVX-512. Called only if the processor has it.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#pragma GCC optimize("fp-contract=off")  // the same bits whether or not there is a fused multiply-add
#include "host/instantiate.h"

namespace railhead::host {

namespace {
struct Avx512 {
  static constexpr int kVectorBytes = 64;
};
}  // namespace

// Constant-initialised: no code of this file may run before the processor was checked.
extern constexpr KernelSet kAvx512Kernels = makeKernelSet<Avx512>("avx512");

}  // namespace railhead::host
#endif
