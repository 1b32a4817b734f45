// The element types and reductions of the CPU target.
#ifndef RAILHEAD_KERNELS_HOST_TYPES_H_
#define RAILHEAD_KERNELS_HOST_TYPES_H_

#include <stdint.h>

namespace railhead::host {

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct E4M3 {
  uint8_t bits;
};
struct E5M2 {
  uint8_t bits;
};

// The values of railhead.h's rh_dtype.
enum class Type : uint32_t { kF32, kBF16, kF64, kF16, kE4M3, kE5M2, kI8, kU8, kI32, kI64, kU64 };
constexpr int kTypes = 11;
constexpr int indexOf(Type t) { return static_cast<int>(t); }

// The Type of a C++ type.
template <class T>
constexpr Type kTypeOf = Type::kF32;
template <>
inline constexpr Type kTypeOf<BF16> = Type::kBF16;
template <>
inline constexpr Type kTypeOf<double> = Type::kF64;
template <>
inline constexpr Type kTypeOf<F16> = Type::kF16;
template <>
inline constexpr Type kTypeOf<E4M3> = Type::kE4M3;
template <>
inline constexpr Type kTypeOf<E5M2> = Type::kE5M2;
template <>
inline constexpr Type kTypeOf<int8_t> = Type::kI8;
template <>
inline constexpr Type kTypeOf<uint8_t> = Type::kU8;
template <>
inline constexpr Type kTypeOf<int32_t> = Type::kI32;
template <>
inline constexpr Type kTypeOf<int64_t> = Type::kI64;
template <>
inline constexpr Type kTypeOf<uint64_t> = Type::kU64;

constexpr uint32_t bytesOf(Type t) {
  constexpr uint32_t kBytes[kTypes] = {4, 2, 8, 2, 1, 1, 1, 1, 4, 8, 8};
  return kBytes[indexOf(t)];
}

// The values of railhead.h's rh_op; every larger rh_op is a pre-mul-sum.
enum class Reduction : uint32_t { kSum, kProd, kMin, kMax, kAvg, kPreMulSum };

// A reduction and its scalar.
struct ReduceOp {
  Reduction kind;
  // Of kPreMulSum: a float if the type is added in f32, else one element.
  alignas(8) unsigned char scalar[8];
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_TYPES_H_
