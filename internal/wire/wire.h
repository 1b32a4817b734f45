// Layouts of the control-plane messages and the shared control segment.
//
// This header and the Go structs of this package describe the same bytes. testdata/layout.golden lists every size and
// offset; a Go test compares the Go structs with it, and layout_assert.h (generated from it, included by the client)
// compares these structs at compile time.
//
// Transport: AF_UNIX SOCK_SEQPACKET, one message a packet, at most one file descriptor a message (SCM_RIGHTS).
// All integers are little-endian and naturally aligned. Reserved bytes and the tail of a string field are zero.
#ifndef RAILHEAD_WIRE_H_
#define RAILHEAD_WIRE_H_

#include <stdint.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "railhead's wire format is defined for little-endian machines"
#endif

#define RHW_MAGIC 0x57484c52u  // "RLHW"
// Protocol versions that this code speaks. Hello, Welcome and Error have the same layout in every version.
#define RHW_VERSION_MIN 3u
#define RHW_VERSION_MAX 3u

#define RHW_MAX_MESSAGE 1024u  // bytes, the largest message; Hello, Welcome and Error have less than 512
#define RHW_MAX_LOCAL 64u      // ranks of a group on one node: a mask of local ranks has 64 bits
#define RHW_MAX_WORLD 65536u   // ranks of a group: world ranks
#define RHW_NAME 64u          // bytes of a name or token, its NUL included
#define RHW_TEXT 320u         // bytes of an error's text, its NUL included
#define RHW_REASON 256u       // bytes of the reason why memory cannot be shared, its NUL included
#define RHW_MAX_REGION 255u   // registered windows of a group; they are numbered from 1
#define RHW_MAX_REGISTERED (1ull << 40)   // bytes of a rank's part of a registered window
#define RHW_MAX_FILE_OFFSET (1ull << 62)  // of registered memory in its file
#define RHW_HANDLE 64u        // bytes of a handle of CUDA_IPC memory
#define RHW_UUID 16u          // bytes of a device's UUID

#define RHW_CONTROL_MAGIC 0x4c52544e4f434852ull  // "RHCONTRL"
#define RHW_CONTROL_VERSION 3u
#define RHW_MAX_CONTROL (1ull << 30)  // bytes of a control segment
#define RHW_FLIGHT_RECORDS 1024u      // of a rank: a power of two

#define RHW_FORCING 192u     // bytes of a text of forced algorithms, its NUL included
#define RHW_CPU_WORDS 16u    // 64 processors a word
#define RHW_MAX_CHOICES 24u  // ranges of sizes of a plan
#define RHW_MAX_PLANS 16u    // plans of a device, one for each collective
#define RHW_MAX_DEVICES 2u   // kinds of devices among a group's plans
#define RHW_MAX_MEMORIES 4u  // kinds of memory among a group's windows

enum rhw_type {
  RHW_HELLO = 1,             // client: first message; carries the client's pidfd
  RHW_WELCOME = 2,           // daemon: answer to Hello
  RHW_ERROR = 3,             // daemon: answer to any request that failed
  RHW_JOIN = 4,              // client: become rank r of a group
  RHW_JOINED = 5,            // daemon: all ranks are here; carries the control segment's fd; Heap messages follow
  RHW_HEAP = 6,              // daemon: one rank's heap; carries its fd
  RHW_ATTACHED = 7,          // client: everything is mapped and the lease is held (or why not)
  RHW_GROUP_READY = 8,       // daemon: every rank is attached
  RHW_WINDOW_ALLOC = 9,      // client: collective
  RHW_WINDOW_COMMIT = 10,    // daemon: back this range of your heap with pages, or with CUDA memory
  RHW_WINDOW_COMMITTED = 11, // client: done (or failed); of CUDA memory without an error: carries its fd
  RHW_WINDOW_READY = 12,     // daemon: the window exists on every rank
  RHW_WINDOW_FREE = 13,      // client: collective
  RHW_WINDOW_FREED = 14,     // daemon: the range is gone on every rank
  RHW_LEAVE = 15,            // client: collective finalize
  RHW_LEFT = 16,             // daemon: every rank has left, or the group is broken
  RHW_DRAINING = 17,         // daemon: no new groups; existing ones go on
  RHW_REGISTER = 18,         // client: collective; memory of the caller that can be shared; carries its fd, except CUDA_IPC
  RHW_REGISTER_PRIVATE = 19, // client: the same call of a rank whose memory cannot be shared
  RHW_PEER_MEMORY = 20,      // daemon: another rank's registered memory, or its part of a CUDA window; carries its fd, except CUDA_IPC
  RHW_REGISTER_MAPPED = 21,  // client: all peers' memory is mapped (or could not be)
  RHW_REGISTERED = 22,       // daemon: the window exists on every rank, shared or staged
  RHW_SESSION_LEASE = 23,    // client, once a connection: carries the fd of its session segment; has no answer
  RHW_REANNOUNCE = 30,       // client, to a new daemon: it is rank r of a working group; carries the control segment's fd
  RHW_REANNOUNCED = 31,      // daemon: it has taken over the rank
  RHW_REANNOUNCE_HEAP = 32,  // client, after Reannounced: carries the fd of its heap; has no answer
};

