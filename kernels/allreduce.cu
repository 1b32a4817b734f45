// GPU entry points of the all-reduces. All blocks of a launch must be resident at once, together with those of all other ranks on the
// same device: a block never ends its wait for a block that cannot start.
#include "cuda/elements.cuh"
#include "cuda/mem.cuh"
#include "railhead/collectives/allreduce_oneshot.h"
#include "railhead/collectives/allreduce_pull.h"
#include "railhead/collectives/allreduce_rmsnorm.h"
#include "railhead/collectives/allreduce_twoshot.h"
#include "railhead/exchange/block_exchange.h"
#include "railhead/exchange/packet_exchange.h"

namespace railhead::cuda {

struct F32 {
  uint32_t bits;
};
struct BF16 {
  uint16_t bits;
};

// At most 256 threads, so 255 registers each: polling 8 ranks at once needs about 150.
constexpr int kMaxThreads = 256;

template <class T>
RH_FN void oneshot(const PacketTeam& team, const WaitControl& control, const char* send, char* recv, size_t count) {
  Mem mem(control);
  PacketExchange<Mem> exchange(mem, team);
  allReduceOneshot(exchange, Elements<T>(), send, recv, count);
  exchange.finish();
}

template <class T>
RH_FN void twoshot(const PacketTeam& team, const WaitControl& control, const char* send, char* recv, size_t count) {
  Mem mem(control);
  PacketExchange<Mem> exchange(mem, team);
  allReduceTwoshot(exchange, Elements<T>(), send, recv, count);
  exchange.finish();
}

// send and recv are this rank's buffers, sendOffset and recvOffset their offsets in its heap. If one is kNoOffset on any rank, all ranks
// exchange packets instead. Every rank launches the same grid.
template <class T>
RH_FN void pull(const PacketTeam& packets, const BlockTeam& blocks, const WaitControl& control, const char* send, char* recv,
                uint64_t sendOffset, uint64_t recvOffset, size_t count) {
  Mem mem(control);
  BlockExchange<Mem> exchange(mem, blocks);
  bool zeroCopy = true;
  const bool met = allReducePull(exchange, Elements<T>(), sendOffset, recvOffset, count, &zeroCopy);
  exchange.finish();
  if (met && !zeroCopy) twoshot<T>(packets, control, send, recv, count);
}

template <class T>
RH_FN void rmsNorm(const PacketTeam& team, const WaitControl& control, const char* x, char* residual, const char* weight, char* out,
                   uint32_t rows, uint32_t hidden, float eps) {
  Mem mem(control);
  PacketExchange<Mem> exchange(mem, team);
  allReduceRMSNorm(exchange, Elements<T>(), x, residual, weight, out, rows, hidden, eps);
  exchange.finish();
}

}  // namespace railhead::cuda

using namespace railhead;
using namespace railhead::cuda;

#define RH_KERNEL extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)

RH_KERNEL rh_allreduce_oneshot_f32(const __grid_constant__ PacketTeam team, const __grid_constant__ WaitControl control,
                                   const char* send, char* recv, size_t count) {
  oneshot<F32>(team, control, send, recv, count);
}
RH_KERNEL rh_allreduce_oneshot_bf16(const __grid_constant__ PacketTeam team, const __grid_constant__ WaitControl control,
                                    const char* send, char* recv, size_t count) {
  oneshot<cuda::BF16>(team, control, send, recv, count);
}
RH_KERNEL rh_allreduce_twoshot_f32(const __grid_constant__ PacketTeam team, const __grid_constant__ WaitControl control,
                                   const char* send, char* recv, size_t count) {
  twoshot<F32>(team, control, send, recv, count);
}
RH_KERNEL rh_allreduce_twoshot_bf16(const __grid_constant__ PacketTeam team, const __grid_constant__ WaitControl control,
                                    const char* send, char* recv, size_t count) {
  twoshot<cuda::BF16>(team, control, send, recv, count);
}
RH_KERNEL rh_allreduce_pull_f32(const __grid_constant__ PacketTeam packets, const __grid_constant__ BlockTeam blocks,
                                const __grid_constant__ WaitControl control, const char* send, char* recv, uint64_t sendOffset,
                                uint64_t recvOffset, size_t count) {
  pull<F32>(packets, blocks, control, send, recv, sendOffset, recvOffset, count);
}
RH_KERNEL rh_allreduce_pull_bf16(const __grid_constant__ PacketTeam packets, const __grid_constant__ BlockTeam blocks,
                                 const __grid_constant__ WaitControl control, const char* send, char* recv, uint64_t sendOffset,
                                 uint64_t recvOffset, size_t count) {
  pull<cuda::BF16>(packets, blocks, control, send, recv, sendOffset, recvOffset, count);
}
RH_KERNEL rh_allreduce_rmsnorm_bf16(const __grid_constant__ PacketTeam team, const __grid_constant__ WaitControl control,
                                    const char* x, char* residual, const char* weight, char* out, uint32_t rows, uint32_t hidden,
                                    float eps) {
  rmsNorm<cuda::BF16>(team, control, x, residual, weight, out, rows, hidden, eps);
}
