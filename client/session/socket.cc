#include "session/socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "host/futex.h"

namespace railhead::client {

namespace {

// Whether a uid that the kernel reports may stand for any user: the kernel shows all users whom this process's user namespace does not map
// as one uid, the overflow uid. The first user namespace of a machine maps all 2^32 - 1 uids; no uid stands for others there.
// Without /proc the overflow uid is the kernel's default, and not all uids are mapped.
bool standsForMany(uid_t uid) {
  unsigned overflow = 65534;
  if (FILE* f = fopen("/proc/sys/kernel/overflowuid", "re")) {
    if (fscanf(f, "%u", &overflow) != 1) overflow = 65534;
    fclose(f);
  }
  if (uid != overflow) return false;
  unsigned inside = 1, outside = 1, count = 0;
  if (FILE* f = fopen("/proc/self/uid_map", "re")) {
    if (fscanf(f, "%u %u %u", &inside, &outside, &count) != 3) count = 0;
    fclose(f);
  }
  return inside != 0 || outside != 0 || count != UINT32_MAX;
}

// A process of another user that listens at the path is not trusted.
rh_result checkPeer(int fd, const char* path) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return fail(RH_ERR_SYSTEM, "connect: SO_PEERCRED: %s", strerror(errno));
  }
  if (peer.uid == 0) return RH_OK;
  if (peer.uid != geteuid()) {
    return fail(RH_ERR_PERMISSION, "connect: the program at %s runs as uid %u; only uid %u and root are trusted", path,
                peer.uid, geteuid());
  }
  if (standsForMany(peer.uid)) {
    return fail(RH_ERR_PERMISSION, "connect: the program at %s runs as uid %u, which may be any user that this user namespace does not "
                "map (see /proc/self/uid_map); run the daemon and its ranks in a user namespace that maps their user to another uid",
                path, peer.uid);
  }
  return RH_OK;
}

// Returns 0 or an errno. A non-blocking unix socket connects at once, or fails with EAGAIN if the backlog is full.
int connectOnce(int fd, const sockaddr_un& address) {
  return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

rh_result describeError(int error, const char* path) {
  if (error == EACCES || error == EPERM) {
    return fail(RH_ERR_PERMISSION, "connect: no access to %s: run as the daemon's user", path);
  }
  if (error == EAGAIN) {
    return fail(RH_ERR_LIMIT, "connect: the daemon at %s has had too many connections waiting all the time; does it hang?", path);
  }
  return fail(RH_ERR_NO_DAEMON, "connect: no daemon at %s (%s): start `railhead serve`, or set RAILHEAD_SOCKET", path,
              strerror(error));
}

}  // namespace

rh_result openSocket(const char* path, int64_t deadlineNs, int* out) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path, strlen(path));
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return fail(RH_ERR_SYSTEM, "connect: socket: %s", strerror(errno));
  int error = connectOnce(fd, address);
  while ((error == EAGAIN || error == EINTR) && host::nowNs() < deadlineNs) {
    const timespec pause = {0, 5 * 1000 * 1000};
    nanosleep(&pause, nullptr);
    error = connectOnce(fd, address);
  }
  const rh_result result = error == 0 ? checkPeer(fd, path) : describeError(error, path);
  if (result == RH_OK) {
    *out = fd;
  } else {
    close(fd);
  }
  return result;
}

}  // namespace railhead::client
