// What a session carries: ranks of groups (comms), and whatever else a daemon knows this process by. The session tells a new daemon
// of each of its members; what there is to tell, and what is to be done without a daemon, the member's kind knows.
#ifndef RAILHEAD_CLIENT_SESSION_MEMBER_H_
#define RAILHEAD_CLIENT_SESSION_MEMBER_H_

#include <stdint.h>

#include "railhead.h"
#include "session/message.h"
#include "wire.h"

namespace railhead::client {

class Session;
struct MemberKind;

// What the daemon at the other end of a session knows of a member. Guarded by the session's mutex; the control thread alone
// writes it once the member is in its table.
struct DaemonView {
  uint64_t connection = 0;      // that of the session on which the daemon was told of the member and has answered
  uint64_t group = 0;           // the daemon's number of it
  rh_result refused = RH_OK;    // why the daemon does not take the member over
  char why[RHW_TEXT] = {0};
};

// How far the control thread has got in telling a new daemon of a member.
struct Announcement {
  uint64_t connection = 0;  // of the session on which it began
  uint64_t request = 0;     // of Reannounce, 0 = not sent
  uint64_t group = 0;       // from Reannounced
  bool taken = false;       // Reannounced has come
};

struct Member {
  const MemberKind* kind = nullptr;
  Session* session = nullptr;
  DaemonView daemon;
  Announcement announcement;  // the control thread's
};

// Sends one packet on a non-blocking socket before the deadline. Returns 0 or an errno, ETIMEDOUT where there was no room.
int sendPacket(int socket, const void* bytes, size_t size, int fd, int64_t deadlineNs);

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

// All but anyBusy and abandon is called by the control thread, while the member cannot go away. None of them waits.
struct MemberKind {
  // Calls visit for each member of the kind in this process.
  void (*forEach)(void (*visit)(Member* member, void* argument), void* argument);
  // Whether no daemon needs to hear of it any more.
  bool (*isBroken)(const Member* member);
  // Sends Reannounce; and, once the daemon has answered with Reannounced, its number for the member being group, what follows it.
  bool (*announce)(const Member* member, const Announcer& to);
  bool (*complete)(const Member* member, uint64_t group, const Announcer& to);
  // Does what is due; returns when something will be. watched: a daemon knows the member, and so watches it.
  int64_t (*tick)(Member* member, bool watched, int64_t now);
  // Whether a thread is inside a call on a member of the session.
  bool (*anyBusy)(const Session* session);
  // Ends all members of a session that was shut down. Calls under way on them return first.
  void (*abandon)(const Session* session);
  MemberKind* next = nullptr;  // set by addMemberKind
};

// Makes a kind known, once, before there is a member of it.
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
