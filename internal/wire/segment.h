// The control segment: one memfd a group, mapped by the daemon and by every rank. wire.h includes it, and has the bounds.
#ifndef RAILHEAD_SEGMENT_H_
#define RAILHEAD_SEGMENT_H_

#include <stdint.h>

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
  uint64_t ep_stream_above_bytes; // above this size a rank's received rows are written with stores that bypass the caches
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

#endif  // RAILHEAD_SEGMENT_H_
