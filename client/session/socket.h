// A connection to the daemon, before anything is said on it.
#ifndef RAILHEAD_CLIENT_SESSION_SOCKET_H_
#define RAILHEAD_CLIENT_SESSION_SOCKET_H_

#include <stdint.h>

#include "railhead.h"

namespace railhead::client {

// Connects, and looks at who listens there: only this user and root are trusted. A daemon whose backlog is full is tried again
// until deadlineNs (monotonic; 0 = once). *out is non-blocking.
rh_result openSocket(const char* path, int64_t deadlineNs, int* out);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_SOCKET_H_
