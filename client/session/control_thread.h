// The one thread of the library in a process. It sleeps in poll(2) until the daemon says something. Where there is none it looks
// for the next, tells it of the sessions' members, and has those do without one meanwhile.
//
// It also holds the leases: a robust futex word for each session, and one for each rank, which the kernel marks when this thread dies - before it
// takes the dying process's memory apart, which is what makes a death known within milliseconds.
#ifndef RAILHEAD_CLIENT_SESSION_CONTROL_THREAD_H_
#define RAILHEAD_CLIENT_SESSION_CONTROL_THREAD_H_

#include "railhead.h"
#include "session/session.h"

namespace railhead::client {

// Each returns when the thread has done it. The thread never blocks on anything but poll, so that is soon.

// Starts the thread with the first session, and takes the session's lease. In a forked child there is neither thread nor session: see base/fork.h.
rh_result watchSession(Session* session);
// Afterwards the lease is dropped, and the thread no longer touches the session. Stops the thread with the last one.
void unwatchSession(Session* session);

// A rank's. Its session is being watched.
void takeLease(rhw_lease* lease);
void dropLease(rhw_lease* lease);

// Makes the thread look after all members now. It returns at once.
void nudgeControlThread();

// For the child of a fork: as if no session had ever been.
void forgetControlThread();

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_CONTROL_THREAD_H_
