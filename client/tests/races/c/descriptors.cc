// Descriptors and mappings of the world: sockets to the daemon, the eventfd of the control thread, shared memory.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon.h"
#include "real.h"
#include "world.h"

namespace world {

Socket sockets[kMaxSockets];
bool listening = false;
Sent sent;
Shutdown firstShutdown;

namespace {

int firstNumber = 0, nextNumber = 0;

// The eventfd of the control thread. At most one is open.
int eventFd = -1;
uint64_t eventCount = 0;

struct Mapping {
  const char* from = nullptr;  // nullptr = the entry is free
  size_t bytes = 0;
  bool shared = false;
  Key key = {};
};
// As failMap says.
thread_local int mapsUntilFailure = 0;

constexpr int kMaxMappings = 128;
Mapping mappings[kMaxMappings];

Socket* socketOf(int fd) {
  for (Socket& s : sockets) {
    if (s.fd == fd && fd >= 0) return &s;
  }
  return nullptr;
}

Socket& mustBeSocket(const char* call, int fd) {
  Socket* s = socketOf(fd);
  if (s == nullptr || s->closed) fail("%s: descriptor %d is no open socket", call, fd);
  return *s;
}

}  // namespace

void beginDescriptors() {
  // Above the descriptors that the test inherits.
  for (int fd = 0; fd < 900; fd++) {
    if (fcntl(fd, F_GETFD) >= 0) firstNumber = fd + 1;
  }
  if (firstNumber < 100) firstNumber = 100;
  nextNumber = firstNumber;
}

int moved(int fd) {
  const int result = copied(fd);
  __real_close(fd);
  return result;
}

int copied(int fd) {
  const int result = fcntl(fd, F_DUPFD_CLOEXEC, nextNumber++);
  if (result != nextNumber - 1) fail("no descriptor %d: %s", nextNumber - 1, strerror(errno));
  return result;
}

int placeholder() { return moved(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

uint64_t fileOf(int fd) {
  struct stat st;
  if (fstat(fd, &st) != 0) fail("fstat of descriptor %d: %s", fd, strerror(errno));
  return st.st_ino;
}

void Queue::push(const void* bytes, int size, int fd) {
  Packet& p = packets[(first + count++) % kMost];
  p.size = size;
  p.fd = fd;
  p.at = now();
  memcpy(p.bytes, bytes, static_cast<size_t>(size));
}

Packet Queue::pop() {
  const Packet p = packets[first];
  first = (first + 1) % kMost;
  count--;
  return p;
}

void freeSocket(Socket* s) {
  while (s->in.count > 0) {
    const int fd = s->in.pop().fd;
    if (fd >= 0) __real_close(fd);
  }
  while (s->out.count > 0) {
    const int fd = s->out.pop().fd;
    if (fd >= 0) __real_close(fd);
  }
  *s = {};
}

void failMap(int n) { mapsUntilFailure = n; }

bool keyOf(const void* address, Key* out) {
  const auto* p = static_cast<const char*>(address);
  for (const Mapping& m : mappings) {
    if (m.from == nullptr || !m.shared || p < m.from || p >= m.from + m.bytes) continue;
    *out = {m.key.file, m.key.offset + static_cast<uint64_t>(p - m.from)};
    return true;
  }
  return false;
}

void checkDescriptors() {
  for (const Socket& s : sockets) {
    if (s.fd >= 0 && !s.closed) fail("socket %d was not closed", s.fd);
  }
  DIR* open = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(open)) {
    const int fd = atoi(entry->d_name);
    if (fd < firstNumber) continue;
    char path[64], target[128] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    (void)!readlink(path, target, sizeof target - 1);
    fail("descriptor %d (%s) was not closed", fd, target);
  }
  closedir(open);
  for (const Mapping& m : mappings) {
    if (m.from != nullptr) fail("%zu bytes at %p were not unmapped", m.bytes, static_cast<const void*>(m.from));
  }
}

}  // namespace world

using namespace world;

extern "C" {

int __wrap_socket(int domain, int type, int) {
  step("socket");
  Hidden hidden;
  if (domain != AF_UNIX || (type & SOCK_NONBLOCK) == 0 || (type & SOCK_CLOEXEC) == 0) fail("socket: domain %d, type %d", domain, type);
  for (Socket& s : sockets) {
    if (s.fd >= 0) continue;
    s = {};
    return s.fd = placeholder();
  }
  fail("more than %d sockets", kMaxSockets);
}

int __wrap_connect(int fd, const sockaddr*, socklen_t) {
  step("connect");
  Hidden hidden;
  Socket& s = mustBeSocket("connect", fd);
  sent.connects++;
  errno = !listening ? (oneIn(2) ? ECONNREFUSED : ENOENT) : oneIn(16) ? EAGAIN : oneIn(32) ? EINTR : 0;
  if (errno != 0) return -1;
  s.connected = true;
  return 0;
}

int __wrap_getsockopt(int fd, int level, int name, void* value, socklen_t*) {
  Hidden hidden;
  mustBeSocket("getsockopt", fd);
  if (level != SOL_SOCKET || name != SO_PEERCRED) fail("getsockopt: level %d, name %d", level, name);
  *static_cast<ucred*>(value) = {1, geteuid(), getegid()};
  return 0;
}

ssize_t __wrap_sendmsg(int fd, const msghdr* m, int) {
  step("sendmsg");
  Hidden hidden;
  Socket& s = mustBeSocket("sendmsg", fd);
  const bool gone = s.hungUp || s.shut;
  errno = !s.connected ? ENOTCONN : gone ? (oneIn(8) ? ECONNRESET : EPIPE) : s.out.full() || (s.out.count > 0 && oneIn(16)) ? EAGAIN : oneIn(64) ? EINTR : 0;
  if (errno != 0) return -1;
  // The user's other processes have too many descriptors on their way.
  if (m->msg_controllen > 0 && oneIn(16)) {
    errno = ETOOMANYREFS;
    return -1;
  }
  int fdSent = -1;
  for (cmsghdr* c = CMSG_FIRSTHDR(m); c != nullptr; c = CMSG_NXTHDR(const_cast<msghdr*>(m), c)) {
    memcpy(&fdSent, CMSG_DATA(c), sizeof fdSent);
    fdSent = copied(fdSent);
  }
  s.out.push(m->msg_iov[0].iov_base, static_cast<int>(m->msg_iov[0].iov_len), fdSent);
  rhw_header header;
  memcpy(&header, m->msg_iov[0].iov_base, sizeof header);
  sent.leases += header.type == RHW_SESSION_LEASE;
  return static_cast<ssize_t>(m->msg_iov[0].iov_len);
}

ssize_t __wrap_recvmsg(int fd, msghdr* m, int) {
  step("recvmsg");
  Hidden hidden;
  Socket& s = mustBeSocket("recvmsg", fd);
  m->msg_flags = 0;
  if (s.in.count == 0 || s.shut || oneIn(64)) {
    m->msg_controllen = 0;
    if (s.in.count == 0 && s.reset && !s.shut) {
      s.reset = false;
      s.ended = true;
      errno = ECONNRESET;
      return -1;
    }
    if (s.shut || (s.in.count == 0 && s.hungUp)) {
      s.ended = true;
      return 0;
    }
    errno = oneIn(4) ? EINTR : EAGAIN;
    return -1;
  }
  const Packet p = s.in.pop();
  memcpy(m->msg_iov[0].iov_base, p.bytes, static_cast<size_t>(p.size));
  if (p.fd < 0) {
    m->msg_controllen = 0;
    return p.size;
  }
  cmsghdr* c = CMSG_FIRSTHDR(m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &p.fd, sizeof p.fd);
  m->msg_controllen = CMSG_SPACE(sizeof(int));
  return p.size;
}

int __wrap_shutdown(int fd, int) {
  step("shutdown");
  Hidden hidden;
  Socket& s = mustBeSocket("shutdown", fd);
  s.shut = true;
  if (firstShutdown.at == 0) firstShutdown = {now(), !s.ended, sent};
  return 0;
}

static short readyEvents(const pollfd& p) {
  if (p.fd < 0) return 0;
  if (p.fd == eventFd) return eventCount != 0 ? POLLIN : 0;
  const Socket* s = socketOf(p.fd);
  if (s == nullptr || s->closed) return POLLNVAL;
  int events = 0;
  if (s->in.count > 0 || s->hungUp || s->shut) events |= POLLIN;
  if (s->hungUp || s->shut) events |= POLLHUP;
  if (!s->out.full()) events |= POLLOUT;
  return static_cast<short>(events & (p.events | POLLHUP));
}

int __wrap_poll(pollfd* fds, nfds_t n, int timeout) {
  step("poll");
  Hidden hidden;
  for (nfds_t i = 0; i < n; i++) {
    if ((readyEvents(fds[i]) & POLLNVAL) != 0) fail("poll: descriptor %d is not open", fds[i].fd);
    fds[i].revents = 0;
  }
  if (oneIn(64)) {
    errno = oneIn(2) ? EINTR : ENOMEM;
    return -1;
  }
  // A daemon sleeps on the leases (threads with one descriptor are not the control thread).
  if (fds[0].fd == eventFd) checkLeasesWoken();
  const auto ready = [&] {
    for (nfds_t i = 0; i < n; i++) {
      if (readyEvents(fds[i]) != 0) return true;
    }
    return false;
  };
  block("poll", timeout < 0 ? kNever : now() + timeout * kMs, ready);
  int count = 0;
  for (nfds_t i = 0; i < n; i++) {
    fds[i].revents = readyEvents(fds[i]);
    count += fds[i].revents != 0;
  }
  return count;
}

int __wrap_eventfd(unsigned, int) {
  step("eventfd");
  Hidden hidden;
  if (eventFd >= 0) fail("eventfd: one is open");
  eventCount = 0;
  return eventFd = placeholder();
}

ssize_t __wrap_write(int fd, const void* bytes, size_t n) {
  step("write");
  Hidden hidden;
  if (fd != eventFd || n != 8) fail("write to descriptor %d, which is no open eventfd", fd);
  if (oneIn(32)) {
    errno = EINTR;
    return -1;
  }
  uint64_t more;
  memcpy(&more, bytes, sizeof more);
  eventCount += more;
  return 8;
}

ssize_t __wrap_read(int fd, void* bytes, size_t n) {
  step("read");
  Hidden hidden;
  if (fd != eventFd || n != 8) fail("read from descriptor %d, which is no open eventfd", fd);
  if (eventCount == 0 || oneIn(32)) {
    errno = eventCount == 0 ? EAGAIN : EINTR;
    return -1;
  }
  memcpy(bytes, &eventCount, sizeof eventCount);
  eventCount = 0;
  return 8;
}

int __wrap_close(int fd) {
  step("close");
  Hidden hidden;
  if (fd == eventFd) eventFd = -1;
  if (Socket* s = socketOf(fd)) {
    if (s->closed) fail("close: socket %d was closed before", fd);
    s->closed = true;
    if (!s->accepted) freeSocket(s);
  }
  if (__real_close(fd) != 0) fail("close: descriptor %d is not open", fd);
  return 0;
}

int __wrap_memfd_create(const char* name, unsigned flags) {
  step("memfd_create");
  Hidden hidden;
  return moved(__real_memfd_create(name, flags));
}

void* __wrap_mmap(void* at, size_t bytes, int access, int flags, int fd, off_t offset) {
  step("mmap");
  Hidden hidden;
  if (mapsUntilFailure > 0 && --mapsUntilFailure == 0) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void* p = __real_mmap(at, bytes, access, flags, fd, offset);
  if (p == MAP_FAILED) fail("mmap of %zu bytes, descriptor %d: %s", bytes, fd, strerror(errno));
  for (Mapping& m : mappings) {
    if (m.from != nullptr) continue;
    m = {static_cast<const char*>(p), bytes, fd >= 0, {fd >= 0 ? fileOf(fd) : 0, static_cast<uint64_t>(offset)}};
    return p;
  }
  fail("more than %d mappings", kMaxMappings);
}

int __wrap_munmap(void* at, size_t bytes) {
  step("munmap");
  Hidden hidden;
  const auto* from = static_cast<const char*>(at);
  bool found = false;
  for (Mapping& m : mappings) {
    if (m.from == nullptr || m.from < from || m.from >= from + bytes) continue;
    if (m.from + m.bytes > from + bytes) fail("munmap of a part of a mapping");
    found = true;
    m = {};
  }
  if (!found) fail("munmap of %zu bytes at %p, where nothing is mapped", bytes, at);
  return __real_munmap(at, bytes);
}

}  // extern "C"
