// Members of a session: ranks of groups (comms), and anything else by which a daemon knows this process. A session announces each of
// its members to a new daemon. The kind of a member defines how it is announced and what is done for it while there is no daemon.
#ifndef RAILHEAD_CLIENT_SESSION_MEMBER_H_
#define RAILHEAD_CLIENT_SESSION_MEMBER_H_

#include <stdint.h>

#include "railhead.h"
#include "session/message.h"
#include "wire.h"

namespace railhead::client {

class Session;
struct MemberKind;

// What the session's daemon knows of a member. Guarded by the session's mutex. Once the member is in its table, only the control
// thread writes it.
struct DaemonView {
  uint64_t connection = 0;      // the session's connection on which the daemon confirmed the member
  uint64_t group = 0;           // the daemon's number for the group
  rh_result refused = RH_OK;    // why the daemon refused the member
  char why[RHW_TEXT] = {0};
};

// Progress of announcing a member to a new daemon.
struct Announcement {
  uint64_t connection = 0;  // the connection on which it began
  uint64_t request = 0;     // of Reannounce, 0 = not sent
  uint64_t group = 0;       // from Reannounced
  bool taken = false;       // Reannounced has come
};

struct Member {
  const MemberKind* kind = nullptr;
  Session* session = nullptr;
  DaemonView daemon;
  Announcement announcement;  // used by the control thread only
};

// Sends one packet on a non-blocking socket before the deadline. Returns 0 or an errno, ETIMEDOUT where there was no room.
int sendPacket(int socket, const void* bytes, size_t size, int fd, int64_t deadlineNs);
// The same for a packet whose bytes lie in two places.
int sendPacket(int socket, const void* bytes, size_t size, const void* more, size_t moreSize, int fd, int64_t deadlineNs);

// The connection on which a member is announced.
struct Announcer {
  int socket;
  uint16_t version;
  uint64_t request;

  // Sends a message with a descriptor. False: the socket has no room now.
  template <class M>
  bool send(M* m, uint16_t type, int fd) const {
    setHeader(m, type, version, request);
    return sendPacket(socket, m, sizeof *m, fd, 0) == 0;
  }
};

// The control thread calls all but anyBusy and abandon. The member cannot end meanwhile. None of them waits.
struct MemberKind {
  // Calls visit for each member of the kind in this process.
  void (*forEach)(void (*visit)(Member* member, void* argument), void* argument);
  // Whether the member needs no daemon any more.
  bool (*isBroken)(const Member* member);
  // Sends Reannounce. After Reannounced, which gives the member its number (group), sends the messages that follow.
  bool (*announce)(const Member* member, const Announcer& to);
  bool (*complete)(const Member* member, uint64_t group, const Announcer& to);
  // Does what is due and returns the time of its next work. watched: a daemon knows the member and watches it. A broken one is not watched.
  int64_t (*tick)(Member* member, bool watched, int64_t now);
  // Whether a thread is inside a call on a member of the session.
  bool (*anyBusy)(const Session* session);
  // Ends all members of a session that was shut down, after the calls under way on them have returned.
  void (*abandon)(const Session* session);
  MemberKind* next = nullptr;  // set by addMemberKind
};

// Registers a kind once, before its first member exists.
void addMemberKind(MemberKind* kind);
const MemberKind* memberKinds();

template <class Visit>
void forEachMember(Visit visit) {
  for (const MemberKind* k = memberKinds(); k != nullptr; k = k->next) {
    k->forEach([](Member* member, void* argument) { (*static_cast<Visit*>(argument))(member); }, &visit);
  }
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_MEMBER_H_
