// What the files of the fake's memory share. All of it is guarded by world.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_MEMORY_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_MEMORY_H_

#include <stdint.h>

#include "device/cuda/fake/c/fake.h"

namespace railhead::fake {

constexpr size_t kGranularity = size_t{2} << 20;

// Physical memory: a memfd. Its name tells other processes what it is.
struct Physical {
  int fd;
  size_t bytes;
  int machineDevice;
  unsigned types;  // requestedHandleTypes
  bool imported;
  long handles = 0, mappings = 0;
};

// Where physical memory is mapped.
struct Mapping {
  size_t bytes;
  Physical* physical;
};

enum class Kind { kPlain, kPool, kManaged, kOpened };  // kOpened: of another process

// Memory of cuMemAlloc and its like.
struct Allocation {
  size_t bytes;
  int fd;
  int device;  // ordinal in this process; -1 = not visible
  Kind kind;
  uint64_t before = 0;  // kOpened: bytes of the mapped block before the memory; bytes counts them
  CUipcMemHandle handle = {};
};

// Pinned memory of the host.
struct Pinned {
  size_t bytes;
  bool registered;
};

extern std::map<CUdeviceptr, Mapping>& mappings;
// The reserved range that an address lies in. False: none.
bool findReservation(CUdeviceptr address, CUdeviceptr* base, size_t* bytes);
extern std::map<CUdeviceptr, Allocation>& allocations;
extern std::map<CUdeviceptr, Pinned>& pinned;

// The entry that an address lies in; end() = none.
template <class Entry>
typename std::map<CUdeviceptr, Entry>::iterator within(std::map<CUdeviceptr, Entry>& all, CUdeviceptr address) {
  auto next = all.upper_bound(address);
  if (next == all.begin()) return all.end();
  auto entry = std::prev(next);
  return address - entry->first < entry->second.bytes ? entry : all.end();
}

// Takes bytes of a device's memory, of which this process may have RAILHEAD_FAKE_CUDA_MEMORY. False: it is full.
bool take(int machineDevice, size_t bytes);
void giveBack(int machineDevice, size_t bytes);
size_t deviceBytes();
size_t freeBytes(int machineDevice);

}  // namespace railhead::fake

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_MEMORY_H_
