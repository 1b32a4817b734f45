/* railhead.h - the C ABI of Railhead's client library.
 *
 * A process connects to the node's daemon (`railhead serve`), becomes one or several ranks of a group, and then talks
 * to the other ranks through shared memory. After set-up no call below marked "data path" involves the daemon, takes a
 * lock or allocates memory; only a group of calls (rh_group_start) allocates, and with several comms starts threads.
 *
 * Conventions
 *  - Every function returns an rh_result; RH_OK is 0. After a failure rh_last_error_message() says, for the calling
 *    thread, which rank, which operation, what happened and what to do. No call exits, throws or raises a signal.
 *  - Every wait has a deadline (timeout_ms), and so have all waits of an operation together (rh_comm_config). A group one of
 *    whose ranks dies or misses a deadline is broken for all its ranks: each call on it returns the same cause at once, until
 *    it is finalized and a new group is formed.
 *  - Structs begin with their size and version: set both (RH_..._INIT does). A later version of this header only appends fields, and 0
 *    in an appended field keeps the older meaning. So caller and library may use different versions of this header:
 *      shorter struct than the library's   missing inputs are 0; no result is written beyond struct_size
 *      longer struct                       unknown inputs must be 0, else RH_ERR_INVALID_ARGUMENT names the known size; unknown
 *                                          results are not written
 *    "reserved" inputs must be 0. struct_version is 1; a greater one is accepted. No struct has more than 4096 bytes.
 *  - Sets of ranks are lists of world ranks in ascending order. The caller passes an array and its capacity. The library writes as
 *    many ranks as fit and always returns the size of the whole set in *count. NULL with capacity 0 returns the size only.
 *  - Sizes are bytes, times milliseconds, unless a name says otherwise.
 *  - Threads: different comms may be used from different threads at the same time. One comm belongs to one thread at a
 *    time; a second one gets RH_ERR_BUSY. rh_comm_abort and rh_comm_get_status may be called from any thread.
 *  - The library starts one thread a process, the control thread, with all signals blocked. It sleeps except for messages of the
 *    daemon and checks of the other ranks' leases; with a CUDA comm it also looks every 2 ms whether kernels have stopped. A window_free
 *    or finalize of a CUDA comm, and the end of its last graph after its finalize, each use a thread of their own for a moment.
 *  - The calling thread's floating-point environment (rounding, flushing subnormal numbers to zero, traps) changes no result, and is
 *    unchanged afterwards, exception flags included.
 *  - The parent's handles are invalid in a forked child. The child may connect anew.
 *  - A call needs 64 KiB of stack.
 *  - Handles are checked: a closed or finalized handle gives RH_ERR_INVALID_HANDLE, never a crash.
 */
#ifndef RAILHEAD_H_
#define RAILHEAD_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is declared here, and nothing else of the library, is visible outside of it. */
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define RH_VERSION_MAJOR 0
#define RH_VERSION_MINOR 2
#define RH_VERSION_PATCH 0

#define RH_MAX_LOCAL_RANKS 64   /* ranks of a group on one node */
#define RH_MAX_WORLD_SIZE 65536 /* ranks of a group; those of this version are all on one node */

