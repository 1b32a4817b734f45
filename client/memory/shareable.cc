#include "memory/shareable.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "memory/mappings.h"

namespace railhead::client {

namespace {

constexpr const char* kRaiseLimit = "raise this process's `ulimit -n`";
constexpr const char* kInstead = "allocate a window with rh_window_alloc, or map a memfd MAP_SHARED and register it with its fd";

// Records why the memory cannot be shared. Returns RH_OK, because that is a valid answer.
__attribute__((format(printf, 2, 3))) rh_result cannot(Shareable* out, const char* format, ...) {
  if (out->fd >= 0) close(out->fd);
  out->fd = -1;
  va_list args;
  va_start(args, format);
  vsnprintf(out->reason, sizeof out->reason, format, args);
  va_end(args);
  return RH_OK;
}

bool isFile(int fd, dev_t device, ino_t inode) {
  struct stat st;
  return fstat(fd, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

bool openForBoth(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) == O_RDWR;
}

// A duplicate of a descriptor of this process that refers to the file and is open for reading and writing; -1 = none.
int findDescriptor(dev_t device, ino_t inode) {
  DIR* all = opendir("/proc/self/fd");
  if (all == nullptr) return -1;
  int found = -1;
  for (const dirent* entry = readdir(all); entry != nullptr && found < 0; entry = readdir(all)) {
    if (entry->d_name[0] == '.') continue;
    const int fd = atoi(entry->d_name);
    if (!isFile(fd, device, inode) || !openForBoth(fd)) continue;
    found = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    // Another thread may have closed the descriptor and opened another file before the duplication.
    if (found >= 0 && (!isFile(found, device, inode) || !openForBoth(found))) {
      close(found);
      found = -1;
    }
  }
  closedir(all);
  return found;
}

// Opens the file of a mapping. If the kernel permits that (CAP_CHECKPOINT_RESTORE), no open descriptor is needed.
int openMapped(const Mapped& m) {
  char path[80];
  snprintf(path, sizeof path, "/proc/self/map_files/%llx-%llx", static_cast<unsigned long long>(m.start),
           static_cast<unsigned long long>(m.end));
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd >= 0 && !isFile(fd, m.device, m.inode)) {
    close(fd);
    return -1;
  }
  return fd;
}

bool beginsWith(const char* s, const char* prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

// Finds a descriptor for memory when the caller gave none.
rh_result discover(WorldRank rank, const rh_register_config& c, const Mapped& m, Shareable* out) {
  const void* p = c.pointer;
  if (!m.shared) {
    return cannot(out, "rank %d: %p is private memory (malloc, or a private mapping); %s", number(rank), p, kInstead);
  }
  if (!m.onePiece) {
    return cannot(out, "rank %d: %p: only the first %llu of %zu bytes are one consecutive part of one file, the rest is other memory; "
                  "register each part by itself", number(rank), p, static_cast<unsigned long long>(m.piece), c.bytes);
  }
  if (!m.writable) {
    return cannot(out, "rank %d: %p is not mapped for reading and writing (mprotect may have changed that)", number(rank), p);
  }
  if (beginsWith(m.path, "/dev/zero") || beginsWith(m.path, "/SYSV")) {
    return cannot(out, "rank %d: %p is shared memory without a descriptor (%s); %s", number(rank), p, m.path, kInstead);
  }
  if (!beginsWith(m.path, "/memfd:")) {
    return cannot(out, "rank %d: %p is mapped from %s, which may be cut short at any time; %s", number(rank), p, m.path, kInstead);
  }
  out->offset = m.offset;
  out->fd = findDescriptor(m.device, m.inode);
  if (out->fd < 0) out->fd = openMapped(m);
  if (out->fd >= 0) return RH_OK;
  // Where no descriptor is free, both have failed for that reason.
  if (errno == EMFILE) {
    return cannot(out, "rank %d: %p is mapped from %s, which cannot be opened: %s; %s", number(rank), p, m.path, strerror(EMFILE), kRaiseLimit);
  }
  return cannot(out, "rank %d: %p is mapped from %s, which is not open in this process for reading and writing; keep its fd open "
                "until the window is registered", number(rank), p, m.path);
}

// Duplicates the caller's descriptor, after checking that the memory is mapped from it.
rh_result takeNamed(WorldRank rank, const rh_register_config& c, const Mapped& m, Shareable* out) {
  struct stat st;
  if (fstat(c.fd, &st) != 0) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: fd %d: %s", number(rank), c.fd, strerror(errno));
  }
  if (!S_ISREG(st.st_mode)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: fd %d is neither a memfd nor a file", number(rank), c.fd);
  }
  // A file without seals cannot be shared, even if the memory is mapped from it. (Some file systems report another device in maps than in
  // fstat.)
  if (fcntl(c.fd, F_GET_SEALS) < 0) {
    return cannot(out, "rank %d: %p is mapped from a file (fd %d), which may be cut short at any time; %s", number(rank), c.pointer, c.fd,
                  kInstead);
  }
  if (!m.shared || m.device != st.st_dev || m.inode != st.st_ino || m.offset != c.fd_offset) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: %p is not mapped MAP_SHARED from fd %d at %llu: it is %s memory "
                "of \"%s\" at %llu; give the fd and the offset that mmap got, or fd -1", number(rank), c.pointer, c.fd,
                static_cast<unsigned long long>(c.fd_offset), m.shared ? "shared" : "private", m.path,
                static_cast<unsigned long long>(m.offset));
  }
  if (!m.onePiece) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: of the %zu bytes at %p only the first %llu are mapped from fd %d, the rest "
                "is other memory; register no more than those", number(rank), c.bytes, c.pointer, static_cast<unsigned long long>(m.piece), c.fd);
  }
  if (!m.writable || !openForBoth(c.fd)) {
    return cannot(out, "rank %d: %p is not mapped, or fd %d not open, for reading and writing; open it with O_RDWR", number(rank), c.pointer,
                  c.fd);
  }
  out->offset = c.fd_offset;
  out->fd = fcntl(c.fd, F_DUPFD_CLOEXEC, 0);
  if (out->fd >= 0) return RH_OK;
  // Not an error of this rank alone: the others would wait for it until their deadline.
  const int error = errno;
  return cannot(out, "rank %d: fd %d of %p cannot be duplicated (%s); %s", number(rank), c.fd, c.pointer, strerror(error),
                error == EMFILE ? kRaiseLimit : kInstead);
}

