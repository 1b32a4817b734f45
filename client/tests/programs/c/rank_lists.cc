// Lists of ranks in arrays of any size: the ranks that a rank waits for, has masked, and has lost. Rank 0 of four; the other three are in
// the lists.
#include <pthread.h>

#include <initializer_list>

#include "check.h"

namespace {

constexpr int32_t kWorld = 4;
const int32_t kOthers[] = {1, 2, 3};

rh_comm* comms[kWorld];
rh_ep* eps[kWorld];

rh_ep_config shape() {
  rh_ep_config config = RH_EP_CONFIG_INIT;
  config.max_tokens_per_rank = 1;
  config.hidden = 4;
  config.num_experts = kWorld;
  config.topk = kWorld;
  config.dtype = config.wire_dtype = config.combine_dtype = RH_F32;
  return config;
}

template <class Work>
void onEveryRank(Work work) {
  struct Task {
    Work* work;
    int32_t rank;
  } tasks[kWorld];
  pthread_t threads[kWorld];
  for (int32_t r = 0; r < kWorld; r++) {
    tasks[r] = {&work, r};
    const auto run = [](void* p) -> void* {
      const auto* task = static_cast<Task*>(p);
      (*task->work)(task->rank);
      return nullptr;
    };
    CHECK(pthread_create(&threads[r], nullptr, run, &tasks[r]) == 0);
  }
  for (pthread_t t : threads) pthread_join(t, nullptr);
}

// Checks that ask(ranks, capacity, &count) returns the other ranks, as many as fit.
template <class Ask>
void givesTheOthers(Ask ask) {
  int32_t count = -1;
  OK(ask(nullptr, 0, &count));
  CHECK(count == 3);
  for (int32_t capacity = 0; capacity <= 5; capacity++) {
    int32_t ranks[6] = {-7, -7, -7, -7, -7, -7};
    count = -1;
    OK(ask(ranks, capacity, &count));
    CHECK(count == 3);
    for (int32_t i = 0; i < 6; i++) CHECK(ranks[i] == (i < capacity && i < 3 ? kOthers[i] : -7));
  }
}

void waiting() {
  pthread_t waiter;
  const auto run = [](void*) -> void* {
    FAILS(rh_barrier(comms[0], nullptr), RH_ERR_ABORTED, "barrier", "waiting for ranks 1-3");
    return nullptr;
  };
  CHECK(pthread_create(&waiter, nullptr, run, nullptr) == 0);
  rh_comm_status status = RH_COMM_STATUS_INIT;
  while (status.waiting_count != 3) OK(rh_comm_get_status(comms[0], &status));
  givesTheOthers([](int32_t* ranks, int32_t capacity, int32_t* count) { return rh_comm_get_waiting_for(comms[0], ranks, capacity, count); });
  OK(rh_comm_abort(comms[1]));
  pthread_join(waiter, nullptr);
  // In a broken group, these are the ranks that it was waiting for.
  givesTheOthers([](int32_t* ranks, int32_t capacity, int32_t* count) { return rh_comm_get_waiting_for(comms[0], ranks, capacity, count); });
}

// Each dispatch loses the token's copies to the three masked ranks.
rh_result dispatchAndCombine(rh_ep_report* dispatched, rh_ep_report* combined) {
  static float x[4] = {1, 2, 3, 4}, rows[4], out[4];
  static const int32_t experts[kWorld] = {0, 1, 2, 3};
  rh_ep_dispatch_in in = RH_EP_DISPATCH_IN_INIT;
  in.x = x;
  in.topk_idx = experts;
  in.idx_dtype = RH_I32;
  in.num_tokens = 1;
  in.hidden = 4;
  rh_ep_dispatch_out room = RH_EP_DISPATCH_OUT_INIT;
  room.capacity = 1;
  room.x = rows;
  room.report = dispatched;
  rh_ep_handle* handle = nullptr;
  const rh_result result = rh_ep_dispatch(eps[0], &in, &room, &handle, nullptr);
  if (result != RH_OK) return result;
  rh_ep_combine_args args = RH_EP_COMBINE_ARGS_INIT;
  args.y = rows;
  args.y_dtype = args.out_dtype = RH_F32;
  args.out = out;
  return rh_ep_combine(handle, &args, combined, nullptr);
}

void masked() {
  for (int32_t r : kOthers) OK(rh_ep_mask_rank(eps[0], r));
  rh_ep_info info = RH_EP_INFO_INIT;
  OK(rh_ep_get_info(eps[0], &info));
  CHECK(info.masked_count == 3);
  givesTheOthers([](int32_t* ranks, int32_t capacity, int32_t* count) { return rh_ep_get_masked(eps[0], ranks, capacity, count); });
  for (bool inDispatch : {true, false}) {
    givesTheOthers([&](int32_t* ranks, int32_t capacity, int32_t* count) {
      rh_ep_report report = RH_EP_REPORT_INIT;
      report.lost_ranks = ranks;
      report.lost_capacity = capacity;
      const rh_result result = inDispatch ? dispatchAndCombine(&report, nullptr) : dispatchAndCombine(nullptr, &report);
      CHECK(report.lost_copies == 3 && report.lost_ranks == ranks && report.lost_capacity == capacity);
      *count = report.lost_count;
      return result;
    });
  }
}

}  // namespace

int main() {
  rh_session* sessions[kWorld];
  onEveryRank([&](int32_t r) {
    const rh_comm_config config = comm_config("rank lists", r, kWorld);
    const rh_ep_config buffer = shape();
    sessions[r] = open_session();
    OK(rh_comm_init(sessions[r], &config, &comms[r]));
    OK(rh_ep_create(comms[r], &buffer, &eps[r]));
  });
  masked();
  waiting();
  for (rh_comm* comm : comms) rh_comm_finalize(comm);  // the group is broken: returns its cause
  for (rh_session* session : sessions) OK(rh_close(session));
  return 0;
}