/* Results. The numbers never change. */
typedef enum rh_result {
  RH_OK = 0,
  RH_ERR_INVALID_ARGUMENT = 1,     /* nothing was done; the message names the argument */
  RH_ERR_INVALID_HANDLE = 2,       /* closed, finalized, or never a handle */
  RH_ERR_UNSUPPORTED = 3,          /* this build, kernel or device cannot do it */
  RH_ERR_OUT_OF_MEMORY = 4,        /* a heap is full, or the machine has no memory for its pages */
  RH_ERR_SYSTEM = 5,               /* a system call failed; the message has errno's text */
  RH_ERR_NO_DAEMON = 6,            /* nothing listens on the socket */
  RH_ERR_DAEMON_LOST = 7,          /* no daemon answers; collectives go on, and so do set-up calls with the next daemon */
  RH_ERR_VERSION_MISMATCH = 8,     /* client and daemon have no protocol version in common */
  RH_ERR_PERMISSION = 9,           /* the other end of the socket runs as another user */
  RH_ERR_PROTOCOL = 10,            /* the daemon, or another rank, broke the protocol */
  RH_ERR_TIMEOUT = 11,             /* a rank did not arrive before the deadline; the group is broken */
  RH_ERR_RANK_MISSING = 12,        /* the group did not form: ranks did not come before the deadline */
  RH_ERR_WORLD_SIZE_MISMATCH = 13, /* the ranks of a group named different world sizes */
  RH_ERR_TOKEN_MISMATCH = 14,      /* the ranks of a group gave different tokens */
  RH_ERR_RANK_TAKEN = 15,          /* two processes claim the same rank */
  RH_ERR_GROUP_BUSY = 16,          /* a group of this name is at work */
  RH_ERR_RANK_DEAD = 17,           /* a rank's process has ended; the group is broken */
  RH_ERR_ABORTED = 18,             /* a rank called rh_comm_abort; the group is broken */
  RH_ERR_DRAINING = 19,            /* the daemon is shutting down and takes no new groups */
  RH_ERR_MISMATCH = 20,            /* the ranks called different collective operations, or with different arguments */
  RH_ERR_LIMIT = 21,               /* a named bound was reached */
  RH_ERR_BUSY = 22,                /* another thread or stream is inside a call on this comm, or a captured graph uses it */
  RH_ERR_STALE = 23,               /* KV: the peer has used the blocks again or freed them, or is another process than the reference's */
  RH_ERR_REFUSED = 24,             /* KV: the reference does not allow it: other rights, blocks or reader, revoked, or made up */
  RH_ERR_EXPIRED = 25,             /* KV: the time of the grant is over */
  RH_ERR_CANCELLED = 26,           /* KV: the transfer was cancelled */
  RH_ERR_PATH_LOST = 27,           /* KV: the connection to the peer's node was lost */
  RH_ERR_STALLED = 28,             /* KV: the transfer moved too few bytes for too long */
  RH_ERR_NO_PEER = 29,             /* KV: no agent has this name */
  RH_ERR_NAME_TAKEN = 30           /* KV: another agent has this name */
} rh_result;

/* Element types. The numbers never change. */
typedef int32_t rh_dtype;
enum {
  RH_F32 = 0,      /* IEEE 754 binary32 */
  RH_BF16 = 1,     /* its upper 16 bits */
  RH_F64 = 2,      /* IEEE 754 binary64 */
  RH_F16 = 3,      /* IEEE 754 binary16 */
  RH_FP8_E4M3 = 4, /* OCP 8-bit: finite to 448, no infinity, NaN = 0x7f and 0xff (PyTorch's float8_e4m3fn) */
  RH_FP8_E5M2 = 5, /* OCP 8-bit: finite to 57344, infinities, NaNs (PyTorch's float8_e5m2) */
  RH_I8 = 6,
  RH_U8 = 7,
  RH_I32 = 8,
  RH_I64 = 9,
  RH_U64 = 10
};

/* Reductions. All are folds in the comm's fixed order (see rh_all_reduce).
 *  - f32, f16, bf16 and fp8 are widened to f32, folded there and rounded to the type once (nearest, ties to even); f64 is
 *    folded in f64; integers in their own type, where sums and products wrap.
 *  - SUM, PROD: NaN and infinities as IEEE 754 has them. MIN, MAX: a NaN on any rank makes the result a NaN; of equal values
 *    (-0 and +0) the lowest rank's. AVG: the sum divided by the world size, before rounding; integers: the wrapped sum,
 *    divided with truncation towards zero.
 *  - A result beyond the largest finite value becomes an infinity in f32, f64, f16 and bf16. FP8 saturates: it becomes the
 *    largest finite value of its sign, in e4m3 an infinite sum too. NaN stays NaN, in e5m2 an infinity stays one.
 *  - Every NaN result is the type's one NaN, positive, quiet, with payload 0: f32 0x7fc00000, f64 0x7ff8000000000000, bf16 0x7fc0,
 *    f16 0x7e00, fp8_e4m3 0x7f, fp8_e5m2 0x7e. So it has the same bits on all ranks, whatever instructions their libraries use. A
 *    reduction of a single rank copies, and keeps the bits of NaNs, unless it scales (rh_op_create_pre_mul_sum).
 * rh_op_create_pre_mul_sum makes more of them. */
typedef int32_t rh_op;
enum { RH_SUM = 0, RH_PROD = 1, RH_MIN = 2, RH_MAX = 3, RH_AVG = 4 };

