// Windows: symmetric memory, in the heaps of a comm's ranks (window.cc) or registered by the callers (registration.cc).
#ifndef RAILHEAD_CLIENT_MEMORY_WINDOW_H_
#define RAILHEAD_CLIENT_MEMORY_WINDOW_H_

#include <stddef.h>
#include <stdint.h>

#include "base/handle_table.h"
#include "base/malloced.h"
#include "comm/comm.h"
#include "railhead.h"
#include "wire.h"

namespace railhead::client {

constexpr int kMaxWindows = 16384;  // of a process

// A peer's registered memory, as it was mapped.
struct PeerMapping {
  void* base;  // nullptr = none
  size_t bytes;
  char* part;  // where the registered memory begins
};

// A registered window: memory that the ranks own.
struct Region : Malloced {
  uint64_t bytes;
  int32_t stagedLocal;       // the rank because of which nothing is shared, -1 = everything is
  char reason[RHW_REASON];   // why not
  char* own;                 // this rank's memory; nullptr once it has given the window back
  char* parts[RHW_MAX_LOCAL];  // where each rank's part lies; own, and those of peers that are mapped
  PeerMapping peers[RHW_MAX_LOCAL];
};

struct Window : Malloced {
  Comm* comm;
  rh_comm* commHandle;
  uint64_t offset;  // in the heap
  size_t bytes;
  uint32_t region;  // 0 = it lies in the heap, else its number among the registered ones
  uint32_t captured;  // calls with buffers in it, of graphs that have not been destroyed; atomic

  const Region* registered() const { return region == 0 ? nullptr : comm->regions[region]; }
};

using Windows = HandleTable<Window, kMaxWindows>;
Windows& windows();

// Makes comms end their windows with them. Before the first window of the process, however often it is called.
void watchWindows();

// RH_OK where the window can be freed: no call of a group, or of a graph, that has not ended uses it.
rh_result checkUnused(const Comm* comm, const rh_window* handle, const char* operation);

// rh_window_alloc of a caller that has the comm to itself.
rh_result allocWindow(Comm* comm, rh_comm* handle, size_t bytes, rh_window** out);

// Unmaps what a region has of other ranks. Frees no memory: the child of a fork calls it too.
void unmapPeers(Region* region);

// Ends a registered window, if there is one of that number.
void dropRegion(Comm* comm, uint32_t number);

// Where a buffer lies in this rank's registered memory that the others have mapped: the region's number and the offset in it
// (RHW_REGION_SHIFT). kNoOffset if it does not.
uint64_t offerInRegions(const Comm* comm, const void* buffer, uint64_t bytes);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_MEMORY_WINDOW_H_
