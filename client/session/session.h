// A session: the connection to the daemon and the requests under way on it. When the daemon dies the control thread connects to the
// next one (reconnect.cc), which takes over the members of the session.
#ifndef RAILHEAD_CLIENT_SESSION_SESSION_H_
#define RAILHEAD_CLIENT_SESSION_SESSION_H_

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/handle_table.h"
#include "base/malloced.h"
#include "base/rank.h"
#include "base/settings.h"
#include "railhead.h"
#include "session/lease.h"
#include "session/member.h"
#include "session/message.h"

namespace railhead::client {

constexpr int kMaxSessions = 256;  // of a process

// How long a call waits for a new daemon before it fails.
constexpr int64_t kRestartNs = int64_t{5} * 1000000000;

struct Received {
  Message m;
  int fd;  // -1 = none; owned by the taker of the message
};

// A request and the answers that the control thread has received for it. It lives on the stack of the calling thread.
class Call {
 public:
  // operation and rank are for error texts; operation is a constant.
  Call(Session& session, const char* operation, WorldRank rank);
  Call(Session& session, const char* operation);  // of no rank
  ~Call();  // closes descriptors that were not taken
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Begins the call on the current connection. If there is none, or its daemon does not know the member yet (view; nullptr = the
  // call is not for a member), waits for that until deadlineNs, but at most kRestartNs. Returns ABORTED as wait does.
  rh_result open(const DaemonView* view, int64_t deadlineNs, const uint32_t* abortWord = nullptr);

  // Whether the connection was lost after open, so that no answer will come.
  bool lost() const { return lost_; }
  uint64_t connection() const { return connection_; }
  uint64_t group() const { return group_; }  // the group number of the view, on this connection

  // Sends a message of this call, with a descriptor if fd is not -1. deadlineNs is monotonic.
  template <class M>
  rh_result send(M* m, uint16_t type, int64_t deadlineNs, int fd = -1) {
    setHeader(m, type, version_, request_);
    return sendBytes(m, sizeof *m, fd, deadlineNs);
  }

  // Waits for the next answer. An Error from the daemon is returned as its result, with its text as this thread's message.
  // DAEMON_LOST: the session ended, or no answer came before deadlineNs. If abortWord is given, the wait also ends soon after that
  // word becomes nonzero, with ABORTED and no message.
  rh_result wait(Received* out, int64_t deadlineNs, const uint32_t* abortWord = nullptr);

 private:
  friend class Session;
  // The longest sequence of answers: Joined, a Heap for each rank, GroupReady, and room for an Error.
  static constexpr int kQueue = RHW_MAX_LOCAL + 4;

  rh_result sendBytes(const void* bytes, size_t size, int fd, int64_t deadlineNs);
  void begin();
  bool sleep(int64_t deadlineNs, const uint32_t* abortWord);
  rh_result failLost();

  Session& session_;
  const char* operation_;
  char who_[24];  // "rank 3: ", "" of no rank
  uint64_t request_;
  uint64_t connection_ = 0;
  uint64_t group_ = 0;
  uint16_t version_ = RHW_VERSION_MAX;
  bool lost_ = false;
  Call* next_ = nullptr;
  int taken_ = 0;  // queue_[taken_, arrived_) have not been taken
  int arrived_ = 0;
  Received queue_[kQueue];
};

class Session : public Malloced {
 public:
  Session(int fd, const char* path);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Creates the lease's segment and exchanges Hello and Welcome, before the control thread knows the session.
  rh_result handshake(int64_t deadlineNs);
  // Sends the lease to the daemon, once the control thread holds it. On every later connection the control thread sends it.
  void announceLease(int64_t deadlineNs);
  const SessionLease& lease() const { return lease_; }
  HeldLease* heldLease() { return lease_.held(); }

  // Ends the connection for good: calls under way return DAEMON_LOST. Any thread.
  void shutDown();

  // For the child of a fork.
  void closeDescriptors();

  // The control thread calls the rest.

  // The descriptor to poll for reading; -1 = none.
  int descriptor() const;
  void readable(int64_t now);
  // Does what is due and returns the time of its next work (monotonic ns).
  int64_t tick(int64_t now);
  // Announces a member that the daemon does not know yet. Returns whether the daemon knows it, and so watches it.
  bool tend(Member* member);

 private:
  friend class Call;
  // kUp: connected. kDown: between two attempts. kGreeting: Hello was sent. kGreeted: Welcome was received, but a caller is still in
  // sendmsg on the old connection. kClosed: for good.
  enum class Link { kUp, kDown, kGreeting, kGreeted, kClosed };

  bool receive();
  bool deliver(const Received& r);
  // Notes that the connection has ended. forGood: also ends it here, and the session does not reconnect.
  void lose(const char* why, bool forGood = false);
  void goDown(int64_t now);
  void attempt(int64_t now);
  void failAttempt(int64_t now, int64_t mostNs);
  void greet(int64_t now);
  bool install();
  void announce(Member* member);
  void takeAnnounced(const Received& r);

  char path_[kMaxSocketPath + 1];
  SessionLease lease_;  // created before the first message, kept until the session ends

  // Used by the control thread only.
  Link link_ = Link::kUp;
  int freshFd_ = -1;       // the new connection, in kGreeting and kGreeted
  uint16_t freshVersion_ = 0;
  int64_t next_ = 0;       // when the next attempt begins or this one times out
  int64_t pauseNs_ = 0;    // between attempts
  uint64_t announced_ = 0; // Reannounce messages sent

  pthread_mutex_t mutex_;  // guards everything below
  pthread_cond_t changed_;
  int fd_;                 // changed only by the control thread, while senders_ is 0
  uint16_t version_ = RHW_VERSION_MAX;
  static constexpr uint64_t kFirstConnection = 1;
  uint64_t connection_ = kFirstConnection;
  int senders_ = 0;        // threads in sendmsg on fd_
  Call* calls_ = nullptr;
  uint64_t nextRequest_ = 1;
  bool lost_ = false;
  bool closed_ = false;    // rh_close was called, or the daemon broke the protocol: the session does not reconnect
  char lostWhy_[192] = {0};     // how the connection was lost
  char attemptWhy_[192] = {0};  // why the last attempt to reconnect failed
};

HandleTable<Session, kMaxSessions>& sessions();

// Sleeps until the descriptor is ready for the given events of poll(2), or until deadlineNs.
void pollOne(int fd, short events, int64_t deadlineNs);

enum class Got { kMessage, kNothing, kEnd, kNonsense };

// Reads and checks one message. On kEnd and kNonsense the session must end, and why is set.
Got receiveMessage(int socket, Received* out, const char** why);

// Sends Hello with this process's pidfd.
rh_result sendHello(int socket, int64_t deadlineNs);
// Checks the answer to Hello; *version is the protocol version to use.
rh_result takeWelcome(const Received& r, uint16_t* version);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_SESSION_H_
