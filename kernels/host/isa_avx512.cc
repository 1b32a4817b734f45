// The kernels for avx512. Only called after the processor was found to have it.
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

// A constant: code of this file must not run before the processor was looked at.
extern constexpr KernelSet kAvx512Kernels = makeKernelSet<Avx512>("avx512");

}  // namespace railhead::host
#endif
