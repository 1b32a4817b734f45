// A received message: the daemon's bytes, checked before use.
#ifndef RAILHEAD_CLIENT_SESSION_MESSAGE_H_
#define RAILHEAD_CLIENT_SESSION_MESSAGE_H_

#include <stddef.h>

#include "railhead.h"
#include "wire.h"

namespace railhead::client {

union Message {
  rhw_header h;
  rhw_welcome welcome;
  rhw_error error;
  rhw_joined joined;
  rhw_heap heap;
  rhw_group_ready groupReady;
  rhw_window_commit windowCommit;
  rhw_window_ready windowReady;
  rhw_window_freed windowFreed;
  rhw_left left;
  rhw_draining draining;
  rhw_peer_memory peerMemory;
  rhw_registered registered;
  rhw_reannounced reannounced;
  rhw_kv_socket kvSocket;
};

// Copies size bytes into out if they are a complete message that a daemon may send, with every value in its range. Returns nullptr, or
// a constant string that says what is wrong. bytes are untrusted.
const char* parseMessage(const void* bytes, size_t size, Message* out);

// Whether a parsed message comes with a file descriptor.
bool carriesFd(const Message& m);

// Fills in a header.
template <class M>
void setHeader(M* m, uint16_t type, uint16_t version, uint64_t request) {
  m->h.magic = RHW_MAGIC;
  m->h.type = type;
  m->h.version = version;
  m->h.size = sizeof(M);
  m->h.reserved = 0;
  m->h.request = request;
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_MESSAGE_H_
