// The entry points of all-reduces, for targets: E(name, algorithm, type, kWorld) for each. Sums of the types that models compute in have
// kernels for the usual world sizes; with two ranks a two-shot sends as much as a one-shot.
#ifndef RAILHEAD_KERNELS_GPU_ALL_REDUCE_ENTRIES_H_
#define RAILHEAD_KERNELS_GPU_ALL_REDUCE_ENTRIES_H_

#define RH_ALL_REDUCES(E, name, T)              \
  E(rh_all_reduce_oneshot_##name, kOneshot, T, 0) \
  E(rh_all_reduce_twoshot_##name, kTwoshot, T, 0) \
  E(rh_all_reduce_pull_##name, kPull, T, 0)
#define RH_ALL_REDUCES_BY_WORLD(E, name, T)         \
  E(rh_all_reduce_oneshot_##name##_2, kOneshot, T, 2) \
  E(rh_all_reduce_oneshot_##name##_4, kOneshot, T, 4) \
  E(rh_all_reduce_oneshot_##name##_8, kOneshot, T, 8) \
  E(rh_all_reduce_twoshot_##name##_4, kTwoshot, T, 4) \
  E(rh_all_reduce_twoshot_##name##_8, kTwoshot, T, 8) \
  E(rh_all_reduce_pull_##name##_2, kPull, T, 2)       \
  E(rh_all_reduce_pull_##name##_4, kPull, T, 4)       \
  E(rh_all_reduce_pull_##name##_8, kPull, T, 8)

// Modules: each is compiled to a PTX file.
#define RH_ALL_REDUCES_F32(E) RH_ALL_REDUCES(E, f32, F32) RH_ALL_REDUCES_BY_WORLD(E, f32, F32)
#define RH_ALL_REDUCES_BF16(E) RH_ALL_REDUCES(E, bf16, BF16) RH_ALL_REDUCES_BY_WORLD(E, bf16, BF16)
#define RH_ALL_REDUCES_F16(E) RH_ALL_REDUCES(E, f16, F16) RH_ALL_REDUCES_BY_WORLD(E, f16, F16)
#define RH_ALL_REDUCES_OTHERS(E)      \
  RH_ALL_REDUCES(E, f64, F64)         \
  RH_ALL_REDUCES(E, fp8_e4m3, E4M3)   \
  RH_ALL_REDUCES(E, fp8_e5m2, E5M2)   \
  RH_ALL_REDUCES(E, i8, I8)           \
  RH_ALL_REDUCES(E, u8, U8)           \
  RH_ALL_REDUCES(E, i32, I32)         \
  RH_ALL_REDUCES(E, i64, I64)         \
  RH_ALL_REDUCES(E, u64, U64)

#endif  // RAILHEAD_KERNELS_GPU_ALL_REDUCE_ENTRIES_H_
