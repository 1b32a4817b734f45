// The session's own lease: a robust futex word in a segment that the client makes, and every daemon that it meets watches. It is of no
// group, so a session that is in none has it too.
#ifndef RAILHEAD_CLIENT_SESSION_LEASE_H_
#define RAILHEAD_CLIENT_SESSION_LEASE_H_

#include <stdint.h>

#include "railhead.h"
#include "wire.h"

namespace railhead::client {

class SessionLease {
 public:
  // Makes the segment. The control thread takes the lease.
  rh_result make();
  // Unmaps and closes it: of a session that ends, and in the child of a fork.
  void drop();

  rhw_lease* lease() const { return &segment_->lease; }
  // The id that this and all other leases of the session name.
  uint64_t client() const { return client_; }
  // Tells a daemon, before deadlineNs. False: it has not been told; it knows the session's death by socket and pidfd.
  bool announce(int socket, uint16_t version, int64_t deadlineNs) const;

 private:
  rhw_session* segment_ = nullptr;
  uint64_t client_ = 0;
  int fd_ = -1;
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_LEASE_H_
