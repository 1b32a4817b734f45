// Every argument that the calls of expert parallelism refuse. One rank, one thread. Memory is as large as stated, so that a sanitizer
// finds accesses beyond it.
#include <stdint.h>

#include <initializer_list>

#include "check.h"

namespace {

constexpr uint32_t kHidden = 5, kTokens = 3, kTopk = 2, kExperts = 4;

rh_ep_config small() {
  rh_ep_config config = RH_EP_CONFIG_INIT;
  config.max_tokens_per_rank = kTokens;
  config.hidden = kHidden;
  config.num_experts = kExperts;
  config.topk = kTopk;
  config.dtype = config.wire_dtype = config.combine_dtype = RH_F32;
  return config;
}

// Memory of a dispatch and its combine.
struct Memory {
  float x[kTokens * kHidden] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  int32_t idx[kTokens * kTopk] = {0, 1, -1, 3, 2, -1};
  float rows[kTokens * kTopk * kHidden] = {};
  float out[kTokens * kHidden] = {};

  rh_ep_dispatch_in in() {
    rh_ep_dispatch_in in = RH_EP_DISPATCH_IN_INIT;
    in.x = x;
    in.topk_idx = idx;
    in.num_tokens = kTokens;
    in.hidden = kHidden;
    in.idx_dtype = RH_I32;
    return in;
  }
  rh_ep_dispatch_out room() {
    rh_ep_dispatch_out room = RH_EP_DISPATCH_OUT_INIT;
    room.layout = RH_EP_FLAT;
    room.capacity = kTokens * kTopk;
    room.x = rows;
    return room;
  }
  rh_ep_combine_args sums() {
    rh_ep_combine_args sums = RH_EP_COMBINE_ARGS_INIT;
    sums.y = rows;
    sums.y_dtype = sums.out_dtype = RH_F32;
    sums.out = out;
    return sums;
  }
};

void sizes() {
  rh_ep_config config = small();
  uint64_t bytes = 1;
  FAILS(rh_ep_buffer_size(&config, 2, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_buffer_size", "bytes is NULL");
  FAILS(rh_ep_buffer_size(nullptr, 2, &bytes), RH_ERR_INVALID_ARGUMENT, "ep_buffer_size", "config is NULL");
  CHECK(bytes == 0);
  config.struct_size = 79;  // one byte less than in version 1
  FAILS(rh_ep_buffer_size(&config, 2, &bytes), RH_ERR_INVALID_ARGUMENT, "ep_buffer_size", "RH_EP_CONFIG_INIT");
  config = small();
  config.struct_version = 0;
  FAILS(rh_ep_buffer_size(&config, 2, &bytes), RH_ERR_INVALID_ARGUMENT, "version 0", "RH_EP_CONFIG_INIT");
  config = small();
  OK(rh_ep_buffer_size(&config, 2, &bytes));
  CHECK(bytes > 0);
}

void creating(rh_comm* comm) {
  rh_ep_config config = small();
  rh_ep* ep = reinterpret_cast<rh_ep*>(uintptr_t{1});
  FAILS(rh_ep_create(comm, &config, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_create", "ep is NULL");
  FAILS(rh_ep_create(comm, nullptr, &ep), RH_ERR_INVALID_ARGUMENT, "ep_create", "config is NULL");
  CHECK(ep == nullptr);
  FAILS(rh_ep_create(nullptr, &config, &ep), RH_ERR_INVALID_HANDLE, "ep_create", "");
  config.max_tokens_per_rank = RH_EP_MAX_TOKENS;
  config.hidden = RH_EP_MAX_HIDDEN;
  config.topk = 0;
  FAILS(rh_ep_create(comm, &config, &ep), RH_ERR_INVALID_ARGUMENT, "ep_create", "topk 0");
  OK(rh_group_start());
  config = small();
  FAILS(rh_ep_create(comm, &config, &ep), RH_ERR_INVALID_ARGUMENT, "ep_create", "between");
  FAILS(rh_group_end(), RH_ERR_INVALID_ARGUMENT, "nothing was run", "ep_create");
}

void asking(rh_ep* ep) {
  rh_ep_info info = RH_EP_INFO_INIT;
  FAILS(rh_ep_get_info(ep, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_get_info", "info is NULL");
  info.struct_size = 0;
  FAILS(rh_ep_get_info(ep, &info), RH_ERR_INVALID_ARGUMENT, "size 0", "RH_EP_INFO_INIT");
  info = RH_EP_INFO_INIT;
  OK(rh_ep_get_info(ep, &info));
  CHECK(info.local_experts == kExperts && info.num_physical == kExperts && info.scale_columns == 0 && info.masked_count == 0);
  int32_t ranks[1] = {-1}, count = -1;
  FAILS(rh_ep_get_masked(ep, ranks, 1, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_get_masked: rank 0", "count is NULL");
  FAILS(rh_ep_get_masked(ep, nullptr, 1, &count), RH_ERR_INVALID_ARGUMENT, "ep_get_masked: rank 0", "capacity 1");
  OK(rh_ep_get_masked(ep, ranks, 1, &count));
  CHECK(count == 0 && ranks[0] == -1);
  uint64_t load[kExperts];
  FAILS(rh_ep_get_load(ep, load, nullptr, kExperts - 1), RH_ERR_INVALID_ARGUMENT, "ep_get_load: rank 0", "4 physical");
  FAILS(rh_ep_get_load(ep, load, nullptr, kExperts + 1), RH_ERR_INVALID_ARGUMENT, "ep_get_load: rank 0", "5 experts");
  OK(rh_ep_get_load(ep, load, nullptr, kExperts));
  OK(rh_ep_get_load(ep, nullptr, load, kExperts));
  OK(rh_ep_get_load(ep, nullptr, nullptr, kExperts));
  for (int32_t rank : {-1, 0, 1, 64}) FAILS(rh_ep_mask_rank(ep, rank), RH_ERR_INVALID_ARGUMENT, "ep_mask_rank: rank 0", "cannot mask");
}

void dispatching(rh_ep* ep) {
  Memory m;
  rh_ep_handle* handle = reinterpret_cast<rh_ep_handle*>(uintptr_t{1});
  rh_ep_dispatch_out room = m.room();
  const auto refused = [&](const rh_ep_dispatch_in& in, const char* word) {
    FAILS(rh_ep_dispatch_send(ep, &in, &handle, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_dispatch_send", word);
    CHECK(handle == nullptr);
    FAILS(rh_ep_dispatch(ep, &in, &room, &handle, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_dispatch:", word);
    CHECK(handle == nullptr);
  };
  rh_ep_dispatch_in in = m.in();
  FAILS(rh_ep_dispatch_send(ep, nullptr, &handle, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_dispatch_send: rank 0", "in is NULL");
  CHECK(handle == nullptr);
  FAILS(rh_ep_dispatch_send(ep, &in, nullptr, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_dispatch_send", "handle is NULL");
  FAILS(rh_ep_dispatch(ep, &in, &room, nullptr, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_dispatch", "handle is NULL");
  FAILS(rh_ep_dispatch(ep, &in, nullptr, &handle, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_dispatch: rank 0", "out is NULL");
  in.struct_size = 8;
  refused(in, "RH_EP_DISPATCH_IN_INIT");
  in = m.in();
  in.struct_version = 0;
  refused(in, "version 0");
  in = m.in();
  in.x = nullptr;
  refused(in, "3 tokens and x is NULL");
  in = m.in();
  in.topk_idx = nullptr;
  refused(in, "topk_idx is NULL");
  in = m.in();
  in.hidden = kHidden + 1;
  refused(in, "hidden is 6");
  in = m.in();
  in.idx_dtype = RH_F32;
  refused(in, "idx_dtype f32");
  in = m.in();
  in.num_tokens = UINT32_MAX;  // tokens beyond max_tokens_per_rank are not read
  refused(in, "4294967295 tokens");
}

// A stream on a device without streams is refused.
void streaming(rh_ep* ep) {
  Memory m;
  void* stream = &m;
  const rh_ep_dispatch_in in = m.in();
  const rh_ep_combine_args sums = m.sums();
  rh_ep_dispatch_out room = m.room();
  rh_ep_handle* handle = nullptr;
  rh_ep_routing* routing = nullptr;
  FAILS(rh_ep_dispatch(ep, &in, &room, &handle, stream), RH_ERR_UNSUPPORTED, "ep_dispatch: rank 0", "pass NULL");
  FAILS(rh_ep_dispatch_send(ep, &in, &handle, stream), RH_ERR_UNSUPPORTED, "ep_dispatch_send", "CPU comm");
  FAILS(rh_ep_routing_create(ep, &in, &routing, stream), RH_ERR_UNSUPPORTED, "ep_routing_create", "CPU comm");
  CHECK(handle == nullptr && routing == nullptr);
  OK(rh_ep_dispatch_send(ep, &in, &handle, nullptr));
  FAILS(rh_ep_dispatch_counts(handle, nullptr, nullptr, stream), RH_ERR_UNSUPPORTED, "ep_dispatch_counts", "CPU comm");
  FAILS(rh_ep_dispatch_recv(handle, &room, stream), RH_ERR_UNSUPPORTED, "ep_dispatch_recv", "CPU comm");
  OK(rh_ep_dispatch_recv(handle, &room, nullptr));
  FAILS(rh_ep_combine(handle, &sums, nullptr, stream), RH_ERR_UNSUPPORTED, "ep_combine:", "CPU comm");
  FAILS(rh_ep_combine_send(handle, &sums, stream), RH_ERR_UNSUPPORTED, "ep_combine_send", "CPU comm");
  FAILS(rh_ep_combine_recv(handle, nullptr, stream), RH_ERR_UNSUPPORTED, "ep_combine_recv", "CPU comm");
  FAILS(rh_ep_release(handle, stream), RH_ERR_UNSUPPORTED, "ep_release", "CPU comm");
  OK(rh_ep_release(handle, nullptr));
}

void routings(rh_ep* ep) {
  Memory m;
  rh_ep_dispatch_in in = m.in();
  rh_ep_routing* routing = reinterpret_cast<rh_ep_routing*>(uintptr_t{1});
  FAILS(rh_ep_routing_create(ep, &in, nullptr, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_routing_create", "routing is NULL");
  FAILS(rh_ep_routing_create(ep, nullptr, &routing, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_routing_create: rank 0", "in is NULL");
  CHECK(routing == nullptr);
  in.topk_idx = nullptr;
  FAILS(rh_ep_routing_create(ep, &in, &routing, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_routing_create", "topk_idx is NULL");
  in = m.in();
  in.num_tokens = UINT32_MAX;
  FAILS(rh_ep_routing_create(ep, &in, &routing, nullptr), RH_ERR_INVALID_ARGUMENT, "4294967295 tokens", "no routing");
  in = m.in();
  in.x = nullptr;
  OK(rh_ep_routing_create(ep, &in, &routing, nullptr));
  in.routing = routing;
  rh_ep_routing* other = nullptr;
  FAILS(rh_ep_routing_create(ep, &in, &other, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_routing_create", "has a routing already");
  rh_ep_handle* handle = nullptr;
  FAILS(rh_ep_dispatch_send(ep, &in, &handle, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_dispatch_send", "topk_idx as well");
  in.topk_idx = nullptr;
  FAILS(rh_ep_dispatch_send(ep, &in, &handle, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_dispatch_send", "x is NULL");
  in.x = m.x;
  uint64_t rows = 0, tokens = 0;
  rh_ep_report report = RH_EP_REPORT_INIT;
  rh_ep_dispatch_out room = m.room();
  room.rows_ptr = &rows;
  room.tokens_ptr = &tokens;
  room.report = &report;
  OK(rh_ep_dispatch(ep, &in, &room, &handle, nullptr));
  CHECK(rows == 4 && rows == room.rows && tokens == 3 && tokens == room.tokens);
  CHECK(report.result == RH_OK && report.dispatch > 0 && report.rows == rows && report.tokens == tokens);
  FAILS(rh_ep_routing_destroy(routing), RH_ERR_BUSY, "ep_routing_destroy: rank 0", "in flight");
  rh_ep_report dispatched = RH_EP_REPORT_INIT, combined = RH_EP_REPORT_INIT;
  OK(rh_ep_get_report(ep, handle, &dispatched, nullptr));
  CHECK(dispatched.dispatch == report.dispatch && dispatched.rows == rows);
  const rh_ep_combine_args sums = m.sums();
  OK(rh_ep_combine(handle, &sums, nullptr, nullptr));
  FAILS(rh_ep_get_report(ep, handle, &dispatched, nullptr), RH_ERR_INVALID_HANDLE, "ep_get_report", "not a dispatch of this buffer");
  OK(rh_ep_get_report(ep, nullptr, &dispatched, &combined));
  CHECK(dispatched.dispatch == report.dispatch && combined.dispatch == report.dispatch && combined.rows == 0);
  combined.struct_size = 3;
  FAILS(rh_ep_get_report(ep, nullptr, nullptr, &combined), RH_ERR_INVALID_ARGUMENT, "ep_get_report", "RH_EP_REPORT_INIT");
  for (int i = 0; i < 1000; i++) {
    OK(rh_ep_dispatch(ep, &in, &room, &handle, nullptr));
    OK(rh_ep_release(handle, nullptr));
  }
  OK(rh_ep_routing_destroy(routing));
  FAILS(rh_ep_routing_destroy(routing), RH_ERR_INVALID_HANDLE, "ep_routing_destroy", "destroyed");
  FAILS(rh_ep_dispatch_send(ep, &in, &handle, nullptr), RH_ERR_INVALID_HANDLE, "ep_dispatch_send", "not a live routing");
  in = m.in();
  OK(rh_ep_routing_create(ep, &in, &routing, nullptr));  // ends with the buffer
}

void receiving(rh_ep* ep) {
  Memory m;
  const rh_ep_dispatch_in in = m.in();
  rh_ep_handle* handle = nullptr;
  OK(rh_ep_dispatch_send(ep, &in, &handle, nullptr));
  const auto refused = [&](rh_ep_dispatch_out room, const char* word) {
    FAILS(rh_ep_dispatch_recv(handle, &room, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_dispatch_recv", word);
  };
  FAILS(rh_ep_dispatch_recv(handle, nullptr, nullptr), RH_ERR_INVALID_ARGUMENT, "rank 0", "out is NULL");
  rh_ep_dispatch_out room = m.room();
  room.struct_size = 1;
  refused(room, "RH_EP_DISPATCH_OUT_INIT");
  room = m.room();
  room.x = nullptr;
  refused(room, "x is NULL");
  room = m.room();
  room.layout = RH_EP_TOKENS + 1;
  refused(room, "layout 3");
  for (uint32_t layout : {RH_EP_PADDED, RH_EP_FLAT, RH_EP_TOKENS}) {
    room = m.room();
    room.layout = layout;
    room.capacity = UINT64_MAX;
    refused(room, "capacity 18446744073709551615");
  }
  room = m.room();
  room.alignment = UINT32_MAX;
  FAILS(rh_ep_dispatch_recv(handle, &room, nullptr), RH_ERR_LIMIT, "rank 0", "capacity is 6");
  OK(rh_ep_dispatch_counts(handle, nullptr, nullptr, nullptr));
  rh_ep_report report = RH_EP_REPORT_INIT;
  room = m.room();
  room.report = &report;
  report.struct_size = 8;
  refused(room, "RH_EP_REPORT_INIT");
  report = RH_EP_REPORT_INIT;
  report.lost_capacity = 1;
  refused(room, "lost_ranks");
  report = RH_EP_REPORT_INIT;
  report.message[0] = 'x';
  OK(rh_ep_dispatch_recv(handle, &room, nullptr));
  CHECK(room.rows == 4 && room.tokens == 3 && report.lost_count == 0 && report.message[0] == 0);
  OK(rh_ep_release(handle, nullptr));
}

void combining(rh_ep* ep) {
  Memory m;
  const rh_ep_dispatch_in in = m.in();
  rh_ep_handle* handle = nullptr;
  rh_ep_dispatch_out room = m.room();
  OK(rh_ep_dispatch(ep, &in, &room, &handle, nullptr));
  const auto refused = [&](const rh_ep_combine_args& sums, const char* word) {
    FAILS(rh_ep_combine(handle, &sums, nullptr, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_combine", word);
    FAILS(rh_ep_combine_send(handle, &sums, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_combine_send", word);
  };
  FAILS(rh_ep_combine(handle, nullptr, nullptr, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_combine: rank 0", "args is NULL");
  rh_ep_combine_args sums = m.sums();
  sums.struct_version = 0;
  refused(sums, "RH_EP_COMBINE_ARGS_INIT");
  sums = m.sums();
  sums.y = nullptr;
  refused(sums, "y is NULL");
  sums = m.sums();
  sums.out = nullptr;
  refused(sums, "out is NULL");
  sums = m.sums();
  sums.y_dtype = RH_F64;
  refused(sums, "y_dtype f64");
  sums = m.sums();
  sums.out_dtype = static_cast<rh_dtype>(-1);
  refused(sums, "out_dtype no type");
  sums = m.sums();
  rh_ep_report report = RH_EP_REPORT_INIT;
  report.struct_version = 0;
  FAILS(rh_ep_combine(handle, &sums, &report, nullptr), RH_ERR_INVALID_ARGUMENT, "ep_combine", "RH_EP_REPORT_INIT");
  report.struct_version = 1;
  OK(rh_ep_combine(handle, &sums, &report, nullptr));
  CHECK(report.message[0] == 0 && m.out[0] == 2 && m.out[5] == 6 && m.out[14] == 15);
  FAILS(rh_ep_combine(handle, &sums, &report, nullptr), RH_ERR_INVALID_HANDLE, "ep_combine", "combined or released");
}

// Without tokens, no pointer is used.
void nothing(rh_ep* ep) {
  rh_ep_dispatch_in in = RH_EP_DISPATCH_IN_INIT;
  in.hidden = kHidden;
  rh_ep_dispatch_out room = RH_EP_DISPATCH_OUT_INIT;
  rh_ep_combine_args sums = RH_EP_COMBINE_ARGS_INIT;
  rh_ep_handle* handle = nullptr;
  OK(rh_ep_dispatch(ep, &in, &room, &handle, nullptr));
  CHECK(room.rows == 0 && room.tokens == 0);
  OK(rh_ep_combine(handle, &sums, nullptr, nullptr));
}

void strangeHandles() {
  static int variable;
  Memory m;
  const rh_ep_dispatch_in in = m.in();
  rh_ep_dispatch_out room = m.room();
  const rh_ep_combine_args sums = m.sums();
  for (uintptr_t bits : {uintptr_t{0}, uintptr_t{1}, uintptr_t{0xffff}, UINTPTR_MAX, reinterpret_cast<uintptr_t>(&variable)}) {
    auto* ep = reinterpret_cast<rh_ep*>(bits);
    auto* handle = reinterpret_cast<rh_ep_handle*>(bits);
    rh_ep_handle* made;
    rh_ep_info info = RH_EP_INFO_INIT;
    FAILS(rh_ep_dispatch(ep, &in, &room, &made, nullptr), RH_ERR_INVALID_HANDLE, "ep_dispatch", "not a live buffer");
    FAILS(rh_ep_dispatch_send(ep, &in, &made, nullptr), RH_ERR_INVALID_HANDLE, "ep_dispatch_send", "");
    int32_t count;
    FAILS(rh_ep_get_info(ep, &info), RH_ERR_INVALID_HANDLE, "ep_get_info", "");
    FAILS(rh_ep_get_masked(ep, nullptr, 0, &count), RH_ERR_INVALID_HANDLE, "ep_get_masked", "");
    FAILS(rh_ep_get_load(ep, nullptr, nullptr, 1), RH_ERR_INVALID_HANDLE, "ep_get_load", "");
    FAILS(rh_ep_mask_rank(ep, 0), RH_ERR_INVALID_HANDLE, "ep_mask_rank", "");
    FAILS(rh_ep_destroy(ep), RH_ERR_INVALID_HANDLE, "ep_destroy", "");
    FAILS(rh_ep_dispatch_recv(handle, &room, nullptr), RH_ERR_INVALID_HANDLE, "ep_dispatch_recv", "not a dispatch in flight");
    FAILS(rh_ep_dispatch_counts(handle, nullptr, nullptr, nullptr), RH_ERR_INVALID_HANDLE, "ep_dispatch_counts", "");
    FAILS(rh_ep_combine(handle, &sums, nullptr, nullptr), RH_ERR_INVALID_HANDLE, "ep_combine", "");
    FAILS(rh_ep_combine_send(handle, &sums, nullptr), RH_ERR_INVALID_HANDLE, "ep_combine_send", "");
    FAILS(rh_ep_combine_recv(handle, nullptr, nullptr), RH_ERR_INVALID_HANDLE, "ep_combine_recv", "");
    FAILS(rh_ep_release(handle, nullptr), RH_ERR_INVALID_HANDLE, "ep_release", "");
    rh_ep_routing* routing;
    FAILS(rh_ep_routing_create(ep, &in, &routing, nullptr), RH_ERR_INVALID_HANDLE, "ep_routing_create", "not a live buffer");
    FAILS(rh_ep_routing_destroy(reinterpret_cast<rh_ep_routing*>(bits)), RH_ERR_INVALID_HANDLE, "ep_routing_destroy", "");
    FAILS(rh_ep_get_report(ep, nullptr, nullptr, nullptr), RH_ERR_INVALID_HANDLE, "ep_get_report", "");
  }
}

// Many dispatches of one buffer, so that a sanitizer sees what they leak.
void manyRounds(rh_ep* ep) {
  for (int i = 0; i < 5000; i++) {
    Memory m;
    const rh_ep_dispatch_in in = m.in();
    const rh_ep_combine_args sums = m.sums();
    rh_ep_dispatch_out room = m.room();
    rh_ep_handle* handle = nullptr;
    OK(rh_ep_dispatch(ep, &in, &room, &handle, nullptr));
    OK(i % 2 == 0 ? rh_ep_release(handle, nullptr) : rh_ep_combine(handle, &sums, nullptr, nullptr));
  }
}

}  // namespace

int main() {
  strangeHandles();
  sizes();
  rh_session* session = open_session();
  rh_comm* comm = nullptr;
  const rh_comm_config config = comm_config("ep arguments", 0, 1);
  OK(rh_comm_init(session, &config, &comm));
  creating(comm);
  for (uint32_t mode : {RH_EP_LL, RH_EP_HT}) {
    rh_ep_config shape = small();
    shape.mode = mode;
    rh_ep* ep = nullptr;
    OK(rh_ep_create(comm, &shape, &ep));
    asking(ep);
    // Calls with refused arguments are not operations: the buffer still works.
    dispatching(ep);
    streaming(ep);
    routings(ep);
    receiving(ep);
    combining(ep);
    nothing(ep);
    manyRounds(ep);
    if (mode == RH_EP_LL) OK(rh_ep_destroy(ep));  // the comm ends the other one
  }
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
  strangeHandles();
  return 0;
}
