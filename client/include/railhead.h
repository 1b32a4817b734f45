/* railhead.h - the C ABI of Railhead's client library.
 *
 * A process connects to the node's daemon (`railhead serve`), becomes one or several ranks of a group, and then talks
 * to the other ranks through shared memory. After set-up no call below marked "data path" involves the daemon, takes a
 * lock or allocates memory; only a group of calls (rh_group_start) allocates, and with several comms starts threads.
 *
 * Conventions
 *  - Every function returns an rh_result; RH_OK is 0. After a failure rh_last_error_message() says, for the calling
 *    thread, which rank, which operation, what happened and what to do. No call exits, throws or raises a signal.
 *  - Every wait has a deadline (timeout_ms); a group one of whose ranks dies or misses a deadline is broken for all its
 *    ranks: each call on it returns the same cause at once, until it is finalized and a new group is formed.
 *  - Structs begin with their own size and version: set both (RH_..._INIT does). They only grow, at the end, and 0 in a field that
 *    was added means what the struct meant before. So a caller and a library may have different versions of this header. Where the
 *    caller's struct is shorter, what it lacks is 0, and no result is written beyond its struct_size. Where it is longer, the fields
 *    that the library does not know must be 0, as "reserved" must be of a struct that is read, else RH_ERR_INVALID_ARGUMENT says how
 *    many bytes it knows; results among them are left as they are. struct_version is 1; a greater one is taken too. No struct has more
 *    than 4096 bytes.
 *  - Sets of ranks are lists of world ranks in ascending order. The caller gives an array and its capacity; of the set as many are
 *    written as fit, and the count is always that of the whole set. NULL with capacity 0 asks for the count alone.
 *  - Sizes are bytes, times milliseconds, unless a name says otherwise.
 *  - Threads: different comms may be used from different threads at the same time. One comm belongs to one thread at a
 *    time; a second one gets RH_ERR_BUSY. rh_comm_abort and rh_comm_get_status may be called from any thread.
 *  - The library starts one thread a process, with all signals blocked; it sleeps unless the daemon has something to say.
 *  - A forked child has no handles: the parent's are invalid there. It may connect anew.
 *  - A call needs 64 KiB of stack.
 *  - Handles are checked: one that was closed or finalized gives RH_ERR_INVALID_HANDLE, never a crash.
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
  RH_ERR_BUSY = 22                 /* another thread or stream is inside a call on this comm, or a captured graph uses it */
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
 *  - Which NaN a NaN result is, is not specified, but it is the same on all ranks of a machine.
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

/* Where the operations of a comm run, and where its memory lies. */
#define RH_DEVICE_CPU 0
#define RH_DEVICE_CUDA 1 /* no library has it yet: UNSUPPORTED */

typedef struct rh_comm_config {
  uint32_t struct_size;
  uint32_t struct_version;
  const char *group; /* NULL: $RAILHEAD_GROUP, else "default"; at most 63 bytes of UTF-8 */
  const char *token; /* NULL: $RAILHEAD_TOKEN, else ""; every rank must give the same */
  int32_t rank;      /* -1: $RANK */
  int32_t world_size; /* -1: $WORLD_SIZE */
  uint32_t timeout_ms; /* of forming the group and of every later wait; 0: $RAILHEAD_TIMEOUT_MS, else 30000 */
  uint32_t reduce_group; /* ranks whose contributions are added first, see rh_all_reduce; 0: all */
  uint64_t heap_bytes; /* most window memory a rank can have; address space only, no pages; 0: the daemon's default */
  uint32_t reproducible; /* RH_REPRODUCIBLE_...; 0: $RAILHEAD_REPRODUCIBLE (on or off), else on */
  int32_t device_kind;   /* RH_DEVICE_... */
  int32_t device_ordinal; /* which device of that kind, as its driver counts them; -1: not given. The CPU has none */
  int32_t local_rank;    /* among the group's ranks on this node; -1: in the order of the world's ranks */
  int32_t local_size;    /* of the group's ranks on this node; -1: all of them are */
  int32_t node;          /* -1: the only one */
  const char *device_uuid; /* in place of device_ordinal; NULL: not given */
} rh_comm_config;
#define RH_COMM_CONFIG_INIT {sizeof(rh_comm_config), 1, NULL, NULL, -1, -1, 0, 0, 0, 0, RH_DEVICE_CPU, -1, -1, -1, -1, NULL}