// Where a collective runs.
enum rhw_device {
  RHW_DEVICE_CPU = 0,
  RHW_DEVICE_CUDA = 1,
};

// What a window is made of, and how it is passed to other ranks.
enum rhw_memory_kind {
  RHW_MEMORY_CPU = 1,      // a range of a memfd: its descriptor
  RHW_MEMORY_CUDA = 2,     // memory of a CUDA device, made by cuMemCreate: the descriptor that cuMemExportToShareableHandle gives
  RHW_MEMORY_CUDA_IPC = 3, // memory of a CUDA device made otherwise, registered only: the handle of cuIpcGetMemHandle
};

// Why an algorithm was chosen.
enum rhw_why {
  RHW_WHY_NONE = 0,           // nothing was chosen
  RHW_WHY_DEFAULT = 1,        // by the daemon's own thresholds
  RHW_WHY_TUNED = 2,          // by the table that `railhead tune` has measured
  RHW_WHY_FORCED = 3,         // by RAILHEAD_ALGO
  RHW_WHY_ONLY = 4,           // the operation has no other
  RHW_WHY_NOT_ZERO_COPY = 5,  // RAILHEAD_ALGO allows only algorithms between windows, which this call cannot use
};

struct rhw_header {
  uint32_t magic;
  uint16_t type;
  uint16_t version;   // protocol version of this message; Hello: the newest the client speaks
  uint32_t size;      // of the whole message, bytes
  uint32_t reserved;
  uint64_t request;   // chosen by the client, repeated in every answer; 0 = not an answer
};

struct rhw_hello {
  struct rhw_header h;
  uint16_t version_min;
  uint16_t version_max;
  uint32_t pid;            // as the client sees itself; informational (pids do not cross namespaces)
  char software[RHW_NAME]; // e.g. "librailhead 0.2.0"
};

struct rhw_welcome {
  struct rhw_header h;
  uint16_t version;        // chosen: the newest both speak
  uint16_t reserved0;
  uint32_t reserved1;
  uint64_t session;
  uint64_t daemon;         // random at each start of the daemon
  char software[RHW_NAME];
};

struct rhw_error {
  struct rhw_header h;
  uint32_t code;           // an rh_result
  int32_t culprit;         // world rank, -1 = none or not known
  uint64_t missing;        // bit r: local rank r did not arrive
  char text[RHW_TEXT];
};

// Which rank a process is. The ranks of a node have consecutive world ranks.
struct rhw_place {
  int32_t rank;            // in the world
  int32_t local;           // on its node
  int32_t node;
  uint32_t local_size;     // ranks of the group on this node
};

// What must be equal on all ranks of a group: the daemon compares every field.
struct rhw_common {
  char token[RHW_NAME];
  uint32_t world;          // ranks of the group
  uint32_t nodes;          // of the group
  uint32_t reduce_group;   // ranks folded together first; 0 = all ranks of the node
  uint32_t reproducible;   // 1 = sums are added in the same order, whatever the algorithm; 0 = in any order
  uint64_t heap_bytes;     // maximum size of a rank's heap; 0 = the daemon's default
  char forcing[RHW_FORCING];      // the rank's RAILHEAD_ALGO
};

