// Eager and captured dispatches and combines on streams, two in flight, with cached routing, and their ends, for the sanitizers. Argument:
// seconds to run for at least.
#include <sched.h>
#include <unistd.h>

#include <atomic>

#include "rounds.h"

namespace {

constexpr uint32_t kTokens = 4, kHidden = 16, kExperts = 5, kTopk = 2;
constexpr size_t kRows = kWorld * kTokens * kTopk;
constexpr int kLaunches = 10;

// A dispatch and its combine, with their memory.
struct Layer {
  float x[kTokens * kHidden] = {}, rows[kRows * kHidden] = {}, out[kTokens * kHidden] = {};
  int32_t idx[kTokens * kTopk] = {0, 1, 2, 3, 4, 0, -1, 2}, counts[kExperts] = {};
  uint64_t rowCount = 0, tokens = 0, counted = 0;
  rh_ep_report dispatched = RH_EP_REPORT_INIT, combined = RH_EP_REPORT_INIT;
  rh_ep_routing* routing = nullptr;
  rh_ep_handle* handle = nullptr;

  rh_ep_dispatch_in in() {
    rh_ep_dispatch_in in = RH_EP_DISPATCH_IN_INIT;
    in.x = x;
    in.topk_idx = routing == nullptr ? idx : nullptr;
    in.routing = routing;
    in.num_tokens = kTokens;
    in.hidden = kHidden;
    in.idx_dtype = RH_I32;
    return in;
  }

  void dispatch(rh_ep* ep, bool twoPhases, rht_stream* stream) {
    const rh_ep_dispatch_in tokensIn = in();
    rh_ep_dispatch_out room = RH_EP_DISPATCH_OUT_INIT;
    room.layout = RH_EP_FLAT;
    room.capacity = kRows;
    room.x = rows;
    room.counts = counts;
    room.rows_ptr = &rowCount;
    room.tokens_ptr = &tokens;
    room.report = &dispatched;
    if (!twoPhases) {
      OK(rh_ep_dispatch(ep, &tokensIn, &room, &handle, stream));
      return;
    }
    OK(rh_ep_dispatch_send(ep, &tokensIn, &handle, stream));
    OK(rh_ep_dispatch_counts(handle, counts, &counted, stream));
    OK(rh_ep_dispatch_recv(handle, &room, stream));
  }

  void combine(bool twoPhases, rht_stream* stream) {
    rh_ep_combine_args sums = RH_EP_COMBINE_ARGS_INIT;
    sums.y = rows;
    sums.out = out;
    sums.y_dtype = sums.out_dtype = RH_F32;
    if (!twoPhases) {
      OK(rh_ep_combine(handle, &sums, &combined, stream));
      return;
    }
    OK(rh_ep_combine_send(handle, &sums, stream));
    OK(rh_ep_combine_recv(handle, &combined, stream));
  }

