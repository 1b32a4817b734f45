#include "base/element_types.h"

#include "host/types.h"

namespace railhead::client {

namespace {

constexpr const char* kDtypes[] = {"f32", "bf16", "f64", "f16", "fp8_e4m3", "fp8_e5m2", "i8", "u8", "i32", "i64", "u64"};
constexpr const char* kReductions[] = {"sum", "prod", "min", "max", "avg", "pre_mul_sum"};

}  // namespace

size_t sizeOf(rh_dtype dtype) {
  const auto n = static_cast<uint32_t>(dtype);
  return n < host::kTypes ? host::bytesOf(static_cast<host::Type>(n)) : 0;
}

const char* dtypeName(uint32_t dtype) { return dtype < sizeof kDtypes / sizeof *kDtypes ? kDtypes[dtype] : "no type"; }

const char* reductionName(uint32_t reduction) {
  return reduction < sizeof kReductions / sizeof *kReductions ? kReductions[reduction] : "no op";
}

}  // namespace railhead::client