/* Joins a group and waits until all its ranks are there and have mapped each other's memory. A process may hold
 * several ranks; each needs a thread of its own inside this call.
 * Errors: RANK_MISSING (lists the ranks that did not come), WORLD_SIZE_MISMATCH, TOKEN_MISMATCH, RANK_TAKEN,
 * GROUP_BUSY, RANK_DEAD, DRAINING, OUT_OF_MEMORY, DAEMON_LOST, MISMATCH (configs, RAILHEAD_ALGO or RAILHEAD_REPRODUCIBLE differ),
 * INVALID_ARGUMENT (RAILHEAD_ALGO names what does not exist), UNSUPPORTED (RAILHEAD_ISA; a device that this library does not have;
 * ranks on several nodes). */
rh_result rh_comm_init(rh_session *session, const rh_comm_config *config, rh_comm **comm);

/* Collective: waits until every rank has called it, then gives everything back, windows too. On a broken group it
 * returns at once. The handle is invalid afterwards, whatever the result. */
rh_result rh_comm_finalize(rh_comm *comm);

/* Collective: makes a comm of the ranks that give the same color, in order of key, then of rank. color is RH_SPLIT_NONE (the
 * rank gets no comm: *out is NULL) or at least 0. The new comm has the device, timeout, heap_bytes and, where it is not larger than
 * the new world size, the reduce_group of the old one; it lives as long as its session. Both go on.
 * Errors: as rh_comm_init; a group that is broken by one. */
#define RH_SPLIT_NONE (-1)
rh_result rh_comm_split(rh_comm *comm, int32_t color, int32_t key, rh_comm **out);

/* Breaks the group: every rank's current and later calls return RH_ERR_ABORTED naming this rank. Any thread. */
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
  uint64_t granularity;  /* the device backs memory in multiples of so many bytes; of the CPU: a page */
} rh_comm_info;
#define RH_COMM_INFO_INIT {sizeof(rh_comm_info), 1, -1, 0, -1, 0, -1, 0, -1, 0, 0}

/* Who this rank is, and where. Any thread. */
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
  char algorithm_name[16];         /* of the last collective that moved data: "oneshot", "twoshot", "pull", "pipe", "ring" or
                                      "tree"; "none" before the first and in a world of one */
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
                         operation has no other; "not_zero_copy": $RAILHEAD_ALGO allows only pull, which needs windows; "none" */
} rh_choice;
#define RH_CHOICE_INIT {sizeof(rh_choice), 1, {0}, {0}}

/* Which algorithm an operation of that size runs, and why: operation as in rh_comm_status.operation_name ("all_reduce"), bytes
 * of the larger of a rank's two buffers, in_windows: whether the buffers of all ranks lie in windows. The same on all ranks. Any
 * thread. Errors: INVALID_ARGUMENT, INVALID_HANDLE. */
rh_result rh_comm_get_choice(rh_comm *comm, const char *operation, size_t bytes, int32_t in_windows, rh_choice *choice);

/* ---- Windows: symmetric memory ---- */

/* The memory that a window is made of. */
#define RH_MEMORY_DEFAULT 0 /* the device's own: of the CPU, HOST */
#define RH_MEMORY_HOST 1
#define RH_MEMORY_DEVICE 2 /* the CPU has none: UNSUPPORTED */

typedef struct rh_window_config {
  uint32_t struct_size;
  uint32_t struct_version;
  int32_t memory; /* RH_MEMORY_... */
  uint32_t reserved;
} rh_window_config;
#define RH_WINDOW_CONFIG_INIT {sizeof(rh_window_config), 1, RH_MEMORY_DEFAULT, 0}

/* Collective, every rank with the same bytes and config (NULL: the defaults): memory at the same offset of every rank's heap, zeroed.
 * It never moves; allocating more never changes an address. Errors: OUT_OF_MEMORY (no rank keeps anything), MISMATCH, TIMEOUT,
 * UNSUPPORTED (memory that the device does not have). */
rh_result rh_window_alloc(rh_comm *comm, size_t bytes, const rh_window_config *config, rh_window **window);

/* Collective. The pages go back to the machine once every rank has called it. The handle is invalid afterwards, whatever
 * the result; after a failure the pages stay until the comm is finalized. BUSY, with nothing done and the handle valid: calls of
 * captured graphs, or of a group that has not ended, use it. */
rh_result rh_window_free(rh_window *window);

/* Where this process sees rank's part of the window. Valid until the window is freed or the comm finalized.
 * Errors: UNSUPPORTED (another rank's part of a staged window: see rh_window_register). */
rh_result rh_window_pointer(rh_window *window, int32_t rank, void **pointer);

