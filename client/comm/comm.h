// A comm: one rank of a group, and everything of the group that this process has mapped.
#ifndef RAILHEAD_CLIENT_COMM_COMM_H_
#define RAILHEAD_CLIENT_COMM_COMM_H_

#include <stdint.h>

#include "base/handle_table.h"
#include "base/malloced.h"
#include "base/rank.h"
#include "comm/flight.h"
#include "comm/parts.h"
#include "device/device.h"
#include "host/kernel_set.h"
#include "railhead.h"
#include "session/session.h"

namespace railhead::client {

constexpr int kMaxComms = 1024;     // of a process

// How much longer than the daemon's own deadline a client waits for its answer: the daemon's error says more.
constexpr int64_t kAnswerGraceNs = int64_t{5} * 1000000000;

struct Region;     // memory/window.h
struct PreMulSum;  // collectives/operation.h

// What is being captured, or was: its number (Streams), 0 = nothing; and how many collectives of the comm it has.
struct Capture {
  uint64_t number;
  uint32_t collectives;
};
constexpr int kMaxCaptures = 8;  // of a comm, at the same time

struct Comm : Malloced, Member {
  int64_t nextLeaseCheck;     // the control thread's: when it checks the peers' leases, even though a daemon does
  uint64_t birth;             // the group's number as it formed; unlike the daemon's it never changes
  char name[RHW_NAME];
  char token[RHW_NAME];
  int32_t rank;  // in the world, for texts and for what callers name; see own()
  int32_t worldSize;
  uint32_t timeoutMs;

  char* control;    // the control segment, and
  rhw_parts parts;  // where its parts lie: a copy, since every rank can write there
  int controlFd;  // for the next daemon; -1 = none
  uint64_t controlBytes;
  uint64_t heapBytes;
  uint64_t scratchBytes;
  int heapFd;                       // of this rank's heap, for committing pages; -1 = none
  uint32_t pids[RHW_MAX_LOCAL];     // of the ranks' processes, as the daemon sees them
  bool leased;
  const Device* device;
  void* onDevice;                   // what the device keeps of the comm
  uint32_t references;              // the handle's, and one for each call that is queued or captured; atomic. The last one ends the mappings
  Capture captures[kMaxCaptures];   // that calls were put into
  uint64_t splits;
  uint64_t buffers;                 // made for expert parallelism (ep.h)
  Flight flight;                    // the record of its operations
  RunsOn runsOn;                    // where the one that runs does; written by what runs it
  char forcing[RHW_FORCING];        // RAILHEAD_ALGO, for the comms that are split off
  uint32_t reproducible;
  int32_t noted;                    // calls in groups that have not ended; atomic
  PreMulSum* preMulSums;            // nullptr until there is one
  rhw_plans plans;                  // this rank's copy of the group's
  const railhead::host::KernelSet* kernels;
  Region* regions[RHW_MAX_REGION + 1];  // registered windows by number; [0] is unused
  uint32_t lastRegion;              // the highest number in use
  railhead::RingPlan ring;          // of rings and chains; the protocol goes by the size
  railhead::FlagRegion shared[RHW_MAX_REGION + 1];  // of the registered windows, those that are mapped in every rank; team.regions
  railhead::FlagTeam team;          // heaps are mapped where team.heap says
  uint64_t heapsBytes;              // reserved from team.heaps on, 0 = nothing is
  uint64_t mappedHeaps;             // bit r: rank r's heap is mapped there

  rhw_control_header* header() const { return reinterpret_cast<rhw_control_header*>(control); }
  // How the ranks lie on nodes: all on this one, so that both numbers are the same. worldOf and localOf are the only places that rely
  // on it; a rank that is not on this node has no local one.
  WorldRank worldOf(LocalRank r) const { return WorldRank{number(r)}; }
  LocalRank localOf(WorldRank r) const { return number(r) >= 0 && number(r) < worldSize ? LocalRank{number(r)} : kNoLocalRank; }
  WorldRank own() const { return WorldRank{rank}; }
  LocalRank ownLocal() const { return localOf(own()); }