typedef struct rh_session rh_session;
typedef struct rh_comm rh_comm;
typedef struct rh_window rh_window;

/* The name of a result, e.g. "rank_dead". Never NULL. */
const char *rh_result_string(rh_result result);

/* Why the last failed call of this thread failed. Valid until this thread's next failing call; "" if none failed. */
const char *rh_last_error_message(void);

/* The library's version, major * 10000 + minor * 100 + patch. */
uint32_t rh_get_version(void);

/* ---- Sessions: a connection to the node's daemon ---- */

typedef struct rh_session_config {
  uint32_t struct_size;
  uint32_t struct_version;
  const char *socket_path; /* NULL: $RAILHEAD_SOCKET, else $XDG_RUNTIME_DIR/railhead/railhead.sock, else
                              /run/railhead/railhead.sock; at most 107 bytes */
  uint32_t timeout_ms;     /* for the daemon's answers; 0: $RAILHEAD_TIMEOUT_MS, else 30000 */
  uint32_t reserved;
} rh_session_config;
#define RH_SESSION_CONFIG_INIT {sizeof(rh_session_config), 1, NULL, 0, 0}

/* Connects. config may be NULL. The daemon must run as the same user or as root.
 * Errors: NO_DAEMON, VERSION_MISMATCH (names both versions), PERMISSION, TIMEOUT, UNSUPPORTED (no futex_waitv: Linux
 * before 5.16, or a seccomp filter), DAEMON_LOST (it hung up during the call), PROTOCOL, SYSTEM, LIMIT.
 *
 * The daemon may be restarted later on. Collectives go on without it. The session finds the next one by itself, and set-up calls
 * under way end there; one that finds none for 5 s returns DAEMON_LOST, and can be made again. */
rh_result rh_connect(const rh_session_config *config, rh_session **session);

/* Ends the session. Comms still open on it are left as if the process had died: the other ranks are told. An rh_comm_init
 * under way on it returns RH_ERR_DAEMON_LOST.
 * Errors: BUSY (a thread is inside a call on one of its comms; nothing was done). */
rh_result rh_close(rh_session *session);

/* ---- Comms: one rank of a group ---- */

/* On: sums are added in one order, see rh_all_reduce, whatever the algorithm. Off: an algorithm may add in an order of its own,
 * the same on all ranks and, for the same count, in all runs. */
#define RH_REPRODUCIBLE_ON 1
#define RH_REPRODUCIBLE_OFF 2

/* The device that runs the operations of a comm and holds its memory. */
#define RH_DEVICE_CPU 0
#define RH_DEVICE_CUDA 1 /* a GPU of compute capability 8.0 or newer. UNSUPPORTED without NVIDIA's driver, libcuda.so.1, which is opened
                            when the first comm asks for it. All ranks of a comm have the same kind of device */

typedef struct rh_comm_config {
  uint32_t struct_size;
  uint32_t struct_version;
  const char *group; /* NULL: $RAILHEAD_GROUP, else the launcher's job; at most 63 bytes of UTF-8 */
  const char *token; /* NULL: $RAILHEAD_TOKEN, else the launcher's job, else ""; every rank must give the same */
  int32_t rank;      /* -1: what the launcher says: $RANK, $OMPI_COMM_WORLD_RANK, $PMI_RANK or $SLURM_PROCID */
  int32_t world_size; /* -1: what the same launcher says */
  uint32_t timeout_ms; /* of forming the group and of every later wait; 0: $RAILHEAD_TIMEOUT_MS, else 30000. All waits of a collective, of
                          sends and receives that run together, or of a dispatch or combine end at most 4 * timeout_ms after the first of
                          them began, plus world_size seconds for each 16 MiB of the rank's bytes (rh_comm_status; MoE: of the buffer) */
  uint32_t reduce_group; /* ranks whose contributions are added first, see rh_all_reduce; 0: all */
  uint64_t heap_bytes; /* most window memory a rank can have; address space only, no pages; 0: the daemon's default */
  uint32_t reproducible; /* RH_REPRODUCIBLE_...; 0: $RAILHEAD_REPRODUCIBLE (on or off), else on */
  int32_t device_kind;   /* RH_DEVICE_... */
  int32_t device_ordinal; /* the driver's number of the device; -1: not given. Must be -1 for the CPU. A CUDA comm for which neither this
                             nor device_uuid is given runs on the calling thread's current device (torch.cuda.set_device) */
  int32_t local_rank;    /* number among the group's ranks on this node; -1: in order of world rank */
  int32_t local_size;    /* number of the group's ranks on this node; -1: the world size */
  int32_t node;          /* -1: the only one */
  const char *device_uuid; /* in place of device_ordinal: "GPU-<uuid>" or "MIG-<uuid>", as nvidia-smi -L lists them, or their beginning;
                              NULL: not given */
} rh_comm_config;
#define RH_COMM_CONFIG_INIT {sizeof(rh_comm_config), 1, NULL, NULL, -1, -1, 0, 0, 0, 0, RH_DEVICE_CPU, -1, -1, -1, -1, NULL}