typedef struct rh_window_info {
  uint32_t struct_size;
  uint32_t struct_version;
  uint64_t bytes;  /* as asked for */
  uint64_t offset; /* in every rank's heap; 0 for registered memory */
  int32_t memory;  /* RH_MEMORY_HOST or RH_MEMORY_DEVICE */
  uint32_t reserved;
} rh_window_info;
#define RH_WINDOW_INFO_INIT {sizeof(rh_window_info), 1, 0, 0, 0, 0}
rh_result rh_window_get_info(rh_window *window, rh_window_info *info);

/* Collective: makes a window of memory that the caller owns; each rank gives its own, all with the same bytes. It is shared
 * with the other ranks where it can be:
 *  - fd >= 0: pointer is mapped MAP_SHARED from fd at fd_offset (a multiple of the page size); the library duplicates fd;
 *  - fd < 0: the library looks whether pointer lies in a shared mapping of a memfd that this process has open or may open.
 * A memfd (memfd_create with MFD_ALLOW_SEALING) is sealed against shrinking, so that nobody can cut it short beneath the
 * others; it can still grow. Files of /dev/shm and of other file systems have no such seal.
 * Where one rank's memory cannot be shared (malloc, a private mapping, a file that may be cut short), the window is staged on
 * all ranks: collectives copy as for any buffer. rh_window_get_sharing says so, and why. The memory must stay mapped until
 * rh_window_free, which leaves it to the caller.
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
 * Common to all: every rank of the comm calls the same operation in the same order, with the same count, dtype, op and root.
 * Where they do not, all ranks get RH_ERR_MISMATCH, with both calls in the message, at the latest in the next operation that
 * involves everybody (which is then the one in the message). count is in elements; any count (0 too), any alignment. In place
 * as each says, no other overlap of send and recv.
 * On the CPU stream must be NULL, and the call returns when its result is complete. A device with streams (no library has one yet)
 * runs the call later, in the order of stream, or, where stream is captured into a graph, with each launch of that. Buffers must
 * live as long. A failure then breaks the group: later calls and rh_comm_get_status say why. One stream at a time may run calls of a
 * comm. A window that a captured call uses is not freed (BUSY); other memory is the caller's to keep. A graph that outlives its comm
 * keeps the comm's mappings, and its launches do nothing but fail.
 * Errors: INVALID_ARGUMENT, INVALID_HANDLE, UNSUPPORTED, BUSY, MISMATCH, PROTOCOL (a rank offered memory that it does not have), and
 * the cause of a broken group (RANK_DEAD, TIMEOUT, ABORTED; BUSY: two streams at once). */

/* recv[i] = reduction over ranks of send[i]. In place: send == recv. Where send and recv of every rank lie in windows, large
 * ones are zero-copy; the result is the same. Every rank gets the same bits: contributions are added in rank order within each
 * reduce_group consecutive ranks, then group by group, in f32 (f64, integers: in dtype), and rounded to dtype once. Only a tree that $RAILHEAD_ALGO
 * forces, and a forced ring of a comm that is not reproducible, add in an order of their own, the same on all ranks. */
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

/* recv[i] = root's send[i]. send is of no meaning on other ranks and may be NULL there. In place: send == recv. */
rh_result rh_broadcast(const void *send, void *recv, size_t count, rh_dtype dtype, int32_t root, rh_comm *comm,
                       void *stream);

/* On root: recv[i] = reduction over ranks of send[i], in the order of rh_all_reduce. recv is of no meaning on other ranks and
 * may be NULL there. In place: send == recv. */
rh_result rh_reduce(const void *send, void *recv, size_t count, rh_dtype dtype, rh_op op, int32_t root, rh_comm *comm,
                    void *stream);

/* On root: recv[r * count + i] = rank r's send[i]. recv may be NULL elsewhere. In place on root: send == recv + root * count
 * elements. */
rh_result rh_gather(const void *send, void *recv, size_t count, rh_dtype dtype, int32_t root, rh_comm *comm, void *stream);

/* recv[i] = root's send[rank * count + i]. send may be NULL elsewhere. In place on root: recv == send + root * count
 * elements. */
rh_result rh_scatter(const void *send, void *recv, size_t count, rh_dtype dtype, int32_t root, rh_comm *comm, void *stream);

/* count elements to, or from, rank peer; the peer makes the matching call with the same count and dtype. Calls between two
 * ranks match in their order. A small message may leave before the peer has called rh_recv, a large one waits for it:
 * rh_reduce, rh_gather and rh_scatter count as calls between the root and each rank: what was sent before must be received
 * before. Between rh_group_start and rh_group_end any number go at the same time, in both directions. A rank may send to itself
 * within a group.
 * Errors: MISMATCH (count or dtype differ). */