// What may differ between the ranks of a group.
struct rhw_own {
  struct rhw_place place;
  uint32_t timeout_ms;
  uint32_t device;         // rhw_device that the rank runs on; the same on all ranks
  uint64_t cpus[RHW_CPU_WORDS];   // bit c: the calling thread may run on processor c; 0 = not known
  // Of a CUDA device; on a CPU all 0. Ranks with the same UUID share the GPU's multiprocessors.
  uint8_t device_uuid[RHW_UUID];
  uint32_t device_multiprocessors;
  uint32_t device_architecture;   // 10 times major + minor compute capability: 90 = sm_90
};

struct rhw_join {
  struct rhw_header h;
  char group[RHW_NAME];
  struct rhw_common common;
  struct rhw_own own;
};

struct rhw_joined {
  struct rhw_header h;
  uint64_t group;          // id, never used twice by a daemon
  uint64_t incarnation;    // counts the groups of this name
  uint64_t control_bytes;
  uint64_t heap_bytes;
  uint64_t scratch_bytes;  // the front of every heap, committed by its rank, used by the collectives
  uint32_t world;
  uint32_t local_size;     // ranks on this node: as many Heap messages follow
  uint32_t reduce_group;
  uint32_t spin_ns;        // how long a wait spins before it sleeps
  uint32_t yield_ns;       // a spinning wait yields the processor between polls after this long
  uint32_t block_bytes;    // bytes a rank publishes per epoch; a heap's scratch has two such buffers
  // Bytes of a slot of the pipes of rooted and point-to-point operations, see kernels/include/railhead/exchange/pipes.h.
  uint32_t pipe_slot_bytes;
  uint32_t broadcast_slot_bytes;
  // Of a group on CUDA devices; else 0. Offsets in a device heap are multiples of the granularity, a power of two. The first window of a
  // device heap, at offset 0, is the kernels' scratch: each rank allocates it in comm_init, after GroupReady.
  uint64_t device_heap_bytes;    // maximum size of a rank's device heap, the scratch included
  uint64_t device_scratch_bytes; // in whole granules
  uint64_t device_slot_bytes;    // of a peer's inbox in the scratch: kernels/include/railhead/gpu/launch.h
  uint32_t device_granularity;   // bytes
  uint32_t reserved0;
};

struct rhw_heap {
  struct rhw_header h;
  uint64_t group;
  int32_t local;           // whose it is
  uint32_t pid;            // of the process that holds the rank, for error texts; 0 = outside the daemon's pid namespace
};

struct rhw_attached {
  struct rhw_header h;
  uint64_t group;
  int32_t error;           // errno, 0 = all is well
  uint32_t reserved0;
};

struct rhw_group_ready {
  struct rhw_header h;
  uint64_t group;
};

struct rhw_window_alloc {
  struct rhw_header h;
  uint64_t group;
  uint64_t bytes;
  uint32_t memory;         // rhw_memory_kind
  uint32_t reserved0;
};

struct rhw_window_commit {
  struct rhw_header h;
  uint64_t group;
  uint64_t offset;         // in every rank's heap, or device heap
  uint64_t bytes;          // in whole granules
  uint32_t memory;         // rhw_memory_kind
  uint32_t granularity;    // bytes of a granule of that memory
};

struct rhw_window_committed {
  struct rhw_header h;
  uint64_t group;
  uint64_t offset;
  int32_t error;           // 0 = committed; else errno of fallocate, or the CUresult of a CUDA call
  uint32_t memory;         // as in WindowCommit
};

struct rhw_window_ready {
  struct rhw_header h;
  uint64_t group;
  uint64_t offset;
};

// An offset has the number of its region from this bit up: 0 is the heap, 1 and more are registered windows.
#define RHW_REGION_SHIFT 48