/* Joins a group and waits until all its ranks have joined and have mapped each other's memory. A process may hold
 * several ranks; each needs a thread of its own for this call.
 * The launcher's job is named by what differs between two jobs of torchrun, mpirun or srun, e.g. $MASTER_PORT; docs/usage.md lists the
 * variables. Where there is no such variable, a group without a name is refused: two jobs would form one group.
 * Errors: RANK_MISSING (lists the ranks that did not come), WORLD_SIZE_MISMATCH, TOKEN_MISMATCH, RANK_TAKEN,
 * GROUP_BUSY, RANK_DEAD, DRAINING, OUT_OF_MEMORY, DAEMON_LOST, MISMATCH (configs, RAILHEAD_ALGO or RAILHEAD_REPRODUCIBLE differ),
 * INVALID_ARGUMENT (RAILHEAD_ALGO has an unknown name; no rank, world size or group; no device), UNSUPPORTED (RAILHEAD_ISA; a device
 * that this library or machine does not support; ranks on several nodes). A rank of which the GPU fails is an error on all ranks, which
 * names it; one that cannot use its GPU at all does not come, and the others wait for it until the deadline. */
rh_result rh_comm_init(rh_session *session, const rh_comm_config *config, rh_comm **comm);

/* Collective: waits until every rank has called it, then frees the comm's memory, windows included. On a broken group it
 * returns at once. The handle is invalid afterwards, whatever the result. Errors: MISMATCH, DAEMON_LOST, and
 * the cause of a group that breaks meanwhile (TIMEOUT: some rank did not call it, or, on a device with streams, this rank's own calls had
 * not run by the deadline). */
rh_result rh_comm_finalize(rh_comm *comm);

/* Collective: makes a comm of the ranks that give the same color, in order of key, then of rank. color is RH_SPLIT_NONE (the
 * rank gets no comm: *out is NULL) or at least 0. The new comm has the device, timeout and heap_bytes of
 * the old one, and its reduce_group if that is at most the new world size. It lives as long as its session. The old comm stays usable.
 * Errors: as rh_comm_init; a group that is broken by one. */
#define RH_SPLIT_NONE (-1)
rh_result rh_comm_split(rh_comm *comm, int32_t color, int32_t key, rh_comm **out);

/* Breaks the group: every rank's current and later calls return RH_ERR_ABORTED naming this rank. Any thread.
 * It breaks this comm's group alone: comms that were split from it, and the comm that it was split from, go on. Abort each of them. An
 * rh_comm_split of this comm under way ends. */
rh_result rh_comm_abort(rh_comm *comm);

rh_result rh_comm_rank(rh_comm *comm, int32_t *rank);
rh_result rh_comm_world_size(rh_comm *comm, int32_t *world_size);