rh_result rh_send(const void *send, size_t count, rh_dtype dtype, int32_t peer, rh_comm *comm, void *stream);
rh_result rh_recv(void *recv, size_t count, rh_dtype dtype, int32_t peer, rh_comm *comm, void *stream);

/* Returns when every rank has called it; what a rank wrote to windows before is visible to all after. */
rh_result rh_barrier(rh_comm *comm, void *stream);

/* Collectives, sends and receives that this thread calls between the two are only noted; rh_group_end runs them: of each comm
 * first all sends and receives, at the same time, then the collectives in their order. Several comms progress at the same
 * time (each but the first on a thread that is made for it), so one thread may drive several ranks. Groups nest; the outer
 * end runs them.
 * A call that is wrong returns its error at once, and the rh_group_end of that group runs nothing and returns that error.
 * Buffers must stay until rh_group_end. A comm of the group that another thread is in: BUSY, and nothing is run. While calls
 * of a comm are noted it cannot be finalized and its windows cannot be freed: BUSY. At most 4096 calls: LIMIT. Where there is no
 * thread to be had nothing is run: SYSTEM. Set-up calls (init, windows) run at once also within a group; rh_comm_split is refused
 * there. */
rh_result rh_group_start(void);
rh_result rh_group_end(void);

/* A sum of contributions that each rank multiplies by its own scalar first; the product is rounded to dtype (integers wrap).
 * *scalar is a float for RH_F32, RH_F16, RH_BF16 and FP8, a double for RH_F64, else one element of dtype. The op belongs to
 * this comm and dtype and ends with the comm or by rh_op_destroy. At most 64 of a comm: LIMIT. */
rh_result rh_op_create_pre_mul_sum(rh_comm *comm, rh_dtype dtype, const void *scalar, rh_op *op);
rh_result rh_op_destroy(rh_comm *comm, rh_op op);

/* ---- Mixture of experts: dispatch and combine (data path) ----
 *
 * Expert parallelism: every rank has tokens, a router has chosen experts for each, and the experts are spread over the ranks.
 * rh_ep_dispatch brings each token to the ranks that hold its experts, once a rank whatever the number of experts there, and
 * groups what a rank receives by its local experts. rh_ep_combine brings the experts' outputs back and adds them.
 *
 * Experts: num_experts logical ones (what topk_idx names) are held as num_physical physical ones, so that a busy expert can have
 * replicas. physical_expert[p] says of which logical expert p is one, physical_rank[p] where it lies. Without these tables every
 * expert is held once, and rank r holds a block of num_physical / world_size consecutive ones, the first (num_physical %
 * world_size) ranks one more. The local experts of a rank are its physical ones in ascending order. Of several replicas a token
 * takes the first one on its own rank, else number (rank + token) % replicas, in ascending order of p.
 *
 * Order of additions, the same on every run: the rank that holds a token's experts adds weight * y over its own experts in the
 * order in which they stand in the token's topk_idx, in f32, product and sum rounded each, and rounds the sum to combine_dtype;
 * the token's rank adds these partial sums in ascending order of ranks in f32, then `add`, and rounds to out_dtype once. The same
 * holds for experts of the token's own rank.
 *
 * Two modes: RH_EP_LL (decode) has room for the worst case, max_tokens_per_rank tokens from each rank; a send phase never waits
 * for the receiver of the same dispatch. RH_EP_HT (prefill) has room for a few chunks; counts go first, so sizes are known early,
 * and a dispatch moves in chunks during both phases, in both directions at once.
 *
 * Every rank of the comm makes the same calls in the same order; a rank with no tokens too. Dispatches are received in the order
 * in which they were sent, and so are combines; the combine of an earlier dispatch comes before that of a later one. At most two
 * dispatches of a buffer are in flight: sent, and neither combined nor released. */

#define RH_EP_LL 1
#define RH_EP_HT 2

#define RH_EP_MAX_EXPERTS 2048u     /* physical ones */
#define RH_EP_MAX_TOPK 64u
#define RH_EP_MAX_HIDDEN 65536u
#define RH_EP_MAX_TOKENS 1048576u   /* max_tokens_per_rank */
#define RH_EP_SCALE_BLOCK 128u      /* elements that share a scale; the last block of a row may be shorter */

