// The library's one thread in a process. It sleeps in poll(2) until a daemon sends a message. While there is no daemon it tries to
// connect to the next one, announces the members of the sessions to it, and does for the members what needs no daemon.
//
// It also holds the leases: one robust futex word for each session and one for each rank. The kernel marks the words when this thread
// dies, before it tears down the address space of the dying process. So a death is known within milliseconds.
#ifndef RAILHEAD_CLIENT_SESSION_CONTROL_THREAD_H_
#define RAILHEAD_CLIENT_SESSION_CONTROL_THREAD_H_

#include "railhead.h"
#include "session/session.h"

namespace railhead::client {

// Each call returns when the thread has done the work. The thread blocks only in poll, so that takes little time.

// Takes the session's lease. The first session starts the thread. A forked child has neither thread nor session: see base/fork.h.
rh_result watchSession(Session* session);
// Drops the lease; afterwards the thread does not touch the session. The last session stops the thread.
void unwatchSession(Session* session);

// The lease of a rank. Its session must be watched already. *held stays in place until the lease is dropped.
void takeLease(HeldLease* held);
void dropLease(HeldLease* held);

// Wakes the thread to check all members now. It does not wait for that.
void nudgeControlThread();

// For the child of a fork: resets everything to the state before the first session.
void forgetControlThread();

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_CONTROL_THREAD_H_
