#include "session/session.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "host/futex.h"

namespace railhead::client {

namespace {

rh_result failFromDaemon(const rhw_error& e) { return fail(static_cast<rh_result>(e.code), "%s", e.text); }

}  // namespace

HandleTable<Session, kMaxSessions>& sessions() {
  static HandleTable<Session, kMaxSessions> table;
  return table;
}

Session::Session(int fd, const char* path) : fd_(fd) {
  snprintf(path_, sizeof path_, "%s", path);
  pthread_mutex_init(&mutex_, nullptr);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed_, &attributes);
  pthread_condattr_destroy(&attributes);
}

Session::~Session() {
  closeDescriptors();
  pthread_cond_destroy(&changed_);
  pthread_mutex_destroy(&mutex_);
}

void Session::closeDescriptors() {
  close(fd_);
  if (freshFd_ >= 0) close(freshFd_);
  lease_.drop();
}

namespace {

rh_result noPidfd(int error) {
  const bool full = error == EMFILE || error == ENFILE;
  return fail(RH_ERR_SYSTEM, "connect: pidfd_open: %s; %s", strerror(error),
              full ? "raise this process's `ulimit -n`" : "Linux 5.3 or newer is needed, and a container's seccomp profile must allow the call");
}

}  // namespace

rh_result sendHello(int socket, int64_t deadlineNs) {
  // The daemon watches this process through its pidfd. A pid would be meaningless in another pid namespace.
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (pidfd < 0) return noPidfd(errno);
  rhw_hello hello = {};
  setHeader(&hello, RHW_HELLO, RHW_VERSION_MAX, 0);
  hello.version_min = RHW_VERSION_MIN;
  hello.version_max = RHW_VERSION_MAX;
  hello.pid = static_cast<uint32_t>(getpid());
  snprintf(hello.software, sizeof hello.software, "librailhead %d.%d.%d", RH_VERSION_MAJOR, RH_VERSION_MINOR,
           RH_VERSION_PATCH);
  const int error = sendPacket(socket, &hello, sizeof hello, pidfd, deadlineNs);
  close(pidfd);
  if (error != 0) return fail(RH_ERR_DAEMON_LOST, "connect: the daemon did not take Hello: %s", strerror(error));
  return RH_OK;
}

rh_result takeWelcome(const Received& r, uint16_t* version) {
  if (r.fd >= 0) close(r.fd);
  if (r.m.h.type == RHW_ERROR) return failFromDaemon(r.m.error);
  if (r.m.h.type != RHW_WELCOME) return fail(RH_ERR_PROTOCOL, "connect: message type %d in place of Welcome", r.m.h.type);
  if (r.m.welcome.version < RHW_VERSION_MIN || r.m.welcome.version > RHW_VERSION_MAX) {
    return fail(RH_ERR_VERSION_MISMATCH,
                "connect: the daemon (%s) chose protocol version %d, this library (librailhead %d.%d.%d) speaks %u..%u; update the "
                "older one", r.m.welcome.software, r.m.welcome.version, RH_VERSION_MAJOR, RH_VERSION_MINOR, RH_VERSION_PATCH,
                RHW_VERSION_MIN, RHW_VERSION_MAX);
  }
  *version = r.m.welcome.version;
  return RH_OK;
}

rh_result Session::handshake(int64_t deadlineNs) {
  const rh_result made = lease_.make();
  if (made != RH_OK) return made;
  const rh_result sent = sendHello(fd_, deadlineNs);
  if (sent != RH_OK) return sent;
  for (;;) {
    Received r;
    const char* why = nullptr;
    switch (receiveMessage(fd_, &r, &why)) {
      case Got::kMessage: return takeWelcome(r, &version_);
      case Got::kEnd: return fail(RH_ERR_DAEMON_LOST, "connect: no Welcome from the daemon: %s; check its log", why);
      case Got::kNonsense: return fail(RH_ERR_PROTOCOL, "connect: no Welcome from the daemon: %s", why);
      case Got::kNothing: break;
    }
    if (host::nowNs() >= deadlineNs) {
      return fail(RH_ERR_TIMEOUT, "connect: the daemon at %s did not answer Hello in time: it is stopped, hangs or has no free descriptors; "
                  "see `railhead status` and its log", path_);
    }
    pollOne(fd_, POLLIN, deadlineNs);
  }
}

