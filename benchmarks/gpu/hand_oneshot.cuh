// A one-shot all-reduce written by hand for eight ranks: what the vocabulary is measured against.
#ifndef RAILHEAD_BENCHMARKS_GPU_HAND_ONESHOT_CUH_
#define RAILHEAD_BENCHMARKS_GPU_HAND_ONESHOT_CUH_

#include <cuda_bf16.h>

#include <cstring>

#include "railhead/exchange/packet_exchange.h"

namespace {

using railhead::kPhases;
using railhead::PacketState;

constexpr int kRanks = 8;
constexpr uint32_t kSlotBytes = 2 << 20;  // 65536 tiles: 1 MiB of a message in one epoch

struct HandTeam {
  char* inbox[kRanks];
  int rank;
  PacketState* state;
};

// One-shot by hand: eight ranks, one tile a thread, aligned bf16.
__global__ void handOneshot(const __grid_constant__ HandTeam t, const uint4* send, uint4* recv, uint32_t tiles) {
  const uint32_t epoch = t.state->epoch + 1;
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < tiles) {
    const uint4 v = send[i];
    const size_t half = static_cast<size_t>(epoch & 1) * kPhases * kRanks * kSlotBytes;
#pragma unroll
    for (int k = 1; k < kRanks; k++) {
      char* p = t.inbox[(t.rank + k) & (kRanks - 1)] + half + static_cast<size_t>(t.rank) * kSlotBytes + static_cast<size_t>(i) * 32;
      asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(epoch), "r"(v.y), "r"(epoch) : "memory");
      asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p + 16), "r"(v.z), "r"(epoch), "r"(v.w), "r"(epoch) : "memory");
    }
    uint4 a[kRanks], b[kRanks];
    const char* own = t.inbox[t.rank] + half + static_cast<size_t>(i) * 32;
    auto load = [](const char* p) {
      uint4 x;
      asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p) : "memory");
      return x;
    };
#pragma unroll
    for (int r = 0; r < kRanks; r++) {
      if (r == t.rank) continue;
      a[r] = load(own + static_cast<size_t>(r) * kSlotBytes);
      b[r] = load(own + static_cast<size_t>(r) * kSlotBytes + 16);
    }
    float sum[8];
#pragma unroll
    for (int r = 0; r < kRanks; r++) {
      uint32_t w[4] = {v.x, v.y, v.z, v.w};
      if (r != t.rank) {
        // Bounded like every wait: at about 1 us a turn this gives up after seconds.
        for (int turn = 0; turn < 4000000 && (a[r].y != epoch || a[r].w != epoch || b[r].y != epoch || b[r].w != epoch); turn++) {
          a[r] = load(own + static_cast<size_t>(r) * kSlotBytes);
          b[r] = load(own + static_cast<size_t>(r) * kSlotBytes + 16);
        }
        w[0] = a[r].x, w[1] = a[r].z, w[2] = b[r].x, w[3] = b[r].z;
      }
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float low = __uint_as_float(w[k] << 16), high = __uint_as_float(w[k] & 0xffff0000u);
        sum[2 * k] = r == 0 ? low : sum[2 * k] + low;
        sum[2 * k + 1] = r == 0 ? high : sum[2 * k + 1] + high;
      }
    }
    uint32_t out[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const __nv_bfloat162 h = __floats2bfloat162_rn(sum[2 * k], sum[2 * k + 1]);
      memcpy(&out[k], &h, 4);
    }
    recv[i] = make_uint4(out[0], out[1], out[2], out[3]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    if (gridDim.x == 1) {
      t.state->epoch = epoch;
    } else if (atomicAdd(&t.state->blocksDone, 1u) == gridDim.x - 1) {
      t.state->blocksDone = 0;
      t.state->epoch = epoch;
    }
  }
}

}  // namespace

#endif  // RAILHEAD_BENCHMARKS_GPU_HAND_ONESHOT_CUH_
