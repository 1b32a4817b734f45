// The device boundary. Common to all devices are the checks of arguments, the choice of an algorithm, the offers of buffers and the
// handles. They produce a call, which is plain data. The device decides when and where the call runs, how it is waited for, and what
// memory it uses.
//
// The CPU device and the device for tests run calls with device/cpu/run.h; the CUDA device launches kernels. The code that runs a call
// counts it (sequence numbers, signatures, history) in a DeviceState: that of the rank's heap, or on a GPU that of its device heap.
#ifndef RAILHEAD_CLIENT_DEVICE_DEVICE_H_
#define RAILHEAD_CLIENT_DEVICE_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#include "base/rank.h"
#include "host/types.h"
#include "railhead.h"
#include "railhead/collectives/transfers.h"
#include "wire.h"

namespace railhead {
struct EpCell;   // railhead/ep/ep_calls.h
struct EpEnded;  // the same
}  // namespace railhead

namespace railhead::client {

struct Comm;
struct Ep;         // ep/ep.h
struct EpRequest;  // ep/ep.h
struct Shareable;  // memory/shareable.h

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
  uint16_t blocks = 0, threads = 0;  // of a GPU kernel: blocks, and threads of each. Of COPY those of pull, where pull may run in its place
};

// A checked collective with its algorithms. It holds everything needed to run it, now or later, any number of times. The caller owns the
// buffers.
struct CollectiveCall {
  Operation operation;
  uint32_t captured = 0;  // as in a Signature
  Choice zeroCopy = {RHW_ALGO_AUTO, RHW_WHY_NONE};  // tried first if not AUTO; runs if all ranks offered their buffers
  Choice copied = {RHW_ALGO_AUTO, RHW_WHY_NONE};    // runs if zeroCopy does not
  bool ll = false;                                  // a ring uses the LL protocol, for small messages
  bool stages = false;  // if the buffers are not offered, zeroCopy runs in windows of the device, to and from which it copies
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
  bool captured;  // of a device with streams: the call is captured
};

// Functions of a device with streams: its calls run after they have returned, in the order of a stream.
struct Streams {
  bool (*isStream)(const void* stream);
  // The unique number of the capture in progress on the stream; 0 = none. Sets this thread's message where the stream takes no work now.
  rh_result (*captureOf)(const Comm* comm, const void* stream, uint64_t* capture);
  // Whether the capture of that number, which was in progress on that stream, still is.
  bool (*isCapturing)(const Comm* comm, const void* stream, uint64_t capture);
  // Attaches an object to the capture in progress on the stream. release(object) is called once, on any thread, when nothing that was
  // captured can run any more. False: out of memory; nothing is attached.
  bool (*keep)(const Comm* comm, void* stream, void (*release)(void*), void* object);
};

// Which device of the machine a rank runs on. A CPU has neither number nor UUID.
struct DevicePlace {
  int32_t ordinal = -1;           // the driver's number in this process
  uint8_t uuid[RHW_UUID] = {};    // from here on as in rhw_own
  uint32_t multiprocessors = 0;
  uint32_t architecture = 0;
};

// An operation that a kernel gave up.
struct StoppedKernel {
  uint32_t op;           // rhw_op
  uint64_t number;       // among the operations on the device
  LocalRankSet missing;  // ranks that it waited for
};

// Memory that the application of another rank has allocated on its device, as that rank offers it.
struct Offered {
  int fd = -1;                   // passes it to other processes; -1 = it cannot be mapped at an address of this process's choice, but by its handle
  uint8_t handle[RHW_HANDLE] = {};
  uint64_t offset = 0;           // where the registered memory begins in it
  uint64_t allocationBytes = 0;  // its size
};

// Where a registered window lies: in the device heaps, or each rank's part at an address of its own.
struct Placed {
  uint64_t offset = 0;             // the same in every rank's device heap, as this process has mapped them
  uint64_t begin = 0, bytes = 0;   // addresses that the whole allocations take in each heap; bytes 0 = none
  uint64_t apart = 0;              // the device's number for a window that is not in the heaps; 0 = it is
};

