#include "base/commit.h"

#include <errno.h>
#include <fcntl.h>

#include "host/futex.h"

namespace railhead::client {

namespace {
// fallocate on shared memory starts over when a signal arrives. A chunk of this size takes a few ms, so it completes between two
// signals of a profiler.
constexpr uint64_t kPieceBytes = 16 << 20;
}  // namespace

int commitPages(int fd, uint64_t offset, uint64_t bytes, int64_t deadlineNs) {
  while (bytes > 0) {
    const uint64_t piece = bytes < kPieceBytes ? bytes : kPieceBytes;
    if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(piece)) != 0) {
      if (errno != EINTR) return errno;
      if (host::nowNs() >= deadlineNs) return ETIMEDOUT;
      continue;
    }
    offset += piece;
    bytes -= piece;
  }
  return 0;
}

}  // namespace railhead::client
