/* railhead.h - the C ABI of Railhead's client library.
 *
 * A process connects to the node's daemon (`railhead serve`), becomes one or several ranks of a group, and then talks
 * to the other ranks through shared memory. After set-up no call below marked "data path" involves the daemon, takes a
 * lock or allocates memory.
 *
 * Conventions
 *  - Every function returns an rh_result; RH_OK is 0. After a failure rh_last_error_message() says, for the calling
 *    thread, which rank, which operation, what happened and what to do. No call exits, throws or raises a signal.
 *  - Every wait has a deadline (timeout_ms); a group one of whose ranks dies or misses a deadline is broken for all its
 *    ranks: each call on it returns the same cause at once, until it is finalized and a new group is formed.
 *  - Structs begin with their own size and version: set both (RH_..._INIT does), the rest may stay 0 = default.
 *  - Sizes are bytes, times milliseconds, unless a name says otherwise.
 *  - Threads: different comms may be used from different threads at the same time. One comm belongs to one thread at a
 *    time; a second one gets RH_ERR_BUSY. rh_comm_abort and rh_comm_get_status may be called from any thread.
 *  - The library starts one thread a process, with all signals blocked; it sleeps unless the daemon has something to say.
 *  - A forked child has no handles: the parent's are invalid there. It may connect anew.
 *  - Handles are checked: one that was closed or finalized gives RH_ERR_INVALID_HANDLE, never a crash.
 */
#ifndef RAILHEAD_H_
#define RAILHEAD_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RH_VERSION_MAJOR 0
#define RH_VERSION_MINOR 1
#define RH_VERSION_PATCH 0

#define RH_MAX_WORLD_SIZE 64 /* ranks of a group on one node */

/* Results. The numbers never change. */
typedef enum rh_result {
  RH_OK = 0,
  RH_ERR_INVALID_ARGUMENT = 1,     /* nothing was done; the message names the argument */
  RH_ERR_INVALID_HANDLE = 2,       /* closed, finalized, or never a handle */
  RH_ERR_UNSUPPORTED = 3,          /* this build, kernel or device cannot do it */
  RH_ERR_OUT_OF_MEMORY = 4,        /* a heap is full, or the machine has no memory for its pages */
  RH_ERR_SYSTEM = 5,               /* a system call failed; the message has errno's text */
  RH_ERR_NO_DAEMON = 6,            /* nothing listens on the socket */
  RH_ERR_DAEMON_LOST = 7,          /* the daemon is gone; collectives go on, set-up calls need a new session */
  RH_ERR_VERSION_MISMATCH = 8,     /* client and daemon have no protocol version in common */
  RH_ERR_PERMISSION = 9,           /* the other end of the socket runs as another user */
  RH_ERR_PROTOCOL = 10,            /* the other end broke the protocol */
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
  RH_ERR_BUSY = 22                 /* another thread is inside a call on this comm */
} rh_result;

/* Element types. f32: IEEE binary32. bf16: its upper 16 bits. */
typedef enum rh_dtype { RH_F32 = 0, RH_BF16 = 1 } rh_dtype;

typedef enum rh_op { RH_SUM = 0 } rh_op;

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
 * before 5.16, or a seccomp filter), DAEMON_LOST (it hung up during the call), PROTOCOL, SYSTEM, LIMIT. */
rh_result rh_connect(const rh_session_config *config, rh_session **session);

/* Ends the session. Comms still open on it are left as if the process had died: the other ranks are told. An rh_comm_init
 * under way on it returns RH_ERR_DAEMON_LOST.
 * Errors: BUSY (a thread is inside a call on one of its comms; nothing was done). */
rh_result rh_close(rh_session *session);

/* ---- Comms: one rank of a group ---- */

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
} rh_comm_config;
#define RH_COMM_CONFIG_INIT {sizeof(rh_comm_config), 1, NULL, NULL, -1, -1, 0, 0, 0}