// Functions of a device that has memory of its own, in heaps beside those of the host: local rank r's device heap begins at
// comm->deviceHeap(r). create and map return 0 or the device's number of an error, which the daemon passes to all ranks.
struct DeviceMemory {
  uint32_t kind;  // rhw_memory_kind of its windows
  // Makes zeroed memory for a range of this rank's device heap. *fd, which the caller closes, passes it to other ranks.
  int (*create)(Comm* comm, uint64_t offset, uint64_t bytes, int* fd);
  // Maps the memory of another rank, from its fd, at the same offset of that rank's device heap.
  int (*map)(Comm* comm, LocalRank of, uint64_t offset, uint64_t bytes, int fd);
  // Unmaps the parts of all ranks at the offset, as many as are mapped, and frees this rank's. No call may use them.
  void (*unmap)(Comm* comm, uint64_t offset, uint64_t bytes);
  // RH_OK if the comm has device heaps. Otherwise sets the thread's message.
  rh_result (*check)(const Comm* comm, const char* operation);

  // Finds how memory that the application has allocated on the device can be passed to other ranks; as findShareable (memory/shareable.h).
  rh_result (*share)(const Comm* comm, void* pointer, uint64_t bytes, Shareable* out);
  // Maps the memory of all ranks so that bytes of it begin at one offset of all device heaps, or apart, where *parts gets the addresses of the
  // other ranks' bytes. offers: by local rank, this rank's included, whose memory is at pointer. Returns 0, the device's number of an error, or a
  // rhw_not_placed. After an error nothing is mapped.
  int (*place)(Comm* comm, void* pointer, uint64_t bytes, const Offered* offers, Placed* out, char** parts);
  // Unmaps it. No call may use it.
  void (*unplace)(Comm* comm, const Placed& placed);
};

// Functions of a device on which dispatch and combine run by its own kernels, with the state of a buffer in its own memory (Ep::onDevice).
struct Experts {
  // RH_OK if it runs the calls of a buffer of the comm. Otherwise sets the thread's message. Nothing has been done yet.
  rh_result (*admit)(const Comm* comm);
  // Makes what the buffer has besides its window. A failure on one rank is one on all ranks. Sets the thread's message.
  rh_result (*open)(Ep* ep);
  // Gives this rank's part of the window its first content, before any rank has returned from rh_ep_create. As open.
  rh_result (*fill)(Ep* ep);
  // Frees what open has made. No call of the buffer is running, and no graph has one. What was not freed so ends with the comm.
  void (*close)(Ep* ep);
  // `operation` is the caller's function, for the thread's message, which these and the following set if they fail.
  // The cell of the buffer's handle of that number (from 0), not in flight. The host reads reports there once calls have run.
  rh_result (*cell)(Ep* ep, uint32_t number, const char* operation, EpCell** out);
  // The masked ranks of the buffer. Calls may be running.
  rh_result (*masked)(Ep* ep, const char* operation, LocalRankSet* out);
  // Sets them, all of them. No call is running.
  rh_result (*mask)(Ep* ep, LocalRankSet masked);
  // Adds what this rank's kernels have counted, of all buffers of the comm, to its counters in the control segment. Calls may be running.
  rh_result (*count)(Comm* comm, const char* operation);
  // The reports of the dispatch that ended last. No call is running.
  rh_result (*ended)(Ep* ep, EpEnded* out);
  // Memory for the plan of a cached routing of so many tokens (EpCached::onDevice), which a call of kind kMakePlan fills. It ends with the buffer.
  rh_result (*makePlan)(Ep* ep, const char* operation, uint32_t tokens, void** out);
  // Frees it. No call with the routing is running or will run.
  void (*dropPlan)(Ep* ep, void* plan);
  // Whether a dispatch with the routing is in flight. No call is running.
  rh_result (*usesPlan)(Ep* ep, const char* operation, const void* plan, bool* out);
};

