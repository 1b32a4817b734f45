// Memory of cuMemAlloc and its handles for other processes, pinned memory of the host, what is known of a pointer, copies and fills.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "device/cuda/fake/c/memory.h"

namespace railhead::fake {

std::map<CUdeviceptr, Allocation>& allocations = *new std::map<CUdeviceptr, Allocation>();
std::map<CUdeviceptr, Pinned>& pinned = *new std::map<CUdeviceptr, Pinned>();

namespace {

void* at(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

// What the bytes of a handle say: where its process has the memory open.
struct IpcHandle {
  int32_t pid, fd;
  uint64_t bytes, device, inode, serial;
};
static_assert(sizeof(IpcHandle) <= sizeof(CUipcMemHandle), "it fits");

CUresult allocate(CUdeviceptr* pointer, size_t bytes, Kind kind) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::lock_guard<std::mutex> lock(world);
  const int device = current()->device;
  if (!take(machineOrdinal(device), bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = memfd_create("railhead-fake-cuda-allocation", MFD_CLOEXEC);
  void* m = fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (m == MAP_FAILED) {
    if (fd >= 0) close(fd);
    giveBack(machineOrdinal(device), bytes);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *pointer = reinterpret_cast<CUdeviceptr>(m);
  allocations[*pointer] = {bytes, fd, device, kind};
  account.allocations++;
  return CUDA_SUCCESS;
}

// Whether the driver knows memory at the address.
bool known(CUdeviceptr pointer) {
  return within(mappings, pointer) != mappings.end() || within(allocations, pointer) != allocations.end() || within(pinned, pointer) != pinned.end();
}

// Runs the work in the order of the default stream, and waits for it.
CUresult runNow(std::function<void()> work) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const CUresult code = enqueue(nullptr, std::move(work));
  return code == CUDA_SUCCESS ? drain(nullptr) : code;
}

std::function<void()> copying(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return [=] { memcpy(at(to), at(from), bytes); };
}

// Fills with values of several bytes.
std::function<void()> filling(CUdeviceptr to, unsigned int value, size_t count, size_t each) {
  return [=] {
    for (size_t i = 0; i < count; i++) memcpy(static_cast<char*>(at(to)) + i * each, &value, each);
  };
}

// The file of mapped physical memory that the range lies in, for the caller to close, and the range's offset in it. -1: it lies in no such memory.
int fileOf(CUdeviceptr from, size_t bytes, off_t* offset) {
  const std::lock_guard<std::mutex> lock(world);
  const auto m = within(mappings, from);
  if (m == mappings.end() || from + bytes > m->first + m->second.bytes) return -1;
  *offset = static_cast<off_t>(from - m->first);
  return fcntl(m->second.physical->fd, F_DUPFD_CLOEXEC, 0);
}

// Fills a large range by writes to its file, which take half the time of stores: a store to each new page is a page fault. False: the range
// lies in no file, or a write failed.
bool writeToFile(CUdeviceptr to, unsigned char value, size_t count) {
  constexpr size_t kPiece = size_t{1} << 20;
  off_t offset = 0;
  const int fd = count < kPiece ? -1 : fileOf(to, count, &offset);
  if (fd < 0) return false;
  const std::vector<unsigned char> piece(kPiece, value);
  ssize_t written = 1;
  for (size_t done = 0; done < count && written > 0; done += static_cast<size_t>(written)) {
    written = pwrite(fd, piece.data(), std::min(kPiece, count - done), offset + static_cast<off_t>(done));
  }
  close(fd);
  return written > 0;
}

// Sets bytes to a value. Zeroed memory that is not used again needs no pages: whole pages of zeros are given back to the system (MADV_REMOVE,
// which private memory refuses) and not written.
std::function<void()> fillingBytes(CUdeviceptr to, unsigned char value, size_t count) {
  return [=] {
    constexpr CUdeviceptr kPage = 4096;
    const CUdeviceptr end = to + count, first = (to + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
    if (value != 0 || last <= first || madvise(at(first), last - first, MADV_REMOVE) != 0) {
      if (!writeToFile(to, value, count)) memset(at(to), value, count);
      return;
    }
    memset(at(to), 0, first - to);
    memset(at(last), 0, end - last);
  };
}

}  // namespace

CUresult cuMemAlloc(CUdeviceptr* pointer, size_t bytes) { return allocate(pointer, bytes, Kind::kPlain); }
CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned int) { return allocate(pointer, bytes, Kind::kManaged); }
CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream) { return allocate(pointer, bytes, Kind::kPool); }

CUresult cuMemFree(CUdeviceptr pointer) {
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (const CUresult code = drainAll(); code != CUDA_SUCCESS) return code;  // it waits for running kernels
  const std::lock_guard<std::mutex> lock(world);
  const auto a = allocations.find(pointer);
  if (a == allocations.end() || a->second.kind == Kind::kOpened) return CUDA_ERROR_INVALID_VALUE;
  munmap(at(pointer), a->second.bytes);
  close(a->second.fd);
  giveBack(machineOrdinal(a->second.device), a->second.bytes);
  allocations.erase(a);
  account.allocations--;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard<std::mutex> lock(world);
  *total = deviceBytes();
  *free = freeBytes(machineOrdinal(current()->device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = deviceBytes();
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  static uint64_t given = 0;
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard<std::mutex> lock(world);
  const auto a = within(allocations, pointer);
  if (a == allocations.end() || a->second.kind != Kind::kPlain) return CUDA_ERROR_INVALID_VALUE;
  struct stat st;
  if (fstat(a->second.fd, &st) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  static const CUipcMemHandle kNone = {};
  if (memcmp(&a->second.handle, &kNone, sizeof kNone) == 0) {  // an allocation keeps its handle
    const IpcHandle h = {getpid(), a->second.fd, a->second.bytes, static_cast<uint64_t>(machineOrdinal(a->second.device)), st.st_ino, ++given};
    memcpy(&a->second.handle, &h, sizeof h);
  }
  *handle = a->second.handle;
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags) {
  IpcHandle h;
  memcpy(&h, &handle, sizeof h);
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (current() == nullptr || h.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // a process cannot open its own
  const std::lock_guard<std::mutex> lock(world);
  for (const auto& [address, a] : allocations) {
    // The library must remember what it has opened: drivers differ in what a second opening does.
    if (a.kind == Kind::kOpened && memcmp(&a.handle, &handle, sizeof handle) == 0) return CUDA_ERROR_ALREADY_MAPPED;
  }
  if (!reaches(machineOrdinal(current()->device), static_cast<int>(h.device))) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0 || st.st_ino != h.inode) {
    if (fd >= 0) close(fd);
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto before = static_cast<uint64_t>(environmentNumber("RAILHEAD_FAKE_CUDA_BEFORE", 0));
  void* block = mmap(nullptr, before + h.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED || mmap(static_cast<char*>(block) + before, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    if (block != MAP_FAILED) munmap(block, before + h.bytes);
    close(fd);
    return CUDA_ERROR_MAP_FAILED;
  }
  const auto start = reinterpret_cast<CUdeviceptr>(block);
  *pointer = start + before;
  Allocation a = {before + h.bytes, fd, current()->device, Kind::kOpened};
  a.before = before;
  a.handle = handle;
  allocations[start] = a;
  account.opened++;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard<std::mutex> lock(world);
  const auto a = within(allocations, pointer);
  if (a == allocations.end() || a->second.kind != Kind::kOpened || a->first + a->second.before != pointer) return CUDA_ERROR_INVALID_VALUE;
  munmap(at(a->first), a->second.bytes);
  close(a->second.fd);
  allocations.erase(a);
  account.opened--;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned int) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  void* m = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bytes == 0 || m == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  memset(m, 0xa5, bytes);
  const std::lock_guard<std::mutex> lock(world);
  pinned[reinterpret_cast<CUdeviceptr>(m)] = {bytes, false};
  account.pinned++;
  *pointer = m;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* pointer) {
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (const CUresult code = drainAll(); code != CUDA_SUCCESS) return code;  // it waits for running kernels
  const std::lock_guard<std::mutex> lock(world);
  const auto p = pinned.find(reinterpret_cast<CUdeviceptr>(pointer));
  if (p == pinned.end() || p->second.registered) return CUDA_ERROR_INVALID_VALUE;
  munmap(pointer, p->second.bytes);
  pinned.erase(p);
  account.pinned--;
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void* pointer, size_t bytes, unsigned int) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(world);
  const auto begin = reinterpret_cast<CUdeviceptr>(pointer);
  const auto next = pinned.lower_bound(begin);
  if (within(pinned, begin) != pinned.end() || (next != pinned.end() && next->first < begin + bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = begin / page * page;
  // Pages that are not mapped cannot be pinned.
  if (msync(at(first), begin + bytes - first, MS_ASYNC) != 0) return CUDA_ERROR_INVALID_VALUE;
  pinned[begin] = {bytes, true};
  account.pinned++;
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* pointer) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard<std::mutex> lock(world);
  const auto p = pinned.find(reinterpret_cast<CUdeviceptr>(pointer));
  if (p == pinned.end() || !p->second.registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  pinned.erase(p);
  account.pinned--;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* device, void* pointer, unsigned int) {
  const std::lock_guard<std::mutex> lock(world);
  *device = reinterpret_cast<CUdeviceptr>(pointer);
  return within(pinned, *device) != pinned.end() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  const std::lock_guard<std::mutex> lock(world);
  // Of mapped memory the whole reserved range: drivers may say more than one mapping.
  if (within(mappings, pointer) != mappings.end() && findReservation(pointer, base, bytes)) return CUDA_SUCCESS;
  const auto a = within(allocations, pointer);
  if (a == allocations.end()) return CUDA_ERROR_NOT_FOUND;
  *base = a->first;
  *bytes = a->second.bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const std::lock_guard<std::mutex> lock(world);
  if (!known(pointer)) return CUDA_ERROR_INVALID_VALUE;
  const auto a = within(allocations, pointer);
  const auto m = within(mappings, pointer);
  const bool allocated = a != allocations.end();
  int device = allocated ? a->second.device : -1;
  for (int i = 0; i < deviceCount() && m != mappings.end(); i++) {
    if (machineOrdinal(i) == m->second.physical->machineDevice) device = i;
  }
  const bool mapping = attribute == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR || attribute == CU_POINTER_ATTRIBUTE_MAPPING_SIZE;
  if (mapping && !allocated && m == mappings.end()) return CUDA_ERROR_NOT_SUPPORTED;  // not modelled
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned int*>(value) = within(pinned, pointer) != pinned.end() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(value) = device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned int*>(value) = allocated && a->second.kind == Kind::kManaged; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *static_cast<void**>(value) = allocated && a->second.kind == Kind::kPool ? &allocations : nullptr; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *static_cast<unsigned int*>(value) = allocated && a->second.kind == Kind::kPlain; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *static_cast<void**>(value) = at(m != mappings.end() ? m->first : a->first); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *static_cast<size_t*>(value) = m != mappings.end() ? m->second.bytes : a->second.bytes; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return runNow(copying(to, from, bytes)); }
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) { return runNow(copying(reinterpret_cast<CUdeviceptr>(to), from, bytes)); }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) { return runNow(copying(to, reinterpret_cast<CUdeviceptr>(from), bytes)); }
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { return enqueue(stream, copying(to, from, bytes)); }
CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) { return runNow(fillingBytes(to, value, count)); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) { return enqueue(stream, fillingBytes(to, value, count)); }
CUresult cuMemsetD32(CUdeviceptr to, unsigned int value, size_t count) { return runNow(filling(to, value, count, 4)); }
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) { return enqueue(stream, filling(to, value, count, 4)); }

}  // namespace railhead::fake