// Makes sure that the file cannot be truncated while others map it.
rh_result seal(WorldRank rank, const rh_register_config& c, Shareable* out) {
  int seals = fcntl(out->fd, F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) == 0 && fcntl(out->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) seals |= F_SEAL_SHRINK;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return cannot(out, "rank %d: %p lies in a file that cannot be sealed, so it may be cut short at any time; map a memfd made with "
                  "MFD_ALLOW_SEALING", number(rank), c.pointer);
  }
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return cannot(out, "rank %d: %p lies in a memfd that is sealed against writing; register it before it is, or use another", number(rank),
                  c.pointer);
  }
  struct stat st;
  if (fstat(out->fd, &st) != 0) return cannot(out, "rank %d: %p lies in a memfd whose fstat fails: %s", number(rank), c.pointer, strerror(errno));
  const auto size = static_cast<uint64_t>(st.st_size);
  if (out->offset <= size && c.bytes <= size - out->offset) return RH_OK;
  return cannot(out, "rank %d: %p lies in a memfd that ends at %llu, within the registered memory; make it larger with ftruncate", number(rank),
                c.pointer, static_cast<unsigned long long>(size));
}

}  // namespace

rh_result findShareable(WorldRank rank, const rh_register_config& c, Shareable* out) {
  Mapped m;
  const int error = findMapped(reinterpret_cast<uintptr_t>(c.pointer), c.bytes, &m);
  if (error != 0) {
    return cannot(out, "rank %d: /proc/self/maps cannot be read (%s), so nothing is known of %p; %s", number(rank), strerror(error),
                  c.pointer, error == EMFILE ? kRaiseLimit : "mount /proc");
  }
  if (m.bytes < c.bytes) {
    return fail(RH_ERR_INVALID_ARGUMENT, "window_register: rank %d: of the %zu bytes at %p only %llu are mapped; register no more than those", number(rank), c.bytes,
                c.pointer, static_cast<unsigned long long>(m.bytes));
  }
  const rh_result result = c.fd >= 0 ? takeNamed(rank, c, m, out) : discover(rank, c, m, out);
  return result == RH_OK && out->fd >= 0 ? seal(rank, c, out) : result;
}

}  // namespace railhead::client
