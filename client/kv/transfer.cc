// Transfers, notifications and their events.
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "host/futex.h"
#include "kv/agent.h"

namespace railhead::client {

namespace {

constexpr uint32_t kDefaultTimeoutMs = 30000;

uint64_t timeoutNs(uint32_t ms) { return uint64_t{ms == 0 ? kDefaultTimeoutMs : ms} * 1000000; }

// Copies a peer's name. The proxy checks its characters.
rh_result copyName(const char* operation, const char* name, char out[RHK_NAME]) {
  memset(out, 0, RHK_NAME);
  const size_t length = name == nullptr ? 0 : strnlen(name, RHK_NAME);
  if (length == 0 || length >= RHK_NAME) return fail(RH_ERR_INVALID_ARGUMENT, "%s: peer has %zu bytes: must be 1 to %u", operation, length, RHK_NAME - 1);
  memcpy(out, name, length);
  return RH_OK;
}

rh_result checkTransfer(const rh_kv_transfer& t) {
  if (t.op != RH_KV_READ && t.op != RH_KV_WRITE) return fail(RH_ERR_INVALID_ARGUMENT, "kv_submit: op %u: must be RH_KV_READ or RH_KV_WRITE", t.op);
  if (t.reference == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_submit: reference is NULL");
  if (t.blocks == nullptr || t.num_blocks == 0) return fail(RH_ERR_INVALID_ARGUMENT, "kv_submit: %u blocks at %p: at least one", t.num_blocks, static_cast<const void*>(t.blocks));
  if (t.places == nullptr && t.num_places > 0) return fail(RH_ERR_INVALID_ARGUMENT, "kv_submit: %u places at NULL", t.num_places);
  if (uint64_t{t.num_blocks} + t.num_places > RH_KV_MAX_LIST) {
    return fail(RH_ERR_LIMIT, "kv_submit: %u blocks and %u places: together at most %u", t.num_blocks, t.num_places, RH_KV_MAX_LIST);
  }
  if (t.notification == nullptr && t.notification_bytes > 0) return fail(RH_ERR_INVALID_ARGUMENT, "kv_submit: a notification at NULL");
  if (t.notification_bytes > RH_KV_MAX_PAYLOAD) {
    return fail(RH_ERR_LIMIT, "kv_submit: a notification of %u bytes: at most %u", t.notification_bytes, RH_KV_MAX_PAYLOAD);
  }
  return RH_OK;
}

rh_result submitTransfer(KvAgent* agent, const rh_kv_transfer& t, uint64_t* id) {
  char peer[RHK_NAME];
  rh_result result = copyName("kv_submit", t.peer, peer);
  if (result != RH_OK) return result;
  rhk_submission s = {};
  s.op = t.op == RH_KV_READ ? RHK_READ : RHK_WRITE;
  s.flags = t.flags;
  s.cache = t.cache;
  s.timeout_ns = timeoutNs(t.timeout_ms);
  s.priority = t.priority;
  s.first_layer = t.first_layer;
  s.layers = t.layers;
  s.peer_token = t.peer_token;
  s.own_token = t.token;
  s.tokens = t.tokens;
  if (s.tokens == 0) {
    const uint64_t all = uint64_t{t.num_blocks} * agent->blockTokens(t.cache);
    if (all <= t.token || all - t.token > UINT32_MAX) {
      return fail(RH_ERR_INVALID_ARGUMENT, "kv_submit: from token %u to the end of %u blocks of cache %u: there are %llu tokens", t.token, t.num_blocks, t.cache,
                  static_cast<unsigned long long>(all));
    }
    s.tokens = static_cast<uint32_t>(all - t.token);
  }
  s.own_blocks = t.num_blocks;
  s.peer_blocks = t.num_places;
  s.payload_bytes = t.notification_bytes;
  s.scale = t.scale;
  memcpy(s.reference, t.reference->bytes, sizeof s.reference);
  const KvAgent::Part parts[] = {
      {peer, sizeof peer}, {t.blocks, t.num_blocks * sizeof *t.blocks}, {t.places, t.num_places * sizeof *t.places}, {t.notification, t.notification_bytes}};
  result = agent->submit("kv_submit", &s, parts, 4);
  if (result == RH_OK) *id = s.id;
  return result;
}

}  // namespace

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_kv_submit(rh_kv_agent* handle, const rh_kv_transfer* transfer, uint64_t* id) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_submit");
  if (transfer == nullptr || id == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_submit: transfer or id is NULL");
  rh_kv_transfer t;
  rh_result result = readStruct("kv_submit", "transfer", transfer, &t);
  if (result == RH_OK) result = checkTransfer(t);
  return result == RH_OK ? submitTransfer(agent.get(), t, id) : result;
}

extern "C" rh_result rh_kv_resume(rh_kv_agent* handle, uint64_t failed, uint32_t timeout_ms, uint64_t* id) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_resume");
  if (id == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_resume: id is NULL");
  rhk_submission s = {};
  s.op = RHK_RESUME;
  s.timeout_ns = timeoutNs(timeout_ms);
  const KvAgent::Part part = {&failed, sizeof failed};
  const rh_result result = agent.get()->submit("kv_resume", &s, &part, 1);
  if (result == RH_OK) *id = s.id;
  return result;
}

extern "C" rh_result rh_kv_cancel(rh_kv_agent* handle, uint64_t id) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_cancel");
  rhk_submission s = {};
  s.op = RHK_CANCEL;
  s.id = id;
  return agent.get()->submit("kv_cancel", &s, nullptr, 0);
}

extern "C" rh_result rh_kv_notify(rh_kv_agent* handle, const char* peer, const void* payload, uint32_t bytes, uint64_t* id) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_notify");
  if (id == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_notify: id is NULL");
  if (payload == nullptr && bytes > 0) return fail(RH_ERR_INVALID_ARGUMENT, "kv_notify: %u bytes at NULL", bytes);
  if (bytes > RH_KV_MAX_PAYLOAD) return fail(RH_ERR_LIMIT, "kv_notify: %u bytes: at most %u", bytes, RH_KV_MAX_PAYLOAD);
  char name[RHK_NAME];
  rh_result result = copyName("kv_notify", peer, name);
  if (result != RH_OK) return result;
  rhk_submission s = {};
  s.op = RHK_NOTIFY;
  s.payload_bytes = bytes;
  const KvAgent::Part parts[] = {{name, sizeof name}, {payload, bytes}};
  result = agent.get()->submit("kv_notify", &s, parts, 2);
  if (result == RH_OK) *id = s.id;
  return result;
}

extern "C" rh_result rh_kv_poll(rh_kv_agent* handle, rh_kv_event* events, uint32_t max, uint32_t timeout_ms, uint32_t* count) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_poll");
  if (events == nullptr || max == 0 || count == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_poll: room for no event, or count is NULL");
  *count = 0;
  return agent.get()->poll(events, max, timeout_ms == 0 ? 0 : railhead::host::nowNs() + int64_t{timeout_ms} * 1000000, count);
}

extern "C" rh_result rh_kv_descriptor(rh_kv_agent* handle, int* fd) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_descriptor");
  if (fd == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_descriptor: fd is NULL");
  *fd = agent.get()->bell();
  return RH_OK;
}

extern "C" rh_result rh_kv_arm(rh_kv_agent* handle, uint32_t* ready) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_arm");
  if (ready == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_arm: ready is NULL");
  *ready = agent.get()->arm() ? 1 : 0;
  return RH_OK;
}

extern "C" rh_result rh_kv_receive(rh_kv_agent* handle, rh_kv_notification* header, void* payload, uint32_t size) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_receive");
  if (header == nullptr || (payload == nullptr && size > 0)) return fail(RH_ERR_INVALID_ARGUMENT, "kv_receive: header or payload is NULL");
  rh_result result = checkStruct("kv_receive", "header", header);
  if (result != RH_OK) return result;
  rh_kv_notification found = {};
  result = agent.get()->receive(&found, payload, size);
  writeStruct(header, found);
  return result;
}

extern "C" rh_result rh_kv_missing(rh_kv_agent* handle, uint64_t failed, uint32_t from, rh_kv_piece* pieces, uint32_t max, uint32_t* count) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_missing");
  if (count == nullptr || pieces == nullptr || max == 0) return fail(RH_ERR_INVALID_ARGUMENT, "kv_missing: room for no piece, or count is NULL");
  static_assert(sizeof(rh_kv_piece) == sizeof(rhk_piece), "the same struct");
  rhk_missing m = {};
  m.id = failed;
  m.from = from;
  m.most = max;
  rhk_result answer;
  const rh_result result = agent.get()->ask("kv_missing", &m, RHK_MISSING, sizeof m, nullptr, 0, -1, &answer, pieces, max * sizeof *pieces);
  if (result == RH_OK) *count = answer.number;
  return result;
}