  rhw_rank_line* line(LocalRank r) const { return elementOf<rhw_rank_line>(control, parts.lines, number(r)); }
  rhw_rank_line* ownLine() const { return line(ownLocal()); }
  const rhw_ledger* ledger() const { return elementOf<const rhw_ledger>(control, parts.ledger, 0); }
  // What its operations count; written by what runs them.
  railhead::DeviceState* state() const { return &reinterpret_cast<railhead::ScratchHeader*>(team.heap(rank))->device; }
  int64_t deadlineNs() const;
};

using Comms = HandleTable<Comm, kMaxComms>;
Comms& comms();

// What a folder above keeps of comms, and ends with them. Any function may be nullptr.
struct CommUser {
  void (*end)(Comm* comm);      // ends handles of what is the comm's, with the comm's own
  void (*unmap)(Comm* comm);    // unmaps and frees the rest, once nothing of the comm can run any more
  void (*inChild)(Comm* comm);  // as a ForkHandler, for each comm
  CommUser* next = nullptr;     // set by addCommUser
};
// Once for each, before it keeps anything of a comm.
void addCommUser(CommUser* user);

// RH_OK when guard has the comm; else the error of a bad handle or of a second thread.
rh_result checkGuard(const Comms::Exclusive& guard, const char* operation);

// What runs an operation begins and ends it here, on the thread that runs it: counts it (DeviceState), and says in this rank's
// line what it is doing. False when the group is broken already.
// Of the flight record: details are type, reduction and root, where the operation has them; collective is its number among
// those that all ranks take part in.
bool beginOperation(Comm* comm, uint32_t op, uint64_t bytes, const CallDetails& details = kNoCallDetails, uint64_t collective = 0);
void endOperation(Comm* comm, uint32_t algo = RHW_ALGO_AUTO);
// The same of a set-up call, which the host runs: waits first until nothing of the comm runs any more on its device.
bool beginSetUp(Comm* comm, uint32_t op, uint64_t bytes);
// As beginOperation and endOperation, where the group may be broken.
void enterOperation(Comm* comm, uint32_t op, uint64_t bytes, const CallDetails& details, uint64_t collective);
void leaveOperation(Comm* comm, uint32_t algo = RHW_ALGO_AUTO);

// Ends an operation that a kernel gave up: breaks the group if a deadline passed, and returns why it is broken.
rh_result stopOperation(Comm* comm, const railhead::host::Outcome& outcome, uint32_t algo = RHW_ALGO_AUTO);

// The result of a broken group, with this thread's message set; RH_OK while it works.
rh_result whyBroken(const Comm* comm);

// Writes the sentence for a broken group (or "" while it works) and returns the result.
rh_result describe(const Comm* comm, char* out, size_t size);

// BUSY where calls of the comm have been captured on a stream whose capture has not ended: a set-up call runs at once, before them.
rh_result checkNotCapturing(const Comm* comm, const char* operation);
// The comm's entry for what is being captured; nullptr: it has none left.
Capture* captureOf(Comm* comm, uint64_t number);

// Says of a request, whose common.world is filled in, that all ranks of the group are on this node.
void placeOnOneNode(rhw_join* request, int32_t rank);

// Joins a group as a rank and maps everything. request is complete. The caller holds a reference to the session.
// Of a split: ends early when the group of parent, which may be nullptr, is broken.
rh_result joinGroup(Session* session, const rhw_join& request, const Device* device, const Comm* parent, rh_comm** out);

// The name of an operation, e.g. "all_reduce".
const char* operationName(uint32_t op);

// Breaks the group unless it is broken already, and wakes everybody.
void poison(const Comm* comm, rh_result code, uint32_t op, WorldRank culprit, WorldRank reporter);

// Comms as members of their sessions. Makes the kind known.
const MemberKind* commKind();

// Ends this rank's part in the group. The comm must be out of the table. It is freed, and its memory unmapped, with the last
// reference.
void endComm(Comm* comm);
// For what was queued or captured, and may run after the handle has ended.
void retainComm(Comm* comm);
void releaseComm(Comm* comm);

// Ends all comms in the child of a fork.
void forgetComms();

// Whether a thread is inside a call on a comm of the session.
bool anyCommBusy(const Session* session);

// Breaks and destroys all comms of a session that was shut down. Calls under way on them return first.
void abandonComms(const Session* session);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_COMM_H_
