// Allocations that follow each other in a process's addresses, and how one descriptor carries them to other processes.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_BUNDLE_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_BUNDLE_H_

#include <stdint.h>

#include "device/cuda/failure.h"

namespace railhead::client::cuda {

struct Bundle {
  static constexpr int kMost = 250;  // the kernel passes at most 253 descriptors at once
  int count = 0;
  int fds[kMost];         // owned by whoever has filled the bundle
  uint64_t bytes[kMost];  // of each allocation
};

void closeAll(Bundle* bundle);

// Makes a socket that holds a message with the descriptors and sizes. Any number of processes can read it, as long as one of them has the socket
// open. The caller owns *fd, and still the descriptors of the bundle.
bool pack(const Bundle& bundle, int* fd, Failure* why);

// Reads what pack has made in another process, and waits for nothing. The caller owns fd and the descriptors of *out. The values are those of
// another process: only their number has been checked. After a failure *out is empty.
bool unpack(int fd, Bundle* out, Failure* why);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_BUNDLE_H_
