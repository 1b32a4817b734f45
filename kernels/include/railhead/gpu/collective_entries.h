// The entry points of the operations but all-reduce, for targets: E(name, the function of collectives.h or pipes.h);
// of reduce-scatters by one-shot E(name, type, kWorld).
#ifndef RAILHEAD_KERNELS_GPU_COLLECTIVE_ENTRIES_H_
#define RAILHEAD_KERNELS_GPU_COLLECTIVE_ENTRIES_H_

#define RH_COPIES(E)                                    \
  E(rh_barrier_none_bytes, barrierOfRanks)              \
  E(rh_all_gather_oneshot_bytes, allGatherOneshot)      \
  E(rh_all_to_all_oneshot_bytes, allToAllOneshot)       \
  E(rh_broadcast_oneshot_bytes, broadcastOneshot)

// Their parameter is a WindowCall.
#define RH_PULLS(E)                                     \
  E(rh_all_gather_pull_bytes, allGatherPull)            \
  E(rh_all_to_all_pull_bytes, allToAllPull)             \
  E(rh_broadcast_pull_bytes, broadcastPull)             \
  E(rh_reduce_scatter_pull_f32, reduceScatterPull<gpu::F32>)    \
  E(rh_reduce_scatter_pull_bf16, reduceScatterPull<gpu::BF16>)  \
  E(rh_reduce_scatter_pull_f64, reduceScatterPull<gpu::F64>)    \
  E(rh_reduce_scatter_pull_f16, reduceScatterPull<gpu::F16>)    \
  E(rh_reduce_scatter_pull_fp8_e4m3, reduceScatterPull<gpu::E4M3>) \
  E(rh_reduce_scatter_pull_fp8_e5m2, reduceScatterPull<gpu::E5M2>) \
  E(rh_reduce_scatter_pull_i8, reduceScatterPull<gpu::I8>)      \
  E(rh_reduce_scatter_pull_u8, reduceScatterPull<gpu::U8>)      \
  E(rh_reduce_scatter_pull_i32, reduceScatterPull<gpu::I32>)    \
  E(rh_reduce_scatter_pull_i64, reduceScatterPull<gpu::I64>)    \
  E(rh_reduce_scatter_pull_u64, reduceScatterPull<gpu::U64>)

#define RH_PIPES(E)                                     \
  E(rh_send_pipe_bytes, sendOrReceive<true>)            \
  E(rh_recv_pipe_bytes, sendOrReceive<false>)           \
  E(rh_broadcast_pipe_bytes, broadcastPipe)             \
  E(rh_gather_pipe_bytes, gatherPipe)                   \
  E(rh_scatter_pipe_bytes, scatterPipe)                 \
  E(rh_all_gather_pipe_bytes, allGatherPipe)            \
  E(rh_all_to_all_pipe_bytes, allToAllPipe)             \
  E(rh_reduce_pipe_f32, reducePipe<gpu::F32>)           \
  E(rh_reduce_pipe_bf16, reducePipe<gpu::BF16>)         \
  E(rh_reduce_pipe_f64, reducePipe<gpu::F64>)           \
  E(rh_reduce_pipe_f16, reducePipe<gpu::F16>)           \
  E(rh_reduce_pipe_fp8_e4m3, reducePipe<gpu::E4M3>)     \
  E(rh_reduce_pipe_fp8_e5m2, reducePipe<gpu::E5M2>)     \
  E(rh_reduce_pipe_i8, reducePipe<gpu::I8>)             \
  E(rh_reduce_pipe_u8, reducePipe<gpu::U8>)             \
  E(rh_reduce_pipe_i32, reducePipe<gpu::I32>)           \
  E(rh_reduce_pipe_i64, reducePipe<gpu::I64>)           \
  E(rh_reduce_pipe_u64, reducePipe<gpu::U64>)

// Its parameter is a GroupCall.
#define RH_GROUPS(E) E(rh_group_pipe_bytes, groupOfTransfers)

#define RH_REDUCE_SCATTERS_BY_WORLD(E, name, T)  \
  E(rh_reduce_scatter_oneshot_##name##_2, T, 2) \
  E(rh_reduce_scatter_oneshot_##name##_4, T, 4) \
  E(rh_reduce_scatter_oneshot_##name##_8, T, 8)

// Sums of the types that models compute in have kernels for the usual world sizes.
#define RH_REDUCE_SCATTERS(E)                  \
  E(rh_reduce_scatter_oneshot_f32, F32, 0)                      \
  E(rh_reduce_scatter_oneshot_bf16, BF16, 0)                    \
  E(rh_reduce_scatter_oneshot_f64, F64, 0)                      \
  E(rh_reduce_scatter_oneshot_f16, F16, 0)                      \
  E(rh_reduce_scatter_oneshot_fp8_e4m3, E4M3, 0)                \
  E(rh_reduce_scatter_oneshot_fp8_e5m2, E5M2, 0)                \
  E(rh_reduce_scatter_oneshot_i8, I8, 0)                        \
  E(rh_reduce_scatter_oneshot_u8, U8, 0)                        \
  E(rh_reduce_scatter_oneshot_i32, I32, 0)                      \
  E(rh_reduce_scatter_oneshot_i64, I64, 0)                      \
  E(rh_reduce_scatter_oneshot_u64, U64, 0)                      \
  RH_REDUCE_SCATTERS_BY_WORLD(E, f32, F32)     \
  RH_REDUCE_SCATTERS_BY_WORLD(E, bf16, BF16)   \
  RH_REDUCE_SCATTERS_BY_WORLD(E, f16, F16)

#endif  // RAILHEAD_KERNELS_GPU_COLLECTIVE_ENTRIES_H_