struct rhw_window_free {
  struct rhw_header h;
  uint64_t group;
  uint64_t offset;         // in the heap, or region << RHW_REGION_SHIFT: a registered window
  uint32_t memory;         // rhw_memory_kind of the heap; 0 of a registered window
  uint32_t reserved0;
};

struct rhw_window_freed {
  struct rhw_header h;
  uint64_t group;
  uint64_t offset;         // as in WindowFree
};

struct rhw_leave {
  struct rhw_header h;
  uint64_t group;
};

struct rhw_left {
  struct rhw_header h;
  uint64_t group;
};

struct rhw_draining {
  struct rhw_header h;
};

struct rhw_register {
  struct rhw_header h;
  uint64_t group;
  uint64_t bytes;
  uint64_t fd_offset;      // where the memory begins in the file or allocation
  uint32_t memory;         // rhw_memory_kind. CUDA: the fd is a socket with the descriptors of allocations that follow each other
  uint32_t reserved0;
  uint64_t allocation_bytes;   // CUDA memory: of the whole allocations, which other ranks map; else 0
  uint8_t handle[RHW_HANDLE];  // CUDA_IPC; else 0
};

struct rhw_register_private {
  struct rhw_header h;
  uint64_t group;
  uint64_t bytes;
  char reason[RHW_REASON]; // why the memory cannot be shared, and what to do
};

struct rhw_peer_memory {
  struct rhw_header h;
  uint64_t group;
  uint64_t bytes;
  uint64_t fd_offset;
  uint32_t region;         // the window's number, the same on every rank; 0 = part of a CUDA window at fd_offset of every device heap
  int32_t local;           // whose it is
  uint32_t memory;         // rhw_memory_kind
  uint32_t reserved0;
  uint64_t allocation_bytes;   // as in Register; of a part of a CUDA window its bytes
  uint8_t handle[RHW_HANDLE];  // as in Register
};

// Why registered memory of CUDA devices could not be placed, in RegisterMapped.error.
enum rhw_not_placed {
  RHW_NOT_PLACED_OFFSETS = -1,  // the ranks' memory begins at different places of its granules
  RHW_NOT_PLACED_ROOM = -2,     // the rank has no addresses left behind its device heaps
  RHW_NOT_PLACED_MIXED = -3,    // only some ranks' memory has descriptors
  RHW_NOT_PLACED_PROCESS = -4,  // CUDA IPC does not open memory of the same process, in which another rank is
  RHW_NOT_PLACED_ALIGNMENT = -5,  // the ranks' addresses have different remainders by 16
};

struct rhw_register_mapped {
  struct rhw_header h;
  uint64_t group;
  uint32_t region;         // as in PeerMemory
  int32_t error;           // 0 = all is well; else errno, the CUresult of a CUDA call, or a rhw_not_placed
};

struct rhw_registered {
  struct rhw_header h;
  uint64_t group;
  uint32_t region;
  int32_t staged_local;    // -1: shared, every rank has mapped all memory; else a local rank whose memory cannot be shared
  char reason[RHW_REASON]; // why it cannot be shared; "" of a shared window
};

struct rhw_session_lease {
  struct rhw_header h;
  uint64_t client;         // rhw_session.client of the segment
};

struct rhw_reannounce {
  struct rhw_header h;
  uint64_t group;          // the last daemon's number of it
  uint64_t control_bytes;
  struct rhw_place place;
  uint32_t world;
  uint32_t nodes;
  uint32_t timeout_ms;
  uint32_t reserved0;
};

struct rhw_reannounced {
  struct rhw_header h;
  uint64_t group;          // this daemon's number of it; the old one, unless that is in use
};

struct rhw_reannounce_heap {
  struct rhw_header h;
  uint64_t group;
};

// ---- The control segment: one memfd a group, mapped by the daemon and by every rank ----

