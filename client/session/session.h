// A session: the connection to the daemon, and the requests under way on it. When the daemon dies the control thread connects
// to the next one (reconnect.cc), which takes the session's members over.
#ifndef RAILHEAD_CLIENT_SESSION_SESSION_H_
#define RAILHEAD_CLIENT_SESSION_SESSION_H_

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/handle_table.h"
#include "base/malloced.h"
#include "base/settings.h"
#include "railhead.h"
#include "session/lease.h"
#include "session/member.h"
#include "session/message.h"

namespace railhead::client {

constexpr int kMaxSessions = 256;  // of a process

// How long a call waits for a daemon where there is none, before it gives up.
constexpr int64_t kRestartNs = int64_t{5} * 1000000000;

struct Received {
  Message m;
  int fd;  // -1 = none; whoever takes the message owns it
};

// One request and the answers to it that the control thread has received. It lives on the caller's side of the call.
class Call {
 public:
  // operation and rank are for error texts; operation is a constant.
  Call(Session& session, const char* operation, int32_t rank);
  ~Call();  // closes descriptors that nobody took
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Begins the call on the connection that there is. Where there is none, or its daemon does not know the member yet (view,
  // nullptr = of no member), it waits for that, until deadlineNs and no longer than kRestartNs. ABORTED as for wait.
  rh_result open(const DaemonView* view, int64_t deadlineNs, const uint32_t* abortWord = nullptr);

  // Whether the connection was lost after open: nobody will answer any more.
  bool lost() const { return lost_; }
  uint64_t connection() const { return connection_; }
  uint64_t group() const { return group_; }  // the view's, on this connection

  // Sends a message of this call, with a descriptor if fd is not -1. deadlineNs is monotonic.
  template <class M>
  rh_result send(M* m, uint16_t type, int64_t deadlineNs, int fd = -1) {
    setHeader(m, type, version_, request_);
    return sendBytes(m, sizeof *m, fd, deadlineNs);
  }

  // Waits for the next answer. An Error from the daemon becomes its result, with its text as this thread's message.
  // DAEMON_LOST when the session ends or nothing comes before deadlineNs. Where abortWord is given the wait also ends, with
  // ABORTED and no message, soon after that word is no longer 0.
  rh_result wait(Received* out, int64_t deadlineNs, const uint32_t* abortWord = nullptr);

 private:
  friend class Session;
  // The longest answer: Joined, a Heap for each rank, GroupReady, and room for an Error.
  static constexpr int kQueue = RHW_MAX_LOCAL + 4;

  rh_result sendBytes(const void* bytes, size_t size, int fd, int64_t deadlineNs);
  bool sleep(int64_t deadlineNs, const uint32_t* abortWord);
  rh_result failLost(const char* why, const char* attempt);

  Session& session_;
  const char* operation_;
  int32_t rank_;
  uint64_t request_;
  uint64_t connection_ = 0;
  uint64_t group_ = 0;
  uint16_t version_ = RHW_VERSION_MAX;
  bool lost_ = false;
  Call* next_ = nullptr;
  int taken_ = 0;  // queue_[taken_, arrived_) wait to be taken
  int arrived_ = 0;
  Received queue_[kQueue];
};

class Session : public Malloced {
 public:
  Session(int fd, const char* path);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The lease's segment, Hello and Welcome, before the control thread knows the session.
  rh_result handshake(int64_t deadlineNs);
  // Tells the daemon of the lease, once it is held.
  void announceLease(int64_t deadlineNs) { lease_.announce(fd_, version_, deadlineNs); }
  const SessionLease& lease() const { return lease_; }

  // Ends the connection, and there is no other: calls under way return DAEMON_LOST. Any thread.
  void shutDown();

  // For the child of a fork.
  void closeDescriptors();

  // What follows is the control thread's.

  // What to poll for reading, -1 = nothing.
  int descriptor() const;
  void readable(int64_t now);
  // Does what is due; returns when something will be (monotonic ns).
  int64_t tick(int64_t now);
  // Tells the daemon of a member that it does not know yet. Returns whether it knows it, and so watches it.
  bool tend(Member* member);

 private:
  friend class Call;
  // kUp: connected. kDown: between two attempts. kGreeting: Hello was sent. kGreeted: Welcome has come, but a caller is still in
  // sendmsg on the last connection. kClosed: rh_close.
  enum class Link { kUp, kDown, kGreeting, kGreeted, kClosed };

  bool receive();
  bool deliver(const Received& r);
  void lose(const char* why);
  void goDown(int64_t now);
  void attempt(int64_t now);
  void failAttempt(int64_t now, int64_t mostNs);
  void greet(int64_t now);
  bool install();
  void announce(Member* member);
  void takeAnnounced(const Received& r);

  char path_[kMaxSocketPath + 1];
  SessionLease lease_;  // made before the first message, and the same until the session ends

  // The control thread's.
  Link link_ = Link::kUp;
  int freshFd_ = -1;       // of kGreeting and kGreeted
  uint16_t freshVersion_ = 0;
  int64_t next_ = 0;       // when the next attempt is made, or this one given up
  int64_t pauseNs_ = 0;    // between attempts
  uint64_t announced_ = 0; // Reannounce messages sent

  pthread_mutex_t mutex_;  // of everything below
  pthread_cond_t changed_;
  int fd_;                 // changed by the control thread only, while nobody sends
  uint16_t version_ = RHW_VERSION_MAX;
  uint64_t connection_ = 1;
  int senders_ = 0;        // calls in sendmsg on fd_
  Call* calls_ = nullptr;
  uint64_t nextRequest_ = 1;
  bool lost_ = false;
  bool closed_ = false;
  char lostWhy_[192] = {0};     // how the connection was lost, and
  char attemptWhy_[192] = {0};  // why the last attempt to make another one failed
};

HandleTable<Session, kMaxSessions>& sessions();

// Sleeps until the descriptor is ready for the events of poll(2), or deadlineNs passes.
void pollOne(int fd, short events, int64_t deadlineNs);

enum class Got { kMessage, kNothing, kEnd, kNonsense };

// Reads and checks one message. At kEnd and kNonsense the session must end: why is set.
Got receiveMessage(int socket, Received* out, const char** why);

// Sends Hello with this process's pidfd.
rh_result sendHello(int socket, int64_t deadlineNs);
// Looks at the answer to Hello; *version is the one to speak.
rh_result takeWelcome(const Received& r, uint16_t* version);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_SESSION_H_
