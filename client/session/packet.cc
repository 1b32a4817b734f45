// Sending and receiving packets of the socket.
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "host/futex.h"
#include "session/session.h"

namespace railhead::client {

namespace {

// Room for more descriptors than a message can carry, so that extra ones of an invalid message are closed, not leaked.
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

}  // namespace

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
  if (*why == nullptr && count != (carriesFd(out->m) ? 1 : 0)) *why = "wrong number of descriptors with a message";
  if (*why != nullptr) {
    for (int i = 0; i < count; i++) close(fds[i]);
    return Got::kNonsense;
  }
  out->fd = count == 1 ? fds[0] : -1;
  return Got::kMessage;
}

namespace {

int msUntil(int64_t deadlineNs) {
  const int64_t left = deadlineNs - host::nowNs();
  if (left <= 0) return 0;
  const int64_t ms = (left + 999999) / 1000000;
  return ms > 1000000 ? 1000000 : static_cast<int>(ms);
}

}  // namespace

void pollOne(int fd, short events, int64_t deadlineNs) {
  pollfd p = {fd, events, 0};
  poll(&p, 1, msUntil(deadlineNs));
}

int sendPacket(int socket, const void* bytes, size_t size, int fd, int64_t deadlineNs) {
  return sendPacket(socket, bytes, size, nullptr, 0, fd, deadlineNs);
}

int sendPacket(int socket, const void* bytes, size_t size, const void* more, size_t moreSize, int fd, int64_t deadlineNs) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec parts[2] = {{const_cast<void*>(bytes), size}, {const_cast<void*>(more), moreSize}};
  msghdr m = {};
  m.msg_iov = parts;
  m.msg_iovlen = moreSize > 0 ? 2 : 1;
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
      // The kernel limits the descriptors in flight of each user but root. Receivers will take some soon, so retry.
      const timespec pause = {0, 1000 * 1000};
      nanosleep(&pause, nullptr);
      continue;
    }
    pollOne(socket, POLLOUT, deadlineNs);
  }
}

}  // namespace railhead::client