struct Device {
  uint32_t kind;         // device_kind of a comm's config
  uint32_t wire;         // rhw_device
  const char* name;      // in messages
  int32_t memory;        // memory of windows: RH_MEMORY_HOST or RH_MEMORY_DEVICE
  const Streams* streams;  // nullptr: calls run before they return and accept no stream
  const DeviceMemory* ownMemory;  // nullptr: it runs in the host's memory
  // It counts operations apart from those of the host. So set-up calls need not wait until none runs, unless they unmap memory.
  bool countsApart;

  // Finds the device that a config names. nullptr: the config must name none. Sets the thread's message if it fails.
  rh_result (*locate)(const rh_comm_config& config, WorldRank rank, DevicePlace* place);

  // open creates the device's state of a new comm, in comm->onDevice; close ends it. If open fails it sets the thread's message.
  rh_result (*open)(Comm* comm);
  void (*close)(Comm* comm);
  // The last part of rh_comm_init, after the group has formed. A failure on one rank is one on all ranks. nullptr: there is none.
  rh_result (*setUp)(Comm* comm);
  // Calls end(comm) when the last reference to a comm is gone, on this thread or, if it may not do so, later on another. nullptr: now.
  void (*end)(Comm* comm, void (*end)(Comm* comm));
  // The rank has left the group, but graphs refer to the comm: later replays do nothing. nullptr: DeviceState::left says so.
  void (*leave)(Comm* comm);
  // Called by the control thread, for broken groups too. Passes causes between kernels and group, and returns the time of its next call
  // (monotonic, ns). nullptr: calls do that themselves.
  int64_t (*tend)(Comm* comm, int64_t now);

  // The operation whose kernel gave up first, on a device that countsApart; op is NONE if none has. nullptr: the rank's line says it.
  StoppedKernel (*stopped)(const Comm* comm);

  // What rh_comm_get_info says of the device, besides its number and granularity. nullptr: nothing.
  void (*describe)(const Comm* comm, rh_comm_info* info);

  // Refuse a call that the device cannot run, before it has any effect. nullptr: it can run all.
  rh_result (*admitCollective)(const Comm* comm, const CollectiveCall& call);
  rh_result (*admitTransfers)(const Comm* comm, const TransfersCall& call);

  // Run the call, queue it on the stream, or add it to the capture in progress there. If that fails, it sets this thread's message. A
  // queued call that fails later breaks the group.
  rh_result (*collective)(Comm* comm, const CollectiveCall& call, void* stream);
  rh_result (*transfers)(Comm* comm, const TransfersCall& call, void* stream);

  // The same for a call of expert parallelism. Only devices with streams have it; otherwise the caller's thread runs the call.
  rh_result (*expert)(Comm* comm, const EpRequest& call, void* stream);
  const Experts* experts;  // nullptr: expert runs calls with runEp, in the host's memory

  // An all-gather of host bytes, for set-up calls: `all` is in the order of world ranks. It has run when it returns. op: rhw_op.
  rh_result (*gather)(Comm* comm, uint32_t op, const void* mine, void* all, size_t bytes);

  // Waits until no call of the comm is running or queued. False: the deadline (monotonic) has passed.
  bool (*synchronize)(Comm* comm, int64_t deadlineNs);

  // Sizes of the device's memory are multiples of this many bytes.
  uint64_t (*granularity)(const Comm* comm);

  // Commits pages for a range of the rank's heap. Returns 0 or an errno.
  int (*commit)(int fd, uint64_t offset, uint64_t bytes, int64_t deadlineNs);
};

// The CPU device: calls run on the calling thread, in its memory.
extern const Device kCpuDevice;
// GPUs: calls are kernels on a stream, in memory of the GPU.
extern const Device kCudaDevice;

constexpr uint32_t kCpuKind = RH_DEVICE_CPU;
constexpr uint32_t kDeviceKinds = 8;

// The device of that kind; nullptr = not in this process.
const Device* deviceOf(uint32_t kind);
// Registers a device from outside the library, before the first comm of that kind is created.
void addDevice(const Device* device);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_DEVICE_DEVICE_H_