// What a rank is doing, as rhw_rank_line.op and in the abort word.
enum rhw_op {
  RHW_OP_NONE = 0,
  RHW_OP_COMM_INIT = 1,
  RHW_OP_ALL_REDUCE = 2,
  RHW_OP_BARRIER = 3,
  RHW_OP_WINDOW_ALLOC = 4,
  RHW_OP_WINDOW_FREE = 5,
  RHW_OP_FINALIZE = 6,
  RHW_OP_ALL_GATHER = 7,
  RHW_OP_REDUCE_SCATTER = 8,
  RHW_OP_ALL_TO_ALL = 9,
  RHW_OP_BROADCAST = 10,
  RHW_OP_REDUCE = 11,
  RHW_OP_GATHER = 12,
  RHW_OP_SCATTER = 13,
  RHW_OP_SEND = 14,       // a send alone; several at a time are a group
  RHW_OP_RECV = 15,
  RHW_OP_GROUP = 16,      // sends and receives between rh_group_start and rh_group_end
  RHW_OP_SPLIT = 17,
  RHW_OP_WINDOW_REGISTER = 18,
  RHW_OP_EP_CREATE = 19,  // MoE dispatch and combine: a buffer
  RHW_OP_EP_DESTROY = 20,
  RHW_OP_EP_DISPATCH = 21,
  RHW_OP_EP_DISPATCH_SEND = 22,  // of a dispatch in two calls
  RHW_OP_EP_DISPATCH_RECV = 23,
  RHW_OP_EP_COMBINE = 24,
  RHW_OP_EP_COMBINE_SEND = 25,
  RHW_OP_EP_COMBINE_RECV = 26,
};

#include "algorithms.h"  // enum rhw_algo, rhw_algorithms

// The abort word, 64 bits. The group works while its low 32 bits are 0: waits poll them and sleep on them (futex). The first
// compare-and-swap that makes them non-zero decides what all ranks report; the word never changes again.
//   bits  0..7   rh_result: RH_ERR_RANK_DEAD, RH_ERR_TIMEOUT, RH_ERR_ABORTED, RH_ERR_MISMATCH, RH_ERR_BUSY or RH_ERR_PROTOCOL
//   bits  8..31  culprit, a world rank; RHW_NO_RANK = not known
//   bits 32..39  last rhw_op of the culprit (of the reporter, where the culprit is not known)
//   bits 40..63  world rank that reported it, RHW_NO_RANK = the daemon
#define RHW_NO_RANK 0xffffffu

// Where a part of the segment lies: count elements, stride bytes apart. The daemon chooses the numbers, and whoever maps the segment
// uses them. An element may be larger than the struct below: a later version appends fields.
struct rhw_part {
  uint64_t offset;         // a multiple of 4096
  uint32_t count;
  uint32_t stride;         // bytes, a multiple of 8
};

struct rhw_parts {
  struct rhw_part plans;    // rhw_plans, one for each kind of device: the CPU first, on which set-up calls run, then CUDA if the ranks have it
  struct rhw_part lines;    // rhw_rank_line, by local rank; more than there are ranks
  struct rhw_part flights;  // RHW_FLIGHT_RECORDS rhw_flight_record each, by local rank
  struct rhw_part ledger;   // rhw_ledger, one
  struct rhw_part regions;  // rhw_region_entry, by number of the registered window; [0] is unused
  struct rhw_part windows;  // a 64-bit word for each window
  struct rhw_part counters; // rhw_ep_counters, by local rank
  struct rhw_part reserved[9];
};

struct rhw_control_header {
  uint64_t magic;          // the daemon writes all but abort before it hands the fd out; only abort changes later
  uint32_t version;
  uint32_t world;
  uint64_t group;
  uint64_t incarnation;
  uint32_t local_size;
  uint32_t nodes;
  int32_t node;
  int32_t first_rank;      // world rank of local rank 0; the others follow
  uint64_t bytes;          // of the segment
  uint64_t reserved0;
  uint64_t abort;          // @64, see above. Writers: daemon, any rank (CAS, release). Readers: every wait (acquire).
  uint64_t reserved1[7];   // the abort word has a cache line of its own
  struct rhw_parts parts;  // @128
};

// ---- Which algorithm runs: written by the daemon before the control segment is handed out, never changed ----

