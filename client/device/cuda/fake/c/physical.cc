// Virtual memory management: ranges of addresses, physical memory, mappings, descriptors.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/cuda/fake/c/memory.h"

namespace railhead::fake {

// Never destroyed, as a driver's state is not: what they refer to may outlive main.
std::map<CUdeviceptr, Mapping>& mappings = *new std::map<CUdeviceptr, Mapping>();

namespace {

std::map<CUdeviceptr, size_t> reservations;
auto& handles = *new std::map<CUmemGenericAllocationHandle, Physical*>();
std::map<int, size_t> taken;  // by device of the machine

constexpr const char* kName = "railhead-fake-cuda";

void* at(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

// A handle for physical memory. Different handles may name the same memory.
CUmemGenericAllocationHandle newHandle(Physical* physical) {
  static CUmemGenericAllocationHandle given = 0x1000;
  physical->handles++;
  account.handles++;
  handles[++given] = physical;
  return given;
}

Physical* find(CUmemGenericAllocationHandle handle) {
  const auto found = handles.find(handle);
  return found != handles.end() ? found->second : nullptr;
}

void drop(Physical* p) {
  if (p->handles > 0 || p->mappings > 0) return;
  if (!p->imported) giveBack(p->machineDevice, p->bytes);
  close(p->fd);
  delete p;
}

bool isMultiple(uint64_t n) { return n % kGranularity == 0; }

// Whether every byte of a range is mapped. Real drivers want whole mappings, as do the functions here.
bool wholeMappings(CUdeviceptr address, size_t bytes) {
  while (bytes > 0) {
    const auto m = mappings.find(address);
    if (m == mappings.end() || m->second.bytes > bytes) return false;
    address += m->second.bytes;
    bytes -= m->second.bytes;
  }
  return true;
}

bool inReservation(CUdeviceptr address, size_t bytes) {
  auto r = reservations.upper_bound(address);
  if (r == reservations.begin()) return false;
  --r;
  return address - r->first < r->second && bytes <= r->second - (address - r->first);
}

bool overlapsMapping(CUdeviceptr address, size_t bytes) {
  const auto next = mappings.lower_bound(address);
  if (next != mappings.end() && next->first < address + bytes) return true;
  return within(mappings, address) != mappings.end();
}

}  // namespace

bool findReservation(CUdeviceptr address, CUdeviceptr* base, size_t* bytes) {
  auto r = reservations.upper_bound(address);
  if (r == reservations.begin()) return false;
  --r;
  *base = r->first;
  *bytes = r->second;
  return address - r->first < r->second;
}

size_t deviceBytes() { return static_cast<size_t>(environmentNumber("RAILHEAD_FAKE_CUDA_MEMORY", long{8} << 30)); }
size_t freeBytes(int machineDevice) { return deviceBytes() - taken[machineDevice]; }

bool take(int machineDevice, size_t bytes) {
  if (bytes > freeBytes(machineDevice)) return false;
  taken[machineDevice] += bytes;
  return true;
}
void giveBack(int machineDevice, size_t bytes) { taken[machineDevice] -= bytes; }

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* p, CUmemAllocationGranularity_flags) {
  if (p == nullptr || p->type != CU_MEM_ALLOCATION_TYPE_PINNED || !isDevice(p->location.id)) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long flags) {
  if (bytes == 0 || !isMultiple(bytes) || flags != 0 || (alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (alignment < kGranularity) alignment = kGranularity;
  const std::lock_guard<std::mutex> lock(world);
  void* m = mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<uintptr_t>(m);
  const uintptr_t aligned = (begin + alignment - 1) / alignment * alignment;
  if (aligned > begin) munmap(m, aligned - begin);
  munmap(reinterpret_cast<void*>(aligned + bytes), begin + alignment - aligned);
  *pointer = aligned;
  reservations[aligned] = bytes;
  account.reservations++;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
  const std::lock_guard<std::mutex> lock(world);
  const auto r = reservations.find(pointer);
  if (r == reservations.end() || r->second != bytes || overlapsMapping(pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
  munmap(at(pointer), bytes);
  reservations.erase(r);
  account.reservations--;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* p, unsigned long long flags) {
  if (p == nullptr || p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!isDevice(p->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  if (bytes == 0 || !isMultiple(bytes)) return CUDA_ERROR_INVALID_VALUE;
  // No IMEX channel, as on most machines.
  if ((p->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0 && environmentNumber("RAILHEAD_FAKE_CUDA_FABRIC", 0) == 0) return CUDA_ERROR_NOT_PERMITTED;
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::lock_guard<std::mutex> lock(world);
  const int device = machineOrdinal(p->location.id);
  if (!take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  char name[64];
  snprintf(name, sizeof name, "%s-%d-%u", kName, device, static_cast<unsigned>(p->requestedHandleTypes));
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    if (fd >= 0) close(fd);
    giveBack(device, bytes);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  // What a driver leaves in new memory is unspecified.
  void* m = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (m != MAP_FAILED) {
    for (size_t page = 0; page < bytes; page += kGranularity) memset(static_cast<char*>(m) + page, 0xa5, 4096);
    munmap(m, bytes);
  }
  *handle = newHandle(new Physical{fd, bytes, device, p->requestedHandleTypes, false});
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(world);
  Physical* p = find(handle);
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  handles.erase(handle);
  account.handles--;
  p->handles--;
  drop(p);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::lock_guard<std::mutex> lock(world);
  Physical* p = find(handle);
  if (p == nullptr || offset != 0 || flags != 0 || bytes == 0 || !isMultiple(bytes) || !isMultiple(pointer) || bytes > p->bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!inReservation(pointer, bytes) || overlapsMapping(pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (mmap(at(pointer), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  p->mappings++;
  mappings[pointer] = {bytes, p};
  account.mappings++;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::lock_guard<std::mutex> lock(world);
  if (bytes == 0 || !wholeMappings(pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
  mmap(at(pointer), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  for (const CUdeviceptr end = pointer + bytes; pointer < end;) {
    const auto m = mappings.find(pointer);
    pointer += m->second.bytes;
    Physical* p = m->second.physical;
    mappings.erase(m);
    account.mappings--;
    p->mappings--;
    drop(p);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  const std::lock_guard<std::mutex> lock(world);
  if (access == nullptr || count != 1 || bytes == 0 || !wholeMappings(pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !isDevice(access->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  for (CUdeviceptr m = pointer; m < pointer + bytes; m += mappings[m].bytes) {
    if (!reaches(machineOrdinal(access->location.id), mappings[m].physical->machineDevice)) return CUDA_ERROR_NOT_SUPPORTED;
  }
  const int protection = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_NONE;
  return mprotect(at(pointer), bytes, protection) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
  const std::lock_guard<std::mutex> lock(world);
  Physical* p = find(handle);
  if (p == nullptr || flags != 0 || (p->types & type) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (p->imported) return CUDA_ERROR_NOT_SUPPORTED;  // an importer cannot export, as seen
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    memset(shareable, 0, sizeof(CUmemFabricHandle));
    return CUDA_SUCCESS;
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const int fd = dup(p->fd);  // without close-on-exec: a caller must not count on it
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(shareable) = fd;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable, CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  char path[64], name[128] = "";
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int device;
  unsigned types;
  struct stat st;
  if (readlink(path, name, sizeof name - 1) < 0 || sscanf(name, "/memfd:railhead-fake-cuda-%d-%u", &device, &types) != 2 || fstat(fd, &st) != 0) return CUDA_ERROR_INVALID_VALUE;
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const std::lock_guard<std::mutex> lock(world);
  *handle = newHandle(new Physical{own, static_cast<size_t>(st.st_size), device, types, true});
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(world);
  const Physical* p = find(handle);
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(p->types);
  properties->location = {CU_MEM_LOCATION_TYPE_DEVICE, -1};
  for (int i = 0; i < deviceCount(); i++) {
    if (machineOrdinal(i) == p->machineDevice) properties->location.id = i;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const std::lock_guard<std::mutex> lock(world);
  const auto m = within(mappings, reinterpret_cast<CUdeviceptr>(address));
  if (m == mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  *handle = newHandle(m->second.physical);
  return CUDA_SUCCESS;
}

}  // namespace railhead::fake
