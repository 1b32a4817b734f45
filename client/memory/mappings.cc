#include "memory/mappings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

namespace railhead::client {

namespace {

// A line of /proc/self/maps.
struct Line {
  uintptr_t start, end;
  char permissions[5];
  uint64_t offset;
  dev_t device;
  ino_t inode;
  const char* path;
};

bool parseLine(const char* text, Line* out) {
  uint64_t start, end, inode;
  unsigned major, minor;
  int path = 0;
  if (sscanf(text, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &start, &end, out->permissions, &out->offset,
             &major, &minor, &inode, &path) != 7) {
    return false;
  }
  out->start = start;
  out->end = end;
  out->device = makedev(major, minor);
  out->inode = static_cast<ino_t>(inode);
  out->path = text + path;
  return true;
}

void copyPath(const char* from, char* to, size_t size) {
  size_t n = 0;
  for (; from[n] != '\0' && from[n] != '\n' && n + 1 < size; n++) to[n] = from[n] >= ' ' && from[n] <= '~' ? from[n] : '?';
  to[n] = '\0';
}

// Adds a mapping that begins at or before the first address not covered yet, and ends after it.
void add(const Line& line, uintptr_t address, Mapped* out) {
  const uint64_t offset = line.offset + (address + out->bytes - line.start);
  const bool shared = line.permissions[3] == 's';
  if (out->bytes == 0) {
    out->shared = shared;
    out->start = line.start;
    out->end = line.end;
    out->device = line.device;
    out->inode = line.inode;
    out->offset = offset;
    copyPath(line.path, out->path, sizeof out->path);
  } else if (shared != out->shared || line.device != out->device || line.inode != out->inode || offset != out->offset + out->bytes) {
    out->onePiece = false;
  }
  out->writable = out->writable && line.permissions[0] == 'r' && line.permissions[1] == 'w';
}

}  // namespace

int findMapped(uintptr_t address, uint64_t bytes, Mapped* out) {
  *out = {};
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return errno;
  char* text = nullptr;
  size_t room = 0;
  Line line;
  while (out->bytes < bytes && getline(&text, &room, maps) > 0) {
    const uintptr_t next = address + out->bytes;
    if (!parseLine(text, &line) || line.end <= next) continue;
    if (line.start > next) break;  // lines are sorted by address, so there is a hole
    add(line, address, out);
    const uint64_t here = line.end - next;
    out->bytes += here < bytes - out->bytes ? here : bytes - out->bytes;
    if (out->onePiece) out->piece = out->bytes;
  }
  free(text);
  fclose(maps);
  return 0;
}

}  // namespace railhead::client
