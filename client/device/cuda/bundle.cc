#include "device/cuda/bundle.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

namespace railhead::client::cuda {

namespace {

// A message of one part with room for the descriptors of a bundle.
struct Message {
  iovec data;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(Bundle::fds))];
  msghdr header;

  Message(void* bytes, size_t size, size_t controlBytes) : data{bytes, size}, control{}, header{} {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = controlBytes;
  }
};

void takeDescriptors(msghdr* header, Bundle* out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    out->count = static_cast<int>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(out->fds, CMSG_DATA(c), static_cast<size_t>(out->count) * sizeof(int));
  }
}

}  // namespace

void closeAll(Bundle* bundle) {
  for (int i = 0; i < bundle->count; i++) close(bundle->fds[i]);
  bundle->count = 0;
}

bool pack(const Bundle& bundle, int* fd, Failure* why) {
  const auto n = static_cast<size_t>(bundle.count);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return because(why, RH_ERR_SYSTEM, "socketpair: %s; raise this process's `ulimit -n`", strerror(errno));
  Message m(const_cast<uint64_t*>(bundle.bytes), n * sizeof *bundle.bytes, CMSG_SPACE(n * sizeof(int)));
  cmsghdr* c = CMSG_FIRSTHDR(&m.header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(n * sizeof(int));
  memcpy(CMSG_DATA(c), bundle.fds, n * sizeof(int));
  const bool sent = sendmsg(ends[0], &m.header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
  const int error = errno;
  close(ends[0]);
  *fd = ends[1];
  if (sent) return true;
  close(ends[1]);
  *fd = -1;
  return because(why, RH_ERR_SYSTEM, "passing the descriptors of %d allocations: %s; raise this process's `ulimit -n`", bundle.count, strerror(error));
}

// The message stays in the socket for the other ranks (MSG_PEEK); the kernel gives each reader descriptors of its own.
bool unpack(int fd, Bundle* out, Failure* why) {
  out->count = 0;
  Message m(out->bytes, sizeof out->bytes, sizeof m.control);
  const ssize_t size = recvmsg(fd, &m.header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) return because(why, RH_ERR_PROTOCOL, "reading the descriptors of another rank's allocations: %s", strerror(errno));
  takeDescriptors(&m.header, out);
  const bool whole = (m.header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (whole && out->count > 0 && static_cast<size_t>(size) == static_cast<size_t>(out->count) * sizeof *out->bytes) return true;
  because(why, RH_ERR_PROTOCOL, "%d descriptors with %zd bytes of sizes came for another rank's allocations%s", out->count, size,
          (m.header.msg_flags & MSG_CTRUNC) != 0 ? "; raise this process's `ulimit -n`" : "");
  closeAll(out);
  return false;
}

}  // namespace railhead::client::cuda
