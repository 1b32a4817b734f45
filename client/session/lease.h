// The session's own lease: a robust futex word in a segment that the client creates and that every daemon it connects to watches. It
// belongs to no group, so a session without comms has one too.
#ifndef RAILHEAD_CLIENT_SESSION_LEASE_H_
#define RAILHEAD_CLIENT_SESSION_LEASE_H_

#include <stdint.h>

#include "railhead.h"
#include "wire.h"

namespace railhead::client {

// A lease word in shared memory and its place in the control thread's private list of the leases that it holds. The kernel's list links
// the words themselves, where other processes can write, so the library never follows those links.
struct HeldLease {
  rhw_lease* lease = nullptr;  // nullptr = not held
  HeldLease* next = nullptr;   // written by the control thread
};

class SessionLease {
 public:
  // Creates the segment. The control thread takes the lease.
  rh_result make();
  // Unmaps and closes the segment, when the session ends and in the child of a fork.
  void drop();

  HeldLease* held() { return &held_; }
  // The id that every lease of the session carries.
  uint64_t client() const { return client_; }
  // Sends the segment to a daemon, before deadlineNs. Returns 0 or an errno, as sendPacket: without the segment the daemon learns of the session's
  // death by socket and pidfd.
  int announce(int socket, uint16_t version, int64_t deadlineNs) const;

 private:
  rhw_session* segment_ = nullptr;
  HeldLease held_;
  uint64_t client_ = 0;
  int fd_ = -1;
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_LEASE_H_
