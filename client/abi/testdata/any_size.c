/* Passes every struct of railhead.h with every struct_size, as callers with older and newer headers do. One rank.
 *
 * The test writes sizes.h: for each struct its size in version 1, and the size that the library knows. */
#include <stdint.h>

#include "check.h"
#include "sizes.h"

enum { BEYOND = 40, MEMORY = 8192, CANARY = 0xa5 };

static rh_session *session;
static rh_comm *comm;
static rh_window *window;
static rh_ep *ep;
static rh_kv_agent *agent;

static float x[4], rows[4], sums[4];
static const int32_t expert[1] = {0};

static rh_ep_dispatch_in tokens(void) {
  rh_ep_dispatch_in in = RH_EP_DISPATCH_IN_INIT;
  in.x = x;
  in.topk_idx = expert;
  in.num_tokens = 1;
  in.hidden = 4;
  in.idx_dtype = RH_I32;
  return in;
}

static rh_ep_dispatch_out room(void) {
  rh_ep_dispatch_out out = RH_EP_DISPATCH_OUT_INIT;
  out.capacity = 1;
  out.x = rows;
  return out;
}

static rh_ep_combine_args outputs(void) {
  rh_ep_combine_args args = RH_EP_COMBINE_ARGS_INIT;
  args.y = rows;
  args.y_dtype = args.out_dtype = RH_F32;
  args.out = sums;
  return args;
}

static rh_ep_handle *dispatched(void) {
  const rh_ep_dispatch_in in = tokens();
  rh_ep_dispatch_out out = room();
  rh_ep_handle *handle = NULL;
  OK(rh_ep_dispatch(ep, &in, &out, &handle, NULL));
  return handle;
}

static rh_ep_config shape(void) {
  rh_ep_config config = RH_EP_CONFIG_INIT;
  config.max_tokens_per_rank = 1;
  config.hidden = 4;
  config.num_experts = config.topk = 1;
  config.dtype = config.wire_dtype = config.combine_dtype = RH_F32;
  return config;
}

/* For each struct: fill_ sets valid contents, call_ passes it to the library and frees what the call creates. */

static void fill_session_config(void *s) { *(rh_session_config *)s = (rh_session_config)RH_SESSION_CONFIG_INIT; }
static rh_result call_session_config(void *s) {
  rh_session *made = NULL;
  const rh_result result = rh_connect(s, &made);
  if (result == RH_OK) OK(rh_close(made));
  return result;
}

static void fill_comm_config(void *s) { *(rh_comm_config *)s = comm_config("any size", 0, 1); }
static rh_result call_comm_config(void *s) {
  rh_comm *made = NULL;
  const rh_result result = rh_comm_init(session, s, &made);
  if (result == RH_OK) OK(rh_comm_finalize(made));
  return result;
}

static void fill_comm_status(void *s) { *(rh_comm_status *)s = (rh_comm_status)RH_COMM_STATUS_INIT; }
static rh_result call_comm_status(void *s) { return rh_comm_get_status(comm, s); }

static void fill_comm_info(void *s) { *(rh_comm_info *)s = (rh_comm_info)RH_COMM_INFO_INIT; }
static rh_result call_comm_info(void *s) { return rh_comm_get_info(comm, s); }

static void fill_window_config(void *s) { *(rh_window_config *)s = (rh_window_config)RH_WINDOW_CONFIG_INIT; }
static rh_result call_window_config(void *s) {
  rh_window *made = NULL;
  const rh_result result = rh_window_alloc(comm, 1, s, &made);
  if (result == RH_OK) OK(rh_window_free(made));
  return result;
}

static void fill_window_info(void *s) { *(rh_window_info *)s = (rh_window_info)RH_WINDOW_INFO_INIT; }
static rh_result call_window_info(void *s) { return rh_window_get_info(window, s); }

static void fill_choice(void *s) { *(rh_choice *)s = (rh_choice)RH_CHOICE_INIT; }
static rh_result call_choice(void *s) { return rh_comm_get_choice(comm, "all_reduce", 64, 0, s); }

static void fill_register_config(void *s) {
  rh_register_config config = RH_REGISTER_CONFIG_INIT;
  config.pointer = rows;
  config.bytes = sizeof rows;
  *(rh_register_config *)s = config;
}
static rh_result call_register_config(void *s) {
  rh_window *made = NULL;
  const rh_result result = rh_window_register(comm, s, &made);
  if (result == RH_OK) OK(rh_window_free(made));
  return result;
}

static void fill_window_sharing(void *s) { *(rh_window_sharing *)s = (rh_window_sharing)RH_WINDOW_SHARING_INIT; }
static rh_result call_window_sharing(void *s) { return rh_window_get_sharing(window, s); }

