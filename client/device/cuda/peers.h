// Whether this process's device can reach the memory of another rank's device, and why not.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_PEERS_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_PEERS_H_

#include "device/cuda/context.h"
#include "device/cuda/devices.h"

namespace railhead::client::cuda {

enum class Reach {
  kSame,     // one device: its memory is reached like the own
  kPeer,     // another device, whose memory the driver lets this one map
  kUnknown,  // the driver cannot tell: the device is hidden from this process. Only trying shows it (probe.h)
  kNone,     // not reachable: data must go through the host
};

// uuid: of the other rank's device, as DeviceFacts has it. reason: for kUnknown and kNone, a sentence that says why.
struct PeerReach {
  Reach reach;
  char reason[256];
};
PeerReach reachOf(const Context& context, const char* uuid);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_PEERS_H_