typedef struct rh_comm_info {
  uint32_t struct_size;
  uint32_t struct_version;
  int32_t rank;
  int32_t world_size;
  int32_t local_rank;    /* among the group's ranks on this node */
  int32_t local_size;
  int32_t node;
  int32_t device_kind;   /* RH_DEVICE_... */
  int32_t device_ordinal; /* -1: the device has none */
  int32_t reserved;
  uint64_t granularity;  /* bytes; sizes of the device's memory are multiples of it. CPU: a page */
  /* The word that says whether operations of a CUDA comm have run to their end: 0 = all that have run; else one has given up, and no
   * output of that one or of a later one may be used: rh_comm_get_status says why, some milliseconds later. It never becomes 0 again. The
   * host reads it by stop_word (load with acquire) once the stream has run; kernels read it by device_stop_word in the order of the
   * stream. Both are valid until the comm is finalized and its graphs are destroyed. CPU: NULL, because calls return their results. */
  const uint32_t *stop_word;
  const uint32_t *device_stop_word;
  int32_t device_staged;  /* 1: collectives of a CUDA comm go through the host's memory, because the GPUs cannot access each other's */
  int32_t reserved1;
  char device_staged_reason[256]; /* why: the rank, and what its driver said; else "" */
  int32_t device_fabric;  /* 1: this rank's driver creates memory with a FABRIC handle, as GPUs of several machines on one NVLink fabric need */
  int32_t reserved2;
  char device_fabric_reason[256]; /* of a CUDA comm, where it is 0: why; else "" */
} rh_comm_info;
#define RH_COMM_INFO_INIT {sizeof(rh_comm_info), 1, -1, 0, -1, 0, -1, 0, -1, 0, 0, NULL, NULL, 0, 0, {0}, 0, 0, {0}}

/* This rank's numbers, node and device. Any thread. */
rh_result rh_comm_get_info(rh_comm *comm, rh_comm_info *info);

typedef struct rh_comm_status {
  uint32_t struct_size;
  uint32_t struct_version;
  rh_result result;      /* RH_OK while the group works, else why it is broken */
  int32_t rank;          /* this rank */
  int32_t culprit;       /* the rank that died, was late or aborted; -1 = none or not known */
  int32_t reporter;      /* the rank that noticed; -1 = the daemon */
  uint64_t operation;    /* count of operations this rank has begun on the comm */
  uint64_t bytes;        /* of the current (or, when broken, the interrupted) operation, per rank */
  int32_t waiting_count; /* ranks that this rank is (or was, when broken) waiting for: see rh_comm_get_waiting_for */
  int32_t reserved;
  char operation_name[32];         /* what this rank is (was) in: "all_reduce", ..., "none" */
  char culprit_operation_name[32]; /* what the culprit was in */
  char algorithm_name[16];         /* of the last collective that moved data: "oneshot", "twoshot", "pull", "pipe", "ring",
                                      "tree" or "copy"; "none" before the first and in a world of one */
  char algorithm_why[16];          /* why that one, see rh_choice */
  char message[512];               /* all of it as one sentence */
} rh_comm_status;
#define RH_COMM_STATUS_INIT {sizeof(rh_comm_status), 1, RH_OK, -1, -1, -1, 0, 0, 0, 0, {0}, {0}, {0}, {0}, {0}}

/* What this rank is doing, or why the group is broken. Any thread. */
rh_result rh_comm_get_status(rh_comm *comm, rh_comm_status *status);

/* The ranks that this rank is (or was, when broken) waiting for. Any thread. */
rh_result rh_comm_get_waiting_for(rh_comm *comm, int32_t *ranks, int32_t capacity, int32_t *count);

typedef struct rh_choice {
  uint32_t struct_size;
  uint32_t struct_version;
  char algorithm[16]; /* as rh_comm_status.algorithm_name */
  char why[16];       /* "default": the daemon's thresholds; "tuned": the table of `railhead tune`; "forced": $RAILHEAD_ALGO; "only": the
                         operation has no other; "not_zero_copy": $RAILHEAD_ALGO allows only pull or copy, which need windows; "none" */
} rh_choice;
#define RH_CHOICE_INIT {sizeof(rh_choice), 1, {0}, {0}}

/* Which algorithm an operation of a given size runs, and why. operation: as in rh_comm_status.operation_name ("all_reduce").
 * bytes: size of the larger of a rank's two buffers. in_windows: whether the buffers of all ranks lie in windows. The result is the same on
 * all ranks. Any thread. Errors: INVALID_ARGUMENT, INVALID_HANDLE. */
rh_result rh_comm_get_choice(rh_comm *comm, const char *operation, size_t bytes, int32_t in_windows, rh_choice *choice);

/* ---- Windows: symmetric memory ---- */

