// The device boundary. Common to all devices are the checks of arguments, the choice of an algorithm, the offers of buffers and the
// handles. They produce a call, which is plain data. The device decides when and where the call runs, how it is waited for, and what
// memory it uses.
//
// The CPU device and the device for tests run calls with device/cpu/run.h. The code that runs a call counts it (sequence numbers,
// signatures, history) in the rank's DeviceState.
#ifndef RAILHEAD_CLIENT_DEVICE_DEVICE_H_
#define RAILHEAD_CLIENT_DEVICE_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#include "base/rank.h"
#include "host/types.h"
#include "railhead.h"
#include "railhead/collectives/transfers.h"
#include "wire.h"

namespace railhead::client {

struct Comm;
struct EpRequest;  // ep/ep.h

// One call of the data path, with the arguments of the application.
struct Operation {
  uint32_t op;  // rhw_op
  const void* send;
  void* recv;
  size_t count;  // in elements, as in the call's argument
  rh_dtype dtype;
  rh_op reduction;
  WorldRank root;                   // root or peer; kNoWorldRank = the operation has none
  railhead::host::ReduceOp reduce;  // the meaning of reduction; set by checkOperation
};

// Bytes of count elements. The call has been checked.
inline size_t bytesOf(const Operation& o) { return o.count * railhead::host::bytesOf(static_cast<railhead::host::Type>(o.dtype)); }

// Type, reduction and root in the format of a flight record.
inline railhead::CallDetails callDetails(const Operation& o) {
  const uint32_t root = o.root == kNoWorldRank ? railhead::kNoRank : static_cast<uint32_t>(number(o.root));
  return {static_cast<uint32_t>(o.dtype), static_cast<uint32_t>(o.reduce.kind), root, 0};
}

// An algorithm, and why it was chosen.
struct Choice {
  uint32_t algo;  // rhw_algo
  uint32_t why;   // rhw_why
};

// A checked collective with its algorithms. It holds everything needed to run it, now or later, any number of times. The caller owns the
// buffers.
struct CollectiveCall {
  Operation operation;
  uint32_t captured = 0;  // as in a Signature
  Choice zeroCopy = {RHW_ALGO_AUTO, RHW_WHY_NONE};  // tried first if not AUTO; runs if all ranks offered their buffers
  Choice copied = {RHW_ALGO_AUTO, RHW_WHY_NONE};    // runs if zeroCopy does not
  bool ll = false;                                  // a ring uses the LL protocol, for small messages
  uint64_t sendOffer = railhead::kNoOffset, recvOffer = railhead::kNoOffset;  // for zeroCopy: the offers of the buffers to the other ranks
};

// Sends and receives of one comm that run concurrently.
struct TransfersCall {
  uint32_t op;                    // rhw_op: send, recv or group
  railhead::CallDetails details;  // for the flight record
  uint64_t bytes;
  // pairs of a send of this rank to itself and its receive come first, 2 entries each; then n transfers with other ranks. The caller
  // owns the list, which is valid until the device's function returns.
  int pairs, n;
  railhead::Transfer* list;
};

// Functions of a device with streams: its calls run after they have returned, in the order of a stream.
struct Streams {
  bool (*isStream)(const void* stream);
  // The unique number of the capture in progress on the stream; 0 = none.
  uint64_t (*captureOf)(const void* stream);
  // Whether the capture of that number is still in progress.
  bool (*isCapturing)(uint64_t capture);
  // Attaches an object to the capture in progress on the stream. release(object) is called once, on any thread, when nothing that was
  // captured can run any more. False: out of memory; nothing is attached.
  bool (*keep)(void* stream, void (*release)(void*), void* object);
};

struct Device {
  uint32_t kind;         // device_kind of a comm's config
  const char* name;      // in messages
  int32_t memory;        // memory of windows: RH_MEMORY_HOST or RH_MEMORY_DEVICE
  const Streams* streams;  // nullptr: calls run before they return and accept no stream

  // open creates the device's state of a new comm, in comm->onDevice; close ends it. If open fails it sets the thread's message.
  rh_result (*open)(Comm* comm);
  void (*close)(Comm* comm);

  // Run the call, queue it on the stream, or add it to the capture in progress there. If that fails, it sets this thread's message. A
  // queued call that fails later breaks the group.
  rh_result (*collective)(Comm* comm, const CollectiveCall& call, void* stream);
  rh_result (*transfers)(Comm* comm, const TransfersCall& call, void* stream);

  // The same for a call of expert parallelism. Only devices with streams have it; otherwise the caller's thread runs the call.
  rh_result (*expert)(Comm* comm, const EpRequest& call, void* stream);

  // An all-gather of host bytes, for set-up calls: `all` is in the order of world ranks. It has run when it returns. op: rhw_op.
  rh_result (*gather)(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes);

  // Waits until no call of the comm is running or queued. False: the deadline (monotonic) has passed.
  bool (*synchronize)(Comm* comm, int64_t deadlineNs);

  // The device commits memory in multiples of this many bytes.
  uint64_t (*granularity)();

  // Commits pages for a range of the rank's heap. Returns 0 or an errno.
  int (*commit)(int fd, uint64_t offset, uint64_t bytes, int64_t deadlineNs);
};

// The CPU device: calls run on the calling thread, in its memory.
extern const Device kCpuDevice;

constexpr uint32_t kCpuKind = RH_DEVICE_CPU;
constexpr uint32_t kDeviceKinds = 8;

// The device of that kind; nullptr = not in this process.
const Device* deviceOf(uint32_t kind);
// Registers a device from outside the library, before the first comm of that kind is created.
void addDevice(const Device* device);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_DEVICE_DEVICE_H_
