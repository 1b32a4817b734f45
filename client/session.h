// A session: the connection to the daemon, and the requests under way on it.
#ifndef RAILHEAD_CLIENT_SESSION_H_
#define RAILHEAD_CLIENT_SESSION_H_

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "handle_table.h"
#include "malloced.h"
#include "message.h"
#include "railhead.h"

namespace railhead::client {

constexpr int kMaxSessions = 256;  // of a process

struct Received {
  Message m;
  int fd;  // -1 = none; whoever takes the message owns it
};

class Session;

// One request and the answers to it that the control thread has received. It lives on the caller's side of the call.
class Call {
 public:
  // operation and rank are for error texts; operation is a constant.
  Call(Session& session, const char* operation, int32_t rank);
  ~Call();  // closes descriptors that nobody took
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  uint64_t request() const { return request_; }

  // Sends a message of this call, with a descriptor if fd is not -1. deadlineNs is monotonic.
  template <class M>
  rh_result send(M* m, uint16_t type, int64_t deadlineNs, int fd = -1) {
    setHeader(m, type, version(), request_);
    return sendBytes(m, sizeof *m, fd, deadlineNs);
  }

  // Waits for the next answer. An Error from the daemon becomes its result, with its text as this thread's message.
  // DAEMON_LOST when the session ends or nothing comes before deadlineNs. Where abortWord is given the wait also ends, with
  // ABORTED and no message, soon after that word is no longer 0.
  rh_result wait(Received* out, int64_t deadlineNs, const uint32_t* abortWord = nullptr);

 private:
  friend class Session;
  // The longest answer: Joined, a Heap for each rank, GroupReady, and room for an Error.
  static constexpr int kQueue = RHW_MAX_WORLD + 4;

  uint16_t version() const;
  rh_result sendBytes(const void* bytes, size_t size, int fd, int64_t deadlineNs);

  Session& session_;
  const char* operation_;
  int32_t rank_;
  uint64_t request_;
  Call* next_ = nullptr;
  int taken_ = 0;  // queue_[taken_, arrived_) wait to be taken
  int arrived_ = 0;
  Received queue_[kQueue];
};

class Session : public Malloced {
 public:
  explicit Session(int fd);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int fd() const { return fd_; }

  // Hello and Welcome, before the control thread knows the session.
  rh_result handshake(int64_t deadlineNs);

  // The control thread: the socket is readable. Returns false when the session has ended.
  bool receive();

  // Ends the connection: calls under way return DAEMON_LOST. Any thread.
  void shutDown();

 private:
  friend class Call;
  bool deliver(const Received& r);
  void lose(const char* why);

  const int fd_;
  uint16_t version_ = RHW_VERSION_MAX;

  pthread_mutex_t mutex_;  // of everything below
  pthread_cond_t changed_;
  Call* calls_ = nullptr;
  uint64_t nextRequest_ = 1;
  bool lost_ = false;
  char lostWhy_[160] = {0};
};

HandleTable<Session, kMaxSessions>& sessions();

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_SESSION_H_
