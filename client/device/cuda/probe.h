// The capability probe: each rank of a node stores patterns into the memory of all others and reads theirs, by way of the mappings that
// collectives would use. Attributes of a device promise more than a machine keeps.
//
// Each rank does the steps in order, and no rank begins a step before all have done the one before. Each rank's memory has probeBytes(ranks) bytes
// for it at the same offset of its heap. Afterwards they contain patterns.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_PROBE_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_PROBE_H_

#include "device/cuda/context.h"

namespace railhead::client::cuda {

constexpr uint64_t kProbeSlot = 4096;  // bytes: a pattern

// A slot for what the rank itself stores, then one for each rank.
constexpr uint64_t probeBytes(int ranks) { return kProbeSlot * (static_cast<uint64_t>(ranks) + 1); }

struct Probe {
  const Context* context;
  CUdeviceptr base;  // rank 0's memory for the probe; rank r's is at base + r * stride
  uint64_t stride;
  int rank, ranks;  // local
  int64_t deadlineNs;
};

// 1: stores a pattern into the own memory.
bool probeStoreOwn(const Probe& probe, Failure* why);
// 2: reads the other ranks' patterns, and stores one into the memory of each.
bool probeVisitPeers(const Probe& probe, Failure* why);
// 3: reads what the others have stored into the own memory.
bool probeReadOwn(const Probe& probe, Failure* why);

// Whether the driver creates memory with a FABRIC handle, for nodes that share one NVLink fabric. The attribute of the device says yes where
// creating one is refused. *why says why not.
bool probeFabric(const Context& context, Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_PROBE_H_