void Session::announceLease(int64_t deadlineNs) {
  pthread_mutex_lock(&mutex_);
  // The control thread may have replaced the first connection already.
  const bool first = !lost_ && connection_ == kFirstConnection;
  if (first) senders_++;
  const int socket = fd_;
  const uint16_t version = version_;
  pthread_mutex_unlock(&mutex_);
  if (!first) return;
  lease_.announce(socket, version, deadlineNs);
  pthread_mutex_lock(&mutex_);
  senders_--;
  pthread_mutex_unlock(&mutex_);
}

// Hands a message to the call that it answers. Drops it if that call has ended.
bool Session::deliver(const Received& r) {
  bool fits = true;
  bool kept = false;
  pthread_mutex_lock(&mutex_);
  for (Call* c = calls_; c != nullptr; c = c->next_) {
    if (c->request_ != r.m.h.request) continue;
    fits = c->arrived_ < Call::kQueue;
    if (fits) {
      c->queue_[c->arrived_++] = r;
      kept = true;
      pthread_cond_broadcast(&changed_);
    }
    break;
  }
  pthread_mutex_unlock(&mutex_);
  if (!kept && r.fd >= 0) close(r.fd);
  return fits;
}

void Session::lose(const char* why, bool forGood) {
  pthread_mutex_lock(&mutex_);
  if (!lost_) {
    lost_ = true;
    snprintf(lostWhy_, sizeof lostWhy_, "%s", why);
    attemptWhy_[0] = '\0';
  }
  if (forGood) {
    closed_ = true;
    shutdown(fd_, SHUT_RDWR);
  }
  pthread_cond_broadcast(&changed_);
  pthread_mutex_unlock(&mutex_);
}

// Notes the cause before the control thread sees the end and blames the daemon.
void Session::shutDown() { lose("the session was closed", true); }

Call::Call(Session& session, const char* operation) : session_(session), operation_(operation) {
  who_[0] = '\0';
  begin();
}

Call::Call(Session& session, const char* operation, WorldRank rank) : session_(session), operation_(operation) {
  snprintf(who_, sizeof who_, "rank %d: ", number(rank));
  begin();
}

void Call::begin() {
  pthread_mutex_lock(&session_.mutex_);
  request_ = session_.nextRequest_++;
  next_ = session_.calls_;
  session_.calls_ = this;
  pthread_mutex_unlock(&session_.mutex_);
}

Call::~Call() {
  pthread_mutex_lock(&session_.mutex_);
  Call** p = &session_.calls_;
  while (*p != this) p = &(*p)->next_;
  *p = next_;
  pthread_mutex_unlock(&session_.mutex_);
  for (int i = taken_; i < arrived_; i++) {
    if (queue_[i].fd >= 0) close(queue_[i].fd);
  }
}

// The connection was lost. The mutex is held.
rh_result Call::failLost() {
  const char* then = "this session keeps trying to reconnect; the last attempt: ";
  const char* attempt = session_.attemptWhy_;
  if (session_.closed_) {
    then = "this session does not reconnect: connect anew";
    attempt = "";
  } else if (!session_.lost_) {
    then = "this session has reconnected since: call again";
    attempt = "";
  } else if (attempt[0] == '\0') {
    then = "this session reconnects by itself once a daemon runs";
  }
  return fail(RH_ERR_DAEMON_LOST, "%s: %sthe connection to the daemon was lost: %s; %s%s", operation_, who_, session_.lostWhy_, then, attempt);
}

