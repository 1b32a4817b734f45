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

constexpr int kMaxEps = 1024;  // in a process
constexpr int kMaxEpRoutings = 1024;
constexpr int kMaxEpGraphHandles = 32768;  // of captured dispatches

// Handles of a buffer: one for each dispatch that can be in flight, one for a dispatch that is refused, and a spare.
constexpr int kEpHandles = kEpInFlight + 2;

// The object of a dispatch handle. Created with the buffer, so that a dispatch needs no allocation and no lock; a dispatch that ends
// renews its handle for the next. A captured dispatch gets an object of its own, which lives until the last graph that uses it ends.
struct EpDispatched : Malloced {
  rh_ep* ep;
  rh_ep_handle* handle;
  bool open;          // the caller holds the handle. Atomic, because any thread may destroy a graph
  bool ofGraph;
  uint32_t captures;  // calls of graphs that use it; atomic
  EpDispatched* next;  // ofGraph: next in the buffer's list
  uint64_t collective;  // number of the dispatch in flight among the comm's collectives, its combine's is the next; 0 = it has none
  uint32_t number;      // among the buffer's handles
  uint32_t tokens;      // of the dispatch that was made last, on a device with Experts
  EpCell own;
  EpCell* cell;         // own, or the device's
};

// A cached routing: a plan in its own memory.
struct EpCached : Malloced {
  rh_ep* ep;
  rh_ep_routing* handle;
  EpCached* next;   // next in the buffer's list
  uint32_t tokens;  // number of tokens in the caller's routing
  uint32_t captures;  // calls of graphs that use it; atomic
  char* memory;     // of the plan
  EpPlan plan;      // not on a device with Experts
  void* onDevice;   // the plan of a device with Experts
  EpCell cell;      // for the report of creating it
};

struct Ep : Malloced {
  Comm* comm;
  rh_comm* commHandle;
  rh_window* window;
  rh_ep_config config;      // without its tables, which are in the team
  uint32_t quiet;           // a word that stays 0
  void* onDevice;           // the state of a device with Experts; nullptr = it has none
  char* memory;             // tables and, if the host runs the calls, dispatches in flight
  uint64_t memoryBytes;
  host::EpBuffer buffer;    // state used by the running calls
  EpDispatched dispatched[kEpHandles];
  uint32_t lastHandle;      // of these, the one that was taken last
  EpDispatched* graphs;     // handles of captured dispatches
  uint32_t graphHandles;    // how many these are
  EpCached* routings;
  uint32_t references;      // one of the handle, one of each queued or captured call; atomic. The last one frees it
  uint32_t captures;        // calls of graphs that use it; atomic

  const EpTeam& team() const { return buffer.team; }
  int32_t rankNumber() const { return number(comm->rank); }  // for messages
  // Whether calls run after they have returned.
  bool runsLater() const { return comm->device->streams != nullptr; }
  const Experts* experts() const { return comm->device->experts; }
};

extern int epGraphHandles;  // of captured dispatches, in the process; atomic

// References of queued and captured calls, which may run after the handle has ended.
void retainEp(Ep* ep);
void releaseEp(Ep* ep);

using Eps = HandleTable<Ep, kMaxEps>;
using EpHandles = HandleTable<EpDispatched, kEpHandles * kMaxEps + kMaxEpGraphHandles>;
using EpRoutings = HandleTable<EpCached, kMaxEpRoutings>;
Eps& eps();
EpHandles& epHandles();
EpRoutings& epRoutings();

// A call on a buffer. While it exists, this thread has exclusive access to the comm.
class EpCall {
 public:
  EpCall(rh_ep* handle, const char* operation);
  EpCall(rh_ep_handle* handle, const char* operation);
  EpCall(rh_ep_routing* handle, const char* operation);
  ~EpCall();
  EpCall(const EpCall&) = delete;
  EpCall& operator=(const EpCall&) = delete;

