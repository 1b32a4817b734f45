/* railhead_kv.h - KV-cache transfer between processes.
 *
 * An agent is a process of an engine with a name. It registers memory (regions), says where KV caches are in it, and lets other agents
 * read or write blocks of them: rh_kv_grant makes a reference, 48 bytes that the engine passes to the peer with its own messages. A peer
 * submits transfers by references; nothing is collective, agents come and go, and nobody else is disturbed.
 *
 * The bytes are moved by the proxy process of the node's daemon. rh_kv_submit, rh_kv_resume, rh_kv_cancel and rh_kv_notify append to a ring
 * in shared memory, rh_kv_poll and rh_kv_receive read rings; they make no system call unless the proxy sleeps, or rh_kv_poll waits, but for a
 * look at the socket, at most once a millisecond. The library has no thread for them. All other calls ask the proxy and wait for its answer.
 *
 * Every transfer ends, with one RH_KV_ENDED event: done (RH_OK: every byte is at its destination), or failed with a reason. From that
 * event on nothing uses its memory. A transfer that was cancelled or failed has moved some of its blocks, or parts of them: rh_kv_missing
 * lists what has not arrived, rh_kv_resume moves only that.
 *
 * Rights: a reference is valid for one reader (by its name), some blocks, reading or writing or both, for a time. Its owner's node checks
 * it for every piece of a transfer. Before an engine gives a block to another sequence it calls rh_kv_reuse: what was granted of the block
 * is stale from then on, a read that is under way fails with RH_ERR_STALE, and a write that is under way ends first (the block is the
 * engine's with the RH_KV_BLOCK_FREE event). So nobody gets the keys and values of another prompt.
 *
 * An agent ends with its process, its session or the proxy. Then its calls return RH_ERR_DAEMON_LOST, operations under way get
 * RH_KV_ENDED events with this result, and references to it are stale: destroy it and make another one.
 *
 * Any thread may call any function; calls of one agent wait for each other, rh_kv_poll only while it reads events. */
#ifndef RAILHEAD_KV_H_
#define RAILHEAD_KV_H_

#include "railhead.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define RH_KV_MAX_NAME 63u          /* bytes of a name: letters, digits and . _ - / : @ */
#define RH_KV_MAX_PAYLOAD 65536u    /* bytes of a notification */
#define RH_KV_MAX_OPERATIONS 4096u  /* of an agent, under way */
#define RH_KV_MAX_LIST 1000000u     /* entries of both lists of blocks of a transfer together */

typedef struct rh_kv_agent rh_kv_agent;

/* Structs of this header without struct_size are values, or elements of lists: they never change.
 *
 * Stands for granted blocks. It may be copied and sent anywhere; only the grant's reader can use it. */
typedef struct rh_kv_reference {
  uint8_t bytes[48];
} rh_kv_reference;

typedef struct rh_kv_agent_config {
  uint32_t struct_size;
  uint32_t struct_version;
  const char *name;
  uint32_t timeout_ms; /* for answers of the proxy; 0: $RAILHEAD_TIMEOUT_MS, else 30000 */
  uint32_t reserved;
} rh_kv_agent_config;
#define RH_KV_AGENT_CONFIG_INIT {sizeof(rh_kv_agent_config), 1, NULL, 0, 0}

/* Makes this process the agent of a name, which no other agent of the node has. A process may have several.
 * Errors: NAME_TAKEN, INVALID_ARGUMENT, DAEMON_LOST, LIMIT, SYSTEM. */
rh_result rh_kv_agent_create(rh_session *session, const rh_kv_agent_config *config, rh_kv_agent **agent);

/* Ends an agent. When it returns RH_OK, nothing uses its memory any more; memory of rh_kv_alloc is unmapped. The handle ends in any case. */
rh_result rh_kv_agent_destroy(rh_kv_agent *agent);

/* A number that no other agent, earlier or later, has. */
rh_result rh_kv_agent_incarnation(rh_kv_agent *agent, uint64_t *incarnation);

/* ---- Memory ---- */

/* Allocates zeroed memory that the proxy maps. Its pages are used when they are written. Ends with rh_kv_deregister or the agent. */
rh_result rh_kv_alloc(rh_kv_agent *agent, uint64_t bytes, void **memory, uint32_t *region);

/* Registers memory of this process that is a shared mapping of a memfd, such as a window of a comm; it stays mapped while it is registered.
 * UNSUPPORTED says why other memory cannot be. */
rh_result rh_kv_register(rh_kv_agent *agent, void *memory, uint64_t bytes, uint32_t *region);

/* Forgets a region. It returns when nothing uses the memory. Caches in the region end: what is granted of them is stale. */
rh_result rh_kv_deregister(rh_kv_agent *agent, uint32_t region);

/* ---- Caches ---- */