/* Scales of wire_dtype RH_FP8_E4M3. Of a block, amax = max |x|, at least 1e-4:
 *  F32     scale = amax / 448; a value travels as e4m3(x * (448 / amax))
 *  UE8M0   scale = 2^ceil(log2(amax / 448)), as a byte: the exponent + 127; a value travels as e4m3(x / scale)
 *  STATIC  scale = static_scale for all of x; nothing travels; a value travels as e4m3(x / static_scale), saturating at 448 */
#define RH_EP_SCALE_F32 0
#define RH_EP_SCALE_UE8M0 1
#define RH_EP_SCALE_STATIC 2

/* What happens to invalid input: a topk_idx that is neither -1 nor below num_experts, an expert named twice by a token, tokens
 * beyond max_tokens_per_rank, NaN or infinity in a token of an FP8 wire, and on the receiver rows beyond an expert's capacity (PADDED).
 *  ERROR  RH_ERR_INVALID_ARGUMENT (capacity: RH_ERR_LIMIT); nothing was sent (capacity: nothing was taken), so the call can be made again
 *  DROP   the entry, its second occurrence, the token or the row takes no part; the report counts and names the first of each */
#define RH_EP_INVALID_ERROR 0
#define RH_EP_INVALID_DROP 1

/* What happens when a rank dies, or misses the deadline of a wait, within a dispatch or combine.
 *  FAIL  the group is broken for all ranks, as in every other operation
 *  DROP  the rank is masked: this rank neither waits for it nor sends to it again, in this buffer. What its experts would have
 *        contributed is missing. The report says which ranks, and how many token copies were lost. Other collectives of the comm
 *        return RH_ERR_RANK_DEAD as ever, rh_ep_create and rh_ep_destroy too. A death is noticed in milliseconds; a rank that is
 *        late because it waits for another one itself has four deadlines. One that was masked and comes back masks the others, and
 *        goes on alone. An abort, a mismatch, or a deadline of another operation breaks the group as with FAIL, but where a
 *        death has broken it before: survivors who are to stop tell each other so. */
#define RH_EP_DEAD_FAIL 0
#define RH_EP_DEAD_DROP 1

/* What becomes of the other weights of a token that lost some: KEEP them, or RENORMALIZE: the token's sum is multiplied by (sum
 * of all its weights) / (sum of those not lost), before `add`. A token that lost all of them gets 0 in either case. */
#define RH_EP_LOST_KEEP 0
#define RH_EP_LOST_RENORMALIZE 1

/* Streams. On the CPU `stream` is NULL, and every call returns when it has run. On a device with streams (no library has one yet) a
 * call is queued, or captured into a graph, and runs later, in the order of the stream. Calls of one buffer that are on two streams
 * are ordered by the caller, with an event.
 *  - What a call has to know of the buffer lies in the buffer's memory, and is read when the call runs: which dispatch a handle means, how
 *    far that has come, which slot is next, the number of the dispatch. So a graph can be launched any number of times, an odd one too, in
 *    any mix with other calls, and a dispatch may stay in flight from one launch to the next.
 *  - A call returns RH_OK once it is queued. What it finds when it runs is in its report, `result` first. A call that is refused then (out of
 *    order, a third dispatch in flight, invalid input, too little room) does nothing and breaks nothing; but the other ranks wait for a
 *    dispatch that was refused, until their deadline. With RH_EP_INVALID_DROP no input is refused.
 *  - Results are written when the call runs: the arrays, rows_ptr and tokens_ptr, counts and tokens of rh_ep_dispatch_counts, and reports. A
 *    report lies in memory that the host can reach; a device that makes no text leaves `message` empty, and rh_ep_get_report has it. `rows`
 *    and `tokens` of rh_ep_dispatch_out are not written.
 *  - The handle of a captured dispatch lives until the last graph with a call on it is destroyed; any number of graphs may use it. Every
 *    other handle ends with the call of rh_ep_combine, rh_ep_combine_recv or rh_ep_release, and no call on it can be captured.
 *  - A buffer, or a routing, that a graph uses is not destroyed (BUSY).
 * DeepEP's terms: previous_event is a wait of the stream for an event before the call. async_finish is an event recorded behind the call.
 * return_recv_hook is the call of rh_ep_dispatch_recv or rh_ep_combine_recv, whenever the caller makes it. The handle of a cached
 * dispatch is an rh_ep_routing. num_worst_tokens, which spares the host its wait for counts, is a capacity that is always enough
 * (RH_EP_PADDED says which), without rh_ep_dispatch_counts. */

typedef struct rh_ep rh_ep;
typedef struct rh_ep_handle rh_ep_handle;

