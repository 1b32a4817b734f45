// What the host passes to a GPU kernel, and the memory that both know. Included by nvcc and by the client's C++.
//
// Entry points are extern "C" rh_<operation>_<algorithm>_<type>: operations by the names of rhw_op (all_reduce), algorithms by those of
// algorithms.txt, types by kTypeNames; operations that only copy have `bytes` in place of a type. Each runs any world size. Some exist again
// as ..._<type>_<worldSize>, faster and with the same results; such a one takes every call of a team of that world size.
//
// Every kernel has one parameter: a WindowCall if the algorithm is pull, a GroupCall of transfers, else a Call. Grid: 1 to kMaxBlocks blocks of 32 to kMaxThreads threads, a multiple of 32, no dynamic shared
// memory; the same on all ranks, which is checked. The last 32 threads of a grid of more than 32 exchange signatures and do not touch data, so
// a grid for n tiles of 16 bytes has n + 32 threads. All blocks of all ranks must be resident at once: a block never ends its wait for one
// that cannot start. Not launched cooperatively, nor with programmatic dependent launch: a kernel begins after the previous one of the comm
// has ended (railhead/exchange/cells.h).
#ifndef RAILHEAD_KERNELS_GPU_LAUNCH_H_
#define RAILHEAD_KERNELS_GPU_LAUNCH_H_

#include <stddef.h>
#include <stdint.h>

#include "railhead/base/device_state.h"
#include "railhead/base/signature.h"
#include "railhead/base/target.h"

