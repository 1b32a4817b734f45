#include "comm/parts.h"

namespace railhead::client {

namespace {

bool fits(const rhw_part& p, uint32_t count, uint64_t elementBytes, uint64_t bytes) {
  if (p.count < count || p.stride < elementBytes || p.stride % 8 != 0) return false;
  return p.offset >= sizeof(rhw_control_header) && p.offset % 4096 == 0 && p.offset <= bytes && uint64_t{p.count} * p.stride <= bytes - p.offset;
}

}  // namespace

const char* checkParts(const rhw_parts& parts, uint32_t localSize, uint64_t bytes) {
  const struct {
    const rhw_part& part;
    uint32_t count;
    uint64_t elementBytes;
    const char* wrong;
  } needed[] = {
      {parts.plans, 1, sizeof(rhw_plans), "plans out of range"},
      {parts.lines, localSize, sizeof(rhw_rank_line), "rank lines out of range"},
      {parts.flights, localSize, RHW_FLIGHT_RECORDS * sizeof(rhw_flight_record), "flight records out of range"},
      {parts.ledger, 1, sizeof(rhw_ledger), "a ledger out of range"},
      {parts.counters, localSize, sizeof(rhw_ep_counters), "counters out of range"},
  };
  for (const auto& n : needed) {
    if (!fits(n.part, n.count, n.elementBytes, bytes)) return n.wrong;
  }
  return nullptr;
}

}  // namespace railhead::client
