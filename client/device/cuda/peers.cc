#include "device/cuda/peers.h"

#include <stdio.h>

namespace railhead::client::cuda {

PeerReach reachOf(const Context& context, const char* uuid) {
  PeerReach r = {Reach::kUnknown, ""};
  const Driver& driver = *context.driver;
  CUdevice peer;
  if (!deviceOfUuid(driver, uuid, &peer)) {
    snprintf(r.reason, sizeof r.reason, "device %d cannot ask the driver about the GPU %s, which CUDA_VISIBLE_DEVICES hides from this process", context.device, uuid);
    return r;
  }
  if (peer == context.device) return {Reach::kSame, ""};
  Failure why;
  int can = 0;
  if (!driver.cuDeviceCanAccessPeer(&why, &can, context.device, peer)) {
    snprintf(r.reason, sizeof r.reason, "%.*s", static_cast<int>(sizeof r.reason) - 1, why.text);
    return r;
  }
  if (can != 0) return {Reach::kPeer, ""};
  r.reach = Reach::kNone;
  snprintf(r.reason, sizeof r.reason,
           "the driver refuses device %d access to the memory of device %d: `nvidia-smi topo -p2p rw` says whether the chipset, the IOMMU, a MIG instance or confidential computing forbids it",
           context.device, peer);
  return r;
}

}  // namespace railhead::client::cuda
