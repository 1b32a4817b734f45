// The device boundary. Common to all devices are the checks of arguments, the choice of an algorithm, offers of buffers and the
// bookkeeping of handles; they end in a call that is plain data. When and where that runs, how it is waited for, and
// what memory there is, belongs to a device.
//
// A device of the host, or one for tests, runs calls with device/cpu/run.h. What they count (numbers, signatures, history) is
// counted by the code that runs, in the rank's DeviceState.
#ifndef RAILHEAD_CLIENT_DEVICE_DEVICE_H_
#define RAILHEAD_CLIENT_DEVICE_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#include "host/types.h"
#include "railhead.h"
#include "railhead/collectives/transfers.h"
#include "wire.h"

namespace railhead::client {

struct Comm;
struct EpRequest;  // ep/ep.h

// One call of the data path, as the engine made it.
struct Operation {
  uint32_t op;  // rhw_op
  const void* send;
  void* recv;
  size_t count;  // elements, as the call names them
  rh_dtype dtype;
  rh_op reduction;
  int32_t root;                     // or peer; -1 = the operation has none
  railhead::host::ReduceOp reduce;  // what reduction means; filled by checkOperation
};

// Bytes of count elements; the call has been checked.
inline size_t bytesOf(const Operation& o) { return o.count * railhead::host::bytesOf(static_cast<railhead::host::Type>(o.dtype)); }

// Type, reduction and root, as a flight record has them.
inline railhead::CallDetails callDetails(const Operation& o) {
  return {static_cast<uint32_t>(o.dtype), static_cast<uint32_t>(o.reduce.kind), o.root < 0 ? railhead::kNobody : static_cast<uint32_t>(o.root), 0};
}

// An algorithm, and why that one.
struct Choice {
  uint32_t algo;  // rhw_algo
  uint32_t why;   // rhw_why
};

// A collective, checked and decided: everything that it needs to run, now or later, once or any number of times. Buffers are the
// caller's.
struct CollectiveCall {
  Operation operation;
  uint32_t captured = 0;  // as in a Signature
  Choice zeroCopy = {RHW_ALGO_AUTO, RHW_WHY_NONE};  // RHW_ALGO_PULL: is tried first, and runs where all ranks have offered their buffers
  Choice copied = {RHW_ALGO_AUTO, RHW_WHY_NONE};    // runs otherwise
  bool ll = false;                                  // of a ring: with the protocol of small messages
  uint64_t sendOffer = railhead::kNoOffset, recvOffer = railhead::kNoOffset;  // of pull: where the buffers lie for the other ranks
};

// Sends and receives of one comm that run at the same time.
struct TransfersCall {
  uint32_t op;                    // rhw_op: send, recv or group
  railhead::CallDetails details;  // of the flight record
  uint64_t bytes;
  // pairs of a send of this rank to itself and its receive come first, 2 entries each; then n transfers with other ranks. The
  // list is the caller's until the device's function returns.
  int pairs, n;
  railhead::Transfer* list;
};

// What a device has whose calls run after they have returned, in the order of streams.
struct Streams {
  bool (*isStream)(const void* stream);
  // What is being captured on the stream, a number that is given once; 0 = nothing.
  uint64_t (*captureOf)(const void* stream);
  // Whether the capture of that number has not ended yet.
  bool (*isCapturing)(uint64_t capture);
  // Gives what is being captured on the stream an object to keep. release(object) is called once, on any thread, when nothing that
  // was captured can run any more. False: no memory; nothing is kept.
  bool (*keep)(void* stream, void (*release)(void*), void* object);
};

struct Device {
  uint32_t kind;         // what a comm's config calls it by
  const char* name;      // in messages
  int32_t memory;        // what windows are made of: RH_MEMORY_HOST or RH_MEMORY_DEVICE
  const Streams* streams;  // nullptr: calls run before they return, and take no stream

  // Of a comm that is formed, and of one that ends: what the device keeps of it, in comm->onDevice. open sets the thread's message
  // where it fails.
  rh_result (*open)(Comm* comm);
  void (*close)(Comm* comm);

  // Run the call, or put it on the stream, or into what is being captured there. A call that fails sets this thread's message; one
  // that runs later breaks the group where it fails.
  rh_result (*collective)(Comm* comm, const CollectiveCall& call, void* stream);
  rh_result (*transfers)(Comm* comm, const TransfersCall& call, void* stream);

  // The same for a call of expert parallelism. Not of a device without streams: there the caller's thread runs it.
  rh_result (*expert)(Comm* comm, const EpRequest& call, void* stream);

  // An all-gather of bytes that the host has, for set-up calls: it has run when it returns. op: rhw_op.
  rh_result (*gather)(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes);

  // Waits until nothing of the comm runs, or waits on a stream to run. False: the deadline (monotonic) has passed.
  bool (*synchronize)(Comm* comm, int64_t deadlineNs);

  // The device backs memory in multiples of so many bytes.
  uint64_t (*granularity)();

  // Backs a range of the rank's heap with pages. Returns 0 or an errno.
  int (*commit)(int fd, uint64_t offset, uint64_t bytes, int64_t deadlineNs);
};

// The calling thread and its memory.
extern const Device kCpuDevice;

constexpr uint32_t kCpuKind = RH_DEVICE_CPU;
constexpr uint32_t kDeviceKinds = 8;

// The device of that kind; nullptr = this process has none.
const Device* deviceOf(uint32_t kind);
// Adds a device that is no part of the library. Before the first comm of that kind is made.
void addDevice(const Device* device);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_DEVICE_DEVICE_H_
