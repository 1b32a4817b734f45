// The entry points of all-reduces, for targets: E(name, algorithm, type, kWorld) for each of one-shot and two-shot, and P(name, type, kWorld) for
// each of pull, whose parameter is a WindowCall. Sums of the types that models compute in have kernels for the usual world sizes; with two ranks a
// two-shot sends as much as a one-shot.
#ifndef RAILHEAD_KERNELS_GPU_ALL_REDUCE_ENTRIES_H_
#define RAILHEAD_KERNELS_GPU_ALL_REDUCE_ENTRIES_H_

#define RH_ALL_REDUCES(E, P, name, T)           \
  E(rh_all_reduce_oneshot_##name, kOneshot, T, 0) \
  E(rh_all_reduce_twoshot_##name, kTwoshot, T, 0) \
  P(rh_all_reduce_pull_##name, T, 0)
#define RH_ALL_REDUCES_BY_WORLD(E, P, name, T)      \
  E(rh_all_reduce_oneshot_##name##_2, kOneshot, T, 2) \
  E(rh_all_reduce_oneshot_##name##_4, kOneshot, T, 4) \
  E(rh_all_reduce_oneshot_##name##_8, kOneshot, T, 8) \
  E(rh_all_reduce_twoshot_##name##_4, kTwoshot, T, 4) \
  E(rh_all_reduce_twoshot_##name##_8, kTwoshot, T, 8) \
  P(rh_all_reduce_pull_##name##_2, T, 2)       \
  P(rh_all_reduce_pull_##name##_4, T, 4)       \
  P(rh_all_reduce_pull_##name##_8, T, 8)

// Modules: each is compiled to a PTX file.
#define RH_ALL_REDUCES_F32(E, P) RH_ALL_REDUCES(E, P, f32, F32) RH_ALL_REDUCES_BY_WORLD(E, P, f32, F32)
#define RH_ALL_REDUCES_BF16(E, P) RH_ALL_REDUCES(E, P, bf16, BF16) RH_ALL_REDUCES_BY_WORLD(E, P, bf16, BF16)
#define RH_ALL_REDUCES_F16(E, P) RH_ALL_REDUCES(E, P, f16, F16) RH_ALL_REDUCES_BY_WORLD(E, P, f16, F16)
#define RH_ALL_REDUCES_OTHERS(E, P)   \
  RH_ALL_REDUCES(E, P, f64, F64)         \
  RH_ALL_REDUCES(E, P, fp8_e4m3, E4M3)   \
  RH_ALL_REDUCES(E, P, fp8_e5m2, E5M2)   \
  RH_ALL_REDUCES(E, P, i8, I8)           \
  RH_ALL_REDUCES(E, P, u8, U8)           \
  RH_ALL_REDUCES(E, P, i32, I32)         \
  RH_ALL_REDUCES(E, P, i64, I64)         \
  RH_ALL_REDUCES(E, P, u64, U64)

#endif  // RAILHEAD_KERNELS_GPU_ALL_REDUCE_ENTRIES_H_
