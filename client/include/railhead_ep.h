/* railhead_ep.h - Mixture of experts: dispatch and combine (data path).
 *
 * Expert parallelism: every rank has tokens, a router has chosen experts for each, and the experts are spread over the ranks.
 * rh_ep_dispatch sends each token to the ranks that hold its experts, one copy a rank whatever the number of its experts there, and
 * groups the received rows by local expert. rh_ep_combine sends the experts' outputs back and adds them.
 *
 * Experts: num_experts logical ones (what topk_idx names) are held as num_physical physical ones, so that a busy expert can have
 * replicas. physical_expert[p] is the logical expert of p, physical_rank[p] the rank that holds p. Without these tables every
 * expert is held once, and rank r holds a block of num_physical / world_size consecutive ones, the first (num_physical %
 * world_size) ranks one more. The local experts of a rank are its physical ones in ascending order. Of several replicas a token
 * uses the first one on its own rank, else replica (rank + token) % replicas, in ascending order of p.
 *
 * Order of additions, the same on every run: the rank that holds a token's experts adds weight * y over its own experts in the
 * order in which they stand in the token's topk_idx, in f32, product and sum rounded each, and rounds the sum to combine_dtype;
 * the token's rank adds these partial sums in ascending order of ranks in f32, then `add`, and rounds to out_dtype once. The same
 * holds for experts of the token's own rank. A NaN that is converted to another type on the wire, or that is a sum, becomes the type's one
 * NaN, as in reductions (rh_op).
 *
 * Two modes. RH_EP_LL (decode) has slots for the worst case, max_tokens_per_rank tokens from each rank; the send phase of dispatch n
 * blocks only on peers that have not received dispatch n - 2. RH_EP_HT (prefill) has slots for a few chunks; counts are sent first, so
 * sizes are known early, and chunks move during both phases, in both directions at once. On CUDA devices a send phase of RH_EP_HT sends
 * nothing but the counts of a dispatch; all else moves while ranks receive.
 *
 * Every rank of the comm makes the same calls in the same order, also a rank without tokens. Dispatches are received in the order in
 * which they were sent, and combined in that order. At most two dispatches of a buffer are in flight (sent, and neither combined nor
 * released). */
#ifndef RAILHEAD_EP_H_
#define RAILHEAD_EP_H_

#include "railhead.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define RH_EP_LL 1
#define RH_EP_HT 2

#define RH_EP_MAX_EXPERTS 2048u     /* physical ones */
#define RH_EP_MAX_TOPK 64u
#define RH_EP_MAX_HIDDEN 65536u
#define RH_EP_MAX_TOKENS 1048576u   /* max_tokens_per_rank */
#define RH_EP_SCALE_BLOCK 128u      /* elements that share a scale; the last block of a row may be shorter */

/* Scales of wire_dtype RH_FP8_E4M3. Of a block, amax = max |x|, at least 1e-4:
 *  F32     scale = amax / 448, sent as a float; a value is sent as e4m3(x * (448 / amax))
 *  UE8M0   scale = 2^ceil(log2(amax / 448)), sent as a byte, exponent + 127; a value is sent as e4m3(x / scale)
 *  STATIC  scale = static_scale for all of x, not sent; a value is sent as e4m3(x / static_scale), saturating at 448 */
#define RH_EP_SCALE_F32 0
#define RH_EP_SCALE_UE8M0 1
#define RH_EP_SCALE_STATIC 2

/* What happens to invalid input: a topk_idx that is neither -1 nor below num_experts, an expert named twice by a token, tokens
 * beyond max_tokens_per_rank, NaN or infinity in a token of an FP8 wire, and on the receiver rows beyond an expert's capacity (PADDED).
 *  ERROR  RH_ERR_INVALID_ARGUMENT (capacity: RH_ERR_LIMIT); nothing was sent (capacity: nothing was taken), so the call can be made again
 *  DROP   the entry, its second occurrence, the token or the row is left out; the report counts them and names the first of each kind */
#define RH_EP_INVALID_ERROR 0
#define RH_EP_INVALID_DROP 1

