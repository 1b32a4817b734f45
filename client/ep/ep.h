// Expert parallelism: a buffer of a comm, and the dispatches in flight on it.
#ifndef RAILHEAD_CLIENT_EP_EP_H_
#define RAILHEAD_CLIENT_EP_EP_H_

#include <stddef.h>
#include <stdint.h>

#include "base/handle_table.h"
#include "base/malloced.h"
#include "comm/comm.h"
#include "host/ep.h"
#include "railhead.h"
#include "railhead/ep/ep_plan.h"
#include "session/message.h"

namespace railhead::client {

constexpr int kMaxEps = 1024;  // of a process
constexpr int kMaxEpRoutings = 1024;
constexpr int kMaxEpGraphHandles = 32768;  // of captured dispatches

// Dispatches of a buffer that the host has handles for: as many as can be in flight, one to be refused, and one more.
constexpr int kEpHandles = kEpInFlight + 2;

// What a handle names. Made with the buffer, so that a dispatch takes no memory and no lock; one that ends renews its handle for the
// next. That of a captured dispatch is made for it, and lives until the last graph with a call on it is destroyed.
struct EpDispatched : Malloced {
  rh_ep* ep;
  rh_ep_handle* handle;
  bool open;          // the caller has the handle. Atomic: a graph is destroyed on any thread
  bool ofGraph;
  uint32_t captures;  // calls of graphs that use it; atomic
  EpDispatched* next;  // ofGraph: of the buffer's
  EpCell cell;
};

// A cached routing: a plan in memory of its own.
struct EpCached : Malloced {
  rh_ep* ep;
  rh_ep_routing* handle;
  EpCached* next;   // of the buffer's
  uint32_t tokens;  // of the caller
  uint32_t captures;  // calls of graphs that use it; atomic
  char* memory;
  EpPlan plan;
  EpCell cell;      // for what is found when it is made
};

struct Ep : Malloced {
  Comm* comm;
  rh_comm* commHandle;
  rh_window* window;
  rh_ep_config config;      // its tables are in the team
  uint32_t quiet;           // a word that stays 0
  char* memory;             // tables and flights
  uint64_t memoryBytes;
  host::EpBuffer buffer;    // where calls run
  EpDispatched dispatched[kEpHandles];
  EpDispatched* graphs;     // handles of captured dispatches
  EpCached* routings;
  uint32_t references;      // the handle's, and one for each call that is queued or captured; atomic. The last one frees it
  uint32_t captures;        // calls of graphs that use it; atomic

  const EpTeam& team() const { return buffer.team; }
  // Calls run after they have returned.
  bool runsLater() const { return comm->device->streams != nullptr; }
};

// For what was queued or captured, and may run after the handle has ended.
void retainEp(Ep* ep);
void releaseEp(Ep* ep);

using Eps = HandleTable<Ep, kMaxEps>;
using EpHandles = HandleTable<EpDispatched, kEpHandles * kMaxEps + kMaxEpGraphHandles>;
using EpRoutings = HandleTable<EpCached, kMaxEpRoutings>;
Eps& eps();
EpHandles& epHandles();
EpRoutings& epRoutings();

// A call on a buffer: its comm is this thread's alone as long as it lives.
class EpCall {
 public:
  EpCall(rh_ep* handle, const char* operation);
  EpCall(rh_ep_handle* handle, const char* operation);
  EpCall(rh_ep_routing* handle, const char* operation);
  ~EpCall();
  EpCall(const EpCall&) = delete;
  EpCall& operator=(const EpCall&) = delete;

  rh_result result() const { return result_; }  // RH_OK, or why there is nothing to do
  // The same, of a call that is made on a stream.
  rh_result onStream(const void* stream);
  Ep* ep() const { return ep_; }
  EpDispatched* dispatched() const { return dispatched_; }
  EpCached* cached() const { return cached_; }

 private:
  void open(rh_ep* handle, const char* operation);

