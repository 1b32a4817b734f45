// Grants.
#include <stdlib.h>
#include <string.h>
#include <stdio.h>

#include "base/error.h"
#include "kv/agent.h"

namespace railhead::client {

namespace {

// A list of blocks as ranges of neighbours, which the messages have.
class Ranges {
 public:
  Ranges(const uint32_t* blocks, uint32_t count) {
    ranges_ = static_cast<rhk_range*>(malloc((uint64_t{count} + 1) * sizeof *ranges_));
    if (ranges_ == nullptr) return;
    for (uint32_t i = 0; i < count; i++) {
      if (count_ > 0 && ranges_[count_ - 1].first + ranges_[count_ - 1].count == blocks[i]) {
        ranges_[count_ - 1].count++;
      } else {
        ranges_[count_++] = {blocks[i], 1};
      }
    }
  }
  ~Ranges() { free(ranges_); }
  Ranges(const Ranges&) = delete;
  Ranges& operator=(const Ranges&) = delete;
  const rhk_range* get() const { return ranges_; }
  uint32_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof *ranges_; }

 private:
  rhk_range* ranges_ = nullptr;
  uint32_t count_ = 0;
};

rh_result checkList(const char* operation, const uint32_t* blocks, uint32_t count) {
  if (blocks == nullptr && count > 0) return fail(RH_ERR_INVALID_ARGUMENT, "%s: %u blocks at NULL", operation, count);
  if (count > RH_KV_MAX_LIST) return fail(RH_ERR_LIMIT, "%s: %u blocks: at most %u in one call", operation, count, RH_KV_MAX_LIST);
  return RH_OK;
}

rh_result noMemory(const char* operation) { return fail(RH_ERR_OUT_OF_MEMORY, "%s: no memory for the list", operation); }

}  // namespace

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_kv_grant(rh_kv_agent* handle, uint32_t cache, const uint32_t* blocks, uint32_t num_blocks, uint32_t rights, uint64_t ttl_ms,
                                 const char* reader, rh_kv_reference* reference) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_grant");
  if (reader == nullptr || reference == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_grant: reader or reference is NULL");
  const rh_result checked = checkList("kv_grant", blocks, num_blocks);
  if (checked != RH_OK) return checked;
  if (ttl_ms > UINT64_MAX / 1000000) return fail(RH_ERR_INVALID_ARGUMENT, "kv_grant: %llu ms: at most a year", static_cast<unsigned long long>(ttl_ms));
  const Ranges ranges(blocks, num_blocks);
  if (ranges.get() == nullptr) return noMemory("kv_grant");
  rhk_grant m = {};
  const size_t length = strnlen(reader, RHK_NAME);
  if (length == 0 || length >= RHK_NAME) return fail(RH_ERR_INVALID_ARGUMENT, "kv_grant: reader has %zu bytes: must be 1 to %u", length, RHK_NAME - 1);
  memcpy(m.reader, reader, length);
  m.cache = cache;
  m.rights = rights;
  m.ttl_ns = ttl_ms * 1000000;
  m.ranges = ranges.count();
  rhk_result answer;
  const rh_result result = agent.get()->ask("kv_grant", &m, RHK_GRANT, ranges.get(), ranges.bytes(), -1, &answer);
  if (result == RH_OK) memcpy(reference->bytes, answer.reference, sizeof reference->bytes);
  return result;
}

extern "C" rh_result rh_kv_revoke(rh_kv_agent* handle, const rh_kv_reference* reference) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_revoke");
  if (reference == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_revoke: reference is NULL");
  rhk_revoke m = {};
  memcpy(m.reference, reference->bytes, sizeof m.reference);
  rhk_result answer;
  return agent.get()->ask("kv_revoke", &m, RHK_REVOKE, nullptr, 0, -1, &answer);
}

extern "C" rh_result rh_kv_reuse(rh_kv_agent* handle, uint32_t cache, const uint32_t* blocks, uint32_t num_blocks, uint32_t* waiting) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_reuse");
  if (waiting == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_reuse: waiting is NULL");
  const rh_result checked = checkList("kv_reuse", blocks, num_blocks);
  if (checked != RH_OK) return checked;
  const Ranges ranges(blocks, num_blocks);
  if (ranges.get() == nullptr) return noMemory("kv_reuse");
  rhk_reuse m = {};
  m.cache = cache;
  m.ranges = ranges.count();
  rhk_result answer;
  const rh_result result = agent.get()->ask("kv_reuse", &m, RHK_REUSE, ranges.get(), ranges.bytes(), -1, &answer);
  if (result == RH_OK) *waiting = answer.number;
  return result;
}