/* The same on every rank. */
typedef struct rh_ep_config {
  uint32_t struct_size;
  uint32_t struct_version;
  uint32_t mode;                  /* RH_EP_LL or RH_EP_HT */
  uint32_t max_tokens_per_rank;
  uint32_t hidden;                /* elements of a token */
  uint32_t num_experts;           /* logical */
  uint32_t topk;                  /* experts of a token */
  uint32_t num_physical;          /* 0: num_experts */
  const int32_t *physical_expert; /* [num_physical]; NULL: expert p (num_physical must be num_experts) */
  const int32_t *physical_rank;   /* [num_physical]; NULL: in blocks, see above */
  rh_dtype dtype;                 /* of x: RH_F32, RH_BF16, RH_F16, or RH_FP8_E4M3 with x_scales (then wire_dtype is that too) */
  rh_dtype wire_dtype;            /* of dispatched tokens: RH_F32, RH_BF16, RH_F16 or RH_FP8_E4M3 */
  rh_dtype combine_dtype;         /* of partial sums on their way back: RH_F32, RH_BF16 or RH_F16 */
  uint32_t scale_format;          /* RH_EP_SCALE_... */
  float static_scale;
  uint32_t on_invalid;            /* RH_EP_INVALID_... */
  uint32_t on_dead;               /* RH_EP_DEAD_... */
  uint32_t lost_weights;          /* RH_EP_LOST_... */
} rh_ep_config;
#define RH_EP_CONFIG_INIT {sizeof(rh_ep_config), 1, RH_EP_LL, 0, 0, 0, 0, 0, NULL, NULL, RH_BF16, RH_BF16, RH_BF16, 0, 0.0f, 0, 0, 0}

/* Window memory that rh_ep_create takes of each rank's heap, to the byte. The caller's outputs and the library's private memory
 * (rh_ep_info.private_bytes) come on top. Errors: INVALID_ARGUMENT. */
rh_result rh_ep_buffer_size(const rh_ep_config *config, int32_t world_size, uint64_t *bytes);

/* Collective. Errors: INVALID_ARGUMENT (nothing was done), MISMATCH (names the first field in which the ranks' configs differ), and
 * those of rh_window_alloc. */
rh_result rh_ep_create(rh_comm *comm, const rh_ep_config *config, rh_ep **ep);

/* Collective: gives the window back. Ends handles that are still open. The handle is invalid afterwards, whatever the result: where
 * the group is broken, its cause, at once. A comm that is finalized ends its buffers by itself. */
rh_result rh_ep_destroy(rh_ep *ep);

typedef struct rh_ep_info {
  uint32_t struct_size;
  uint32_t struct_version;
  uint32_t local_experts;    /* of this rank */
  uint32_t num_physical;
  uint32_t max_local_experts; /* over the ranks */
  uint32_t scale_columns;    /* scales of a row: ceil(hidden / 128), 0 without */
  uint64_t buffer_bytes;     /* as rh_ep_buffer_size */
  uint64_t private_bytes;    /* of this process, malloc */
  int32_t masked_count;      /* ranks that are masked: see rh_ep_get_masked */
  int32_t reserved;
} rh_ep_info;
#define RH_EP_INFO_INIT {sizeof(rh_ep_info), 1, 0, 0, 0, 0, 0, 0, 0, 0}
rh_result rh_ep_get_info(rh_ep *ep, rh_ep_info *info);

/* The ranks that take no part any more. */
rh_result rh_ep_get_masked(rh_ep *ep, int32_t *ranks, int32_t capacity, int32_t *count);

/* Masks a rank in this buffer for good, whatever on_dead says: every other rank calls it between the same two dispatches. The
 * masked rank dispatches no more, and combines nothing: what it has received it releases. In other calls of the comm, rh_ep_destroy
 * too, it takes part as before. */
rh_result rh_ep_mask_rank(rh_ep *ep, int32_t rank);

/* What came of a dispatch or a combine; all counts are zero where everything went as asked. */
typedef struct rh_ep_report {
  uint32_t struct_size;
  uint32_t struct_version;
  rh_result result;          /* what the call returned, or would have returned had it not run later */
  uint32_t dispatch;         /* its number among the dispatches of this buffer, from 1, counted as they run: by a replay too; 0 = none began */
  uint64_t rows;             /* of a dispatch, as in rh_ep_dispatch_out; of a combine 0 */
  uint64_t tokens;           /* as rows */
  int32_t *lost_ranks;       /* input: the caller's array for the ranks that are masked or dead, or were late; NULL: not wanted */
  int32_t lost_capacity;     /* input: of lost_ranks */
  int32_t lost_count;        /* of all these ranks */
  uint64_t lost_copies;      /* token copies that did not reach, or did not come back from, these ranks */
  uint64_t invalid_ids;      /* entries of topk_idx */
  uint64_t duplicate_ids;
  uint64_t excess_tokens;    /* beyond max_tokens_per_rank */
  uint64_t non_finite;       /* tokens */
  uint64_t over_capacity;    /* rows, on the receiver */
  char message[256];         /* the first of each: rank, token, value; "" where there is none */
} rh_ep_report;
#define RH_EP_REPORT_INIT {sizeof(rh_ep_report), 1, RH_OK, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* A routing that was checked once: what topk_idx, topk_weights and num_tokens of a dispatch come to. */
typedef struct rh_ep_routing rh_ep_routing;

