// Layouts of the control-plane messages. segment.h has those of the shared control segment.
//
// These headers and the Go structs of this package describe the same bytes. testdata/layout.golden lists every size and
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
#define RHW_VERSION_MIN 4u
#define RHW_VERSION_MAX 4u

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
  RHW_KV_AGENT = 24,         // client: become the agent of this name, for KV transfer
  RHW_KV_SOCKET = 25,        // daemon: carries the agent's socket to the proxy, which speaks kv.h
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

struct rhw_kv_agent {
  struct rhw_header h;
  char name[RHW_NAME];     // of no other agent of the node
};

struct rhw_kv_socket {
  struct rhw_header h;
};

#include "segment.h"  // the control segment

#endif  // RAILHEAD_WIRE_H_
