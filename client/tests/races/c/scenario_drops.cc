// Ranks dispatch and combine while others die, abort, or are masked and make no call. With RH_EP_DEAD_DROP the others go on without the dead,
// all of them, and say what was lost; otherwise every call ends soon and names the culprit. Calls run at once, or later on a stream.
#include <stdio.h>

#include "buffers.h"
#include "device/threads/threads.h"

namespace world {

namespace {

enum class Cause { kDies, kAborts, kMasked };

struct {
  int world, survivors;
  uint32_t victims;  // a mask
  int masked;        // one of them
  Cause cause;
  bool drops, onStream;
  int32_t kind;      // of the device
  rh_ep_config config;
  rh_comm* comms[kMaxWorld];
  int ready, ended;  // ranks
  int64_t lastBegan, brokenAt;
  bool breaking;
} s;

bool isVictim(int rank) { return (s.victims >> rank & 1) != 0; }

bool goesOn() { return s.cause == Cause::kMasked || (s.cause == Cause::kDies && s.drops); }

// Deaths are looked for every 10 ms by a rank that waits, every 25 ms or every second by the control thread.
void checkTime(const char* call) {
  const int64_t since = s.lastBegan > s.brokenAt ? s.lastBegan : s.brokenAt;
  if (now() - since > 200 * kMs + frozen()) fail("%s returned %.3f s after the break", call, static_cast<double>(now() - since) / 1e9);
}

void checkReport(const rh_ep_report& report, const int32_t* lost, const char* call) {
  if (report.result != RH_OK) fail("the report of %s: %s", call, report.message);
  const int victims = s.world - s.survivors;
  uint32_t named = 0;
  for (int i = 0; i < report.lost_count && i < kMaxWorld; i++) named |= 1u << lost[i];
  if (named != s.victims) fail("the report of %s names the lost ranks %#x, not %#x: %s", call, named, s.victims, report.message);
  if (report.lost_copies != static_cast<uint64_t>(victims)) fail("%llu copies were lost, not %d", static_cast<unsigned long long>(report.lost_copies), victims);
}

void checkCulprit(rh_result got, const char* call) {
  if (!s.breaking) fail("%s returned %s before the break: %s", call, rh_result_string(got), rh_last_error_message());
  want(got, s.cause == Cause::kDies ? RH_ERR_RANK_DEAD : RH_ERR_ABORTED, call);
  for (int r = 0; r < s.world; r++) {
    char who[24];
    snprintf(who, sizeof who, "rank %d (pid", r);
    if (isVictim(r) && strstr(rh_last_error_message(), who) != nullptr) return checkTime(call);
  }
  fail("%s names no culprit: %s", call, rh_last_error_message());
}

// A dispatch and its combine. Each rank is sent one token by each.
void runLayer(rh_ep* ep, Tokens* tokens, int number, rht_stream* stream) {
  tokens->fill(static_cast<uint32_t>(s.world), s.world, number);
  const rh_ep_dispatch_in in = tokens->in();
  rh_ep_dispatch_out out = tokens->to();
  rh_ep_handle* handle = nullptr;
  rh_result got = rh_ep_dispatch(ep, &in, &out, &handle, stream);
  if (stream != nullptr && got == RH_OK && s.cause == Cause::kMasked) {
    // It waits for the call on the stream, which reads the mask.
    want(rh_ep_mask_rank(ep, s.masked), RH_OK, "ep_mask_rank");
    if (tokens->dispatched.dispatch == 0) fail("ep_mask_rank returned before the call had run");
  }
  if (stream != nullptr && got == RH_OK) {
    // It waits for the call on the stream, which ends as others do.
    rh_ep_report report = RH_EP_REPORT_INIT;
    want(rh_ep_get_report(ep, handle, &report, nullptr), RH_OK, "ep_get_report");
    const bool hasRun = goesOn() ? report.dispatch != 0 : report.result != RH_OK;
    if (!hasRun || report.result != tokens->dispatched.result) fail("ep_get_report returned before the call had run: %s", report.message);
    got = rht_stream_synchronize(stream, kTimeoutMs);
  }
  if (!goesOn()) {
    checkCulprit(got, "ep_dispatch");
    return;
  }
  want(got, RH_OK, "ep_dispatch");
  if (s.cause == Cause::kDies && !s.breaking) fail("a dispatch ended without a rank that lives");
  checkTime("ep_dispatch");
  checkReport(tokens->dispatched, tokens->lost[0], "ep_dispatch");
  const rh_ep_combine_args args = tokens->back();
  got = rh_ep_combine(handle, &args, &tokens->combined, stream);
  if (stream != nullptr && got == RH_OK) got = rht_stream_synchronize(stream, 20 * kTimeoutMs);
  want(got, RH_OK, "ep_combine");
  checkReport(tokens->combined, tokens->lost[1], "ep_combine");
  tokens->checkOut(s.victims);
}

void runSurvivor(int rank, rh_ep* ep) {
  static Tokens tokens[kMaxWorld][2];
  rht_stream* stream = nullptr;
  if (s.onStream) want(rht_stream_create(&stream), RH_OK, "stream_create");
  for (int r = 0; r < s.world && s.cause == Cause::kMasked; r++) {
    if (isVictim(r)) want(rh_ep_mask_rank(ep, r), RH_OK, "ep_mask_rank");
  }
  block("wait for all", kNever, [] { return s.ready == s.world; });
  if (oneIn(3)) sleepUntil(now() + static_cast<int64_t>(below(100 * kMs)));
  s.lastBegan = now();
  for (int i = 0; i < 2; i++) runLayer(ep, &tokens[rank][i], rank * 2 + i, stream);
  if (stream != nullptr) want(rht_stream_destroy(stream), RH_OK, "stream_destroy");
}

void runRank(int rank) {
  rh_session* session = connectOrFail();
  rh_comm_config config = configOf("g", s.world, rank);
  config.timeout_ms = 10 * kTimeoutMs;  // threads are frozen
  config.device_kind = s.kind;
  want(rh_comm_init(session, &config, &s.comms[rank]), RH_OK, "comm_init");
  rh_ep* ep = nullptr;
  want(rh_ep_create(s.comms[rank], &s.config, &ep), RH_OK, "ep_create");
  s.ready++;
  if (!isVictim(rank)) {
    runSurvivor(rank, ep);
    s.ended++;
  }
  block("wait for the others", kNever, [] { return s.ended == s.survivors; });
  const rh_result got = rh_comm_finalize(s.comms[rank]);
  // The daemon may report a death that the ranks know already.
  if (got != RH_ERR_RANK_DEAD || s.cause != Cause::kDies) want(got, RH_OK, "finalize");
  want(rh_close(session), RH_OK, "close");
}

void breakIt() {
  block("wait for all", kNever, [] { return s.ready == s.world; });
  sleepUntil(now() + static_cast<int64_t>(below(60 * kMs)));
  s.breaking = true;
  for (int r = 0; r < s.world; r++) {
    if (!isVictim(r)) continue;
    if (s.cause == Cause::kDies) killRank("g", r);
    else want(rh_comm_abort(s.comms[r]), RH_OK, "abort");
    s.brokenAt = now();
    if (s.cause == Cause::kAborts) return;
    step("pause");
  }
}

}  // namespace

void drops() {
  startDaemon(DaemonPlan());
  s.world = static_cast<int>(2 + below(kMaxWorld - 1));
  s.survivors = static_cast<int>(1 + below(static_cast<uint64_t>(s.world - 1)));
  for (int n = 0; n < s.world - s.survivors;) {
    const int r = static_cast<int>(below(static_cast<uint64_t>(s.world)));
    n += !isVictim(r);
    s.victims |= 1u << r;
    s.masked = r;
  }
  s.cause = static_cast<Cause>(below(3));
  s.drops = oneIn(2);
  s.onStream = oneIn(2);
  s.kind = s.onStream ? static_cast<int32_t>(rht_device_kind()) : RH_DEVICE_CPU;
  s.config = bufferConfig(s.world, s.drops ? RH_EP_DEAD_DROP : RH_EP_DEAD_FAIL);
  for (intptr_t r = 0; r < s.world; r++) {
    start([](void* rank) { runRank(static_cast<int>(reinterpret_cast<intptr_t>(rank))); }, reinterpret_cast<void*>(r));
  }
  if (s.cause != Cause::kMasked) start([](void*) { breakIt(); }, nullptr);
  joinAll();
}

}  // namespace world