/* What happens when a rank dies, or misses the deadline of a wait, within a dispatch or combine.
 *  FAIL  the group is broken for all ranks, as in every other operation
 *  DROP  the rank is masked: in this buffer, this rank neither waits for it nor sends to it again. The contributions of its experts
 *        are missing; the report lists the ranks and counts the lost token copies. After a death other collectives of the comm,
 *        rh_ep_create and rh_ep_destroy return RH_ERR_RANK_DEAD. A death is noticed in milliseconds. A late rank that itself waits for
 *        another is masked after four deadlines. A masked rank that comes back masks the others and goes on alone. An abort, a
 *        mismatch, or a deadline of another operation breaks the group as with FAIL; but after a death rh_comm_abort does not reach
 *        the survivors: the application must tell them to stop. On CUDA devices, if an all-reduce or any other call but those of
 *        DROP buffers is running on this rank (in a stream or a replay) and finds the death, later dispatches of this rank return
 *        RH_ERR_RANK_DEAD too. The other survivors then mask this rank as late. */
#define RH_EP_DEAD_FAIL 0
#define RH_EP_DEAD_DROP 1

/* A token that lost some of its experts' contributions: KEEP leaves the sum as it is; RENORMALIZE multiplies it by (sum of all the token's
 * weights) / (sum of the weights that were not lost), before `add`. A token that lost all contributions gets 0 in either case. If so little weight is
 * left that the quotient overflows f32 (3.4e38), the token's result is not finite. */
#define RH_EP_LOST_KEEP 0
#define RH_EP_LOST_RENORMALIZE 1

/* Streams. On the CPU `stream` is NULL, and every call returns when it has run. On a device with streams a call is queued, or captured into a graph,
 * and runs later, in the order of the stream. Calls of one buffer that are on two streams are ordered by the caller, with an event.
 *
 * CUDA devices. x, the indices, the rows, y, out and all other arrays, rows_ptr, tokens_ptr, counts and tokens are memory of the device (or any that
 * it can access at that address). The buffer's window lies in the device heap. A cached routing takes addresses of the device heap too, and 2 MiB or
 * more of the rank's device memory. A rank's
 * counters (rh_ep_get_load, /metrics) are as of its last rh_ep_get_load or rh_ep_destroy. A report in
 * the order of the stream is written by a function of the host (cuLaunchHostFunc), during which the stream does nothing else;
 * rh_ep_get_report costs the stream nothing. rh_ep_get_info, rh_ep_get_masked, rh_ep_mask_rank and rh_ep_get_load copy from or to the
 * GPU. They return RH_ERR_TIMEOUT if that takes longer than the comm's timeout.
 *  - A call's buffers stay as the call describes until it has run, not only until it has returned. In two phases: until the receive phase has
 *    run, since RH_EP_HT reads x and y only then.
 *  - A call reads the buffer's state from the buffer's memory when it runs: the dispatch that a handle names, its phase, the next slot, the
 *    number of the dispatch. So a graph can be launched any number of times, odd or even, mixed with other calls, and a dispatch may stay
 *    in flight from one launch to the next.
 *  - A call returns RH_OK once it is queued. Its outcome is in its report (`result`). A call that is refused when it runs (out of order, a
 *    third dispatch in flight, invalid input, too little room) changes nothing and does not break the group; but the other ranks wait for
 *    a refused dispatch until their deadline. With RH_EP_INVALID_DROP no input is refused.
 *  - Results are written when the call runs: the arrays, rows_ptr and tokens_ptr, counts and tokens of rh_ep_dispatch_counts, and reports. A
 *    report must lie in memory that the host can read. `rows` and `tokens` of rh_ep_dispatch_out are not written.
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
  int32_t device_kind;            /* RH_DEVICE_... of the comm. Slots of RH_EP_HT are larger on a GPU than on the CPU */
  uint32_t reserved;              /* 0 */
} rh_ep_config;
#define RH_EP_CONFIG_INIT {sizeof(rh_ep_config), 1, RH_EP_LL, 0, 0, 0, 0, 0, NULL, NULL, RH_BF16, RH_BF16, RH_BF16, 0, 0.0f, 0, 0, 0, RH_DEVICE_CPU, 0}