namespace railhead::gpu {

constexpr int kMaxBlocks = 160;   // of a kernel
constexpr int kMaxThreads = 512;  // of a block

// By rh_dtype, as in the names of the entry points.
constexpr const char* kTypeNames[] = {"f32", "bf16", "f64", "f16", "fp8_e4m3", "fp8_e5m2", "i8", "u8", "i32", "i64", "u64"};

// What ranks must agree on besides the signature: bits 0..7 algorithm (rhw_algo), 8..19 blocks, 20..31 threads of a block, 32..63 a hash of
// Call::detail.
using Way = uint64_t;

// Pinned host memory, one a comm; zero at first. Kernels write what stopped them; the host writes abort.
struct Status {
  // Why the comm's kernels stopped, a Stop; 0 = they have not. Writer: the first thread that gives up, last (release, system scope). It
  // publishes the words below. Readers: the host, and the application before it uses a result. It never changes back.
  uint32_t stop;
  uint32_t operation;     // rhw_op
  // Bit r: local rank r had not arrived; kMismatch: it called something else. 0: all have called, and one is slow to send.
  uint64_t missing;
  uint64_t number;        // of the operation, DeviceState::begun
  Difference difference;  // kMismatch. Both sides may be equal: then the ways below differ
  Way theirWay, ourWay;
  // Two streams ran kernels of the comm at once: as DeviceState::clash; 0 = no. stop is kAborted then.
  uint64_t clash;
  uint64_t reserved[2];
  // A 64-byte line for each block, so that waiting blocks do not poll the same line. Writer: the host; 1 = give up. Readers: the block's threads, after
  // waitPolls polls. Kernels that survive deaths (Target::kSurvivesDeaths) go on if onlyDeaths is 1: the reason is that ranks have died or left, which
  // are bits r % 32 of dead[r / 32]. The host stores dead, then onlyDeaths, then word, and later sets onlyDeaths to 0 for any other reason.
  struct alignas(64) Abort {
    uint32_t word;
    uint32_t onlyDeaths;
    uint32_t dead[2];
  } abort[kMaxBlocks];
};

// A rank's own memory at offset 0 of its device heap. Only its kernels use it, but the host sets device.left. Zero before the first kernel.
// One kernel of the comm runs at a time; each thread reads what the previous one has stored. "Control" is the kernel's control threads, the last
// 32.
struct GpuState {
  DeviceState device;  // advanced by control
  uint32_t published;   // mark of the newest call that control has sent to the other ranks (context.h)
  uint32_t lines;       // kernels so far in which all ranks sent each other their calls; wraps. Advanced by control
  // Read first by a data thread of each block and by a control thread. Writer of the epochs: control, after every block has read them (arrived).
  struct alignas(16) Start {
    uint32_t cellEpoch;    // the last epoch used by cells; wraps
    uint32_t packetEpoch;  // the last epoch used by packets
    uint32_t flagEpoch;    // meetings of blocks so far; wraps
    uint32_t stop;         // Stop of the first thread that gave up (compare and swap); later kernels return at once
  } start;
  // Blocks of the running kernel whose data threads have read start. One thread of each adds 1 (relaxed), after the values that it has read have reached the
  // block's shared memory. Control waits for all (relaxed), then stores start and 0.
  alignas(128) uint32_t arrived;
  uint32_t pad1[31];
};
static_assert(sizeof(GpuState) == 256, "peers address what lies behind it");

// The same for all calls of a comm.
struct Team {
  char* base;            // local rank r's device heap begins at base + r * stride, mapped here
  uint64_t stride;
  int32_t rank;          // local
  int32_t worldSize;     // ranks of the node, 2 to kMaxWorldSize
  int32_t reduceGroup;   // 1 to worldSize
  uint32_t waitPolls;    // polls of data between two looks at clock and abort word, at least 1
  uint64_t slotBytes;    // of a peer's slot in an inbox; a multiple of 128
  uint64_t timeoutNs;    // of one wait, from its first look at the clock
  uint64_t limitNs;      // of all waits of a kernel together, from the first look at the clock
  Status* status;        // device address of the pinned memory
};

struct Call {
  Team team;
  const char* send;      // any address
  char* recv;            // any address
  uint64_t count;        // elements; bytes for operations that only copy
  SignedCall call;       // sequence and history are filled in by the kernel (signNext)
  uint64_t detail;       // anything else that ranks must agree on. pull: any function of where the buffers lie in their windows
  uint32_t reduction;    // Reduction
  int32_t root;          // local rank of root or peer, -1 = none
  uint64_t scale;        // bits of the scale of pre-mul-sum: a float for types that are added in f32, else an element
  uint32_t stream;       // number of the stream, not 0, for clashes
  uint32_t reserved;
};
static_assert(sizeof(Call) == 160, "a kernel's parameter");

// Where the buffers of all ranks lie in this process's addresses, by local rank: this rank's own, and the mappings of the others'. Only those that
// the operation lets other ranks access are filled in. The ranks' addresses have the same remainder by 16.
struct Windows {
  const char* send[kMaxWorldSize];
  char* recv[kMaxWorldSize];
};

// The parameter of the kernels of pull.
struct WindowCall {
  Call call;
  Windows windows;
};
static_assert(sizeof(WindowCall) <= 4096, "a kernel's parameter");

// rhw_op of a send, in the signatures of transfers.
constexpr uint32_t kSendOperation = 14;

// Bytes of an element of an rh_dtype: two bits of the constant are the logarithm of each.
RH_ANYWHERE constexpr uint32_t typeBytes(uint32_t dtype) { return 1u << (0x3e0076u >> (2 * dtype) & 3); }

// Call::reduction, by the values of rh_op.
enum class Reduction : uint32_t { kSum, kProd, kMin, kMax, kAvg, kPreMulSum };

// A send or receive of a group, or of a gather or scatter. Transfers to the same peer go in the order of the list, and so do transfers from one.
struct Transfer {
  char* buffer;        // any address
  uint64_t bytes;
  uint8_t peer;        // local rank, another one
  uint8_t sends;       // 1; else it receives
  uint8_t dtype;       // rh_dtype; peers must agree on it, and on bytes
  uint8_t lanes;       // 1 to kMaxLanes. Peers must agree on it
  uint16_t firstUnit;  // lane l is unit firstUnit + l of the kernel; the same for all transfers to the same peer, or from it
  uint16_t reserved;
};
static_assert(sizeof(Transfer) == 24, "a kernel's parameter");

// The parameter of rh_group_pipe_bytes, which runs any number of sends and receives at the same time. Ranks of a group put the same number of
// transfers to, or from, a peer into each kernel: at most transfersOfPeer.
constexpr int kMaxTransfers = 160;
struct GroupCall {
  Call call;           // send, recv and root are not used
  uint32_t transfers;  // of list
  uint32_t units;
  Transfer list[kMaxTransfers];
};
static_assert(sizeof(GroupCall) <= 4096, "a kernel's parameter");
constexpr int kMaxUnits = 192;  // of a kernel. Its blocks share them, so there may be more units than blocks
RH_ANYWHERE constexpr int transfersOfPeer(int worldSize) { return kMaxTransfers / (2 * (worldSize - 1)); }

// Lanes: how many blocks move the data of one transfer. For kernels of pipes Call::detail is that number.
constexpr int kMaxLanes = 64;  // of a transfer
constexpr uint32_t kLaneSlots = 4;         // of a lane of a pipe
constexpr uint32_t kLaneHeaderBytes = 64;  // of a slot
RH_ANYWHERE constexpr uint64_t laneSlotBytes(uint64_t slotBytes) {
  const uint64_t bytes = 2 * slotBytes / (kMaxLanes * kLaneSlots) / 128 * 128;
  return bytes < 512 ? 512 : bytes;
}

// Two halves of kPhases phases, a slot for each rank in each.
constexpr int kHalves = 2;
constexpr int kPhases = 2;

// Device scratch, from offset 0 of a rank's device heap. Before the first kernel all is zero, but [inboxOffset, bytes), which is all ones.
struct Layout {
  uint64_t linesOffset;    // of signatures: two halves of a 64-byte line for each rank
  uint64_t flagsOffset;    // of blocks: kMaxBlocks times 32 bytes for each rank
  uint64_t packetsOffset;  // inbox of packets
  uint64_t laneFlagsOffset;   // of pipes (railhead/exchange/lanes.h): kMaxLanes times 64 bytes for each rank
  uint64_t laneCountsOffset;  // kMaxLanes times 8 bytes for each rank
  uint64_t laneSlotsOffset;   // kMaxLanes times kLaneSlots times laneSlotBytes for each rank
  uint64_t inboxOffset;    // inbox of cells; ends the scratch
  uint64_t inboxBytes;     // of each of the two
  uint64_t bytes;          // of the scratch
};
RH_ANYWHERE constexpr Layout layoutOf(int worldSize, uint64_t slotBytes) {
  const uint64_t n = static_cast<uint64_t>(worldSize);
  Layout l = {};
  l.linesOffset = sizeof(GpuState);
  l.flagsOffset = l.linesOffset + kHalves * n * 64;
  l.packetsOffset = (l.flagsOffset + kMaxBlocks * n * 32 + 127) / 128 * 128;
  l.inboxBytes = kHalves * kPhases * n * slotBytes;
  l.laneFlagsOffset = l.packetsOffset + l.inboxBytes;
  l.laneCountsOffset = l.laneFlagsOffset + n * kMaxLanes * 64;
  l.laneSlotsOffset = l.laneCountsOffset + n * kMaxLanes * 8;
  l.inboxOffset = l.laneSlotsOffset + n * kMaxLanes * kLaneSlots * laneSlotBytes(slotBytes);
  l.bytes = l.inboxOffset + l.inboxBytes;
  return l;
}

}  // namespace railhead::gpu

#endif  // RAILHEAD_KERNELS_GPU_LAUNCH_H_
