/* side_railhead.c - Railhead's side, through its C ABI as any program uses it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "railhead_side.h"
#include "side.h"

const char *const side_rank_variables[] = {"RANK", NULL};
const int side_has_results = 1;
const int side_sends_sums = 1;

static const struct problem *p;
static rh_ep *ep;
static rh_ep_handle *handle;
static uint16_t *rows;
static uint64_t capacity;

void side_start(int *argc, char ***argv, int *rank, int *ranks) {
  (void)argc;
  (void)argv;
  join_group(rank, ranks);
}

/* MODE=ll or MODE=ht. Rows have room for what the problem's routing sends here, as on the other sides. */
void side_prepare(const struct problem *problem) {
  p = problem;
  const char *mode = getenv("MODE");
  rh_ep_config config = RH_EP_CONFIG_INIT;
  config.mode = mode != NULL && strcmp(mode, "ht") == 0 ? RH_EP_HT : RH_EP_LL;
  config.max_tokens_per_rank = (uint32_t)p->tokens;
  config.hidden = (uint32_t)p->hidden;
  config.num_experts = (uint32_t)p->experts;
  config.topk = (uint32_t)p->topk;
  must(rh_ep_create(comm, &config, &ep));
  for (int r = 0; r < p->ranks; r++) {
    for (int t = 0; t < p->tokens; t++) {
      const int32_t *idx = idx_of(p, r, t);
      for (int k = 0; k < p->topk; k++) capacity += idx[k] >= 0 && p->rank_of[idx[k]] == p->rank;
    }
  }
  rows = touched(capacity * row_bytes(p));
}

void side_barrier(void) { must(rh_barrier(comm, NULL)); }

const uint16_t *side_dispatch(const uint16_t *x, int tokens, size_t *count) {
  rh_ep_dispatch_in in = RH_EP_DISPATCH_IN_INIT;
  in.x = x;
  in.topk_idx = idx_of(p, p->rank, 0);
  in.topk_weights = weights_of(p, p->rank, 0);
  in.num_tokens = (uint32_t)tokens;
  in.hidden = (uint32_t)p->hidden;
  in.idx_dtype = RH_I32;
  rh_ep_dispatch_out out = {.struct_size = sizeof out, .struct_version = 1, .layout = RH_EP_FLAT, .capacity = capacity, .x = rows};
  must(rh_ep_dispatch(ep, &in, &out, &handle, NULL));
  *count = out.rows;
  return rows;
}

void side_combine(const uint16_t *y, uint16_t *out) {
  rh_ep_combine_args args = RH_EP_COMBINE_ARGS_INIT;
  args.y = y;
  args.out = out;
  must(rh_ep_combine(handle, &args, NULL, NULL));
}

void side_end(void) {
  must(rh_ep_destroy(ep));
  leave_group();
}
