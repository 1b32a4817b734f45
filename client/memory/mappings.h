// The mappings of this process, from /proc/self/maps.
#ifndef RAILHEAD_CLIENT_MEMORY_MAPPINGS_H_
#define RAILHEAD_CLIENT_MEMORY_MAPPINGS_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

namespace railhead::client {

// The mappings of a range of addresses.
struct Mapped {
  uint64_t bytes = 0;         // how many bytes from the beginning of the range are mapped
  bool shared = true;         // its first mapping is MAP_SHARED
  bool writable = true;       // all of it can be read and written
  bool onePiece = true;       // all of it is one consecutive part of one file, shared or private as the first mapping is
  uint64_t piece = 0;         // how many bytes from the beginning of the range are
  uintptr_t start = 0;        // beginning of its first mapping
  uintptr_t end = 0;
  dev_t device = 0;           // file of the first mapping; 0 and 0 = none
  ino_t inode = 0;
  uint64_t offset = 0;        // file offset of the beginning of the range
  char path[64] = {0};        // name of the file in printable ASCII, truncated
};

// Returns 0 or an errno.
int findMapped(uintptr_t address, uint64_t bytes, Mapped* out);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_MEMORY_MAPPINGS_H_