/* The memory that a window is made of. */
#define RH_MEMORY_DEFAULT 0 /* the device's default; CPU: RH_MEMORY_HOST, CUDA: RH_MEMORY_DEVICE */
#define RH_MEMORY_HOST 1
#define RH_MEMORY_DEVICE 2 /* of a GPU, in whole granules (rh_comm_info). UNSUPPORTED on the CPU, and where device_staged is 1 */

typedef struct rh_window_config {
  uint32_t struct_size;
  uint32_t struct_version;
  int32_t memory; /* RH_MEMORY_... */
  uint32_t reserved;
} rh_window_config;
#define RH_WINDOW_CONFIG_INIT {sizeof(rh_window_config), 1, RH_MEMORY_DEFAULT, 0}

/* Collective: allocates zeroed memory at the same offset of every rank's heap, or device heap. All ranks pass the same bytes and config (NULL: the
 * defaults). A window never moves, and later allocations change no address. Errors: OUT_OF_MEMORY (on all ranks; nothing stays allocated),
 * MISMATCH, TIMEOUT, UNSUPPORTED (a kind of memory that the device does not have). */
rh_result rh_window_alloc(rh_comm *comm, size_t bytes, const rh_window_config *config, rh_window **window);

/* Collective: frees the window's pages once every rank has called it. The handle is invalid afterwards, whatever the result but BUSY;
 * after a failure the pages stay until the comm is finalized. Errors: BUSY (a live captured graph, after half a second, or a group of calls that has
 * not ended, uses the window; nothing was done and the handle stays valid), and the cause of a broken group. If graphs of only some ranks use the
 * window, those ranks get BUSY and the others wait for them until the deadline, which breaks the group. */
rh_result rh_window_free(rh_window *window);

/* The address of rank's part of the window in this process. Valid until the window is freed or the comm finalized.
 * Errors: UNSUPPORTED (another rank's part of a staged window: see rh_window_register). */
rh_result rh_window_pointer(rh_window *window, int32_t rank, void **pointer);

typedef struct rh_window_info {
  uint32_t struct_size;
  uint32_t struct_version;
  uint64_t bytes;  /* as asked for */
  uint64_t offset; /* in every rank's heap, or device heap; 0 for registered memory */
  int32_t memory;  /* RH_MEMORY_HOST or RH_MEMORY_DEVICE */
  uint32_t reserved;
} rh_window_info;
#define RH_WINDOW_INFO_INIT {sizeof(rh_window_info), 1, 0, 0, 0, 0}
rh_result rh_window_get_info(rh_window *window, rh_window_info *info);

/* Collective: makes a window of memory that the caller owns. Each rank passes its own memory, all with the same bytes. The library
 * shares it with the other ranks if it is a shared mapping of a memfd:
 *  - fd >= 0: pointer is mapped MAP_SHARED from fd at fd_offset (a multiple of the page size); the library duplicates fd;
 *  - fd < 0: the library finds out whether pointer lies in a shared mapping of a memfd that this process has open or may open.
 * It seals the memfd (memfd_create with MFD_ALLOW_SEALING) against shrinking, because truncation would be a SIGBUS in the other ranks. The
 * memfd can still grow. Files of /dev/shm and of other file systems have no such seal.
 * On a CUDA comm it is memory of the comm's GPU, fd is -1, and the library shares it if
 *  - it was made by cuMemCreate with a POSIX descriptor, in at most 250 allocations that follow each other (PyTorch with
 *    expandable_segments:True), and begins at the same place of a granule (rh_comm_info) on all ranks, as where all ranks allocate in the same
 *    order; or
 *  - it was made by cudaMalloc, each rank is a process of its own, and its address has the same remainder by 16 on all ranks. Then it must not be
 *    freed before the window.
 * Other ranks' kernels read and write it in collectives. Those of a rank that has died may go on for some tens of milliseconds.
 * If the memory of one rank cannot be shared (malloc, a private mapping, a file without seals, a pool of cudaMallocAsync), or one rank cannot map it, the
 * window is staged on all ranks: collectives copy as for any buffer. rh_window_get_sharing returns the rank and the reason. The memory must
 * stay mapped until rh_window_free, which does not unmap it.
 * Errors: INVALID_ARGUMENT, MISMATCH (bytes differ), LIMIT (255 registered windows of a comm), and as rh_window_alloc. */