// Collectives that have a choice, in the order of the arrays of rhw_plans.
enum rhw_planned {
  RHW_PLAN_ALL_REDUCE = 0,
  RHW_PLAN_REDUCE_SCATTER = 1,
  RHW_PLAN_ALL_GATHER = 2,
  RHW_PLAN_ALL_TO_ALL = 3,
  RHW_PLAN_BROADCAST = 4,
  RHW_PLANS = 5,
  // On a CUDA device, of types without a bit pattern that stands for "not yet here": integers travel in packets, which are twice as
  // large, so other algorithms are best for them.
  RHW_PLAN_ALL_REDUCE_PACKETS = 5,
  RHW_PLAN_REDUCE_SCATTER_PACKETS = 6,
  RHW_PLAN_TRANSFERS = 7,  // sends and receives, also those of a gather, scatter or reduce. The size is that of one transfer
  RHW_PLANS_CUDA = 8,
};

// For sizes from the previous choice's below_bytes up to this one's, exclusive. The size is that of a rank's larger buffer, in bytes.
// 0 in a field from protocol on is the group's value (rhw_plans, Joined), or has no meaning for the device.
struct rhw_choice {
  uint64_t below_bytes;    // the last choice's is ~0
  uint16_t algo;           // rhw_algo
  uint16_t why;            // rhw_why
  uint16_t protocol;
  uint16_t channels;
  uint16_t blocks;         // thread blocks of a GPU kernel; of copy those of pull, which runs where it cannot; 0: pull is not allowed
  uint16_t threads;        // threads of a block
  uint32_t chunk_bytes;
  uint64_t reserved0;
};

struct rhw_plan {
  uint32_t count;          // choices in use, at least 1
  uint32_t stage_from_kib; // of a zero_copy plan on a CUDA device: from this size on, buffers in no window are copied to windows of the library; 0 = never
  struct rhw_choice choice[RHW_MAX_CHOICES];
};

struct rhw_plans {
  uint32_t device;                // rhw_device
  uint32_t collectives;           // plans in use: RHW_PLANS or RHW_PLANS_CUDA; 0 = the element is not in use
  uint32_t channels;              // rings that a payload is spread over
  uint32_t ll_below_bytes;        // below this size rings use LL (kernels/include/railhead/exchange/ll_pipes.h)
  uint8_t order[RHW_MAX_LOCAL];   // local ranks in ring order; 0 from local_size on
  uint32_t polls_per_turn;        // polls of flag or data that a spinning wait makes between two reads of the clock and the abort word
  uint32_t ep_waiter_deadlines;   // a late rank that itself waits for another is given up after this many deadlines
  uint64_t recheck_ns;            // a sleeping wait reads the ranks' signatures at this interval
  uint64_t ep_death_check_ns;     // a wait that survives deaths looks for them at this interval
  uint64_t ep_stream_above_bytes; // above this size received rows are written with stores that bypass the caches
  uint32_t long_turn_ns;          // a turn of polls that took longer, with its yield, shows that other processes use the processor
  uint32_t busy_ns;               // for so long after it the rank's waits do not yield,
  uint32_t busy_most_ns;          // and for up to so long if the processor stays busy
  uint32_t busy_spin_ns;          // how long a wait then spins before it sleeps
  // Choices for calls whose buffers lie in windows on every rank: pull or copy; AUTO = as copied.
  struct rhw_plan zero_copy[RHW_MAX_PLANS];
  struct rhw_plan copied[RHW_MAX_PLANS];
};

// ---- Ranks ----

// A lease: a futex word in the robust list of its holder's control thread. While that thread lives the word has its tid. When the
// thread dies, the kernel sets FUTEX_OWNER_DIED, before it frees the process's memory. Writers: the holder (release: it has mapped
// everything), the kernel, and whoever sleeps on the word (FUTEX_WAITERS).
struct rhw_lease {
  uint64_t next;           // robust list node: the kernel follows it
  uint32_t word;           // 0 = not held, else the holder's tid and the kernel's two bits
  uint32_t reserved0;
  uint64_t client;         // id of the session that holds it
  uint64_t reserved1[5];   // a cache line
};

// The session segment: one memfd a session, created by the client, and mapped by the client and each daemon that it connects to. It
// has the lease of the session, which may have ranks in any number of groups, or in none.
#define RHW_SESSION_MAGIC 0x4e4f495353455352ull  // "RSESSION"
#define RHW_SESSION_VERSION 1u
#define RHW_SESSION_BYTES 4096u