typedef struct rh_ep_dispatch_in {
  uint32_t struct_size;
  uint32_t struct_version;
  const void *x;             /* [num_tokens, hidden] of dtype */
  const void *x_scales;      /* dtype RH_FP8_E4M3 and not STATIC: [num_tokens, scale_columns], float or UE8M0 bytes; else NULL */
  const void *topk_idx;      /* [num_tokens, topk]; -1 = none */
  const float *topk_weights; /* [num_tokens, topk]; NULL: all 1 */
  uint32_t num_tokens;
  uint32_t hidden;           /* must be the config's */
  rh_dtype idx_dtype;        /* RH_I32 or RH_I64 */
  uint32_t reserved;
  rh_ep_routing *routing;    /* in place of topk_idx and topk_weights, which then are NULL; NULL: those */
} rh_ep_dispatch_in;
#define RH_EP_DISPATCH_IN_INIT {sizeof(rh_ep_dispatch_in), 1, NULL, NULL, NULL, NULL, 0, 0, RH_I64, 0, NULL}

/* Cached routing: copies and checks topk_idx and topk_weights, and finds each token's place, so that any number of dispatches of the
 * same tokens to the same experts (the layers of a backward pass, say) cost neither. x is not looked at. A dispatch with it gives the
 * same bytes as one with its topk_idx. It lives until it is destroyed, or its buffer is.
 * Errors: INVALID_ARGUMENT (invalid input with RH_EP_INVALID_ERROR too), LIMIT (1024 of a process), OUT_OF_MEMORY. */
rh_result rh_ep_routing_create(rh_ep *ep, const rh_ep_dispatch_in *in, rh_ep_routing **routing, void *stream);

/* BUSY while a dispatch with it is in flight, or a graph has captured one. */
rh_result rh_ep_routing_destroy(rh_ep_routing *routing);

/* How received tokens are laid out; "row" is one token for one local expert (TOKENS: for all of the rank's experts).
 *  PADDED  [local_experts, capacity, hidden]: expert e's rows begin at e * capacity
 *  FLAT    [capacity, hidden]: expert after expert; each block begins at a multiple of alignment rows
 *  TOKENS  [capacity, hidden]: each received token once, with its local experts in topk_idx (the caller adds over them itself)
 * Within an expert (TOKENS: within all) rows come in ascending order of rank, then of token. Rows behind an expert's last are not written.
 * Capacity that is always enough, with N = world_size * max_tokens_per_rank: PADDED and TOKENS N; FLAT N * min(topk, local_experts),
 * and (alignment - 1) * local_experts more. rh_ep_dispatch_counts says how much a dispatch takes.
 * Rows that a rank had counted when it died, and not sent, are 0, with source_rank and source_token -1; `tokens` is without them. */
#define RH_EP_PADDED 0
#define RH_EP_FLAT 1
#define RH_EP_TOKENS 2

typedef struct rh_ep_dispatch_out {
  uint32_t struct_size;
  uint32_t struct_version;
  uint32_t layout;           /* RH_EP_PADDED, ... */
  uint32_t alignment;        /* FLAT: in rows; 0 = 1 */
  uint64_t capacity;         /* rows: of each expert (PADDED), of all */
  void *x;                   /* of wire_dtype */
  void *scales;              /* [rows, scale_columns], float or UE8M0 bytes; NULL: not wanted */
  int32_t *counts;           /* [local_experts] rows of each expert; NULL: not wanted, as with all below */
  int64_t *offsets;          /* [local_experts + 1] where each expert's block begins, and the end; in rows */
  float *weights;            /* [rows] the router's (not TOKENS) */
  int32_t *source_rank;      /* [rows] */
  int32_t *source_token;     /* [rows] */
  int32_t *topk_idx;         /* TOKENS: [rows, topk] local experts in the token's order, then -1 */
  float *topk_weights;       /* TOKENS: [rows, topk] */
  uint64_t rows;             /* result: the end of the last block; TOKENS: tokens. Not on a device that runs later */
  uint64_t tokens;           /* result: token copies received, whatever the layout. As rows */
  rh_ep_report *report;      /* written to, in the order of the stream; NULL: not wanted */
  uint64_t *rows_ptr;        /* the same as rows, written in the order of the stream; NULL: not wanted */
  uint64_t *tokens_ptr;      /* the same as tokens */
} rh_ep_dispatch_out;
#define RH_EP_DISPATCH_OUT_INIT {sizeof(rh_ep_dispatch_out), 1, RH_EP_PADDED, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL}