  const char* operation_;
  alignas(Comms::Exclusive) char guard_[sizeof(Comms::Exclusive)];
  bool guarded_ = false;
  rh_result result_ = RH_OK;
  Ep* ep_ = nullptr;
  EpDispatched* dispatched_ = nullptr;
  EpCached* cached_ = nullptr;
};

// Types that rows are added in.
inline bool isSumType(rh_dtype d) { return d == RH_F32 || d == RH_BF16 || d == RH_F16; }

// Copies a caller's config that has nothing wrong with it.
rh_result readEpConfig(const char* operation, const rh_ep_config* given, int worldSize, rh_ep_config* config);
// The window's layout that follows from it.
EpShape epShapeOf(const rh_ep_config& config, int worldSize);
host::EpRowFormat epFormatOf(const rh_ep_config& config);
// Most experts of a rank.
uint32_t epMostLocal(const rh_ep_config& config, int worldSize);
// The rank of a physical expert.
uint32_t epRankOf(const rh_ep_config& config, int worldSize, uint32_t physical);
inline uint32_t epPhysical(const rh_ep_config& config) { return config.num_physical != 0 ? config.num_physical : config.num_experts; }

// The open handle of that name; nullptr = the buffer has none.
EpDispatched* findDispatched(Ep* ep, const rh_ep_handle* handle);

// Tables and flights, in memory of the buffer's own. False: there is none.
bool allocateEp(Ep* ep);
// Memory of a cached plan.
bool allocatePlan(const Ep* ep, EpCached* cached);
void freeRouting(EpCached* cached);

// Whether the group is broken for dispatch and combine: where deaths are survived, one that is broken by a death works on.
bool isBroken(const Ep* ep);

// Where a caller wants a report; its struct was read. given: nullptr = it wants none.
struct EpReportTo {
  rh_ep_report* given;
  int32_t* lostRanks;
  int32_t lostCapacity;
};

// A call on the data path, checked by the host as far as it can be without the state of the buffer. It holds all that it takes to run.
struct EpRequest {
  enum Kind : uint32_t {
    kMakePlan, kDispatch, kDispatchSend, kDispatchCounts, kDispatchReceive, kCombine, kCombineSend, kCombineReceive, kRelease
  };
  Kind kind;
  const char* operation;
  Ep* ep;
  EpDispatched* dispatched;
  EpCached* cached;
  EpCell* cell;
  EpSend send;
  EpReceive receive;
  host::EpCombineSend combine;
  EpReportTo report;
  EpPlan* plan;
};
// Gives a call to the comm's device. RH_OK on one that runs it later.
rh_result submitEp(const EpRequest& request, void* stream);
// Runs it, where the device runs. What came of it is in the cell's reports.
EpError runEp(const EpRequest& request);
// What it is as an operation of the comm: rhw_op.
uint32_t operationOf(const EpRequest& request);

// Of a device that runs later: queues a call, or captures it.
rh_result queueEp(const EpRequest& request, void* stream);
// Whether the call goes into a graph.
bool isCaptured(const Ep* ep, const void* stream);
// The handle of a captured dispatch: one whose graphs are gone, or a new one; nullptr = there are too many, or there is no memory.
EpDispatched* graphHandle(Ep* ep);
// Of a dispatch that was refused.
void returnHandle(EpDispatched* dispatched);
// Waits until nothing of the comm runs any more, at most for its deadline.
rh_result awaitQuiet(const Ep* ep, const char* operation);

// What a caller dispatches, as far as it says where tokens go. Of a cached routing nothing else is looked at.
rh_result readRouting(const Ep* ep, const char* operation, const rh_ep_dispatch_in& in, EpRouting* routing);

// The report of a call, of the half that it belongs to.
inline const EpReport& reportOf(const EpRequest& r) { return r.kind >= EpRequest::kCombine ? r.cell->combined : r.cell->dispatched; }
// The result of a call that has run, and, where it has failed, the sentence for it.
rh_result resultOf(const Ep* ep, EpRequest::Kind kind, const EpReport& report, char* text, size_t size);

rh_result readReport(const Ep* ep, const char* operation, rh_ep_report* given, EpReportTo* to);
void writeReport(const Ep* ep, EpRequest::Kind kind, const EpReport& report, const EpReportTo& to);

// The counters of a rank; their only writer is that rank.
static_assert(sizeof(EpCounters) == sizeof(rhw_ep_counters) && offsetof(EpCounters, lostCopies) == offsetof(rhw_ep_counters, lost_copies) &&
                  offsetof(EpCounters, waitTurns) == offsetof(rhw_ep_counters, wait_turns) &&
                  offsetof(EpCounters, payloadBytes) == offsetof(rhw_ep_counters, payload_bytes) &&
                  offsetof(EpCounters, headerBytes) == offsetof(rhw_ep_counters, header_bytes) &&
                  offsetof(EpCounters, waitNs) == offsetof(rhw_ep_counters, wait_ns) &&
                  offsetof(EpCounters, routed) == offsetof(rhw_ep_counters, routed) &&
                  offsetof(EpCounters, received) == offsetof(rhw_ep_counters, received),
              "the same layout for the kernels and the daemon");
inline EpCounters* countersOf(const Comm* comm, int rank) {
  return elementOf<EpCounters>(comm->control, comm->parts.counters, rank);
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_EP_EP_H_
