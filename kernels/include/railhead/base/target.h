// Target selection, the kernels' only macros, and what all targets share.
#ifndef RAILHEAD_KERNELS_TARGET_H_
#define RAILHEAD_KERNELS_TARGET_H_

#include <stddef.h>
#include <stdint.h>

// RH_FN marks a function that runs in a kernel. RH_UNROLL and RH_ROLLED stand before a loop. On a GPU, RH_UNROLL keeps a small array in
// registers, and RH_ROLLED keeps the code small (at 1 KiB, fetching instructions is part of the latency).
// RH_ANYWHERE marks a function for the host too.
// RH_COLD marks a function of the slow path: out of line on a GPU, so that its instructions are not fetched on the fast path.
// RH_INLINE marks short functions of every exchange, which GCC otherwise calls where the translation unit is large.
#if defined(__CUDACC__)
#define RH_INLINE __forceinline__
#define RH_FN __device__ __forceinline__
#define RH_ANYWHERE __host__ __device__ __forceinline__
#define RH_COLD __device__ __noinline__
#define RH_UNROLL _Pragma("unroll")
#define RH_ROLLED _Pragma("unroll 1")
#else
#define RH_INLINE inline __attribute__((always_inline))
#define RH_FN inline
#define RH_ANYWHERE inline
#define RH_COLD inline
#define RH_UNROLL
#define RH_ROLLED
#endif

namespace railhead {

// The most ranks of a team. Kernels know the ranks of one node only: local ranks, counted from 0, as plain ints. Today a team is the
// whole world, so they equal the world ranks; the code that fills in a team converts them.
constexpr int kMaxWorldSize = 64;

// Pull: the offset of a buffer that is in no window.
constexpr uint64_t kNoOffset = ~uint64_t{0};

// Why a kernel gave up. The numbers are the ABI between kernels and client. kBadOffer (pull): a rank offered memory that is not in its
// windows.
enum class Stop : uint32_t { kNone = 0, kAborted = 1, kTimeout = 2, kMismatch = 3, kBadOffer = 4 };

// Index of the lowest set bit. bits is not 0.
RH_FN int lowestBit(uint64_t bits) {
#if defined(__CUDACC__)
  return __ffsll(static_cast<long long>(bits)) - 1;
#else
  return __builtin_ctzll(bits);
#endif
}

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_TARGET_H_
