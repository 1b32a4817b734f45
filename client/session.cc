#include "session.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "host/futex.h"

namespace railhead::client {

namespace {

// Room for more descriptors than the one that may come, so that a wrong message's descriptors are closed, not leaked.
constexpr int kMaxFds = 4;

// Reads one packet. Returns its size (0 = the peer has closed), or -1 with errno; fds[0, *count) belong to the caller.
ssize_t receivePacket(int socket, char* bytes, size_t size, int fds[kMaxFds], int* count, const char** cut) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  iovec io = {bytes, size};
  msghdr m = {};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  *count = 0;
  *cut = nullptr;
  if ((m.msg_flags & MSG_TRUNC) != 0) *cut = "a packet was cut off: it is larger than any message";
  if ((m.msg_flags & MSG_CTRUNC) != 0) *cut = "descriptors were cut off: more than any message has, or than `ulimit -n` allows";
  if (n < 0) return n;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t got = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < got; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      if (*count < kMaxFds) {
        fds[(*count)++] = fd;
      } else {
        close(fd);
      }
    }
  }
  return n;
}

enum class Got { kMessage, kNothing, kEnd, kNonsense };

// Reads and checks one message. At kEnd and kNonsense the session must end: why is set.
Got receiveMessage(int socket, Received* out, const char** why) {
  char bytes[RHW_MAX_MESSAGE + 1];
  int fds[kMaxFds];
  int count = 0;
  const char* cut = nullptr;
  const ssize_t n = receivePacket(socket, bytes, sizeof bytes, fds, &count, &cut);
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return Got::kNothing;
    *why = "the connection broke";
    return Got::kEnd;
  }
  if (n == 0 && count == 0) {
    *why = "the daemon closed the connection";
    return Got::kEnd;
  }
  *why = cut != nullptr ? cut : parseMessage(bytes, static_cast<size_t>(n), &out->m);
  if (*why == nullptr && count != (carriesFd(out->m.h.type) ? 1 : 0)) *why = "wrong number of descriptors with a message";
  if (*why != nullptr) {
    for (int i = 0; i < count; i++) close(fds[i]);
    return Got::kNonsense;
  }
  out->fd = count == 1 ? fds[0] : -1;
  return Got::kMessage;
}

int msUntil(int64_t deadlineNs) {
  const int64_t left = deadlineNs - host::nowNs();
  if (left <= 0) return 0;
  const int64_t ms = (left + 999999) / 1000000;
  return ms > 1000000 ? 1000000 : static_cast<int>(ms);
}

// Sends one packet on a non-blocking socket before the deadline. Returns 0 or an errno.
int sendPacket(int socket, const void* bytes, size_t size, int fd, int64_t deadlineNs) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec io = {const_cast<void*>(bytes), size};
  msghdr m = {};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  if (fd >= 0) {
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  for (;;) {
    if (sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return 0;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != ETOOMANYREFS) return errno;
    const bool tooManyOnTheirWay = errno == ETOOMANYREFS;
    if (host::nowNs() >= deadlineNs) return ETIMEDOUT;
    if (tooManyOnTheirWay) {
      // The kernel bounds the descriptors that a user has on their way, root excepted. Others are taken soon.
      const timespec pause = {0, 1000 * 1000};
      nanosleep(&pause, nullptr);
      continue;
    }
    pollfd p = {socket, POLLOUT, 0};
    poll(&p, 1, msUntil(deadlineNs));
  }
}

rh_result failFromDaemon(const rhw_error& e) { return fail(static_cast<rh_result>(e.code), "%s", e.text); }

}  // namespace

HandleTable<Session, kMaxSessions>& sessions() {
  static HandleTable<Session, kMaxSessions> table;
  return table;
}

Session::Session(int fd) : fd_(fd) {
  pthread_mutex_init(&mutex_, nullptr);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed_, &attributes);
  pthread_condattr_destroy(&attributes);
}

Session::~Session() {
  close(fd_);
  pthread_cond_destroy(&changed_);
  pthread_mutex_destroy(&mutex_);
}

