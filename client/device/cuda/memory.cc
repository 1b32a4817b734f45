#include "device/cuda/memory.h"

#include <fcntl.h>
#include <stdlib.h>

#include "base/malloced.h"
#include "host/futex.h"

namespace railhead::client::cuda {

namespace {

CUmemAllocationProp propertiesOn(CUdevice device, CUmemAllocationHandleType shareable) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = shareable;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return p;
}

using unsigned64 = unsigned long long;

constexpr int64_t kLastFillsNs = int64_t{2} * 1000000000;  // how long release waits for fills whose callers no longer do

}  // namespace

bool memoryGranularity(const Context& context, uint64_t* bytes, Failure* why) {
  const CUmemAllocationProp properties = propertiesOn(context.device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  size_t granularity = 0;
  if (!context.driver->cuMemGetAllocationGranularity(why, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return prefix(why, "device %d: ", context.device);
  }
  *bytes = granularity;
  if (granularity != 0 && (granularity & (granularity - 1)) == 0) return true;
  return because(why, RH_ERR_UNSUPPORTED, "device %d: memory comes in pieces of %zu bytes, which is no power of two", context.device, granularity);
}

bool mapMemory(const Context& context, CUdeviceptr at, uint64_t bytes, CUmemGenericAllocationHandle memory, Failure* why) {
  const Driver& driver = *context.driver;
  if (!driver.cuMemMap(why, at, bytes, 0, memory, 0)) return false;
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, context.device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (driver.cuMemSetAccess(why, at, bytes, &access, 1)) return true;
  driver.cuMemUnmap.call(at, bytes);
  return false;
}

bool mapDescriptor(const Context& context, CUdeviceptr at, uint64_t bytes, int fd, Failure* why) {
  const Driver& driver = *context.driver;
  CUmemGenericAllocationHandle memory;
  // The descriptor is passed as the pointer's value.
  void* shareable = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  if (!driver.cuMemImportFromShareableHandle(why, &memory, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) return false;
  const bool mapped = mapMemory(context, at, bytes, memory, why);
  // What is mapped stays alive without a handle.
  if (driver.cuMemRelease(why, memory) && mapped) return true;
  if (mapped) driver.cuMemUnmap.call(at, bytes);
  return false;
}

struct DeviceHeaps::Piece : Malloced {
  explicit Piece(const HeapPart& of) : part(of) {}
  HeapPart part;
  // Of memory that this process created: held, so that it can be exported at any time. An importer needs none, and cannot export.
  CUmemGenericAllocationHandle handle = 0;
  bool own = false;
  Piece* next = nullptr;
};

DeviceHeaps::~DeviceHeaps() {
  Failure ignored;
  if (base_ != 0) release(&ignored);
}

bool DeviceHeaps::reserve(const Context& context, int ranks, uint64_t stride, Failure* why) {
  if (base_ != 0) return because(why, RH_ERR_INVALID_ARGUMENT, "the device heaps are reserved already");
  uint64_t granularity;
  if (!memoryGranularity(context, &granularity, why)) return false;
  uint64_t bytes;
  if (ranks < 1 || stride == 0 || stride % granularity != 0 || __builtin_mul_overflow(static_cast<uint64_t>(ranks), stride, &bytes)) {
    return because(why, RH_ERR_INVALID_ARGUMENT, "device heaps of %d ranks, %llu bytes each: expected a multiple of %llu", ranks, static_cast<unsigned64>(stride),
                   static_cast<unsigned64>(granularity));
  }
  const Current current(context, why);
  if (!current) return false;
  CUdeviceptr base = 0;
  if (!context.driver->cuMemAddressReserve(why, &base, bytes, granularity, 0, 0)) {
    return prefix(why, "device %d: cannot reserve addresses for the device heaps of %d ranks, %llu bytes each: ", context.device, ranks, static_cast<unsigned64>(stride));
  }
  context_ = &context;
  base_ = base;
  stride_ = stride;
  granularity_ = granularity;
  ranks_ = ranks;
  return true;
}

bool DeviceHeaps::inRange(const HeapPart& part, const char* operation, Failure* why) const {
  const bool aligned = base_ != 0 && part.offset % granularity_ == 0 && part.bytes % granularity_ == 0;
  if (aligned && part.rank >= 0 && part.rank < ranks_ && part.bytes > 0 && part.offset <= stride_ && part.bytes <= stride_ - part.offset) return true;
  return because(why, RH_ERR_INVALID_ARGUMENT, "%s: %llu bytes at %llu of local rank %d's device heap: there are %d heaps of %llu bytes, in pieces of %llu", operation,
                 static_cast<unsigned64>(part.bytes), static_cast<unsigned64>(part.offset), part.rank, ranks_, static_cast<unsigned64>(stride_),
                 static_cast<unsigned64>(granularity_));
}

bool DeviceHeaps::createPiece(Piece* piece, int64_t deadlineNs, Failure* why) {
  const Driver& driver = *context_->driver;
  const HeapPart& part = piece->part;
  const CUmemAllocationProp properties = propertiesOn(context_->device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (!driver.cuMemCreate(why, &piece->handle, part.bytes, &properties, 0)) return false;
  const CUdeviceptr at = address(part.rank, part.offset);
  if (mapMemory(*context_, at, part.bytes, piece->handle, why)) {
    piece->own = true;
    piece->next = pieces_;
    pieces_ = piece;
    if (fill(part.rank, part.offset, part.bytes, 0, deadlineNs, why)) return true;
    if (!fillsEnd(deadlineNs)) return false;
    pieces_ = piece->next;
    piece->own = false;
    driver.cuMemUnmap.call(at, part.bytes);
  }
  driver.cuMemRelease.call(piece->handle);
  return false;
}

bool DeviceHeaps::create(const HeapPart& part, int64_t deadlineNs, Failure* why) {
  if (!inRange(part, "create", why)) return false;
  const Current current(*context_, why);
  if (!current) return false;
  auto* piece = new Piece(part);
  if (piece == nullptr) return because(why, RH_ERR_OUT_OF_MEMORY, "no memory to note a part of the device heap");
  if (createPiece(piece, deadlineNs, why)) return true;
  if (!piece->own) delete piece;
  return prefix(why, "device %d: %llu bytes of device memory: ", context_->device, static_cast<unsigned64>(part.bytes));
}

bool DeviceHeaps::fillsPending() const { return context_->driver->cuStreamQuery.call(context_->stream) == CUDA_ERROR_NOT_READY; }

bool DeviceHeaps::fillsEnd(int64_t deadlineNs) const {
  Failure ignored;
  finish(*context_, context_->stream, deadlineNs, &ignored);
  return !fillsPending();
}

bool DeviceHeaps::fill(int rank, uint64_t offset, uint64_t bytes, uint8_t value, int64_t deadlineNs, Failure* why) {
  const Current current(*context_, why);
  if (!current || !context_->driver->cuMemsetD8Async(why, address(rank, offset), value, bytes, context_->stream)) return false;
  return finish(*context_, context_->stream, deadlineNs, why);
}

DeviceHeaps::Piece** DeviceHeaps::find(const HeapPart& part, const char* operation, Failure* why) {
  for (Piece** p = &pieces_; *p != nullptr; p = &(*p)->next) {
    const HeapPart& have = (*p)->part;
    if (have.rank == part.rank && have.offset == part.offset && have.bytes == part.bytes) return p;
  }
  because(why, RH_ERR_INVALID_ARGUMENT, "%s: %llu bytes at %llu of local rank %d's device heap are not mapped as one part", operation,
          static_cast<unsigned64>(part.bytes), static_cast<unsigned64>(part.offset), part.rank);
  return nullptr;
}

bool DeviceHeaps::exportDescriptor(const HeapPart& part, int* fd, Failure* why) {
  *fd = -1;
  Piece** piece = find(part, "export", why);
  if (piece == nullptr) return false;
  if (!(*piece)->own) return because(why, RH_ERR_INVALID_ARGUMENT, "export: only the process that created memory can export it");
  if (!context_->driver->cuMemExportToShareableHandle(why, fd, (*piece)->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) {
    *fd = -1;
    return prefix(why, "device %d: %llu bytes of device memory: ", context_->device, static_cast<unsigned64>(part.bytes));
  }
  fcntl(*fd, F_SETFD, FD_CLOEXEC);  // children of this process must not keep the memory alive
  return true;
}

// Maps a part with map(address) and notes it.
template <class Map>
bool DeviceHeaps::mapPiece(const HeapPart& part, const char* operation, Map map, Failure* why) {
  if (!inRange(part, operation, why)) return false;
  const Current current(*context_, why);
  if (!current) return false;
  auto* piece = new Piece(part);
  if (piece == nullptr) return because(why, RH_ERR_OUT_OF_MEMORY, "no memory to note a part of the device heap");
  if (map(address(part.rank, part.offset))) {
    piece->next = pieces_;
    pieces_ = piece;
    return true;
  }
  delete piece;
  return prefix(why, "device %d: mapping %llu bytes of local rank %d's device memory: ", context_->device, static_cast<unsigned64>(part.bytes), part.rank);
}

bool DeviceHeaps::import(const HeapPart& part, int fd, Failure* why) {
  return mapPiece(part, "import", [&](CUdeviceptr at) { return mapDescriptor(*context_, at, part.bytes, fd, why); }, why);
}

bool DeviceHeaps::alias(const HeapPart& part, CUdeviceptr from, Failure* why) {
  const auto map = [&](CUdeviceptr at) {
    CUmemGenericAllocationHandle memory;
    if (!context_->driver->cuMemRetainAllocationHandle(why, &memory, reinterpret_cast<void*>(from))) return false;
    const bool mapped = mapMemory(*context_, at, part.bytes, memory, why);
    if (context_->driver->cuMemRelease(why, memory) && mapped) return true;
    if (mapped) context_->driver->cuMemUnmap.call(at, part.bytes);
    return false;
  };
  return mapPiece(part, "alias", map, why);
}

bool DeviceHeaps::findRoom(uint64_t from, uint64_t bytes, uint64_t* offset) const {
  *offset = from;
  // Behind each part that is in the way, until none is.
  for (const Piece* p = pieces_; p != nullptr;) {
    const HeapPart& part = p->part;
    const bool apart = part.offset + part.bytes <= *offset || part.offset >= *offset + bytes;
    if (!apart) *offset = part.offset + part.bytes;
    p = apart ? p->next : pieces_;
  }
  return *offset <= stride_ && bytes <= stride_ - *offset;
}

bool DeviceHeaps::unmap(const HeapPart& part, Failure* why) {
  Piece** found = find(part, "unmap", why);
  if (found == nullptr) return false;
  const Current current(*context_);
  if (fillsPending()) return because(why, RH_ERR_BUSY, "device %d: device memory cannot be unmapped while a fill is queued", context_->device);
  const Driver& driver = *context_->driver;
  Piece* piece = *found;
  if (!driver.cuMemUnmap(why, address(part.rank, part.offset), part.bytes)) return false;
  *found = piece->next;
  const bool released = !piece->own || driver.cuMemRelease(why, piece->handle);
  delete piece;
  return released;
}

bool DeviceHeaps::unmapAll(uint64_t offset, uint64_t bytes, Failure* why) {
  bool all = true;
  for (const Piece* p = pieces_; p != nullptr;) {
    const HeapPart part = p->part;
    p = p->next;  // unmap ends the piece
    if (part.offset >= offset && part.offset - offset < bytes) all = unmap(part, why) && all;
  }
  return all;
}

bool DeviceHeaps::release(Failure* why) {
  if (base_ == 0) return true;
  bool all = true;
  bool mapped = false;
  if (pieces_ != nullptr) fillsEnd(host::nowNs() + kLastFillsNs);
  while (Piece* piece = pieces_) {
    const HeapPart part = piece->part;
    all = unmap(part, why) && all;
    if (pieces_ != piece) continue;
    mapped = true;  // it could not be unmapped
    pieces_ = piece->next;
    if (piece->own) context_->driver->cuMemRelease.call(piece->handle);
    delete piece;
  }
  if (!mapped) all = context_->driver->cuMemAddressFree(why, base_, static_cast<uint64_t>(ranks_) * stride_) && all;
  base_ = 0;
  return all;
}

}  // namespace railhead::client::cuda
