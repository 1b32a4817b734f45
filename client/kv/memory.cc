// Regions and caches.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/error.h"
#include "kv/agent.h"
#include "memory/shareable.h"

namespace railhead::client {

namespace {

constexpr uint64_t kMaxRegionBytes = uint64_t{1} << 46;

rh_result checkBytes(const char* operation, uint64_t bytes) {
  if (bytes != 0 && bytes <= kMaxRegionBytes) return RH_OK;
  return fail(RH_ERR_INVALID_ARGUMENT, "%s: %llu bytes: must be 1 to %llu", operation, static_cast<unsigned long long>(bytes),
              static_cast<unsigned long long>(kMaxRegionBytes));
}

rh_result registerFile(KvAgent* agent, const char* operation, int fd, uint64_t offset, uint64_t bytes, uint32_t* region) {
  rhk_region m = {};
  m.offset = offset;
  m.bytes = bytes;
  rhk_result answer;
  const rh_result result = agent->ask(operation, &m, RHK_REGION, nullptr, 0, fd, &answer);
  if (result == RH_OK) *region = answer.number;
  return result;
}

// Makes memory of a sealed memfd. Returns its descriptor, -1 with errno.
int makeMemory(uint64_t bytes, void** memory) {
  const int fd = memfd_create("railhead-kv-cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  void* p = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
    p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (p == MAP_FAILED) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  *memory = p;
  return fd;
}

rh_result alloc(KvAgent* agent, uint64_t bytes, void** memory, uint32_t* region) {
  auto* kept = new KvMemory;
  if (kept == nullptr) return fail(RH_ERR_OUT_OF_MEMORY, "kv_alloc: no memory");
  const int fd = makeMemory(bytes, memory);
  if (fd < 0) {
    delete kept;
    return fail(errno == ENOMEM ? RH_ERR_OUT_OF_MEMORY : RH_ERR_SYSTEM, "kv_alloc: %llu bytes: %s", static_cast<unsigned long long>(bytes), strerror(errno));
  }
  const rh_result result = registerFile(agent, "kv_alloc", fd, 0, bytes, region);
  close(fd);
  if (result != RH_OK) {
    munmap(*memory, bytes);
    *memory = nullptr;
    delete kept;
    return result;
  }
  kept->memory = *memory;
  kept->bytes = bytes;
  kept->region = *region;
  agent->keep(kept);
  return RH_OK;
}

// The dtypes of kv.h are those of kvxfer/paged.
bool typeOf(rh_dtype dtype, uint32_t* out) {
  switch (dtype) {
    case RH_F32: *out = 0; return true;
    case RH_F16: *out = 1; return true;
    case RH_BF16: *out = 2; return true;
    case RH_FP8_E4M3:
    case RH_I8:
    case RH_U8: *out = 3; return true;
    case RH_FP8_E5M2: *out = 4; return true;
    default: return false;
  }
}

rh_result createCache(KvAgent* agent, const char* operation, rhk_cache* m, const rh_kv_place* tensors, uint32_t* cache) {
  static_assert(sizeof(rh_kv_place) == sizeof(rhk_place) && offsetof(rh_kv_place, region) == offsetof(rhk_place, region), "the same struct");
  rhk_result answer;
  const rh_result result = agent->ask(operation, m, RHK_CACHE, tensors, m->places * sizeof(rhk_place), -1, &answer);
  if (result != RH_OK) return result;
  agent->noteCache(answer.number, m->block_tokens);
  *cache = answer.number;
  return RH_OK;
}

}  // namespace

}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_kv_alloc(rh_kv_agent* handle, uint64_t bytes, void** memory, uint32_t* region) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_alloc");
  if (memory == nullptr || region == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_alloc: memory or region is NULL");
  *memory = nullptr;
  const rh_result result = checkBytes("kv_alloc", bytes);
  return result == RH_OK ? alloc(agent.get(), bytes, memory, region) : result;
}

extern "C" rh_result rh_kv_register(rh_kv_agent* handle, void* memory, uint64_t bytes, uint32_t* region) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_register");
  if (memory == nullptr || region == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_register: memory or region is NULL");
  rh_result result = checkBytes("kv_register", bytes);
  if (result != RH_OK) return result;
  rh_register_config config = RH_REGISTER_CONFIG_INIT;
  config.pointer = memory;
  config.bytes = bytes;
  Shareable found;
  result = findShareable(WorldRank{0}, config, &found);
  if (result != RH_OK) return result;
  if (found.fd < 0) return fail(RH_ERR_UNSUPPORTED, "kv_register: the proxy cannot map the memory: %s", found.reason);
  result = registerFile(agent.get(), "kv_register", found.fd, found.offset, bytes, region);
  close(found.fd);
  return result;
}

extern "C" rh_result rh_kv_deregister(rh_kv_agent* handle, uint32_t region) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_deregister");
  rhk_region_free m = {};
  m.region = region;
  rhk_result answer;
  const rh_result result = agent.get()->ask("kv_deregister", &m, RHK_REGION_FREE, nullptr, 0, -1, &answer);
  if (result != RH_OK) return result;
  KvMemory* own = agent.get()->take(region);
  if (own == nullptr) return RH_OK;
  munmap(own->memory, own->bytes);
  delete own;
  return RH_OK;
}

