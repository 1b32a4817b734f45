// A comm: one rank of a group, with all memory of the group that this process has mapped.
#ifndef RAILHEAD_CLIENT_COMM_COMM_H_
#define RAILHEAD_CLIENT_COMM_COMM_H_

#include <stdint.h>

#include "base/handle_table.h"
#include "base/malloced.h"
#include "base/rank.h"
#include "comm/flight.h"
#include "comm/parts.h"
#include "device/device.h"
#include "host/kernel.h"
#include "host/kernel_set.h"
#include "railhead.h"
#include "session/session.h"

namespace railhead::client {

constexpr int kMaxComms = 1024;     // in a process

// Added to the daemon's deadline for the client's own wait, because the daemon's error is more specific.
constexpr int64_t kAnswerGraceNs = int64_t{5} * 1000000000;

struct Region;     // memory/window.h
struct PreMulSum;  // collectives/operation.h

// A capture, in progress or ended: its number (Streams; 0 = none), the stream where it began, the number of its collectives of the comm.
struct Capture {
  uint64_t number;
  const void* stream;
  uint32_t collectives;
};
constexpr int kMaxCaptures = 8;  // of one comm, in progress at the same time

struct Comm : Malloced, Member {
  int64_t nextLeaseCheck;     // when the control thread checks the peers' leases next; a daemon checks them too
  uint64_t birth;             // the group's number when it formed; the number at the daemon changes with the daemon, this one does not
  char name[RHW_NAME];
  char token[RHW_NAME];
  WorldRank rank;
  LocalRank localRank;
  int32_t worldSize;
  uint32_t timeoutMs;

  char* control;    // the control segment
  rhw_parts parts;  // offsets of its parts: a private copy, because every rank can write the segment
  int controlFd;  // for the next daemon; -1 = none
  uint64_t controlBytes;
  uint64_t heapBytes;
  uint64_t scratchBytes;
  int heapFd;                       // this rank's heap, for committing pages; -1 = none
  uint32_t pids[RHW_MAX_LOCAL];     // by local rank: of the ranks' processes, in the daemon's pid namespace, 0 = outside it
  HeldLease lease;
  const Device* device;
  DevicePlace place;
  void* onDevice;                   // the device's state of the comm
  char* deviceHeaps;                // local rank 0's device heap (DeviceMemory); the others follow at equal distances. nullptr = none
  uint64_t deviceHeapStride;
  uint64_t deviceHeapBytes;         // from here to deviceGranularity as in Joined
  uint64_t deviceScratchBytes;
  uint64_t deviceSlotBytes;
  uint64_t deviceGranularity;
  uint64_t queuedCollectives;       // of a device that countsApart: collectives that the host has queued, captured ones not included
  uint32_t references;              // one of the handle, one of each queued or captured call; atomic. The last one unmaps
  Capture captures[kMaxCaptures];   // captures that hold calls of the comm
  uint64_t splits;
  uint64_t buffers;                 // number of expert-parallel buffers created (ep.h)
  Flight flight;                    // the record of its operations
  RunsOn runsOn;                    // stream and graph of the running operation; written by the thread that runs it
  char forcing[RHW_FORCING];        // RAILHEAD_ALGO, inherited by comms made by split
  uint32_t reproducible;
  int32_t noted;                    // calls in groups that have not ended; atomic
  PreMulSum* preMulSums;            // nullptr until there is one
  rhw_plans plans;                  // private copy of the group's plans for the CPU, on which set-up calls run
  rhw_plans devicePlans;            // and for the device, if it is another
  const railhead::host::KernelSet* kernels;
  Region* regions[RHW_MAX_REGION + 1];  // registered windows by number; [0] is unused
  uint32_t lastRegion;              // the highest number in use
  railhead::RingPlan ring;          // order and channels of rings and chains; the size of a call selects the protocol
  railhead::FlagRegion shared[RHW_MAX_REGION + 1];  // registered windows that every rank has mapped; team.regions points here
  railhead::FlagTeam team;
  railhead::Busy busy;              // team.busy points here
  uint64_t heapsBytes;              // reserved address space from team.heaps on; 0 = none
  LocalRankSet mappedHeaps;

  rhw_control_header* header() const { return reinterpret_cast<rhw_control_header*>(control); }
  // Placement of ranks on nodes. All ranks are on this node, so a world rank equals its local rank. Only worldOf, localOf, localSize and
  // placeOnOneNode rely on that, and the kernels: they index the callers' buffers, and fill source_rank of a dispatch, with the numbers of
  // their team. A rank on another node would have no local rank.
  WorldRank worldOf(LocalRank r) const { return WorldRank{number(r)}; }
  LocalRank localOf(WorldRank r) const { return number(r) >= 0 && number(r) < worldSize ? LocalRank{number(r)} : kNoLocalRank; }
  int32_t localSize() const { return worldSize; }  // ranks of the group on this node
  LocalRankSet localRanks() const { return LocalRankSet::first(localSize()); }