typedef struct rh_register_config {
  uint32_t struct_size;
  uint32_t struct_version;
  void *pointer;
  size_t bytes;
  int32_t fd;
  uint32_t reserved;
  uint64_t fd_offset;
} rh_register_config;
#define RH_REGISTER_CONFIG_INIT {sizeof(rh_register_config), 1, NULL, 0, -1, 0, 0}
rh_result rh_window_register(rh_comm *comm, const rh_register_config *config, rh_window **window);

typedef struct rh_window_sharing {
  uint32_t struct_size;
  uint32_t struct_version;
  int32_t zero_copy; /* 1: every rank's memory is mapped in every rank; 0: staged */
  int32_t rank;      /* staged: the lowest rank whose memory cannot be shared; else -1 */
  char reason[256];  /* staged: why, and what to do; else "" */
} rh_window_sharing;
#define RH_WINDOW_SHARING_INIT {sizeof(rh_window_sharing), 1, 0, -1, {0}}
rh_result rh_window_get_sharing(rh_window *window, rh_window_sharing *sharing);

/* ---- Collectives (data path) ----
 *
 * All ranks of the comm call the same operations in the same order, with the same count, dtype, op and root. If they do not, all ranks
 * get RH_ERR_MISMATCH with both calls in the message, at the latest in the next operation in which all ranks take part (the message then
 * names that operation). count is in elements; any count (0 too) and any alignment is allowed. send and recv may overlap only as each
 * function says under "in place".
 * CPU: stream must be NULL, and the call returns when its result is complete.
 * CUDA: stream is a cudaStream_t (CUstream) of the comm's device; NULL is the legacy default stream.
 *  - The call runs later, in stream order; captured into a graph, it runs with each launch. Buffers must live until then.
 *  - A failure breaks the group; later calls and rh_comm_get_status return the cause.
 *  - Calls of a comm may run on one stream at a time.
 *  - While a live graph uses a window, rh_window_free returns BUSY. The caller keeps other memory alive.
 *  - A call that some ranks make eagerly and others replay from a graph is a MISMATCH, even if all arguments are equal.
 *  - The comm's mappings stay until its last graph is destroyed. Launches after rh_comm_finalize write to no memory of other ranks, and
 *    stop_word (rh_comm_info) is not 0. Calls that run as "copy" then still copy what the other ranks' windows hold into recv.
 *  - An operation for which there is no kernel is UNSUPPORTED, before it has any effect: in a world of one a sum with a scale.
 *  - Before rh_window_free and rh_comm_finalize this rank's calls must be able to run to their end: the two wait for them, and while graphs
 *    hold calls of the comm for all work of the process's context. Meanwhile no stream of the context may be captured, and no graph with
 *    calls of the comm launched. Other set-up calls wait for no stream.
 *  - A stream on which calls of a comm were made must live until its next rh_window_free or rh_comm_finalize has returned; if they were
 *    captured, until its next set-up call has.
 * Errors: INVALID_ARGUMENT, INVALID_HANDLE, UNSUPPORTED, BUSY, MISMATCH, PROTOCOL (a rank offered memory that it does not have), and
 * the cause of a broken group (RANK_DEAD, TIMEOUT, ABORTED; BUSY: two streams at once). */

/* recv[i] = reduction over ranks of send[i]. In place: send == recv. If send and recv of every rank lie in windows, large
 * all-reduces are zero-copy, with the same result. On CUDA, buffers that lie in windows must do so on all ranks, at the same offsets, for
 * sizes that are zero-copy (rh_comm_get_choice); otherwise MISMATCH. There this holds for send of reduce_scatter and for recv of all_gather,
 * all_to_all (unless in place) and broadcast too; where they run as "copy", for send in place of recv of the former two, which must be in place
 * on all ranks or on none. Every rank gets the same bits: contributions are added in rank order within each
 * reduce_group consecutive ranks, then group by group, in f32 (f64, integers: in dtype), and rounded to dtype once. A tree that
 * $RAILHEAD_ALGO forces, and a forced ring of a comm that is not reproducible, add in another order, the same on all ranks. */
rh_result rh_all_reduce(const void *send, void *recv, size_t count, rh_dtype dtype, rh_op op, rh_comm *comm,
                        void *stream);

/* recv[r * count + i] = rank r's send[i]; recv has world size * count elements.
 * In place: send == recv + rank * count elements. */