/* Joins a group and waits until all its ranks are there and have mapped each other's memory. A process may hold
 * several ranks; each needs a thread of its own inside this call.
 * Errors: RANK_MISSING (lists the ranks that did not come), WORLD_SIZE_MISMATCH, TOKEN_MISMATCH, RANK_TAKEN,
 * GROUP_BUSY, RANK_DEAD, DRAINING, OUT_OF_MEMORY, DAEMON_LOST, MISMATCH (configs differ), UNSUPPORTED (RAILHEAD_ISA). */
rh_result rh_comm_init(rh_session *session, const rh_comm_config *config, rh_comm **comm);

/* Collective: waits until every rank has called it, then gives everything back, windows too. On a broken group it
 * returns at once. The handle is invalid afterwards, whatever the result. */
rh_result rh_comm_finalize(rh_comm *comm);

/* Breaks the group: every rank's current and later calls return RH_ERR_ABORTED naming this rank. Any thread. */
rh_result rh_comm_abort(rh_comm *comm);

rh_result rh_comm_rank(rh_comm *comm, int32_t *rank);
rh_result rh_comm_world_size(rh_comm *comm, int32_t *world_size);

typedef struct rh_comm_status {
  uint32_t struct_size;
  uint32_t struct_version;
  rh_result result;      /* RH_OK while the group works, else why it is broken */
  int32_t rank;          /* this rank */
  int32_t culprit;       /* the rank that died, was late or aborted; -1 = none or not known */
  int32_t reporter;      /* the rank that noticed; -1 = the daemon */
  uint64_t operation;    /* count of operations this rank has begun on the comm */
  uint64_t bytes;        /* of the current (or, when broken, the interrupted) operation, per rank */
  uint64_t waiting_for;  /* bit r: this rank is (or was, when broken) waiting for rank r */
  char operation_name[32];         /* what this rank is (was) in: "all_reduce", ..., "none" */
  char culprit_operation_name[32]; /* what the culprit was in */
  char algorithm_name[16];         /* of the last all-reduce: "oneshot", "twoshot" or "pull"; "none" before the first */
  char message[512];               /* all of it as one sentence */
} rh_comm_status;
#define RH_COMM_STATUS_INIT {sizeof(rh_comm_status), 1, RH_OK, -1, -1, -1, 0, 0, 0, {0}, {0}, {0}, {0}}

/* What this rank is doing, or why the group is broken. Any thread. */
rh_result rh_comm_get_status(rh_comm *comm, rh_comm_status *status);

/* ---- Windows: symmetric memory ---- */

/* Collective, every rank with the same bytes: memory at the same offset of every rank's heap, zeroed. It never moves;
 * allocating more never changes an address. Errors: OUT_OF_MEMORY (no rank keeps anything), MISMATCH, TIMEOUT. */
rh_result rh_window_alloc(rh_comm *comm, size_t bytes, rh_window **window);

/* Collective. The pages go back to the machine once every rank has called it. The handle is invalid afterwards, whatever
 * the result; after a failure the pages stay until the comm is finalized. */
rh_result rh_window_free(rh_window *window);

/* Where this process sees rank's part of the window. Valid until the window is freed or the comm finalized. */
rh_result rh_window_pointer(rh_window *window, int32_t rank, void **pointer);

/* The window's size as asked for and its offset in every heap. Either output may be NULL. */
rh_result rh_window_info(rh_window *window, size_t *bytes, uint64_t *offset);

/* ---- Collectives (data path) ---- */

/* recv[i] = sum over ranks of send[i], count elements. Where send and recv of every rank lie in windows, large sums are
 * zero-copy; the result is the same. send == recv is allowed, partial overlap is not. Any count, any
 * alignment. Every rank gets the same bits: contributions are added in rank order within each reduce_group consecutive
 * ranks, then group by group, in f32, and rounded to dtype once.
 * stream must be NULL (CPU memory; the call returns when recv is complete).
 * Errors: INVALID_ARGUMENT, UNSUPPORTED, BUSY, and the cause of a broken group (RANK_DEAD, TIMEOUT, ABORTED). */
rh_result rh_all_reduce(const void *send, void *recv, size_t count, rh_dtype dtype, rh_op op, rh_comm *comm,
                        void *stream);

/* Returns when every rank has called it; what a rank wrote to windows before is visible to all after. */
rh_result rh_barrier(rh_comm *comm, void *stream);

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_H_ */
