// Connecting to the socket of the daemon.
#ifndef RAILHEAD_CLIENT_SESSION_SOCKET_H_
#define RAILHEAD_CLIENT_SESSION_SOCKET_H_

#include <stdint.h>

#include "railhead.h"

namespace railhead::client {

// Connects and checks the user of the listening process: only this user and root are trusted. If the daemon's backlog is full,
// retries until deadlineNs (monotonic; 0 = one attempt). *out is non-blocking.
rh_result openSocket(const char* path, int64_t deadlineNs, int* out);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_SOCKET_H_