// Sleeps until the session changes, or until deadlineNs; with an abort word at most kCheckNs. The mutex is held on return. False once
// the abort word is set.
bool Call::sleep(int64_t deadlineNs, const uint32_t* abortWord) {
  constexpr int64_t kCheckNs = 100 * 1000 * 1000;  // a change of the abort word is not signalled
  if (abortWord != nullptr && __atomic_load_n(abortWord, __ATOMIC_ACQUIRE) != 0) return false;
  const int64_t check = host::nowNs() + kCheckNs;
  const int64_t next = abortWord == nullptr || deadlineNs < check ? deadlineNs : check;
  const timespec until = {static_cast<time_t>(next / 1000000000), static_cast<long>(next % 1000000000)};
  pthread_cond_timedwait(&session_.changed_, &session_.mutex_, &until);
  return true;
}

rh_result Call::open(const DaemonView* view, int64_t deadlineNs, const uint32_t* abortWord) {
  const int64_t patience = host::nowNs() + kRestartNs;
  const int64_t until = deadlineNs < patience ? deadlineNs : patience;
  rh_result result = RH_OK;
  pthread_mutex_lock(&session_.mutex_);
  const auto there = [&] { return !session_.lost_ && (view == nullptr || view->connection == session_.connection_); };
  while (!there() && !session_.closed_ && host::nowNs() < until) {
    if (!sleep(until, abortWord)) {
      result = RH_ERR_ABORTED;
      break;
    }
  }
  if (result == RH_OK && !there()) {
    result = session_.lost_ ? failLost()
                            : fail(RH_ERR_DAEMON_LOST, "%s: %sthe new daemon has not taken over this comm; call again later, or check the daemon "
                                   "with `railhead status`", operation_, who_);
  } else if (result == RH_OK) {
    connection_ = session_.connection_;
    version_ = session_.version_;
    if (view != nullptr) {
      group_ = view->group;
      if (view->refused != RH_OK) result = fail(view->refused, "%s: %s%s", operation_, who_, view->why);
    }
  }
  pthread_mutex_unlock(&session_.mutex_);
  return result;
}

rh_result Call::sendBytes(const void* bytes, size_t size, int fd, int64_t deadlineNs) {
  pthread_mutex_lock(&session_.mutex_);
  lost_ = session_.lost_ || session_.connection_ != connection_;
  if (!lost_) session_.senders_++;
  const int socket = session_.fd_;
  const rh_result result = lost_ ? failLost() : RH_OK;
  pthread_mutex_unlock(&session_.mutex_);
  if (lost_) return result;

  const int error = sendPacket(socket, bytes, size, fd, deadlineNs);
  lost_ = error == EPIPE || error == ECONNRESET || error == ENOTCONN;
  if (lost_) session_.lose("the daemon closed the connection");  // the control thread is about to see it too
  pthread_mutex_lock(&session_.mutex_);
  session_.senders_--;
  if (lost_) failLost();
  pthread_mutex_unlock(&session_.mutex_);
  if (error == 0) return RH_OK;
  if (lost_) return RH_ERR_DAEMON_LOST;
  if (error == ETIMEDOUT) {
    return fail(RH_ERR_DAEMON_LOST, "%s: %sthe daemon does not read its socket; check it with `railhead status`", operation_,
                who_);
  }
  return fail(RH_ERR_DAEMON_LOST, "%s: %sthe message to the daemon cannot be sent: %s", operation_, who_, strerror(error));
}

rh_result Call::wait(Received* out, int64_t deadlineNs, const uint32_t* abortWord) {
  bool aborted = false;
  pthread_mutex_lock(&session_.mutex_);
  const auto over = [&] { return session_.lost_ || session_.connection_ != connection_; };
  while (taken_ == arrived_ && !over() && !aborted && host::nowNs() < deadlineNs) aborted = !sleep(deadlineNs, abortWord);
  const bool have = taken_ < arrived_;
  if (have) *out = queue_[taken_++];
  lost_ = !have && over();
  if (lost_) failLost();
  pthread_mutex_unlock(&session_.mutex_);

  if (!have && aborted) return RH_ERR_ABORTED;
  if (lost_) return RH_ERR_DAEMON_LOST;
  if (!have) {
    return fail(RH_ERR_DAEMON_LOST, "%s: %sthe daemon did not answer in time; check it with `railhead status`", operation_, who_);
  }
  if (out->m.h.type == RHW_ERROR) return failFromDaemon(out->m.error);
  return RH_OK;
}

}  // namespace railhead::client