struct rhw_session {
  uint64_t magic;          // the client writes all but lease before it sends the fd
  uint32_t version;
  uint32_t reserved0;
  uint64_t client;         // id of the session, random, chosen by the client; the same at each daemon
  uint64_t reserved1[5];
  struct rhw_lease lease;
};

// Only the line's own rank writes fields other than lease and rank, with relaxed stores; others read them only for reports.
struct rhw_rank_line {
  struct rhw_lease lease;  // as in rhw_session, for the peers: they map this segment, not the session's
  uint64_t seq;            // @64: operations begun
  uint32_t op;             // rhw_op of the operation seq; RHW_OP_NONE between operations
  uint32_t chosen;         // the last rhw_algo, its rhw_why in the upper half; 0 = none ran yet
  uint64_t bytes;          // of that operation
  uint64_t waiting_for;    // bit r: local rank r had not arrived when this rank went to sleep; 0 = not asleep
  uint64_t call;           // signature of the rank's current or last collective: kernels/include/railhead/base/signature.h
  uint64_t call_count;
  uint64_t call_detail;
  uint64_t asleep_since;   // ns of CLOCK_MONOTONIC when the rank last went to sleep, stored before waiting_for
  uint64_t other_call;     // @128: after a mismatch found by this rank: the culprit's signature
  uint64_t other_count;
  uint64_t other_detail;
  int32_t rank;            // world rank of the line; the daemon writes it before it hands the segment out
  uint32_t reserved1;
  uint64_t way;            // after a mismatch that a kernel found: how it ran (kernels/include/railhead/gpu/launch.h); 0 = no kernel
  uint64_t other_way;      // and the culprit's kernel
  uint64_t reserved2[10];
};

// One operation of a rank. kernels/include/railhead/base/flight_record.h has the meaning of the words and the order of stores and
// loads. Operation n of a rank is at n modulo RHW_FLIGHT_RECORDS of its ring. Writer: its rank. Readers: the daemon, at any time, also
// after the rank's death.
struct rhw_flight_record {
  uint64_t number;         // of the operation, as rhw_rank_line.seq; 0 = empty or being written
  uint64_t call;           // from bit 0, 8 bits each: rhw_op, element type, reduction, rhw_algo, outcome (railhead::Stop), flags (bit
                           // 0: the second line has arrivals); 16: index in a captured graph, from 1
  uint64_t place;          // root or peer, a world rank, in the lower half, ~0 = none; stream in the upper
  uint64_t bytes;
  uint64_t collective;     // number of the collective, the same on every rank; 0 = not all ranks take part
  uint64_t enqueued;       // when the call began; times are CLOCK_MONOTONIC, ns
  uint64_t done;           // when the call ended or gave up; 0 = not yet
  uint64_t replay;         // captured graph in the lower half, its replay in the upper; 0 = called eagerly
  uint64_t first_arrival;  // @64: when the first of the ranks arrived that this one waited for
  uint64_t last_arrival;   // when the last arrived
  uint64_t last_rank;      // world rank of the last
  uint64_t device_begin;   // when a GPU began and ended it
  uint64_t device_end;
  uint64_t reserved0[3];
};

// ---- The ledger: what another daemon needs to take the group over ----
//
// Only the daemon writes the ledger and the tables of windows and registered windows, and it may be killed between any two stores. So
// one store ends a set-up call: the daemon writes the outcome of call n into outcomes[n % 2], then n into ended (release), and only
// then answers the call and changes the tables. A reader of ended (acquire) finds the outcome complete. A new daemon applies the last
// outcome to the tables again, which changes nothing if that was done before.

#define RHW_MAX_WINDOWS 16384u  // of a group's heaps

// A window's word, 0 = no window. Size and offset are in granules of its memory.
//   bits  0..27  size
//   bits 28..55  offset in every heap
//   bits 56..63  index of rhw_ledger.memory

