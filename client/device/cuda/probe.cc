#include "device/cuda/probe.h"

#include <string.h>

#include "device/cuda/memory.h"

namespace railhead::client::cuda {

namespace {

constexpr uint64_t kWords = kProbeSlot / sizeof(uint64_t);

// Different in every word, for every writer and reader, so that memory which is mapped at a wrong place or from a wrong rank is noticed.
void pattern(int writer, int reader, uint64_t words[kWords]) {
  uint64_t x = static_cast<uint64_t>(writer) << 32 | static_cast<uint32_t>(reader);
  for (uint64_t i = 0; i < kWords; i++) {
    x = (x + 0x9e3779b97f4a7c15) * 0xd1342543de82ef95;
    words[i] = x ^ x >> 29;
  }
}

constexpr int kAll = -1;  // the reader of the pattern that a rank stores into its own memory

CUdeviceptr slot(const Probe& p, int owner, int writer) {
  return p.base + static_cast<uint64_t>(owner) * p.stride + (writer == owner ? 0 : kProbeSlot * (static_cast<uint64_t>(writer) + 1));
}

bool copy(const Probe& p, CUdeviceptr to, CUdeviceptr from, Failure* why) {
  return p.context->driver->cuMemcpyAsync(why, to, from, kProbeSlot, p.context->stream) && finish(*p.context, p.context->stream, p.deadlineNs, why);
}

CUdeviceptr onHost(const uint64_t* words) { return reinterpret_cast<CUdeviceptr>(words); }

// Stores the writer's pattern. The device copies from memory of the host, which it stages.
bool store(const Probe& p, int owner, Failure* why) {
  uint64_t words[kWords];
  pattern(p.rank, owner == p.rank ? kAll : owner, words);
  return copy(p, slot(p, owner, p.rank), onHost(words), why);
}

bool check(const Probe& p, int owner, int writer, Failure* why) {
  uint64_t want[kWords], got[kWords] = {};
  pattern(writer, writer == owner ? kAll : owner, want);
  if (!copy(p, onHost(got), slot(p, owner, writer), why)) return false;
  for (uint64_t i = 0; i < kWords; i++) {
    if (got[i] == want[i]) continue;
    return because(why, RH_ERR_SYSTEM, "the probe stored 0x%016llx and read 0x%016llx at byte %llu of %llu", static_cast<unsigned long long>(want[i]),
                   static_cast<unsigned long long>(got[i]), static_cast<unsigned long long>(i * sizeof want[0]), static_cast<unsigned long long>(kProbeSlot));
  }
  return true;
}

}  // namespace

bool probeStoreOwn(const Probe& p, Failure* why) {
  const Current current(*p.context, why);
  return current && store(p, p.rank, why);
}

bool probeVisitPeers(const Probe& p, Failure* why) {
  const Current current(*p.context, why);
  if (!current) return false;
  for (int peer = 0; peer < p.ranks; peer++) {
    if (peer == p.rank) continue;
    if (!check(p, peer, peer, why)) return prefix(why, "reading the device memory of local rank %d from device %d: ", peer, p.context->device);
    if (!store(p, peer, why)) return prefix(why, "storing into the device memory of local rank %d from device %d: ", peer, p.context->device);
  }
  return true;
}

bool probeReadOwn(const Probe& p, Failure* why) {
  const Current current(*p.context, why);
  if (!current) return false;
  for (int peer = 0; peer < p.ranks; peer++) {
    if (peer != p.rank && !check(p, p.rank, peer, why)) return prefix(why, "stores of local rank %d into the memory of device %d: ", peer, p.context->device);
  }
  return true;
}

bool probeFabric(const Context& context, Failure* why) {
  const Driver& driver = *context.driver;
  const Current current(context, why);
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, context.device};
  uint64_t bytes;
  CUmemGenericAllocationHandle handle;
  if (!current || !memoryGranularity(context, &bytes, why) || !driver.cuMemCreate(why, &handle, bytes, &properties, 0)) {
    return prefix(why, "device %d creates no memory with a FABRIC handle, for which an IMEX channel (/dev/nvidia-caps-imex-channels) is needed: ", context.device);
  }
  CUmemFabricHandle shareable;
  const bool exported = driver.cuMemExportToShareableHandle(why, &shareable, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0);
  return driver.cuMemRelease(why, handle) && exported;
}

}  // namespace railhead::client::cuda