extern "C" rh_result rh_kv_cache_create(rh_kv_agent* handle, const rh_kv_cache_config* config, uint32_t* cache) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_cache_create");
  if (config == nullptr || cache == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_cache_create: config or cache is NULL");
  rh_kv_cache_config c;
  const rh_result result = readStruct("kv_cache_create", "config", config, &c);
  if (result != RH_OK) return result;
  rhk_cache m = {};
  if (!typeOf(c.dtype, &m.dtype)) return fail(RH_ERR_INVALID_ARGUMENT, "kv_cache_create: dtype %d: use F32, F16, BF16, FP8_E4M3, FP8_E5M2, I8 or U8", c.dtype);
  if (c.num_tensors > 0 && c.tensors == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_cache_create: %u tensors at NULL", c.num_tensors);
  m.layers = c.layers;
  m.parts = c.parts;
  m.blocks = c.blocks;
  m.block_tokens = c.block_tokens;
  m.heads = c.heads;
  m.head_dim = c.head_dim;
  m.first_layer = c.first_layer;
  m.first_head = c.first_head;
  m.places = c.num_tensors;
  m.form = c.form;
  m.order = c.order;
  m.block_stride = c.block_stride;
  m.token_stride = c.token_stride;
  m.head_stride = c.head_stride;
  return createCache(agent.get(), "kv_cache_create", &m, c.tensors, cache);
}

extern "C" rh_result rh_kv_pool_create(rh_kv_agent* handle, uint32_t region, uint64_t offset, uint32_t blocks, uint64_t block_bytes, uint32_t granule,
                                       uint32_t* cache) {
  KvRef agent(kvAgents(), handle);
  if (agent.get() == nullptr) return notAnAgent("kv_pool_create");
  if (cache == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "kv_pool_create: cache is NULL");
  if (granule == 0 || granule > 65536 || block_bytes == 0 || block_bytes % granule != 0 || block_bytes / granule > 65536) {
    return fail(RH_ERR_INVALID_ARGUMENT, "kv_pool_create: blocks of %llu bytes, granules of %u: a block has 1 to 65536 whole granules of 1 to 65536 bytes",
                static_cast<unsigned long long>(block_bytes), granule);
  }
  rhk_cache m = {};
  m.layers = m.parts = m.heads = m.places = 1;
  m.blocks = blocks;
  m.block_tokens = static_cast<uint32_t>(block_bytes / granule);
  m.head_dim = granule;
  m.dtype = 3;
  m.form = RHK_STRIDED;
  m.block_stride = block_bytes;
  m.token_stride = granule;
  m.head_stride = granule;
  const rh_kv_place place = {offset, region, 0};
  return createCache(agent.get(), "kv_pool_create", &m, &place, cache);
}
