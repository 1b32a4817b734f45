// What the ranks of a group tell each other when they make a buffer, so that it is made on all of them or on none.
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "ep/ep.h"

namespace railhead::client {

namespace {

// What ranks exchange of their configs: one field at a time, so that a message can name the field that differs.
constexpr int kFields = 18;
constexpr const char* kFieldNames[kFields] = {
    "mode", "max_tokens_per_rank", "hidden", "num_experts", "topk", "num_physical", "physical_expert", "physical_rank", "dtype",
    "wire_dtype", "combine_dtype", "scale_format", "static_scale", "on_invalid", "on_dead", "lost_weights", "buffers made before", "memory"};
constexpr int kMemory = kFields - 1;  // 1 = this rank has allocated its memory

struct Summary {
  uint64_t field[kFields];
};

uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0xbf58476d1ce4e5b9u ^ hash >> 29; }

// Compares tables by their contents, so that a given table equals the same default table.
uint64_t hashOf(const rh_ep_config& c, int worldSize, bool ranks) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (uint32_t p = 0; p < epPhysical(c); p++) {
    const uint64_t expert = c.physical_expert == nullptr ? p : static_cast<uint64_t>(c.physical_expert[p]);
    hash = mix(hash, ranks ? static_cast<uint64_t>(number(epRankOf(c, worldSize, p))) : expert);
  }
  return hash;
}

Summary summaryOf(const Ep& ep, int worldSize, uint64_t number) {
  const rh_ep_config& c = ep.config;
  uint32_t scale;
  memcpy(&scale, &c.static_scale, sizeof scale);
  const bool isStatic = c.wire_dtype == RH_FP8_E4M3 && c.scale_format == RH_EP_SCALE_STATIC;
  const auto type = [](rh_dtype d) { return static_cast<uint64_t>(d); };
  return {{c.mode, c.max_tokens_per_rank, c.hidden, c.num_experts, c.topk, epPhysical(c), hashOf(c, worldSize, false),
           hashOf(c, worldSize, true), type(c.dtype), type(c.wire_dtype), type(c.combine_dtype), c.scale_format, isStatic ? scale : 0,
           c.on_invalid, c.on_dead, c.lost_weights, number, ep.memory != nullptr}};
}

// All ranks see the same values, so all of them fail or none does.
rh_result compare(const Comm* comm, const Summary (&all)[RHW_MAX_LOCAL]) {
  for (int r = 0; r < comm->worldSize; r++) {
    if (all[r].field[kMemory] != 0) continue;
    return fail(RH_ERR_OUT_OF_MEMORY, "ep_create: rank %d: rank %d has no memory for counters and for what it keeps of dispatches", number(comm->rank), r);
  }
  for (int i = 0; i < kFields; i++) {
    for (int r = 1; r < comm->worldSize; r++) {
      if (all[r].field[i] == all[0].field[i]) continue;
      // A table is exchanged as a hash and a float as its bits, so there is no value to print.
      const bool opaque = strncmp(kFieldNames[i], "physical_", 9) == 0 || strcmp(kFieldNames[i], "static_scale") == 0;
      if (opaque) {
        return fail(RH_ERR_MISMATCH, "ep_create: rank %d: %s of rank %d differs from that of rank 0; give every rank the same config",
                    number(comm->rank), kFieldNames[i], r);
      }
      return fail(RH_ERR_MISMATCH, "ep_create: rank %d: %s is %llu on rank %d and %llu on rank 0; give every rank the same config",
                  number(comm->rank), kFieldNames[i], static_cast<unsigned long long>(all[r].field[i]), r,
                  static_cast<unsigned long long>(all[0].field[i]));
    }
  }
  return RH_OK;
}

}  // namespace

rh_result compareEps(Comm* comm, const Ep& ep) {
  Summary all[RHW_MAX_LOCAL];
  const Summary mine = summaryOf(ep, comm->worldSize, comm->buffers);
  const rh_result result = comm->device->gather(comm, RHW_OP_EP_CREATE, &mine, all, sizeof mine);
  if (result != RH_OK) return result;
  return compare(comm, all);
}

rh_result agreeOnEp(Comm* comm, rh_result mine) {
  struct Verdict {
    uint32_t result;
    char text[RHW_TEXT];
  };
  Verdict all[RHW_MAX_LOCAL], own = {};
  own.result = static_cast<uint32_t>(mine);
  if (mine != RH_OK) snprintf(own.text, sizeof own.text, "%s", rh_last_error_message());
  const rh_result result = comm->device->gather(comm, RHW_OP_EP_CREATE, &own, all, sizeof own);
  if (result != RH_OK) return result;
  for (int r = 0; r < comm->worldSize; r++) {
    if (all[r].result == RH_OK) continue;
    all[r].text[RHW_TEXT - 1] = '\0';
    const auto code = static_cast<rh_result>(all[r].result);
    if (r == number(comm->rank)) return fail(code, "%s", all[r].text);
    return fail(code, "ep_create: rank %d: rank %d failed: %s", number(comm->rank), r, all[r].text);
  }
  return RH_OK;
}

}  // namespace railhead::client