/* The exact number of bytes that rh_ep_create takes from each rank's heap. The caller's outputs and the library's private memory
 * (rh_ep_info.private_bytes) are not included. Errors: INVALID_ARGUMENT. */
rh_result rh_ep_buffer_size(const rh_ep_config *config, int32_t world_size, uint64_t *bytes);

/* Collective. Errors: INVALID_ARGUMENT (nothing was done; also another device_kind than the comm's), MISMATCH (names the first field in
 * which the ranks' configs differ), and those of rh_window_alloc. */
rh_result rh_ep_create(rh_comm *comm, const rh_ep_config *config, rh_ep **ep);

/* Collective: frees the buffer's window and ends its open handles. The handle is invalid afterwards, whatever the result but BUSY (a live
 * graph uses the buffer). On a broken group it returns the cause at once. rh_comm_finalize destroys the comm's buffers. */
rh_result rh_ep_destroy(rh_ep *ep);

typedef struct rh_ep_info {
  uint32_t struct_size;
  uint32_t struct_version;
  uint32_t local_experts;    /* of this rank */
  uint32_t num_physical;
  uint32_t max_local_experts; /* over the ranks */
  uint32_t scale_columns;    /* scales of a row: ceil(hidden / 128), 0 without */
  uint64_t buffer_bytes;     /* as rh_ep_buffer_size */
  uint64_t private_bytes;    /* of this process, malloc; on a CUDA device also of its memory */
  int32_t masked_count;      /* ranks that are masked: see rh_ep_get_masked */
  int32_t reserved;
} rh_ep_info;
#define RH_EP_INFO_INIT {sizeof(rh_ep_info), 1, 0, 0, 0, 0, 0, 0, 0, 0}
rh_result rh_ep_get_info(rh_ep *ep, rh_ep_info *info);

/* The masked ranks. */
rh_result rh_ep_get_masked(rh_ep *ep, int32_t *ranks, int32_t capacity, int32_t *count);

/* Masks a rank in this buffer permanently, whatever on_dead says. Every other rank calls it between the same two dispatches. The
 * masked rank calls none after the first of these two, and combines no more in this buffer; it releases what it has received. It takes part
 * in all other calls of the comm, rh_ep_destroy included. */
rh_result rh_ep_mask_rank(rh_ep *ep, int32_t rank);

/* The outcome of a dispatch or a combine. All counts are zero if nothing was dropped or lost. */
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

/* A cached routing: the checked plan of a dispatch's topk_idx, topk_weights and num_tokens. */
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

/* Copies and checks topk_idx and topk_weights and computes each token's position, so that later dispatches with the same routing (the
 * layers of a backward pass, for example) skip both. x is ignored. A dispatch with a cached routing gives the same bytes as one with its
 * topk_idx. It lives until it or its buffer is destroyed. topk_idx and topk_weights are read when the call runs. On a device with streams it returns
 * before: a routing of invalid input with RH_EP_INVALID_ERROR is made, and each dispatch with it is refused when it runs.
 * Errors: INVALID_ARGUMENT (invalid input with RH_EP_INVALID_ERROR too), LIMIT (1024 of a process), OUT_OF_MEMORY. */
rh_result rh_ep_routing_create(rh_ep *ep, const rh_ep_dispatch_in *in, rh_ep_routing **routing, void *stream);

/* BUSY while a dispatch with it is in flight, or (after half a second) while a live graph has captured one. */
rh_result rh_ep_routing_destroy(rh_ep_routing *routing);

