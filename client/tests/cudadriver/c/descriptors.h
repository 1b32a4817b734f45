// Messages with descriptors, between processes or to a socket's other end.
#ifndef RAILHEAD_CLIENT_TESTS_CUDADRIVER_DESCRIPTORS_H_
#define RAILHEAD_CLIENT_TESTS_CUDADRIVER_DESCRIPTORS_H_

#include <string.h>
#include <sys/socket.h>

#include "check.h"

// Sends bytes, and count descriptors, two at most.
inline void sendDescriptors(int socket, const void* bytes, size_t size, const int* fds, size_t count) {
  iovec data = {const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  CHECK(count <= 2);
  msghdr m = {};
  m.msg_iov = &data;
  m.msg_iovlen = 1;
  if (count > 0) {
    m.msg_control = control;
    m.msg_controllen = CMSG_SPACE(count * sizeof *fds);
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof *fds);
    memcpy(CMSG_DATA(c), fds, count * sizeof *fds);
  }
  CHECK(sendmsg(socket, &m, 0) == static_cast<ssize_t>(size));
}

#endif  // RAILHEAD_CLIENT_TESTS_CUDADRIVER_DESCRIPTORS_H_