  rhw_rank_line* line(LocalRank r) const { return elementOf<rhw_rank_line>(control, parts.lines, number(r)); }
  rhw_rank_line* ownLine() const { return line(localRank); }
  char* heap(LocalRank r) const { return team.heap(number(r)); }
  char* ownHeap() const { return heap(localRank); }
  char* deviceHeap(LocalRank r) const { return deviceHeaps + static_cast<uint64_t>(number(r)) * deviceHeapStride; }
  const rhw_ledger* ledger() const { return elementOf<const rhw_ledger>(control, parts.ledger, 0); }
  // Operation counters; written by the thread that runs an operation.
  railhead::DeviceState* state() const { return &reinterpret_cast<railhead::ScratchHeader*>(ownHeap())->device; }
  int64_t deadlineNs() const;
};

using Comms = HandleTable<Comm, kMaxComms>;
Comms& comms();

// State that a higher folder keeps for comms and that ends with them. Any function may be nullptr.
struct CommUser {
  void (*end)(Comm* comm);      // ends handles of the comm's objects, when the comm's handle ends
  void (*unmap)(Comm* comm);    // unmaps and frees the rest, when no call of the comm can run any more
  void (*inChild)(Comm* comm);  // the work of a ForkHandler, for each comm
  CommUser* next = nullptr;     // set by addCommUser
};
// Call it once for each user, before the user keeps any state.
void addCommUser(CommUser* user);

// RH_OK when guard holds the comm; otherwise the error of a bad handle or of a concurrent call.
rh_result checkGuard(const Comms::Exclusive& guard, const char* operation);

// Begins and ends an operation, on the thread that runs it: counts it (DeviceState) and publishes it in this rank's line. False when the
// group is broken already. For the flight record: details are type, reduction and root, if the operation has them; collective is the
// sequence number among the operations in which all ranks participate.
bool beginOperation(Comm* comm, uint32_t op, uint64_t bytes, const CallDetails& details = kNoCallDetails, uint64_t collective = 0);
void endOperation(Comm* comm, uint32_t algo = RHW_ALGO_AUTO);
// Publishes in the rank's line which algorithm ran, unless none did.
void noteChoice(const Comm* comm, const Choice& choice);
// The same for a set-up call, which the host runs. It first waits until no call of the comm runs on its device, if the device's counting
// requires that, or if the call unmaps memory.
bool beginSetUp(Comm* comm, uint32_t op, uint64_t bytes, bool unmaps = false);
// The same as beginOperation and endOperation, but the group may be broken.
void enterOperation(Comm* comm, uint32_t op, uint64_t bytes, const CallDetails& details, uint64_t collective);
void leaveOperation(Comm* comm, uint32_t algo = RHW_ALGO_AUTO);

// Ends an operation that a kernel aborted: breaks the group if a deadline passed, and returns why the group is broken.
rh_result stopOperation(Comm* comm, const railhead::host::Outcome& outcome, uint32_t algo = RHW_ALGO_AUTO);
// The same for an operation (rhw_op) that no thread of the host runs: it touches no flight record.
void breakFor(const Comm* comm, uint32_t op, const railhead::host::Outcome& outcome);

// Time for all waits of an operation together, as railhead.h promises: 4 timeouts, and 1 s for each 16 MiB of a rank's bytes, times the world size.
int64_t limitNs(const Comm* comm, uint64_t bytes);

// The result of a broken group, with this thread's message set. RH_OK if the group is not broken.
rh_result whyBroken(const Comm* comm);

// Writes the sentence for a broken group ("" if it is not broken) and returns the result.
rh_result describe(const Comm* comm, char* out, size_t size);

// BUSY while calls of the comm are captured in a graph whose capture has not ended: a set-up call runs at once, before those calls.
rh_result checkNotCapturing(const Comm* comm, const char* operation);
// The comm's entry for the capture in progress on a stream; nullptr: all entries are taken.
Capture* captureOf(Comm* comm, const void* stream, uint64_t number);

// A device of this process, and which of them.
struct Located {
  const Device* device;
  DevicePlace place;
};

// Marks a request, whose common.world is set, as one whose ranks are all on this node, this one on that device.
void placeOnOneNode(rhw_join* request, WorldRank rank, const Located& on);

// Joins a group as a rank and maps its memory. request is complete. The caller holds a reference to the session. parent is the comm
// that is being split, or nullptr; the join ends early when the group of parent is broken.
rh_result joinGroup(Session* session, const rhw_join& request, const Located& on, const Comm* parent, rh_comm** out);

// The name of an operation, e.g. "all_reduce".
const char* operationName(uint32_t op);

// Breaks the group unless it is broken already, and wakes all waiting ranks.
void poison(const Comm* comm, rh_result code, uint32_t op, WorldRank culprit, WorldRank reporter);

// Registers comms as a kind of session member.
const MemberKind* commKind();

// rh_comm_finalize for a caller with exclusive access to the comm.
rh_result leaveGroup(rh_comm* handle, Comm* comm);
// Ends this rank's membership. The comm must have been removed from the table. The last reference frees it and unmaps its memory.
void endComm(Comm* comm);
// References of queued and captured calls, which may run after the handle has ended.
void retainComm(Comm* comm);
void releaseComm(Comm* comm);

// Ends all comms in the child of a fork.
void forgetComms();

// Whether a thread is inside a call on a comm of the session.
bool anyCommBusy(const Session* session);

// Breaks and destroys all comms of a session that was shut down, after the calls under way on them have returned.
void abandonComms(const Session* session);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_COMM_H_