static void fill_ep_config(void *s) { *(rh_ep_config *)s = shape(); }
static rh_result call_ep_config(void *s) {
  uint64_t bytes;
  return rh_ep_buffer_size(s, 1, &bytes);
}

static void fill_ep_info(void *s) { *(rh_ep_info *)s = (rh_ep_info)RH_EP_INFO_INIT; }
static rh_result call_ep_info(void *s) { return rh_ep_get_info(ep, s); }

static void fill_ep_report(void *s) { *(rh_ep_report *)s = (rh_ep_report)RH_EP_REPORT_INIT; }
static rh_result call_ep_report(void *s) {
  const rh_ep_combine_args args = outputs();
  rh_ep_handle *handle = dispatched();
  const rh_result result = rh_ep_combine(handle, &args, s, NULL);
  if (result != RH_OK) OK(rh_ep_release(handle, NULL));
  return result;
}

static void fill_ep_dispatch_in(void *s) { *(rh_ep_dispatch_in *)s = tokens(); }
static rh_result call_ep_dispatch_in(void *s) {
  rh_ep_dispatch_out out = room();
  rh_ep_handle *handle = NULL;
  const rh_result result = rh_ep_dispatch(ep, s, &out, &handle, NULL);
  if (result == RH_OK) OK(rh_ep_release(handle, NULL));
  return result;
}

static void fill_ep_dispatch_out(void *s) { *(rh_ep_dispatch_out *)s = room(); }
static rh_result call_ep_dispatch_out(void *s) {
  const rh_ep_dispatch_in in = tokens();
  rh_ep_handle *handle = NULL;
  const rh_result result = rh_ep_dispatch(ep, &in, s, &handle, NULL);
  if (result == RH_OK) OK(rh_ep_release(handle, NULL));
  return result;
}

static void fill_ep_combine_args(void *s) { *(rh_ep_combine_args *)s = outputs(); }
static rh_result call_ep_combine_args(void *s) {
  rh_ep_handle *handle = dispatched();
  const rh_result result = rh_ep_combine(handle, s, NULL, NULL);
  if (result != RH_OK) OK(rh_ep_release(handle, NULL));
  return result;
}

static void fill_kv_agent_config(void *s) {
  rh_kv_agent_config config = RH_KV_AGENT_CONFIG_INIT;
  config.name = "any-size";
  *(rh_kv_agent_config *)s = config;
}
static rh_result call_kv_agent_config(void *s) {
  rh_kv_agent *made = NULL;
  const rh_result result = rh_kv_agent_create(session, s, &made);
  if (result == RH_OK) OK(rh_kv_agent_destroy(made));
  return result;
}

static void fill_kv_cache_config(void *s) {
  static rh_kv_place place;
  void *memory;
  if (place.region == 0) OK(rh_kv_alloc(agent, 4096, &memory, &place.region));
  rh_kv_cache_config config = RH_KV_CACHE_CONFIG_INIT;
  config.layers = config.parts = config.blocks = config.block_tokens = config.heads = config.head_dim = config.num_tensors = 1;
  config.tensors = &place;
  *(rh_kv_cache_config *)s = config;
}
static rh_result call_kv_cache_config(void *s) {
  uint32_t cache;
  return rh_kv_cache_create(agent, s, &cache);
}

static void fill_kv_transfer(void *s) {
  static const rh_kv_reference reference;
  static const uint32_t block[1] = {0};
  rh_kv_transfer transfer = RH_KV_TRANSFER_INIT;
  transfer.peer = "nobody";
  transfer.reference = &reference;
  transfer.blocks = block;
  transfer.num_blocks = transfer.tokens = 1;
  *(rh_kv_transfer *)s = transfer;
}
static rh_result call_kv_transfer(void *s) {
  uint64_t id;
  return rh_kv_submit(agent, s, &id);
}

static void fill_kv_notification(void *s) { *(rh_kv_notification *)s = (rh_kv_notification)RH_KV_NOTIFICATION_INIT; }
static rh_result call_kv_notification(void *s) { return rh_kv_receive(agent, s, NULL, 0); }

struct kind {
  const char *name;
  size_t size, version1, known;
  int reads, writes;
  size_t reserved;
  void (*fill)(void *);
  rh_result (*call)(void *);
};