/* Which tensors a cache has. Dimensions are from the outermost to the innermost. `block` is the dimensions of a block, by the order. */
#define RH_KV_PARTS_FIRST 0u  /* one tensor for each layer: [parts, blocks, block] */
#define RH_KV_BLOCKS_FIRST 1u /* one for each layer: [blocks, parts, block] */
#define RH_KV_PARTS_APART 2u  /* one for each part of each layer: [blocks, block]; the parts of a layer follow each other */
#define RH_KV_ONE_TENSOR 3u   /* one: [blocks, layers, parts, block] */
#define RH_KV_STRIDED 4u      /* any: an entry of tensors for each part of each layer, where its block 0 begins; strides are given */

#define RH_KV_NHD 0u /* a block is [block_tokens, heads, head_dim] */
#define RH_KV_HND 1u /* a block is [heads, block_tokens, head_dim] */

typedef struct rh_kv_place {
  uint64_t offset; /* bytes, in the region */
  uint32_t region;
  uint32_t reserved;
} rh_kv_place;

typedef struct rh_kv_cache_config {
  uint32_t struct_size;
  uint32_t struct_version;
  uint32_t layers;       /* of this process */
  uint32_t parts;        /* 2: keys and values; 1: MLA's latent vectors */
  uint32_t blocks;       /* of each layer */
  uint32_t block_tokens; /* tokens of a block */
  uint32_t heads;        /* KV heads of this process; MLA has 1 */
  uint32_t head_dim;     /* elements of a head */
  rh_dtype dtype;        /* F32, F16, BF16, FP8_E4M3, FP8_E5M2; I8 and U8 are bytes, as FP8_E4M3 */
  uint32_t first_layer;  /* of the model: which one is layer 0 of this cache (pipeline stages) */
  uint32_t first_head;   /* of the model: which one is head 0 of this cache (tensor parallelism) */
  uint32_t form;
  uint32_t order;
  uint32_t num_tensors;
  const rh_kv_place *tensors; /* where each tensor begins */
  uint64_t block_stride;      /* bytes; STRIDED only, else 0 */
  uint64_t token_stride;
  uint64_t head_stride;
} rh_kv_cache_config;
#define RH_KV_CACHE_CONFIG_INIT {sizeof(rh_kv_cache_config), 1, 0, 2, 0, 0, 0, 0, RH_BF16, 0, 0, RH_KV_PARTS_FIRST, RH_KV_NHD, 0, NULL, 0, 0, 0}

/* Says where a KV cache is. Transfers go between caches of the same model: layers and heads that both sides have are moved, to where the
 * destination has them, whatever the sizes of blocks, orders and forms. dtypes are equal, or BF16 becomes FP8_E4M3. */
rh_result rh_kv_cache_create(rh_kv_agent *agent, const rh_kv_cache_config *config, uint32_t *cache);

/* Plain blocks, of any contents: a cache of one layer whose tokens are `granule` bytes. block_bytes is a multiple of granule, at most 65536
 * of them; granule is at most 65536. */
rh_result rh_kv_pool_create(rh_kv_agent *agent, uint32_t region, uint64_t offset, uint32_t blocks, uint64_t block_bytes, uint32_t granule, uint32_t *cache);

/* ---- Rights ---- */

#define RH_KV_READ 1u
#define RH_KV_WRITE 2u

/* Lets `reader` use blocks for ttl_ms. blocks == NULL and num_blocks == 0: all of the cache (at most 1048576). */
rh_result rh_kv_grant(rh_kv_agent *agent, uint32_t cache, const uint32_t *blocks, uint32_t num_blocks, uint32_t rights, uint64_t ttl_ms,
                      const char *reader, rh_kv_reference *reference);

/* Ends a grant. RH_KV_GRANT_ENDED comes when nobody writes by it any more. */
rh_result rh_kv_revoke(rh_kv_agent *agent, const rh_kv_reference *reference);

/* Uses blocks again: what was granted of them is stale. waiting: how many are still being written; RH_KV_BLOCK_FREE comes for each. */
rh_result rh_kv_reuse(rh_kv_agent *agent, uint32_t cache, const uint32_t *blocks, uint32_t num_blocks, uint32_t *waiting);

/* ---- Transfers ---- */

#define RH_KV_EACH_LAYER 1u /* RH_KV_LAYERS events */

