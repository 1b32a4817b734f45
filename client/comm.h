// A comm: one rank of a group, and everything of the group that this process has mapped.
#ifndef RAILHEAD_CLIENT_COMM_H_
#define RAILHEAD_CLIENT_COMM_H_

#include <stdint.h>

#include "handle_table.h"
#include "host/kernel_set.h"
#include "railhead.h"
#include "session.h"

namespace railhead::client {

constexpr int kMaxComms = 1024;     // of a process
constexpr int kMaxWindows = 16384;  // of a process

// How much longer than the daemon's own deadline a client waits for its answer: the daemon's error says more.
constexpr int64_t kAnswerGraceNs = int64_t{5} * 1000000000;

struct Comm {
  Session* session;
  uint64_t group;
  char name[RHW_NAME];
  int32_t rank;
  int32_t worldSize;
  uint32_t timeoutMs;

  char* control;  // the control segment
  uint64_t controlBytes;
  uint64_t heapBytes;
  uint64_t scratchBytes;
  int heapFd;                       // of this rank's heap, for committing pages; -1 = none
  uint32_t pids[RHW_MAX_WORLD];     // of the ranks' processes, as the daemon sees them
  bool leased;
  uint64_t seq;                     // operations begun
  uint64_t twoshotBytes;            // from here on all_reduce is two-shot,
  uint64_t pullBytes;               // and zero-copy where all buffers lie in windows
  const railhead::host::KernelSet* kernels;
  railhead::FlagTeam team;          // heaps are mapped where team.heap says; nullptr = not mapped

  rhw_control_header* header() const { return reinterpret_cast<rhw_control_header*>(control); }
  rhw_rank_line* line(int32_t r) const {
    return reinterpret_cast<rhw_rank_line*>(control + RHW_RANK_LINES_OFFSET) + r;
  }
  int64_t deadlineNs() const;
};

struct Window {
  Comm* comm;
  rh_comm* commHandle;
  uint64_t offset;
  size_t bytes;
};

using Comms = HandleTable<Comm, kMaxComms>;
using Windows = HandleTable<Window, kMaxWindows>;
Comms& comms();
Windows& windows();

// RH_OK when guard has the comm; else the error of a bad handle or of a second thread.
rh_result checkGuard(const Comms::Exclusive& guard, const char* operation);

// Says in this rank's line what it is doing. False when the group is broken already.
bool beginOperation(Comm* comm, uint32_t op, uint64_t bytes);
void endOperation(Comm* comm);

// Ends an operation that a kernel gave up: breaks the group if a deadline passed, and returns why it is broken.
rh_result stopOperation(Comm* comm, const railhead::host::Outcome& outcome);

// The result of a broken group, with this thread's message set; RH_OK while it works.
rh_result whyBroken(const Comm* comm);

// Writes the sentence for a broken group (or "" while it works) and returns the result.
rh_result describe(const Comm* comm, char* out, size_t size);

// The name of an operation, e.g. "all_reduce".
const char* operationName(uint32_t op);

// Breaks the group unless it is broken already, and wakes everybody.
void poison(const Comm* comm, rh_result code, uint32_t op, uint32_t culprit, uint32_t reporter);

// Unmaps and closes everything of the comm and frees it. The comm must be out of the table.
void destroyComm(Comm* comm);

// Whether a thread is inside a call on a comm of the session.
bool anyCommBusy(const Session* session);

// Breaks and destroys all comms of a session that was shut down. Calls under way on them return first.
void abandonComms(const Session* session);

// Ends all windows of a comm.
void dropWindows(Comm* comm);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_H_
