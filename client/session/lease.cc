#include "session/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/error.h"
#include "session/message.h"
#include "session/session.h"

namespace railhead::client {

rh_result SessionLease::make() {
  fd_ = memfd_create("railhead-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0) {
    const int error = errno;
    const bool full = error == EMFILE || error == ENFILE;
    return fail(RH_ERR_SYSTEM, "connect: memfd_create for the session's lease: %s; %s", strerror(error),
                full ? "raise this process's `ulimit -n`"
                     : "a container's seccomp profile must allow the call, and vm.memfd_noexec must be below 2");
  }
  // Sealed, so that neither side can truncate the page while the other uses it.
  constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (ftruncate(fd_, RHW_SESSION_BYTES) != 0 || fcntl(fd_, F_ADD_SEALS, seals) != 0) {
    return fail(RH_ERR_SYSTEM, "connect: cannot size and seal %u bytes for the session's lease: %s", RHW_SESSION_BYTES, strerror(errno));
  }
  void* p = mmap(nullptr, RHW_SESSION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (p == MAP_FAILED) {
    return fail(RH_ERR_OUT_OF_MEMORY, "connect: cannot map %u bytes for the session's lease: %s", RHW_SESSION_BYTES, strerror(errno));
  }
  if (getrandom(&client_, sizeof client_, 0) != static_cast<ssize_t>(sizeof client_)) {
    munmap(p, RHW_SESSION_BYTES);
    return fail(RH_ERR_SYSTEM, "connect: getrandom: %s", strerror(errno));
  }
  segment_ = static_cast<rhw_session*>(p);
  segment_->magic = RHW_SESSION_MAGIC;
  segment_->version = RHW_SESSION_VERSION;
  segment_->client = segment_->lease.client = client_;
  held_.lease = &segment_->lease;
  return RH_OK;
}

void SessionLease::drop() {
  if (segment_ != nullptr) munmap(segment_, RHW_SESSION_BYTES);
  if (fd_ >= 0) close(fd_);
  segment_ = nullptr;
  fd_ = -1;
}

int SessionLease::announce(int socket, uint16_t version, int64_t deadlineNs) const {
  rhw_session_lease m = {};
  setHeader(&m, RHW_SESSION_LEASE, version, 0);
  m.client = client_;
  return sendPacket(socket, &m, sizeof m, fd_, deadlineNs);
}

}  // namespace railhead::client