// How a set-up call ended, the same on all ranks.
struct rhw_outcome {
  uint32_t op;             // rhw_op: COMM_INIT, WINDOW_ALLOC, WINDOW_FREE, WINDOW_REGISTER or FINALIZE
  uint32_t code;           // an rh_result
  int32_t culprit;         // of an error, a world rank, -1 = none or not known
  int32_t staged_local;    // of WINDOW_REGISTER, as in Registered
  uint32_t region;         // of WINDOW_REGISTER, the window's number
  uint32_t memory;         // of windows: index of rhw_ledger.memory
  uint64_t offset;         // of WINDOW_ALLOC, as in WindowReady; of WINDOW_FREE, as in WindowFree
  uint64_t bytes;          // of WINDOW_ALLOC, in whole granules; of WINDOW_REGISTER
  char text[RHW_TEXT];     // an error's text, or the reason why a registered window is staged
};

struct rhw_region_entry {
  uint64_t bytes;
  uint32_t live;           // 1 = the window exists; written last (release), read first (acquire)
  int32_t staged_local;
  uint32_t memory;         // rhw_memory_kind: CPU or CUDA, wherever the memory of each rank comes from
  uint32_t reserved0;
  char reason[RHW_REASON];
};

struct rhw_memory {
  uint32_t kind;           // rhw_memory_kind, 0 = the entry is not in use
  uint32_t granularity;    // offsets and sizes of its windows are multiples of it; bytes, a power of two
};

struct rhw_ledger {
  char name[RHW_NAME];     // name to forcing never change
  char token[RHW_NAME];
  uint64_t heap_bytes;     // as in Joined
  uint64_t scratch_bytes;
  uint32_t reduce_group;
  uint32_t reproducible;
  struct rhw_memory memory[RHW_MAX_MEMORIES];  // the CPU's first, then that of the device
  uint32_t pids[RHW_MAX_LOCAL];
  char forcing[RHW_FORCING];
  uint64_t device_heap_bytes;  // as in Joined
  uint32_t device;         // rhw_device that the ranks run on
  uint32_t reserved2;
  uint64_t reserved0[7];
  uint64_t ended;          // @704: set-up calls that have ended, comm_init first; 0 = the group is not ready yet
  uint64_t reserved1[7];
  struct rhw_outcome outcomes[2];
};

// ---- Counters of MoE dispatch and combine ----

#define RHW_EP_MAX_EXPERTS 2048u  // physical ones

// Over all buffers of a comm, since it was made. Writer: its rank only, relaxed 64-bit stores. Readers: the daemon and every rank, at
// any time, relaxed loads; no order between words. A rank that never had a buffer has written nothing, so its pages do not exist: check
// symm.Segment.HasData before reading, which would allocate them.
struct rhw_ep_counters {
  uint64_t dispatches;     // ended
  uint64_t combines;
  uint64_t tokens;         // dispatched by this rank
  uint64_t copies;         // token copies sent: one for each token and destination rank, itself included
  uint64_t flag_bytes;     // flags and counts written to other ranks
  uint64_t invalid_ids;    // this and the next five as in rh_ep_report
  uint64_t duplicate_ids;
  uint64_t excess_tokens;
  uint64_t non_finite;
  uint64_t over_capacity;
  uint64_t lost_copies;
  uint64_t experts;        // physical experts of the largest buffer, so many entries of routed and received are used; 0 = no buffer yet
  uint64_t wait_turns;     // grows while the rank waits for another one, which shows that it lives
  uint64_t reserved0[3];
  uint64_t payload_bytes[RHW_MAX_LOCAL];  // to rank r: rows and scales of dispatches, partial sums of combines
  uint64_t header_bytes[RHW_MAX_LOCAL];   // to rank r: headers of tokens
  uint64_t wait_ns[RHW_MAX_LOCAL];        // time waited for rank r
  uint64_t routed[RHW_EP_MAX_EXPERTS];    // this rank's token copies for physical expert e
  uint64_t received[RHW_EP_MAX_EXPERTS];  // rows received by this rank for its expert e
  uint64_t reserved1[304];                // whole pages, so that a rank's lie on its own NUMA node
};

#endif  // RAILHEAD_WIRE_H_