rh_result Session::handshake(int64_t deadlineNs) {
  // The daemon watches this process through its pidfd; a pid would mean nothing in another pid namespace.
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (pidfd < 0) return fail(RH_ERR_SYSTEM, "connect: pidfd_open: %s; Linux 5.3 or newer is needed", strerror(errno));
  rhw_hello hello = {};
  setHeader(&hello, RHW_HELLO, RHW_VERSION_MAX, 0);
  hello.version_min = RHW_VERSION_MIN;
  hello.version_max = RHW_VERSION_MAX;
  hello.pid = static_cast<uint32_t>(getpid());
  snprintf(hello.software, sizeof hello.software, "librailhead %d.%d.%d", RH_VERSION_MAJOR, RH_VERSION_MINOR,
           RH_VERSION_PATCH);
  const int error = sendPacket(fd_, &hello, sizeof hello, pidfd, deadlineNs);
  close(pidfd);
  if (error != 0) return fail(RH_ERR_DAEMON_LOST, "connect: the daemon did not take Hello: %s", strerror(error));

  Received r;
  for (;;) {
    const char* why = nullptr;
    const Got got = receiveMessage(fd_, &r, &why);
    if (got == Got::kMessage) break;
    if (got == Got::kEnd) return fail(RH_ERR_DAEMON_LOST, "connect: no Welcome from the daemon: %s; check its log", why);
    if (got == Got::kNonsense) return fail(RH_ERR_PROTOCOL, "connect: no Welcome from the daemon: %s", why);
    if (host::nowNs() >= deadlineNs) return fail(RH_ERR_TIMEOUT, "connect: the daemon did not answer Hello in time");
    pollfd p = {fd_, POLLIN, 0};
    poll(&p, 1, msUntil(deadlineNs));
  }
  if (r.fd >= 0) close(r.fd);
  if (r.m.h.type == RHW_ERROR) return failFromDaemon(r.m.error);
  if (r.m.h.type != RHW_WELCOME) return fail(RH_ERR_PROTOCOL, "connect: message type %d in place of Welcome", r.m.h.type);
  if (r.m.welcome.version < RHW_VERSION_MIN || r.m.welcome.version > RHW_VERSION_MAX) {
    return fail(RH_ERR_VERSION_MISMATCH,
                "connect: the daemon (%s) chose protocol version %d, this library (%s) speaks %u..%u; update the older one",
                r.m.welcome.software, r.m.welcome.version, hello.software, RHW_VERSION_MIN, RHW_VERSION_MAX);
  }
  version_ = r.m.welcome.version;
  return RH_OK;
}

bool Session::receive() {
  for (;;) {
    Received r;
    const char* why = nullptr;
    const Got got = receiveMessage(fd_, &r, &why);
    if (got == Got::kNothing) return true;
    if (got != Got::kMessage) {
      lose(why);
      return false;
    }
    if (!deliver(r)) {
      lose("more answers than the request can have");
      return false;
    }
  }
}

// Hands a message to the call it answers. One that nobody waits for any more is dropped.
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

void Session::lose(const char* why) {
  pthread_mutex_lock(&mutex_);
  if (!lost_) {
    lost_ = true;
    snprintf(lostWhy_, sizeof lostWhy_, "%s", why);
  }
  pthread_cond_broadcast(&changed_);
  pthread_mutex_unlock(&mutex_);
}

void Session::shutDown() {
  lose("the session was closed");  // before the control thread sees the end and gives the daemon as its reason
  shutdown(fd_, SHUT_RDWR);
}

Call::Call(Session& session, const char* operation, int32_t rank) : session_(session), operation_(operation), rank_(rank) {
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

uint16_t Call::version() const { return session_.version_; }

rh_result Call::sendBytes(const void* bytes, size_t size, int fd, int64_t deadlineNs) {
  const int error = sendPacket(session_.fd_, bytes, size, fd, deadlineNs);
  if (error == 0) return RH_OK;
  if (error == ETIMEDOUT) {
    return fail(RH_ERR_DAEMON_LOST, "%s: rank %d: the daemon does not read its socket; check it with `railhead status`", operation_,
                rank_);
  }
  return fail(RH_ERR_DAEMON_LOST, "%s: rank %d: the daemon is gone (%s); start it and connect again", operation_, rank_,
              strerror(error));
}

rh_result Call::wait(Received* out, int64_t deadlineNs, const uint32_t* abortWord) {
  constexpr int64_t kLookNs = 100 * 1000 * 1000;  // nobody signals a change of the abort word
  bool aborted = false;
  pthread_mutex_lock(&session_.mutex_);
  for (int64_t now = host::nowNs(); taken_ == arrived_ && !session_.lost_ && now < deadlineNs; now = host::nowNs()) {
    aborted = abortWord != nullptr && __atomic_load_n(abortWord, __ATOMIC_ACQUIRE) != 0;
    if (aborted) break;
    const int64_t next = abortWord == nullptr || deadlineNs - now < kLookNs ? deadlineNs : now + kLookNs;
    const timespec until = {static_cast<time_t>(next / 1000000000), static_cast<long>(next % 1000000000)};
    pthread_cond_timedwait(&session_.changed_, &session_.mutex_, &until);
  }
  const bool have = taken_ < arrived_;
  if (have) *out = queue_[taken_++];
  char why[sizeof session_.lostWhy_];
  snprintf(why, sizeof why, "%s", session_.lost_ ? session_.lostWhy_ : "it did not answer in time");
  pthread_mutex_unlock(&session_.mutex_);

  if (!have && aborted) return RH_ERR_ABORTED;
  if (!have) {
    return fail(RH_ERR_DAEMON_LOST, "%s: rank %d: the daemon is lost: %s; check it and connect again", operation_, rank_, why);
  }
  if (out->m.h.type == RHW_ERROR) return failFromDaemon(out->m.error);
  return RH_OK;
}

}  // namespace railhead::client
