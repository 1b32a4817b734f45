// Every argument that the ABI refuses, with the result and the words of the message. One rank, one thread.
#include <stdint.h>
#include <stdlib.h>

#include <initializer_list>

#include "check.h"

namespace {

void connecting() {
  rh_session* session = reinterpret_cast<rh_session*>(uintptr_t{1});
  FAILS(rh_connect(nullptr, nullptr), RH_ERR_INVALID_ARGUMENT, "connect", "session is NULL");
  rh_session_config config = RH_SESSION_CONFIG_INIT;
  config.struct_size = 8;
  FAILS(rh_connect(&config, &session), RH_ERR_INVALID_ARGUMENT, "size 8", "RH_SESSION_CONFIG_INIT");
  CHECK(session == nullptr);
  config.struct_size = sizeof config;
  config.struct_version = 0;
  FAILS(rh_connect(&config, &session), RH_ERR_INVALID_ARGUMENT, "version 0", "RH_SESSION_CONFIG_INIT");
  config.struct_version = 1;
  config.socket_path = "";
  FAILS(rh_connect(&config, &session), RH_ERR_INVALID_ARGUMENT, "connect", "socket path is empty");
}

void initialising(rh_session* session) {
  rh_comm* comm = reinterpret_cast<rh_comm*>(uintptr_t{1});
  rh_comm_config config = comm_config("arguments", 0, 1);
  FAILS(rh_comm_init(session, &config, nullptr), RH_ERR_INVALID_ARGUMENT, "comm_init", "comm is NULL");
  FAILS(rh_comm_init(nullptr, &config, &comm), RH_ERR_INVALID_HANDLE, "comm_init", "session");
  CHECK(comm == nullptr);
  config.struct_size = 0;
  FAILS(rh_comm_init(session, &config, &comm), RH_ERR_INVALID_ARGUMENT, "size 0", "RH_COMM_CONFIG_INIT");
  config.struct_size = sizeof config;
  config.struct_version = 0;
  FAILS(rh_comm_init(session, &config, &comm), RH_ERR_INVALID_ARGUMENT, "version 0", "RH_COMM_CONFIG_INIT");
  config.struct_version = 1;
  setenv("RAILHEAD_CUDA_LIBRARY", "/no/such/driver", 1);  // as on a machine without CUDA
  const struct {
    int32_t rh_comm_config::*field;
    int32_t value;
    rh_result result;
    const char* words;
  } places[] = {
      {&rh_comm_config::device_kind, RH_DEVICE_CUDA, RH_ERR_UNSUPPORTED, "no CUDA driver: /no/such/driver"},
      {&rh_comm_config::device_kind, -1, RH_ERR_UNSUPPORTED, "no device of kind -1"},
      {&rh_comm_config::device_ordinal, 0, RH_ERR_INVALID_ARGUMENT, "device_ordinal 0"},
      {&rh_comm_config::local_rank, 1, RH_ERR_UNSUPPORTED, "local_rank 1"},
      {&rh_comm_config::local_size, 2, RH_ERR_UNSUPPORTED, "local_size 2"},
      {&rh_comm_config::node, 1, RH_ERR_UNSUPPORTED, "node 1"},
      {&rh_comm_config::node, -2, RH_ERR_UNSUPPORTED, "node -2"},
  };
  for (const auto& p : places) {
    rh_comm_config other = config;
    other.*p.field = p.value;
    FAILS(rh_comm_init(session, &other, &comm), p.result, "comm_init: rank 0", p.words);
  }
  rh_comm_config named = config;
  named.device_uuid = "GPU-5";
  FAILS(rh_comm_init(session, &named, &comm), RH_ERR_INVALID_ARGUMENT, "device_uuid GPU-5", "the CPU has neither");
  named = config;
  named.world_size = RH_MAX_LOCAL_RANKS + 1;
  FAILS(rh_comm_init(session, &named, &comm), RH_ERR_INVALID_ARGUMENT, "world size 65", "on one node");
  config.group = "";
  FAILS(rh_comm_init(session, &config, &comm), RH_ERR_INVALID_ARGUMENT, "comm_init", "group name is empty");
}

void reducing(rh_comm* comm) {
  static char bytes[4096];
  char* const a = bytes;
  const auto f32 = [&](const void* send, void* recv, size_t count) {
    return rh_all_reduce(send, recv, count, RH_F32, RH_SUM, comm, nullptr);
  };
  for (int bad : {11, -1, 1000}) {
    FAILS(rh_all_reduce(a, a, 1, static_cast<rh_dtype>(bad), RH_SUM, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "all_reduce: rank 0", "dtype");
  }
  FAILS(rh_all_reduce(a, a, 1, static_cast<rh_dtype>(17), RH_SUM, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "dtype 17", "RH_U64");
  FAILS(rh_all_reduce(a, a, 1, RH_F32, 5, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "op 5", "RH_SUM");
  FAILS(rh_all_reduce(a, a, 1, RH_F32, 16, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "op 16", "not an op of this comm");
  FAILS(rh_all_reduce(a, a, 1, RH_F32, RH_SUM, comm, a), RH_ERR_UNSUPPORTED, "all_reduce: rank 0", "stream");
  FAILS(rh_barrier(comm, a), RH_ERR_UNSUPPORTED, "barrier: rank 0", "stream");
  FAILS(f32(nullptr, a, 1), RH_ERR_INVALID_ARGUMENT, "rank 0", "send is NULL");
  FAILS(f32(a, nullptr, 1), RH_ERR_INVALID_ARGUMENT, "rank 0", "recv is NULL");
  FAILS(f32(a, a, SIZE_MAX), RH_ERR_INVALID_ARGUMENT, "count", "overflow");
  FAILS(f32(a, a, SIZE_MAX / 4 + 2), RH_ERR_INVALID_ARGUMENT, "count", "overflow");
  for (int shift : {1, 4, 399}) {
    FAILS(f32(a, a + shift, 100), RH_ERR_INVALID_ARGUMENT, "rank 0", "overlap");
    FAILS(f32(a + shift, a, 100), RH_ERR_INVALID_ARGUMENT, "rank 0", "overlap");
  }
  OK(f32(a, a + 400, 100));
  OK(f32(a + 400, a, 100));
  OK(f32(a, a, 100));
  // With count 0, no pointer is used.
  OK(f32(nullptr, nullptr, 0));
  OK(f32(nullptr, a, 0));
  OK(f32(a, nullptr, 0));
}

void othersThanAllReduce(rh_comm* comm) {
  static char bytes[4096];
  char* const a = bytes;
  FAILS(rh_broadcast(a, a, 1, RH_U8, 1, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "broadcast: rank 0", "0..0");
  FAILS(rh_reduce(a, a, 1, RH_U8, RH_SUM, -1, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "reduce: rank 0", "root -1");
  FAILS(rh_gather(a, a, 1, RH_U8, 64, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "gather: rank 0", "root 64");
  FAILS(rh_scatter(a, a, 1, RH_U8, 1 << 30, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "scatter: rank 0", "root");
  FAILS(rh_send(a, 1, RH_U8, 1, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "send: rank 0", "peer 1");
  FAILS(rh_recv(a, 1, RH_U8, -1, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "recv: rank 0", "peer -1");
  FAILS(rh_send(a, 1, RH_U8, 0, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "send: rank 0", "rh_group_start");
  FAILS(rh_send(nullptr, 1, RH_U8, 0, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "send: rank 0", "send is NULL");
  FAILS(rh_recv(nullptr, 1, RH_U8, 0, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "recv: rank 0", "recv is NULL");
  FAILS(rh_all_gather(a, a + 1, 2, RH_U8, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "all_gather: rank 0", "overlap");
  FAILS(rh_reduce_scatter(a, a + 1, 2, RH_U8, RH_MAX, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "reduce_scatter: rank 0", "overlap");
  FAILS(rh_all_to_all(a + 1, a, 2, RH_U8, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "all_to_all: rank 0", "overlap");
  FAILS(rh_all_gather(a, a, SIZE_MAX / 4, RH_F64, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "all_gather: rank 0", "overflow");
  OK(rh_all_gather(a, a, 8, RH_F64, comm, nullptr));
  OK(rh_broadcast(a, a + 64, 8, RH_F64, 0, comm, nullptr));

  rh_op op;
  const float half = 0.5f;
  FAILS(rh_op_create_pre_mul_sum(comm, RH_F32, &half, nullptr), RH_ERR_INVALID_ARGUMENT, "op is NULL", "");
  FAILS(rh_op_create_pre_mul_sum(comm, RH_F32, nullptr, &op), RH_ERR_INVALID_ARGUMENT, "rank 0", "scalar is NULL");
  FAILS(rh_op_create_pre_mul_sum(comm, static_cast<rh_dtype>(99), &half, &op), RH_ERR_INVALID_ARGUMENT, "rank 0", "dtype");
  OK(rh_op_create_pre_mul_sum(comm, RH_BF16, &half, &op));
  FAILS(rh_all_reduce(a, a, 1, RH_F32, op, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "made for bf16", "f32");
  OK(rh_all_reduce(a, a, 1, RH_BF16, op, comm, nullptr));
  OK(rh_op_destroy(comm, op));
  for (rh_op bad : {op, rh_op{INT32_MIN}, rh_op{INT32_MAX}, rh_op{RH_SUM}}) {
    FAILS(rh_op_destroy(comm, bad), RH_ERR_INVALID_ARGUMENT, "op_destroy: rank 0", "not an op of this comm");
    if (bad != RH_SUM) FAILS(rh_all_reduce(a, a, 1, RH_F32, bad, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "rank 0", "not an op of this comm");
  }
  FAILS(rh_all_reduce(a, a, 1, RH_BF16, op, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "not an op of this comm", "");
  for (int i = 0; i < 64; i++) OK(rh_op_create_pre_mul_sum(comm, RH_F32, &half, &op));
  FAILS(rh_op_create_pre_mul_sum(comm, RH_F32, &half, &op), RH_ERR_LIMIT, "rank 0", "64");

  rh_comm* part;
  FAILS(rh_comm_split(comm, 0, 0, nullptr), RH_ERR_INVALID_ARGUMENT, "out is NULL", "");
  FAILS(rh_comm_split(comm, -2, 0, &part), RH_ERR_INVALID_ARGUMENT, "comm_split: rank 0", "color -2");
  OK(rh_comm_split(comm, RH_SPLIT_NONE, 0, &part));
  CHECK(part == nullptr);
}

void groups(rh_comm* comm) {
  static char bytes[4096];
  char* const a = bytes;
  FAILS(rh_group_end(), RH_ERR_INVALID_ARGUMENT, "group_end", "rh_group_start");
  // A refused call makes the group run nothing.
  a[0] = 1;
  OK(rh_group_start());
  OK(rh_broadcast(a, a + 8, 1, RH_U8, 0, comm, nullptr));
  FAILS(rh_broadcast(a, a + 8, 1, RH_U8, 7, comm, nullptr), RH_ERR_INVALID_ARGUMENT, "root 7", "");
  FAILS(rh_group_end(), RH_ERR_INVALID_ARGUMENT, "group_end", "root 7");
  CHECK(a[8] == 0);
  FAILS(rh_group_end(), RH_ERR_INVALID_ARGUMENT, "no group", "");
  // A send to itself, in nested groups. Nothing runs before the outer rh_group_end.
  OK(rh_group_start());
  OK(rh_group_start());
  OK(rh_send(a, 4, RH_U8, 0, comm, nullptr));
  OK(rh_group_end());
  CHECK(a[16] == 0);
  FAILS(rh_comm_finalize(comm), RH_ERR_BUSY, "finalize: rank 0", "rh_group_end");
  OK(rh_recv(a + 16, 4, RH_U8, 0, comm, nullptr));
  OK(rh_group_end());
  CHECK(a[16] == 1);
  for (int counts : {3, 5}) {
    OK(rh_group_start());
    OK(rh_send(a, 4, RH_U8, 0, comm, nullptr));
    OK(rh_recv(a + 32, static_cast<size_t>(counts), RH_U8, 0, comm, nullptr));
    FAILS(rh_group_end(), RH_ERR_INVALID_ARGUMENT, "rank 0 sends 4 u8 to itself", "");
  }
  OK(rh_group_start());
  OK(rh_send(a, 4, RH_U8, 0, comm, nullptr));
  FAILS(rh_group_end(), RH_ERR_INVALID_ARGUMENT, "send to itself has no match", "");
  OK(rh_group_start());
  rh_comm* part;
  FAILS(rh_comm_split(comm, 0, 0, &part), RH_ERR_INVALID_ARGUMENT, "comm_split", "between");
  FAILS(rh_group_end(), RH_ERR_INVALID_ARGUMENT, "nothing was run", "comm_split");
  OK(rh_group_start());
  for (int i = 0; i < 4096; i++) OK(rh_barrier(comm, nullptr));
  FAILS(rh_barrier(comm, nullptr), RH_ERR_LIMIT, "rank 0", "4096");
  FAILS(rh_group_end(), RH_ERR_LIMIT, "nothing was run", "");
  OK(rh_group_start());
  OK(rh_group_end());
}

void asking(rh_comm* comm) {
  FAILS(rh_comm_rank(comm, nullptr), RH_ERR_INVALID_ARGUMENT, "comm_rank", "NULL");
  FAILS(rh_comm_world_size(comm, nullptr), RH_ERR_INVALID_ARGUMENT, "comm_world_size", "NULL");
  rh_comm_info info = RH_COMM_INFO_INIT;
  FAILS(rh_comm_get_info(comm, nullptr), RH_ERR_INVALID_ARGUMENT, "comm_get_info", "info is NULL");
  OK(rh_comm_get_info(comm, &info));
  CHECK(info.rank == 0 && info.local_rank == 0 && info.world_size == 1 && info.local_size == 1 && info.node == 0);
  CHECK(info.device_kind == RH_DEVICE_CPU && info.device_ordinal == -1 && info.granularity >= 4096);
  FAILS(rh_comm_get_status(comm, nullptr), RH_ERR_INVALID_ARGUMENT, "comm_get_status", "NULL");
  rh_comm_status status = RH_COMM_STATUS_INIT;
  status.struct_size -= 8;
  FAILS(rh_comm_get_status(comm, &status), RH_ERR_INVALID_ARGUMENT, "comm_get_status", "RH_COMM_STATUS_INIT");
  status = RH_COMM_STATUS_INIT;
  status.struct_version = 0;
  FAILS(rh_comm_get_status(comm, &status), RH_ERR_INVALID_ARGUMENT, "version 0", "RH_COMM_STATUS_INIT");
  status.struct_version = 7;
  OK(rh_comm_get_status(comm, &status));
  CHECK(status.waiting_count == 0);
  int32_t ranks[1] = {-1}, count = -1;
  FAILS(rh_comm_get_waiting_for(comm, ranks, 1, nullptr), RH_ERR_INVALID_ARGUMENT, "comm_get_waiting_for: rank 0", "count is NULL");
  FAILS(rh_comm_get_waiting_for(comm, nullptr, 1, &count), RH_ERR_INVALID_ARGUMENT, "comm_get_waiting_for: rank 0", "capacity 1");
  FAILS(rh_comm_get_waiting_for(comm, ranks, -1, &count), RH_ERR_INVALID_ARGUMENT, "comm_get_waiting_for: rank 0", "capacity -1");
  CHECK(count == -1);
  OK(rh_comm_get_waiting_for(comm, nullptr, 0, &count));
  CHECK(count == 0);
  OK(rh_comm_get_waiting_for(comm, ranks, 1, &count));
  CHECK(count == 0 && ranks[0] == -1);
}

void windows(rh_comm* comm) {
  rh_window* window = nullptr;
  void* p = nullptr;
  FAILS(rh_window_alloc(comm, 1, nullptr, nullptr), RH_ERR_INVALID_ARGUMENT, "window_alloc", "NULL");
  rh_window_config config = RH_WINDOW_CONFIG_INIT;
  config.memory = RH_MEMORY_DEVICE;
  FAILS(rh_window_alloc(comm, 1, &config, &window), RH_ERR_UNSUPPORTED, "window_alloc: rank 0: device CPU", "RH_MEMORY_DEFAULT");
  config.memory = 3;
  FAILS(rh_window_alloc(comm, 1, &config, &window), RH_ERR_INVALID_ARGUMENT, "window_alloc: rank 0", "memory 3");
  FAILS(rh_window_alloc(comm, 0, nullptr, &window), RH_ERR_INVALID_ARGUMENT, "window_alloc: rank 0", "0 bytes");
  FAILS(rh_window_alloc(comm, size_t{1} << 50, nullptr, &window), RH_ERR_INVALID_ARGUMENT, "1125899906842624 bytes", "heap_bytes");
  FAILS(rh_window_alloc(comm, (1 << 20) + 1, nullptr, &window), RH_ERR_INVALID_ARGUMENT, "1048577 bytes", "1..1048576");
  OK(rh_window_alloc(comm, 1 << 20, nullptr, &window));
  OK(rh_window_free(window));
  config.memory = RH_MEMORY_HOST;
  OK(rh_window_alloc(comm, 1 << 19, &config, &window));
  FAILS(rh_window_pointer(window, 0, nullptr), RH_ERR_INVALID_ARGUMENT, "window_pointer", "NULL");
  FAILS(rh_window_pointer(window, 1, &p), RH_ERR_INVALID_ARGUMENT, "rank 1", "0..0");
  FAILS(rh_window_pointer(window, -1, &p), RH_ERR_INVALID_ARGUMENT, "rank -1", "0..0");
  CHECK(p == nullptr);
  rh_window_info info = RH_WINDOW_INFO_INIT;
  FAILS(rh_window_get_info(window, nullptr), RH_ERR_INVALID_ARGUMENT, "window_get_info", "info is NULL");
  OK(rh_window_get_info(window, &info));
  CHECK(info.bytes == 1 << 19 && info.memory == RH_MEMORY_HOST);
  // The heap has 1 MiB for windows: a second half fits beside the first, three quarters do not.
  rh_window* other = nullptr;
  FAILS(rh_window_alloc(comm, 3 << 18, nullptr, &other), RH_ERR_OUT_OF_MEMORY, "window_alloc of 786432 bytes", "heap_bytes");
  CHECK(other == nullptr);
  OK(rh_window_alloc(comm, 1 << 19, nullptr, &other));
  // A call in a group that has not run yet uses the window.
  OK(rh_window_pointer(window, 0, &p));
  OK(rh_group_start());
  OK(rh_all_reduce(p, p, 4, RH_F32, RH_SUM, comm, nullptr));
  FAILS(rh_window_free(window), RH_ERR_BUSY, "window_free: rank 0", "rh_group_end");
  OK(rh_group_end());
  OK(rh_window_free(window));
  FAILS(rh_window_free(window), RH_ERR_INVALID_HANDLE, "window_free", "freed before");
  FAILS(rh_window_pointer(window, 0, &p), RH_ERR_INVALID_HANDLE, "window_pointer", "freed");
  FAILS(rh_window_get_info(window, &info), RH_ERR_INVALID_HANDLE, "window_get_info", "freed");
  OK(rh_window_free(other));
}

// Values that were never a handle: NULL, small integers, addresses, all bits set.
void strangeHandles() {
  static int variable;
  for (uintptr_t bits : {uintptr_t{0}, uintptr_t{1}, uintptr_t{0xffff}, uintptr_t{0x10000}, uintptr_t{0x1ffff}, UINTPTR_MAX,
                         reinterpret_cast<uintptr_t>(&variable), uintptr_t{1} << 63}) {
    FAILS(rh_close(reinterpret_cast<rh_session*>(bits)), RH_ERR_INVALID_HANDLE, "close", "");
    auto* comm = reinterpret_cast<rh_comm*>(bits);
    int32_t n;
    rh_comm_status status = RH_COMM_STATUS_INIT;
    rh_window* window;
    FAILS(rh_all_reduce(&variable, &variable, 1, RH_F32, RH_SUM, comm, nullptr), RH_ERR_INVALID_HANDLE, "all_reduce", "");
    FAILS(rh_barrier(comm, nullptr), RH_ERR_INVALID_HANDLE, "barrier", "");
    FAILS(rh_comm_finalize(comm), RH_ERR_INVALID_HANDLE, "finalize", "");
    FAILS(rh_comm_abort(comm), RH_ERR_INVALID_HANDLE, "abort", "");
    FAILS(rh_comm_rank(comm, &n), RH_ERR_INVALID_HANDLE, "comm_rank", "");
    FAILS(rh_comm_world_size(comm, &n), RH_ERR_INVALID_HANDLE, "comm_world_size", "");
    rh_comm_info info = RH_COMM_INFO_INIT;
    FAILS(rh_comm_get_info(comm, &info), RH_ERR_INVALID_HANDLE, "comm_get_info", "");
    FAILS(rh_comm_get_status(comm, &status), RH_ERR_INVALID_HANDLE, "comm_get_status", "");
    FAILS(rh_comm_get_waiting_for(comm, nullptr, 0, &n), RH_ERR_INVALID_HANDLE, "comm_get_waiting_for", "");
    FAILS(rh_window_alloc(comm, 1, nullptr, &window), RH_ERR_INVALID_HANDLE, "window_alloc", "");
    FAILS(rh_window_free(reinterpret_cast<rh_window*>(bits)), RH_ERR_INVALID_HANDLE, "window_free", "");
  }
}

}  // namespace

int main() {
  strangeHandles();
  connecting();
  rh_session* session = open_session();
  initialising(session);
  rh_comm* comm = nullptr;
  const rh_comm_config config = comm_config("arguments", 0, 1);
  OK(rh_comm_init(session, &config, &comm));
  // Calls with refused arguments are not operations: the comm still works.
  reducing(comm);
  othersThanAllReduce(comm);
  groups(comm);
  asking(comm);
  windows(comm);
  OK(rh_barrier(comm, nullptr));
  OK(rh_comm_finalize(comm));
  OK(rh_close(session));
  strangeHandles();
  return 0;
}