rh_result rh_all_gather(const void *send, void *recv, size_t count, rh_dtype dtype, rh_comm *comm, void *stream);

/* recv[i] = reduction over ranks of send[rank * count + i]; send has world size * count elements, recv count.
 * In place: recv == send + rank * count elements. */
rh_result rh_reduce_scatter(const void *send, void *recv, size_t count, rh_dtype dtype, rh_op op, rh_comm *comm,
                            void *stream);

/* recv[r * count + i] = rank r's send[rank * count + i]; both have world size * count elements. In place: send == recv. */
rh_result rh_all_to_all(const void *send, void *recv, size_t count, rh_dtype dtype, rh_comm *comm, void *stream);

/* recv[i] = root's send[i]. send is ignored on other ranks and may be NULL there. In place: send == recv. */
rh_result rh_broadcast(const void *send, void *recv, size_t count, rh_dtype dtype, int32_t root, rh_comm *comm,
                       void *stream);

/* On root: recv[i] = reduction over ranks of send[i], in the order of rh_all_reduce. recv is ignored on other ranks and
 * may be NULL there. In place: send == recv. */
rh_result rh_reduce(const void *send, void *recv, size_t count, rh_dtype dtype, rh_op op, int32_t root, rh_comm *comm,
                    void *stream);

/* On root: recv[r * count + i] = rank r's send[i]. recv may be NULL elsewhere. In place on root: send == recv + root * count
 * elements. */
rh_result rh_gather(const void *send, void *recv, size_t count, rh_dtype dtype, int32_t root, rh_comm *comm, void *stream);

/* recv[i] = root's send[rank * count + i]. send may be NULL elsewhere. In place on root: recv == send + root * count
 * elements. */
rh_result rh_scatter(const void *send, void *recv, size_t count, rh_dtype dtype, int32_t root, rh_comm *comm, void *stream);

/* Sends count elements to rank peer, or receives them; the peer makes the matching call with the same count and dtype. Calls between
 * two ranks match in call order. rh_send of a small message may return before the peer has called rh_recv; of a large one it waits for
 * the peer. rh_reduce, rh_gather and rh_scatter use the same pipes between the root and each rank, so earlier sends must be received
 * before them. Between rh_group_start and rh_group_end any number of calls progress concurrently, in both directions. A rank may send
 * to itself within a group.
 * Errors: MISMATCH (count or dtype differ). */
rh_result rh_send(const void *send, size_t count, rh_dtype dtype, int32_t peer, rh_comm *comm, void *stream);
rh_result rh_recv(void *recv, size_t count, rh_dtype dtype, int32_t peer, rh_comm *comm, void *stream);

/* Returns when every rank has called it. Stores of any rank to windows before its call are visible to all ranks after. */
rh_result rh_barrier(rh_comm *comm, void *stream);

/* Between the two, this thread's collectives, sends and receives are queued; rh_group_end runs them: for each comm first all sends
 * and receives, concurrently, then the collectives in call order. Several comms progress concurrently (each but the first on a thread
 * started for it), so one thread may drive several ranks. Groups nest; the outermost end runs the calls.
 * A call with invalid arguments returns its error at once; the rh_group_end of that group then runs nothing and returns the same error.
 * Buffers must live until rh_group_end. Set-up calls (init, windows) run at once also within a group; rh_comm_split is refused.
 * Errors: BUSY (another thread is in a call on a comm of the group; nothing was run. Also of rh_comm_finalize and rh_window_free while
 * calls of the comm are queued), LIMIT (more than 4096 calls), SYSTEM (no thread could be started; nothing was run). */
rh_result rh_group_start(void);
rh_result rh_group_end(void);

/* A sum of contributions that each rank multiplies by its own scalar first; the product is rounded to dtype (integers wrap).
 * *scalar is a float for RH_F32, RH_F16, RH_BF16 and FP8, a double for RH_F64, else one element of dtype. The op belongs to
 * this comm and dtype and ends with the comm or by rh_op_destroy. At most 64 of a comm: LIMIT. */
rh_result rh_op_create_pre_mul_sum(rh_comm *comm, rh_dtype dtype, const void *scalar, rh_op *op);
rh_result rh_op_destroy(rh_comm *comm, rh_op op);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#include "railhead_ep.h"
#include "railhead_kv.h"

#endif /* RAILHEAD_H_ */
