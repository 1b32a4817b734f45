// Backing a range of a heap with pages.
#ifndef RAILHEAD_CLIENT_BASE_COMMIT_H_
#define RAILHEAD_CLIENT_BASE_COMMIT_H_

#include <stdint.h>

namespace railhead::client {

// The calling process allocates the pages, so they are charged to its cgroup and placed on its NUMA node.
// Returns 0 or an errno; after an error part of the range may have pages (the daemon punches them out again).
int commitPages(int fd, uint64_t offset, uint64_t bytes, int64_t deadlineNs);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_COMMIT_H_