/* reads, writes: whether the library does. reserved: offset of a 4-byte field that must be 0; 0 = none. */
#define KIND(name, reads, writes, reserved) \
  {#name, sizeof(rh_##name), VERSION1_rh_##name, KNOWN_rh_##name, reads, writes, reserved, fill_##name, call_##name}
#define RESERVED(name) offsetof(rh_##name, reserved)

static const struct kind kinds[] = {
    KIND(session_config, 1, 0, RESERVED(session_config)),
    KIND(comm_config, 1, 0, 0),
    KIND(comm_status, 0, 1, 0),
    KIND(comm_info, 0, 1, 0),
    KIND(choice, 0, 1, 0),
    KIND(window_config, 1, 0, RESERVED(window_config)),
    KIND(window_info, 0, 1, 0),
    KIND(register_config, 1, 0, RESERVED(register_config)),
    KIND(window_sharing, 0, 1, 0),
    KIND(ep_config, 1, 0, RESERVED(ep_config)),
    KIND(ep_info, 0, 1, 0),
    KIND(ep_report, 1, 1, 0),
    KIND(ep_dispatch_in, 1, 0, RESERVED(ep_dispatch_in)),
    KIND(ep_dispatch_out, 1, 1, 0),
    KIND(ep_combine_args, 1, 0, RESERVED(ep_combine_args)),
    KIND(kv_agent_config, 1, 0, RESERVED(kv_agent_config)),
    KIND(kv_cache_config, 1, 0, 0),
    KIND(kv_transfer, 1, 0, 0),
    KIND(kv_notification, 0, 1, 0),
};

/* Makes a caller's struct of that size with canaries behind it. Bytes that the library does not know are 0. If odd is not 0, the byte
 * there is 1. */
static void prepare(const struct kind *k, size_t size, size_t odd, unsigned char *memory) {
  union {
    unsigned char bytes[4096];
    uint64_t aligned;
  } filled;
  memset(&filled, 0, sizeof filled);
  k->fill(&filled);
  memset(memory, CANARY, MEMORY);
  memcpy(memory, &filled, size);
  const uint32_t header[2] = {(uint32_t)size, 1};
  memcpy(memory, header, sizeof header);
  if (odd != 0) memory[odd] = 1;
}

/* Checks that the library wrote no byte from offset first on. */
static void unchanged_from(const struct kind *k, size_t size, size_t first, const unsigned char *before, const unsigned char *after) {
  for (size_t i = first; i < MEMORY; i++) {
    if (before[i] == after[i]) continue;
    fprintf(stderr, "%s with struct_size %zu: byte %zu was written\n", k->name, size, i);
    abort();
  }
}

static void try(const struct kind *k, size_t size, size_t odd) {
  static _Alignas(16) unsigned char before[MEMORY], memory[MEMORY];
  prepare(k, size, odd, memory);
  memcpy(before, memory, MEMORY);
  const rh_result result = k->call(memory);
  const int taken = size >= k->version1 && (odd == 0 || !k->reads);
  if ((result == RH_OK) != taken) {
    fprintf(stderr, "%s with struct_size %zu of %zu, %zu known, byte %zu not 0: %s: %s\n", k->name, size, k->size, k->known, odd,
            rh_result_string(result), rh_last_error_message());
    abort();
  }
  if (!taken) {
    char word[48];
    snprintf(word, sizeof word, odd == 0 ? "struct_size %zu" : "not 0 at byte %zu", odd == 0 ? size : odd);
    check_result(result, RH_ERR_INVALID_ARGUMENT, word, odd == 0 ? "_INIT" : "Update librailhead", __FILE__, __LINE__, k->name);
  }
  const size_t writable = !taken || !k->writes ? 0 : size < k->known ? size : k->known;
  unchanged_from(k, size, writable, before, memory);
}

int main(void) {
  session = open_session();
  rh_comm_config config = comm_config("structs", 0, 1);
  config.heap_bytes = 1 << 24;
  OK(rh_comm_init(session, &config, &comm));
  OK(rh_window_alloc(comm, 1, NULL, &window));
  const rh_ep_config buffer = shape();
  OK(rh_ep_create(comm, &buffer, &ep));
  rh_kv_agent_config own = RH_KV_AGENT_CONFIG_INIT;
  own.name = "structs";
  OK(rh_kv_agent_create(session, &own, &agent));
  size_t tried = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    const struct kind *k = &kinds[i];
    const size_t longest = k->size > k->known ? k->size : k->known;
    for (size_t size = 0; size <= longest + BEYOND; size++, tried++) try(k, size, 0);
    for (size_t odd = k->known; odd < longest + BEYOND; odd++, tried++) try(k, longest + BEYOND, odd);
    for (size_t byte = 0; byte < 4 && k->reserved != 0; byte++) try(k, k->size, k->reserved + byte);
    try(k, 4096, 4095);
    try(k, 4096, 0);
  }
  printf("%zu structs, %zu sizes\n", sizeof kinds / sizeof *kinds, tried);
  OK(rh_kv_agent_destroy(agent));
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
  return 0;
}