typedef struct rh_kv_transfer {
  uint32_t struct_size;
  uint32_t struct_version;
  uint32_t op;            /* RH_KV_READ: from the peer's blocks into this agent's; RH_KV_WRITE: the reverse */
  uint32_t cache;         /* this agent's */
  const char *peer;       /* name of the agent that has granted */
  const rh_kv_reference *reference;
  const uint32_t *blocks; /* this agent's, of the sequence, in its order */
  uint32_t num_blocks;
  uint32_t num_places;
  const uint32_t *places; /* of the peer's blocks, in the grant's list, in the sequence's order; NULL: 0, 1, 2 ... */
  uint32_t token;         /* where the tokens begin in `blocks`, counted from the first one's start */
  uint32_t peer_token;    /* and in the peer's */
  uint32_t tokens;        /* 0: from `token` to the end of `blocks` */
  uint32_t first_layer;   /* of the model */
  uint32_t layers;        /* 0: all that both caches have */
  uint32_t priority;      /* 0 first to 3 last */
  uint32_t flags;         /* RH_KV_EACH_LAYER */
  float scale;            /* of BF16 to FP8_E4M3: what elements are divided by; else ignored */
  uint32_t timeout_ms;    /* 0: 30000 */
  uint32_t notification_bytes;
  const void *notification; /* that the peer gets when everything has arrived; NULL: none */
} rh_kv_transfer;
#define RH_KV_TRANSFER_INIT {sizeof(rh_kv_transfer), 1, RH_KV_READ, 0, NULL, NULL, NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 1, 0, 1.0f, 0, 0, NULL}

/* Submits a transfer; id names it in events. What is wrong with it is the result of its RH_KV_ENDED event, except:
 * Errors: INVALID_ARGUMENT (the struct itself), LIMIT (too many operations are under way, or the lists are too long), DAEMON_LOST. */
rh_result rh_kv_submit(rh_kv_agent *agent, const rh_kv_transfer *transfer, uint64_t *id);

/* Submits what is missing of one of the latest 256 transfers that have failed. */
rh_result rh_kv_resume(rh_kv_agent *agent, uint64_t failed, uint32_t timeout_ms, uint64_t *id);

/* Cancels a transfer. Its RH_KV_ENDED event says when nothing uses its memory, and whether it was done before. */
rh_result rh_kv_cancel(rh_kv_agent *agent, uint64_t id);

/* Sends a notification. Notifications of an agent for another one arrive once each, in order. */
rh_result rh_kv_notify(rh_kv_agent *agent, const char *peer, const void *payload, uint32_t bytes, uint64_t *id);

#define RH_KV_ENDED 1u       /* id, result, bytes, missing, text */
#define RH_KV_LAYERS 2u      /* id, layers: so many of the transfer's layers, the first ones, are complete */
#define RH_KV_GRANT_ENDED 3u /* grant, cache, reason */
#define RH_KV_BLOCK_FREE 4u  /* cache, block */

#define RH_KV_REVOKED 1u
#define RH_KV_EXPIRED 2u
#define RH_KV_READER_GONE 3u

typedef struct rh_kv_event {
  uint64_t id;
  uint32_t kind;
  rh_result result;
  uint32_t layers;
  uint32_t missing; /* pieces that have not arrived: rh_kv_missing lists them */
  uint64_t bytes;   /* that have arrived */
  uint64_t grant;   /* bytes 16 to 23 of its reference */
  uint32_t cache;
  uint32_t block;
  uint32_t reason;
  uint32_t reserved;
  uint64_t reserved1;
  char text[184];   /* why, and what to do */
  uint64_t reserved2;
} rh_kv_event;

/* Takes up to max events. Without any it waits up to timeout_ms for one; it returns early, with none, when a notification waits. */
rh_result rh_kv_poll(rh_kv_agent *agent, rh_kv_event *events, uint32_t max, uint32_t timeout_ms, uint32_t *count);

/* A descriptor for poll(2) or epoll, readable when rh_kv_poll or rh_kv_receive may have something. Valid until the agent ends.
 * rh_kv_arm is called before each wait; ready = 1: something is there already, do not wait. */
rh_result rh_kv_descriptor(rh_kv_agent *agent, int *fd);
rh_result rh_kv_arm(rh_kv_agent *agent, uint32_t *ready);

typedef struct rh_kv_notification {
  uint32_t struct_size;
  uint32_t struct_version;
  uint64_t incarnation; /* of the sender */
  uint64_t sequence;    /* of the sender's notifications for this agent, from 1 on */
  char sender[64];
  uint32_t bytes;       /* of the payload */
  uint32_t there;       /* 0: no notification waits, nothing else is set */
} rh_kv_notification;
#define RH_KV_NOTIFICATION_INIT {sizeof(rh_kv_notification), 1, 0, 0, {0}, 0, 0}

/* Takes the oldest notification that has arrived. If the payload is larger than size: LIMIT, header->bytes says how large, and it stays. */
rh_result rh_kv_receive(rh_kv_agent *agent, rh_kv_notification *header, void *payload, uint32_t size);

typedef struct rh_kv_piece {
  uint32_t layer;       /* of the model */
  uint32_t first_block; /* place in the transfer's `blocks` */
  uint32_t blocks;
  uint32_t reserved;
} rh_kv_piece;

/* Lists what has not arrived of one of the latest 256 transfers that have failed, from piece number `from` on. */
rh_result rh_kv_missing(rh_kv_agent *agent, uint64_t failed, uint32_t from, rh_kv_piece *pieces, uint32_t max, uint32_t *count);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_KV_H_ */