/* Sends and receives. x, topk_idx and topk_weights stay unchanged until it returns. *handle lives until the combine ends, or
 * rh_ep_release. Zero tokens are fine.
 * Errors: INVALID_ARGUMENT, LIMIT (two dispatches in flight; capacity: the message says how many rows there are, and
 * rh_ep_dispatch_recv can be called again), and the cause of a broken group. */
rh_result rh_ep_dispatch(rh_ep *ep, const rh_ep_dispatch_in *in, rh_ep_dispatch_out *out, rh_ep_handle **handle, void *stream);

/* The same in two phases, so that the caller can compute in between. The buffers of `in` stay unchanged until recv has returned. */
rh_result rh_ep_dispatch_send(rh_ep *ep, const rh_ep_dispatch_in *in, rh_ep_handle **handle, void *stream);
rh_result rh_ep_dispatch_recv(rh_ep_handle *handle, rh_ep_dispatch_out *out, void *stream);

/* Between the two, where the caller wants to know sizes first: waits until they are known (HT: until every rank has called
 * send; LL: until every rank's tokens have come). counts has local_experts entries and may be NULL; *tokens is the number of
 * token copies, which is what TOKENS needs. rows of FLAT is the sum of counts, each rounded up to the alignment. */
rh_result rh_ep_dispatch_counts(rh_ep_handle *handle, int32_t *counts, uint64_t *tokens, void *stream);

typedef struct rh_ep_combine_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const void *y;             /* the experts' outputs, laid out as dispatch's x was: same rows, `hidden` elements of y_dtype */
  rh_dtype y_dtype;          /* RH_F32, RH_BF16 or RH_F16 */
  rh_dtype out_dtype;        /* of out and add: the same choice */
  uint32_t weighted;         /* 1: y has been multiplied by the weights already. TOKENS: always so */
  uint32_t reserved;
  const void *add;           /* [num_tokens, hidden], e.g. the shared expert's output; NULL: nothing. May be out */
  void *out;                 /* [num_tokens, hidden]: in the order of dispatch's x; 0 (or add) for a token without experts. Not y's memory: that
                              * is read while out is written */
} rh_ep_combine_args;
#define RH_EP_COMBINE_ARGS_INIT {sizeof(rh_ep_combine_args), 1, NULL, RH_BF16, RH_BF16, 0, 0, NULL, NULL}

/* Ends the handle where it succeeds. report may be NULL. Errors: INVALID_ARGUMENT, INVALID_HANDLE, and the cause of a broken group. */
rh_result rh_ep_combine(rh_ep_handle *handle, const rh_ep_combine_args *args, rh_ep_report *report, void *stream);

/* The same in two phases. The buffers of args, and out, belong to the library until recv has returned. */
rh_result rh_ep_combine_send(rh_ep_handle *handle, const rh_ep_combine_args *args, void *stream);
rh_result rh_ep_combine_recv(rh_ep_handle *handle, rh_ep_report *report, void *stream);

/* Ends a handle whose dispatch was received and that is not to be combined; on all ranks. */
rh_result rh_ep_release(rh_ep_handle *handle, void *stream);

/* The reports of a dispatch and of its combine, read later: waits until nothing of the comm runs any more, at most for its deadline.
 * handle: a dispatch's, of a captured one after any of its replays. NULL: the dispatch of the buffer that has ended last. Either report
 * may be NULL. Errors: INVALID_HANDLE, and TIMEOUT. */
rh_result rh_ep_get_report(rh_ep *ep, rh_ep_handle *handle, rh_ep_report *dispatched, rh_ep_report *combined);

/* How many token copies the routers of all ranks (total) and of this one (local) have sent to each physical expert, over all buffers of the
 * comm. Either may be NULL; both have `experts` entries. No other rank is asked: the counters lie in shared memory. */
rh_result rh_ep_get_load(rh_ep *ep, uint64_t *total, uint64_t *local, uint32_t experts);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_H_ */
