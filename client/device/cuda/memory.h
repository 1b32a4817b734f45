// The device heaps of the ranks of a node, as one process sees them.
//
// A process reserves one range of addresses for all of them: local rank r's heap begins at base + r * stride. Physical memory is put under
// a piece of a heap by the rank's own process, which exports it as a descriptor. Every other process maps it at the same offset of the same
// rank's heap. The bases never move, so that captured graphs stay valid while pieces come, go and are replaced.
//
// A dead rank's kernels go on storing for a while. So a piece that was unmapped is never used again: its physical memory goes back to the
// driver when the last process has unmapped it and no descriptor is left, and a piece that replaces it has other memory.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_MEMORY_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_MEMORY_H_

#include <stdint.h>

#include "device/cuda/context.h"

namespace railhead::client::cuda {

// Physical memory comes in multiples of this many bytes, a power of two (2 MiB today).
bool memoryGranularity(const Context& context, uint64_t* bytes, Failure* why);

// Maps the physical memory at reserved addresses, and lets the context's device read and write it.
bool mapMemory(const Context& context, CUdeviceptr at, uint64_t bytes, CUmemGenericAllocationHandle memory, Failure* why);
// The same for memory of another process, which the descriptor names. The caller still owns the descriptor.
bool mapDescriptor(const Context& context, CUdeviceptr at, uint64_t bytes, int fd, Failure* why);

// A part of one rank's heap: where a window, or the scratch, lies.
struct HeapPart {
  int rank;  // local
  uint64_t offset, bytes;  // multiples of the granularity
};

// Calls for one object must not overlap. No call needs the context to be current. After a failure everything is as before the call, unless
// it says otherwise.
class DeviceHeaps {
 public:
  DeviceHeaps() = default;
  ~DeviceHeaps();  // nothing may be reserved any more
  DeviceHeaps(const DeviceHeaps&) = delete;
  DeviceHeaps& operator=(const DeviceHeaps&) = delete;

  // Reserves the addresses. context must outlive this object; stride is a multiple of the granularity.
  bool reserve(const Context& context, int ranks, uint64_t stride, Failure* why);

  // Creates memory for a part of this process's own rank, maps it and fills it with zeros. After TIMEOUT (kernels hold the whole device) the
  // part stays mapped until release, because the fill may run yet.
  bool create(const HeapPart& part, int64_t deadlineNs, Failure* why);
  // Fills a piece of a part, before others see it.
  bool fill(int rank, uint64_t offset, uint64_t bytes, uint8_t value, int64_t deadlineNs, Failure* why);
  // A descriptor of the memory that create has made for that part. The caller owns it; it keeps the memory alive.
  bool exportDescriptor(const HeapPart& part, int* fd, Failure* why);

  // Maps the memory of another rank, which the descriptor names. The caller still owns the descriptor.
  bool import(const HeapPart& part, int fd, Failure* why);

  // Maps memory of this process, which lies at `from` in one allocation of cuMemCreate from its beginning on, a second time.
  bool alias(const HeapPart& part, CUdeviceptr from, Failure* why);
  // The lowest offset, from `from` on, at which so many bytes are free in every heap. False: there is none.
  bool findRoom(uint64_t from, uint64_t bytes, uint64_t* offset) const;
  // Unmaps a part that create, import or alias has made. No kernel of this process may use it any more: the driver does not wait for them. If it
  // fails, the part stays mapped; with BUSY a fill is still queued.
  bool unmap(const HeapPart& part, Failure* why);

  // Unmaps every part that lies in those bytes of any heap. It continues after a failure, which *why describes.
  bool unmapAll(uint64_t offset, uint64_t bytes, Failure* why);
  // Unmaps every part and frees the addresses. It continues after a failure, which *why describes; what could not be unmapped is lost until the
  // process ends.
  bool release(Failure* why);

  CUdeviceptr base() const { return base_; }  // 0 = nothing is reserved
  uint64_t stride() const { return stride_; }
  uint64_t granularity() const { return granularity_; }
  CUdeviceptr address(int rank, uint64_t offset) const { return base_ + static_cast<uint64_t>(rank) * stride_ + offset; }

 private:
  struct Piece;  // a part that is mapped
  bool inRange(const HeapPart& part, const char* operation, Failure* why) const;
  bool createPiece(Piece* piece, int64_t deadlineNs, Failure* why);
  template <class Map>
  bool mapPiece(const HeapPart& part, const char* operation, Map map, Failure* why);
  bool fillsPending() const;
  bool fillsEnd(int64_t deadlineNs) const;
  Piece** find(const HeapPart& part, const char* operation, Failure* why);

  const Context* context_ = nullptr;
  CUdeviceptr base_ = 0;
  uint64_t stride_ = 0, granularity_ = 0;
  int ranks_ = 0;
  Piece* pieces_ = nullptr;
};

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_MEMORY_H_