  rh_result result() const { return result_; }  // RH_OK, or why the call cannot proceed
  // The same for a call on a stream.
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

// Element types in which rows are added.
inline bool isSumType(rh_dtype d) { return d == RH_F32 || d == RH_BF16 || d == RH_F16; }

// Checks a caller's config and copies it.
rh_result readEpConfig(const char* operation, const rh_ep_config* given, int worldSize, rh_ep_config* config);
// The layout of the window for a config.
EpShape epShapeOf(const rh_ep_config& config, int worldSize);
host::EpRowFormat epFormatOf(const rh_ep_config& config);
// The largest number of experts on one rank.
uint32_t epMostLocal(const rh_ep_config& config, int worldSize);
// The rank of a physical expert.
WorldRank epRankOf(const rh_ep_config& config, int worldSize, uint32_t physical);
inline uint32_t epPhysical(const rh_ep_config& config) { return config.num_physical != 0 ? config.num_physical : config.num_experts; }

// The object of an open handle; nullptr = the buffer has no such handle.
EpDispatched* findDispatched(Ep* ep, const rh_ep_handle* handle);

// Whether all ranks can go on with rh_ep_create: the error of the lowest rank whose result is one. mine: this rank's, with the thread's message.
rh_result agreeOnEp(Comm* comm, rh_result mine);
// Compares the configs of all ranks, and this rank's memory. RH_OK on all ranks or on none.
rh_result compareEps(Comm* comm, const Ep& ep);

// Allocates the tables and the state of dispatches in flight. False: out of memory.
bool allocateEp(Ep* ep);
// Allocates the memory of a cached plan, on a device without Experts.
bool allocatePlan(const Ep* ep, EpCached* cached);
void freeRouting(EpCached* cached);

// Whether the group is broken for dispatch and combine. A buffer that survives deaths keeps working in a group broken by a death.
bool isBroken(const Ep* ep);

// Where a caller wants a report, whose struct has been checked. given: nullptr = no report wanted.
struct EpReportTo {
  rh_ep_report* given;
  int32_t* lostRanks;
  int32_t lostCapacity;
};

// A call on the data path, checked as far as possible without the state of the buffer. It holds everything needed to run.
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
  bool captured;  // into a graph
};
// Passes a call to the comm's device. RH_OK if the device runs it later.
rh_result submitEp(const EpRequest& request, void* stream);
// Runs a call on the device's thread. Its outcome is in the reports of the cell.
EpError runEp(const EpRequest& request);
// The operation of the comm that the call counts as: rhw_op.
uint32_t operationOf(const EpRequest& request);

// Queues or captures a call, on a device that runs calls later.
rh_result queueEp(const EpRequest& request, void* stream);
// Whether the call is captured into a graph.
bool isCaptured(const Ep* ep, const void* stream);
// A handle for a captured dispatch: one whose graphs have ended, or a new one. nullptr = the limit is reached, or out of memory.
rh_result graphHandle(Ep* ep, const char* operation, EpDispatched** out);
// Ends that handle, if it lives: its buffer or its last graph has ended.
void endGraphHandle(EpDispatched* dispatched);
// Returns the handle of a dispatch that was refused.
void returnHandle(EpDispatched* dispatched);
// How many calls of live graphs use a buffer or a routing, after up to half a second: a driver may release what a graph kept a while after the graph
// was destroyed.
uint32_t capturesLeft(const uint32_t* captures);
// Waits until no call of the comm is running or queued, at most for the comm's deadline.
rh_result awaitQuiet(const Ep* ep, const char* operation);
// After a kernel has given up: waits until the group knows why, which a report's text needs. The control thread looks every 2 ms.
void awaitCause(const Comm* comm);

// Reads the routing of a dispatch. With a cached routing, no other field of in is read.
rh_result readRouting(const Ep* ep, const char* operation, const rh_ep_dispatch_in& in, EpRouting* routing);

// The report of a call: of the dispatch or of the combine, whichever it belongs to.
inline const EpReport& reportOf(const EpRequest& r) { return r.kind >= EpRequest::kCombine ? r.cell->combined : r.cell->dispatched; }
// The result of a call that has run; if it failed, also the sentence for it.
rh_result resultOf(const Ep* ep, EpRequest::Kind kind, const EpReport& report, char* text, size_t size);

// The fields of given that are inputs are read now, and again by no call that runs later.
rh_result readReport(const Ep* ep, const char* operation, rh_ep_report* given, EpReportTo* to);
void writeReport(const Ep* ep, EpRequest::Kind kind, const EpReport& report, const EpReportTo& to);

// The counters of a rank. Only that rank writes them.
static_assert(sizeof(EpCounters) == sizeof(rhw_ep_counters) && offsetof(EpCounters, lostCopies) == offsetof(rhw_ep_counters, lost_copies) &&
                  offsetof(EpCounters, waitTurns) == offsetof(rhw_ep_counters, wait_turns) &&
                  offsetof(EpCounters, payloadBytes) == offsetof(rhw_ep_counters, payload_bytes) &&
                  offsetof(EpCounters, headerBytes) == offsetof(rhw_ep_counters, header_bytes) &&
                  offsetof(EpCounters, waitNs) == offsetof(rhw_ep_counters, wait_ns) &&
                  offsetof(EpCounters, routed) == offsetof(rhw_ep_counters, routed) &&
                  offsetof(EpCounters, received) == offsetof(rhw_ep_counters, received),
              "the same layout for the kernels and the daemon");
inline EpCounters* countersOf(const Comm* comm, LocalRank r) {
  return elementOf<EpCounters>(comm->control, comm->parts.counters, number(r));
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_EP_EP_H_