/* How received tokens are laid out; "row" is one token for one local expert (TOKENS: for all of the rank's experts).
 *  PADDED  [local_experts, capacity, hidden]: expert e's rows begin at e * capacity
 *  FLAT    [capacity, hidden]: expert after expert; each block begins at a multiple of alignment rows
 *  TOKENS  [capacity, hidden]: each received token once, with its local experts in topk_idx (the caller adds over them itself)
 * Within an expert (TOKENS: within all) rows are in ascending order of source rank, then of token. Rows behind an expert's last are not written.
 * Capacity that is always enough, with N = world_size * max_tokens_per_rank: PADDED and TOKENS N; FLAT N * min(topk, local_experts),
 * and (alignment - 1) * local_experts more. rh_ep_dispatch_counts says how much a dispatch takes.
 * Rows that a rank had announced in its counts but not sent before it died are 0, with source_rank and source_token -1; `tokens` does not
 * include them. */
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

/* Sends and receives. x, topk_idx and topk_weights stay unchanged until it returns, or, where it lacked capacity, until rh_ep_dispatch_recv
 * has received the dispatch. *handle lives until the combine ends, or rh_ep_release. Zero tokens are fine.
 * Errors: INVALID_ARGUMENT, LIMIT (two dispatches in flight; capacity: the message says how many rows there are, and
 * rh_ep_dispatch_recv can be called again), and the cause of a broken group.
 * With RH_EP_HT a rank that lacked capacity has sent only those of its rows that its send phase sends: on CUDA devices none. The other
 * ranks wait for the rest until this rank receives again, or their deadline ends the wait. */
rh_result rh_ep_dispatch(rh_ep *ep, const rh_ep_dispatch_in *in, rh_ep_dispatch_out *out, rh_ep_handle **handle, void *stream);

/* The same in two phases, so that the caller can compute in between. The buffers of `in` stay unchanged until recv has returned. */
rh_result rh_ep_dispatch_send(rh_ep *ep, const rh_ep_dispatch_in *in, rh_ep_handle **handle, void *stream);
rh_result rh_ep_dispatch_recv(rh_ep_handle *handle, rh_ep_dispatch_out *out, void *stream);

/* Between send and recv: waits until the sizes are known (HT: until every rank has called send; LL: until every rank's tokens have
 * arrived) and returns them. counts has local_experts entries and may be NULL. *tokens is the number of token copies, the capacity that
 * TOKENS needs; FLAT needs the sum of counts, each rounded up to the alignment. */
rh_result rh_ep_dispatch_counts(rh_ep_handle *handle, int32_t *counts, uint64_t *tokens, void *stream);

typedef struct rh_ep_combine_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const void *y;             /* the experts' outputs, laid out as dispatch's x was: same rows, `hidden` elements of y_dtype */
  rh_dtype y_dtype;          /* RH_F32, RH_BF16 or RH_F16 */
  rh_dtype out_dtype;        /* of out and add: the same choice */
  uint32_t weighted;         /* 1: y is already multiplied by the weights. TOKENS: always */
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

/* Ends the handle of a received dispatch without a combine. All ranks call it. */
rh_result rh_ep_release(rh_ep_handle *handle, void *stream);

/* Returns the reports of a dispatch and of its combine. It waits until no operation of the comm runs, at most for the comm's timeout.
 * handle: of the dispatch; of a captured dispatch it returns the latest replay's reports. NULL: the buffer's dispatch that ended last. On
 * CUDA devices that may be a dispatch of a graph. If the graph has begun it again since, `dispatched` is of the new replay. Either report
 * may be NULL. Errors: INVALID_HANDLE, TIMEOUT. */
rh_result rh_ep_get_report(rh_ep *ep, rh_ep_handle *handle, rh_ep_report *dispatched, rh_ep_report *combined);

/* How many token copies the routers of all ranks (total) and of this one (local) have sent to each physical expert, over all buffers of the
 * comm. Either may be NULL; both have `experts` entries. It waits for no rank. On the CPU it reads counters in shared
 * memory. On CUDA devices it first copies this rank's counters from the GPU, and `total` has the other ranks' counters as of their last
 * rh_ep_get_load or rh_ep_destroy. Errors: INVALID_ARGUMENT; on CUDA devices OUT_OF_MEMORY, TIMEOUT. */
rh_result rh_ep_get_load(rh_ep *ep, uint64_t *total, uint64_t *local, uint32_t experts);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif /* RAILHEAD_EP_H_ */
