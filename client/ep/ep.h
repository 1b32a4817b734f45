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

// What a token has that fp8 cannot scale: the value of EpProblems.nonFinite, whose k is the element.
enum class EpNonFinite : int64_t { kNaN, kPositive, kNegative, kScale };

// How far a dispatch in flight has come.
enum class EpPhase : uint32_t { kFree, kSent, kReceived, kAdding };

// What a handle names.
struct EpDispatched {
  rh_ep* ep;
  int flight;
};

struct Ep : Malloced {
  Comm* comm;
  rh_comm* commHandle;
  rh_window* window;
  rh_ep_config config;      // its tables are in the team
  host::EpRowFormat format;
  EpTeam team;
  FlagTeam flags;           // the comm's, for this buffer's waits
  uint32_t quiet;           // a word that stays 0
  char* memory;             // tables and flights
  uint64_t memoryBytes;
  char* encoded[kEpInFlight];  // rows as they travel, where x is not sent as it is; else nullptr
  char* scratch;            // a row of partial sums
  int64_t* begin;           // [local experts + 1] where each one's rows begin

  EpFlight flights[kEpInFlight];
  EpPhase phases[kEpInFlight];
  // Made with the buffer, so that a dispatch takes no memory and no lock. One that ends renews its handle for the next.
  EpDispatched dispatched[kEpInFlight];
  rh_ep_handle* handles[kEpInFlight];
  EpProblems problems[kEpInFlight];
  uint32_t excess[kEpInFlight];     // tokens beyond the most that there can be
  bool perToken[kEpInFlight];       // the layout of the rows
  bool hasRows[kEpInFlight];        // any was received, and there was room for it
  uint64_t lostCopies[kEpInFlight];  // that the dispatch has reported; the combine counts anew
  host::EpSums sums[kEpInFlight];   // of kAdding

  uint32_t localExperts() const { return team.localExperts[team.rank]; }
  // The flight of the earliest dispatch in a phase; -1 = none is.
  int earliest(EpPhase phase) const;
};

using Eps = HandleTable<Ep, kMaxEps>;
using EpHandles = HandleTable<EpDispatched, kEpInFlight * kMaxEps>;
Eps& eps();
EpHandles& epHandles();

// A call on a buffer: its comm is this thread's alone as long as it lives.
class EpCall {
 public:
  EpCall(rh_ep* handle, const char* operation);
  EpCall(rh_ep_handle* handle, const char* operation);
  ~EpCall();
  EpCall(const EpCall&) = delete;
  EpCall& operator=(const EpCall&) = delete;

  rh_result result() const { return result_; }  // RH_OK, or why there is nothing to do
  Ep* ep() const { return ep_; }
  int flight() const { return flight_; }

 private:
  void open(rh_ep* handle, const char* operation);

  alignas(Comms::Exclusive) char guard_[sizeof(Comms::Exclusive)];
  bool guarded_ = false;
  rh_result result_ = RH_OK;
  Ep* ep_ = nullptr;
  int flight_ = -1;
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

// Tables and flights, in memory of the buffer's own. False: there is none.
bool allocateEp(Ep* ep);

// Like beginOperation and endOperation: where deaths are survived, a group that is broken by one works on.
// isCollective: the call begins a dispatch or a combine, which is one of the comm's collectives once it has begun.
bool beginEpOperation(Ep* ep, uint32_t op, uint64_t bytes, bool isCollective);
void endEpOperation(Ep* ep);
// Whether the group is, for dispatch and combine.
bool isBroken(const Ep* ep);
// A masked rank makes no such calls, so the others do not count theirs: in the comm's other collectives it is one of them. Where ranks
// drop others by themselves, they do so in different calls, and none of these is counted by anybody.
inline bool countsAsCollective(const Ep* ep) { return !ep->team.dropsDead && ep->team.state()->masked == 0; }

// Ends a flight; its handle is a handle no more.
void endFlight(Ep* ep, int flight);

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
  const uint64_t first = epCountersOffset(static_cast<uint32_t>(comm->worldSize));
  return reinterpret_cast<EpCounters*>(comm->control + first) + rank;
}
inline void addToCounter(uint64_t* counter, uint64_t n) {
  __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

// What is wrong with a dispatch's input, the first of each kind, as one sentence; "" where nothing is.
void describeProblems(const Ep* ep, const EpProblems& problems, char* out, size_t size);

// Adds "; text" or "text" to a message that may be full.
void appendSentence(char* out, size_t size, const char* text);

// Copies a caller's report, of which given may be nullptr: not wanted.
rh_result readReport(const Ep* ep, const char* operation, const rh_ep_report* given, rh_ep_report* report);
// What a call reports of a flight. *report was read.
void reportFlight(const Ep* ep, int flight, bool dispatching, rh_ep_report* report);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_EP_EP_H_