  // Valid once the stream has run.
  void check() const {
    CHECK(dispatched.result == RH_OK && combined.result == RH_OK && dispatched.dispatch == combined.dispatch);
    CHECK(dispatched.rows == rowCount && dispatched.tokens == tokens);
    for (uint32_t i = 0; i < kTokens * kHidden; i++) CHECK(out[i] == x[i] * (i < 3 * kHidden ? 2.0f : 1.0f));
  }
};

// Captures dispatches while another thread destroys the graphs of earlier ones: a captured dispatch takes the handle of one that has ended.
void captureWhileGraphsEnd(rh_ep* ep, Layer* layer, rht_stream* stream) {
  struct Ends {
    std::atomic<rht_exec*> next{nullptr};  // to be destroyed
    std::atomic<bool> over{false};
  } ends;
  const auto destroyAll = [](void* p) -> void* {
    auto* e = static_cast<Ends*>(p);
    for (;;) {
      const bool last = e->over;
      rht_exec* exec = e->next.exchange(nullptr);  // before the end of the graph, so that no word orders it before the next capture
      if (exec != nullptr) OK(rht_exec_destroy(exec));
      else if (last) return nullptr;
      else sched_yield();
    }
  };
  pthread_t thread;
  CHECK(pthread_create(&thread, nullptr, destroyAll, &ends) == 0);
  for (int i = 0; i < 40; i++) {
    OK(rht_begin_capture(stream));
    layer->dispatch(ep, false, stream);
    layer->combine(false, stream);
    rht_exec* exec = instantiate(stream);
    while (ends.next != nullptr) sched_yield();
    ends.next = exec;
    if (i % 2 == 0) usleep(200);
  }
  ends.over = true;
  CHECK(pthread_join(thread, nullptr) == 0);
}

void* runRank(void* p) {
  const auto* r = static_cast<Rank*>(p);
  const bool twoPhases = r->round % 2 == 0, aborts = r->round % 4 >= 2;
  rh_session* session = open_session();
  rh_comm* comm = joinRound(session, *r);
  rht_stream* stream = nullptr;
  OK(rht_stream_create(&stream));
  rh_ep_config shape = RH_EP_CONFIG_INIT;
  shape.mode = r->round % 3 == 0 ? RH_EP_HT : RH_EP_LL;
  shape.max_tokens_per_rank = kTokens;
  shape.hidden = kHidden;
  shape.num_experts = kExperts;
  shape.topk = kTopk;
  shape.dtype = shape.wire_dtype = shape.combine_dtype = RH_F32;
  rh_ep* ep = nullptr;
  OK(rh_ep_create(comm, &shape, &ep));
  Layer captured, eager, second;
  Layer* const layers[] = {&captured, &eager, &second};
  for (Layer* l : layers) {
    for (uint32_t i = 0; i < kTokens * kHidden; i++) l->x[i] = static_cast<float>(r->rank * 100 + static_cast<int>(i));
  }
  captureWhileGraphsEnd(ep, &eager, stream);
  const rh_ep_dispatch_in tokens = captured.in();
  OK(rh_ep_routing_create(ep, &tokens, &captured.routing, stream));
  OK(rht_begin_capture(stream));
  captured.dispatch(ep, twoPhases, stream);
  captured.combine(twoPhases, stream);
  rht_exec* exec = instantiate(stream);
  for (int i = 0; i < kLaunches; i++) {
    OK(rht_exec_launch(exec, stream));
    eager.dispatch(ep, twoPhases, stream);
    second.dispatch(ep, !twoPhases, stream);
    eager.combine(twoPhases, stream);
    second.combine(twoPhases, stream);
    rh_ep_report later = RH_EP_REPORT_INIT;
    if (i % 3 == 0) OK(rh_ep_get_report(ep, captured.handle, &later, nullptr));
  }
  OK(rht_exec_launch(exec, stream));
  OK(rht_stream_synchronize(stream, kPatienceMs));
  for (const Layer* l : layers) l->check();
  if (r->round % 5 == 0) {  // not in every round, because these calls wait a while for the graphs
    FAILS(rh_ep_destroy(ep), RH_ERR_BUSY, "ep_destroy", "captured graphs");
    FAILS(rh_ep_routing_destroy(captured.routing), RH_ERR_BUSY, "ep_routing_destroy", "captured graphs");
  }
  pthread_barrier_wait(&met);
  if (aborts && r->rank == 2) {
    OK(rh_comm_abort(comm));
  } else if (aborts) {
    OK(rht_exec_launch(exec, stream));
    FAILS(rht_stream_synchronize(stream, kPatienceMs), RH_ERR_ABORTED, "rank 2", "rh_comm_abort");
    CHECK(captured.dispatched.result == RH_ERR_ABORTED);
  }
  if (r->round % 3 == 1) {
    OK(rht_exec_destroy(exec));
    exec = nullptr;
    if (!aborts) OK(rh_ep_destroy(ep));
  }
  OK(rh_comm_finalize(comm));
  if (exec != nullptr) {
    OK(rht_exec_launch(exec, stream));
    FAILS(rht_stream_synchronize(stream, kPatienceMs), RH_ERR_INVALID_HANDLE, "has been finalized", "nothing was done");
    OK(rht_exec_destroy(exec));
  }
  OK(rh_close(session));
  OK(rht_stream_destroy(stream));
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) { return runRounds(argc, argv, 12, runRank); }
