// Checks a buffer's config and derives the layout from it.
#include <string.h>

#include "base/abi.h"
#include "base/element_types.h"
#include "base/error.h"
#include "ep/ep.h"
#include "host/fp_environment.h"

namespace railhead::client {

namespace {

bool isWireType(rh_dtype d) { return isSumType(d) || d == RH_FP8_E4M3; }

// By its bits, because a comparison depends on the caller's floating-point environment.
bool isFiniteAboveZero(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits - 1 < 0x7f7fffffu;
}

rh_result outside(const char* operation, const char* field, uint64_t value, uint64_t least, uint64_t most) {
  return fail(RH_ERR_INVALID_ARGUMENT, "%s: %s %llu; want %llu..%llu", operation, field, static_cast<unsigned long long>(value),
              static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
}

rh_result checkNumbers(const char* operation, const rh_ep_config& c) {
  if (c.mode != RH_EP_LL && c.mode != RH_EP_HT) return outside(operation, "mode", c.mode, RH_EP_LL, RH_EP_HT);
  if (c.max_tokens_per_rank < 1 || c.max_tokens_per_rank > RH_EP_MAX_TOKENS) {
    return outside(operation, "max_tokens_per_rank", c.max_tokens_per_rank, 1, RH_EP_MAX_TOKENS);
  }
  if (c.hidden < 1 || c.hidden > RH_EP_MAX_HIDDEN) return outside(operation, "hidden", c.hidden, 1, RH_EP_MAX_HIDDEN);
  if (c.num_experts < 1 || c.num_experts > RH_EP_MAX_EXPERTS) return outside(operation, "num_experts", c.num_experts, 1, RH_EP_MAX_EXPERTS);
  if (c.topk < 1 || c.topk > RH_EP_MAX_TOPK) return outside(operation, "topk", c.topk, 1, RH_EP_MAX_TOPK);
  if (epPhysical(c) < c.num_experts || epPhysical(c) > RH_EP_MAX_EXPERTS) {
    return outside(operation, "num_physical", c.num_physical, c.num_experts, RH_EP_MAX_EXPERTS);
  }
  if (c.scale_format > RH_EP_SCALE_STATIC) return outside(operation, "scale_format", c.scale_format, 0, RH_EP_SCALE_STATIC);
  if (c.on_invalid > RH_EP_INVALID_DROP) return outside(operation, "on_invalid", c.on_invalid, 0, RH_EP_INVALID_DROP);
  if (c.on_dead > RH_EP_DEAD_DROP) return outside(operation, "on_dead", c.on_dead, 0, RH_EP_DEAD_DROP);
  if (c.lost_weights > RH_EP_LOST_RENORMALIZE) return outside(operation, "lost_weights", c.lost_weights, 0, RH_EP_LOST_RENORMALIZE);
  if (c.device_kind != RH_DEVICE_CPU && c.device_kind != RH_DEVICE_CUDA) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: device_kind %d; want %d (CPU) or %d (CUDA)", operation, c.device_kind, RH_DEVICE_CPU, RH_DEVICE_CUDA);
  }
  return RH_OK;
}

rh_result checkTypes(const char* operation, const rh_ep_config& c) {
  const auto name = [](rh_dtype d) { return dtypeName(static_cast<uint32_t>(d)); };
  if (!isWireType(c.dtype)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: dtype %s (%d); x is f32, bf16, f16 or fp8_e4m3", operation, name(c.dtype), c.dtype);
  }
  if (!isWireType(c.wire_dtype)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: wire_dtype %s (%d); tokens travel as f32, bf16, f16 or fp8_e4m3", operation,
                name(c.wire_dtype), c.wire_dtype);
  }
  if (!isSumType(c.combine_dtype)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: combine_dtype %s (%d); partial sums travel as f32, bf16 or f16", operation,
                name(c.combine_dtype), c.combine_dtype);
  }
  if (c.dtype == RH_FP8_E4M3 && c.wire_dtype != RH_FP8_E4M3) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: x is fp8_e4m3 and wire_dtype %s; FP8 rows are sent unchanged, so wire_dtype must be fp8_e4m3",
                operation, name(c.wire_dtype));
  }
  const bool isStatic = c.wire_dtype == RH_FP8_E4M3 && c.scale_format == RH_EP_SCALE_STATIC;
  if (isStatic && !isFiniteAboveZero(c.static_scale)) {
    const host::StandardFp standard;  // the conversion of a signalling NaN can trap
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: static_scale %g; want a finite number above 0", operation, static_cast<double>(c.static_scale));
  }
  return RH_OK;
}

