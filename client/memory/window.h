// Windows: symmetric memory, in the heaps of a comm's ranks (window.cc) or registered by the callers (registration.cc).
#ifndef RAILHEAD_CLIENT_MEMORY_WINDOW_H_
#define RAILHEAD_CLIENT_MEMORY_WINDOW_H_

#include <stddef.h>
#include <stdint.h>

#include "base/handle_table.h"
#include "base/malloced.h"
#include "base/rank.h"
#include "comm/comm.h"
#include "railhead.h"
#include "wire.h"

namespace railhead::client {

constexpr int kMaxWindows = 16384;  // in a process

// The mapping of a peer's registered memory.
struct PeerMapping {
  void* base;  // nullptr = none
  size_t bytes;
  char* part;  // where the registered memory begins
};

// A registered window: memory that the ranks own.
struct Region : Malloced {
  uint64_t bytes;
  LocalRank staged;          // the lowest rank whose memory cannot be shared, so that the window is staged; kNoLocalRank = all share
  char reason[RHW_REASON];   // why that rank cannot share
  char* own;                 // this rank's memory; nullptr after it freed the window
  char* parts[RHW_MAX_LOCAL];  // by local rank: address of each rank's part, own and the mapped parts of peers
  PeerMapping peers[RHW_MAX_LOCAL];  // by local rank; of the host's memory
  Placed placed;                     // of a device's memory

  bool isShared() const { return staged == kNoLocalRank; }
};

struct Window : Malloced {
  Comm* comm;
  rh_comm* commHandle;
  uint64_t offset;  // in the heap, or device heap
  size_t bytes;
  int32_t memory;   // RH_MEMORY_HOST or RH_MEMORY_DEVICE
  uint32_t region;  // number of the registered window; 0 = the window is in the heap
  uint32_t captured;  // calls of live graphs that have buffers in it; atomic

  const Region* registered() const { return region == 0 ? nullptr : comm->regions[region]; }
};

using Windows = HandleTable<Window, kMaxWindows>;
Windows& windows();

// Makes windows end with their comm. Call it before the first window of the process; idempotent.
void watchWindows();

// RH_OK where the window can be freed: no call of a group, or of a graph, that has not ended uses it.
rh_result checkUnused(const Comm* comm, const rh_window* handle, const char* operation);

// rh_window_alloc for a caller with exclusive access to the comm. memory: RH_MEMORY_HOST or RH_MEMORY_DEVICE, as the comm's device has it.
rh_result allocWindow(Comm* comm, rh_comm* handle, size_t bytes, int32_t memory, rh_window** out);

// rh_window_free for a caller with exclusive access to the comm, once checkUnused allows it.
rh_result freeWindow(Comm* comm, rh_window* handle);

// Unmaps the peers' parts of a region in the host's memory. It frees no memory, because the child of a fork calls it too.
void unmapPeers(Region* region);
// Unmaps the memory of all ranks of a region, on any device. No call may use it, and the comm's device must be open.
void unmapRegion(Comm* comm, Region* region);

// Ends the registered window of that number, if it exists. What is mapped on a device stays until unmapRegion, or until the device is closed.
void dropRegion(Comm* comm, uint32_t number);

// The offer of a buffer in this rank's registered memory that the other ranks have mapped: the region's number and the offset in it
// (RHW_REGION_SHIFT). kNoOffset if the buffer is not in such memory.
uint64_t offerInRegions(const Comm* comm, const void* buffer, uint64_t bytes);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_MEMORY_WINDOW_H_
