// What this process has mapped where, as /proc/self/maps says.
#ifndef RAILHEAD_CLIENT_MEMORY_MAPPINGS_H_
#define RAILHEAD_CLIENT_MEMORY_MAPPINGS_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

namespace railhead::client {

// Where a range of addresses lies.
struct Mapped {
  uint64_t bytes = 0;         // of the range, from its beginning, that are mapped at all
  bool shared = true;         // all of it is MAP_SHARED,
  bool writable = true;       // can be read and written,
  bool onePiece = true;       // and is a consecutive part of one file
  uintptr_t start = 0;        // the first mapping of it
  uintptr_t end = 0;
  dev_t device = 0;           // the file of that, 0 and 0 = none
  ino_t inode = 0;
  uint64_t offset = 0;        // of the range's beginning in the file
  char path[64] = {0};        // the file's name, in printable ASCII, cut where it is long
};

// Returns 0 or an errno.
int findMapped(uintptr_t address, uint64_t bytes, Mapped* out);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_MEMORY_MAPPINGS_H_