rh_result checkTables(const char* operation, const rh_ep_config& c, int worldSize) {
  const uint32_t physical = epPhysical(c);
  if (c.physical_expert == nullptr && physical != c.num_experts) {
    return fail(RH_ERR_INVALID_ARGUMENT, "%s: %u physical experts of %u and no physical_expert: which are replicas of which?", operation,
                physical, c.num_experts);
  }
  bool held[RH_EP_MAX_EXPERTS] = {};
  for (uint32_t p = 0; p < physical; p++) {
    const int64_t expert = c.physical_expert == nullptr ? int64_t{p} : c.physical_expert[p];
    if (expert < 0 || expert >= static_cast<int64_t>(c.num_experts)) {
      return fail(RH_ERR_INVALID_ARGUMENT, "%s: physical_expert[%u] is %lld; want 0..%u", operation, p, static_cast<long long>(expert),
                  c.num_experts - 1);
    }
    held[expert] = true;
    if (c.physical_rank != nullptr && (c.physical_rank[p] < 0 || c.physical_rank[p] >= worldSize)) {
      return fail(RH_ERR_INVALID_ARGUMENT, "%s: physical_rank[%u] is %d; want 0..%d", operation, p, c.physical_rank[p], worldSize - 1);
    }
  }
  for (uint32_t e = 0; e < c.num_experts; e++) {
    if (!held[e]) return fail(RH_ERR_INVALID_ARGUMENT, "%s: expert %u is held nowhere: physical_expert does not name it", operation, e);
  }
  return RH_OK;
}

}  // namespace

WorldRank epRankOf(const rh_ep_config& c, int worldSize, uint32_t physical) {
  if (c.physical_rank != nullptr) return WorldRank{c.physical_rank[physical]};
  const uint32_t n = epPhysical(c), world = static_cast<uint32_t>(worldSize), each = n / world, more = n % world;
  // The first `more` ranks have one expert more than the others.
  const uint32_t rank = physical < more * (each + 1) ? physical / (each + 1) : more + (physical - more * (each + 1)) / each;
  return WorldRank{static_cast<int32_t>(rank)};
}

uint32_t epMostLocal(const rh_ep_config& c, int worldSize) {
  uint32_t n[RH_MAX_LOCAL_RANKS] = {}, most = 0;
  for (uint32_t p = 0; p < epPhysical(c); p++) {
    const uint32_t now = ++n[number(epRankOf(c, worldSize, p))];
    if (now > most) most = now;
  }
  return most;
}

host::EpRowFormat epFormatOf(const rh_ep_config& c) {
  return {static_cast<host::Type>(c.dtype), static_cast<host::Type>(c.wire_dtype), static_cast<host::Type>(c.combine_dtype),
          static_cast<host::EpScale>(c.scale_format), c.static_scale, c.hidden};
}

EpShape epShapeOf(const rh_ep_config& c, int worldSize) {
  const host::EpRowFormat format = epFormatOf(c);
  return {static_cast<uint32_t>(worldSize), c.max_tokens_per_rank, c.topk, epMostLocal(c, worldSize), host::epRowBytes(format),
          host::epCombineRowBytes(format), c.mode == RH_EP_HT, c.device_kind == RH_DEVICE_CUDA};
}

rh_result readEpConfig(const char* operation, const rh_ep_config* given, int worldSize, rh_ep_config* c) {
  rh_result result = readStruct(operation, "config", given, c);
  if (result != RH_OK) return result;
  if (worldSize < 1 || worldSize > RH_MAX_LOCAL_RANKS) {
    return outside(operation, "world_size", static_cast<uint64_t>(worldSize), 1, RH_MAX_LOCAL_RANKS);
  }
  result = checkNumbers(operation, *c);
  if (result == RH_OK) result = checkTypes(operation, *c);
  if (result == RH_OK) result = checkTables(operation, *c, worldSize);
  return result;
}

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_ep_buffer_size(const rh_ep_config* config, int32_t worldSize, uint64_t* bytes) {
  if (bytes == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "ep_buffer_size: bytes is NULL");
  *bytes = 0;
  rh_ep_config c;
  const rh_result result = readEpConfig("ep_buffer_size", config, worldSize, &c);
  if (result == RH_OK) *bytes = railhead::epLayoutOf(epShapeOf(c, worldSize)).bytes;
  return result;
}
