// Target selection, the only macros of the kernels, and what every target shares.
#ifndef RAILHEAD_KERNELS_TARGET_H_
#define RAILHEAD_KERNELS_TARGET_H_

#include <stddef.h>
#include <stdint.h>

// RH_FN marks a function that runs inside a kernel. RH_UNROLL and RH_ROLLED stand before a loop: on a GPU the first keeps
// a small array in registers, the second keeps the code small (at 1 KB, fetching instructions is part of the latency).
#if defined(__CUDACC__)
#define RH_FN __device__ __forceinline__
#define RH_UNROLL _Pragma("unroll")
#define RH_ROLLED _Pragma("unroll 1")
#else
#define RH_FN inline
#define RH_UNROLL
#define RH_ROLLED
#endif

namespace railhead {

// Ranks of a team. The kernels know the ranks of one node only and count them from 0: local ranks, as plain ints. Where a team is
// the whole world, as it is today, they are world ranks too; who fills a team in converts them.
constexpr int kMaxWorldSize = 64;

// Pull: the offset of a buffer that is not in its rank's heap.
constexpr uint64_t kNoOffset = ~uint64_t{0};

// Why a kernel gave up. The numbers are the ABI between kernels and client. kBadOffer: a rank offered memory that it does not have
// (pull).
enum class Stop : uint32_t { kNone = 0, kAborted = 1, kTimeout = 2, kMismatch = 3, kBadOffer = 4 };

// The number of the lowest bit that is set. One is.
RH_FN int lowestBit(uint64_t bits) {
#if defined(__CUDACC__)
  return __ffsll(static_cast<long long>(bits)) - 1;
#else
  return __builtin_ctzll(bits);
#endif
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_TARGET_H_
