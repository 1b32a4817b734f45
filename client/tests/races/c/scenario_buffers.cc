// Threads use the handles of dispatches, of routings and of buffers at the same time, and end them. The object of a dispatch is used again
// under a new handle: a call with the old handle never reaches the next dispatch. The group has one rank, and calls run at once.
#include <initializer_list>
#include <new>

#include "buffers.h"

namespace world {

namespace {

constexpr int kMostDispatches = 96, kMostBuffers = 6, kMostRoutings = 12;

// How far an object is on its way to its end.
enum Life { kLives, kMayHaveEnded, kHasEnded };

struct Dispatch {
  rh_ep_handle* handle;
  int buffer, routing;  // -1 = no routing
  Life life;
  int dispatchesAtEnd;  // made until then
  Tokens tokens;
};

struct Routing {
  rh_ep_routing* handle;
  int buffer;
  uint32_t tokens;
  Life life;
};

struct {
  rh_session* session;
  rh_comm* comm;
  Life commLife;
  bool aborted;
  rh_ep* buffers[kMostBuffers];
  Life bufferLife[kMostBuffers];
  int bufferCount;
  Dispatch memory[kMostDispatches];
  int tried;                               // dispatches, refused ones too
  Dispatch* dispatches[kMostDispatches];  // the others
  int count;
  Routing routings[kMostRoutings];
  int routingCount;
  int working;                   // threads
  int holder;                    // the thread whose call may be held; 0 = none
  Dispatch* heldDispatch;  // of that call, or
  Routing* heldRouting;    // this
} s;

Life later(Life a, Life b) { return a > b ? a : b; }
Life lifeOf(int buffer) { return later(s.bufferLife[buffer], s.commLife); }
Life lifeOf(const Dispatch& d) { return later(d.life, lifeOf(d.buffer)); }
Life lifeOf(const Routing& r) { return later(r.life, lifeOf(r.buffer)); }

// A call with a handle. before: the life of its object when the call began; after: when it returned.
void check(rh_result got, Life before, Life after, std::initializer_list<rh_result> refusals, const char* call) {
  if (got == RH_ERR_BUSY) return;
  if (got == RH_ERR_INVALID_HANDLE) {
    if (after == kLives) fail("%s with a live handle: %s", call, rh_last_error_message());
    return;
  }
  if (before == kHasEnded) fail("%s with a handle that has ended: %s: %s", call, rh_result_string(got), rh_last_error_message());
  if (got == RH_OK || (got == RH_ERR_ABORTED && s.aborted)) return;
  for (const rh_result r : refusals) {
    if (got == r) return;
  }
  fail("%s: %s: %s", call, rh_result_string(got), rh_last_error_message());
}

int anyOf(int n) { return static_cast<int>(below(static_cast<uint64_t>(n))); }
// The last few, which are in flight or have just ended.
int recentOf(int n) { return n - 1 - anyOf(n < 4 ? n : 4); }

// Holds the next call between its look at the handle and its exclusive access to the comm, until other threads have ended the object of
// the handle, and have used it again. One call at a time.
void hold(Dispatch* d, Routing* r) {
  if (s.holder != 0 || !oneIn(3)) return freezeSoon();
  s.holder = self();
  s.heldDispatch = d;
  s.heldRouting = r;
  holdAt("atomic compare and exchange", 1, [] {
    const bool isUsedAgain = s.heldDispatch != nullptr ? s.heldDispatch->life == kHasEnded && s.count > s.heldDispatch->dispatchesAtEnd
                                                       : s.heldRouting->life == kHasEnded;
    return isUsedAgain || s.working == 1;
  });
}

void holdNoMore() {
  if (s.holder != self()) return;
  holdAt("", 0, nullptr);
  s.holder = 0;
}

void makeBuffer() {
  if (s.bufferCount == kMostBuffers) return;
  const Life before = s.commLife;
  const rh_ep_config config = bufferConfig(1);
  rh_ep* ep = nullptr;
  const rh_result got = rh_ep_create(s.comm, &config, &ep);
  check(got, before, s.commLife, {RH_ERR_OUT_OF_MEMORY}, "ep_create");
  if (got != RH_OK) return;
  for (int i = 0; i < s.bufferCount; i++) {
    if (s.buffers[i] == ep) fail("a buffer has the handle of an earlier one");
  }
  if (s.bufferCount < kMostBuffers) s.buffers[s.bufferCount++] = ep;  // otherwise it ends with the comm
}

void destroyBuffer(int i) {
  const Life before = lifeOf(i);
  s.bufferLife[i] = later(s.bufferLife[i], kMayHaveEnded);
  freezeSoon();
  const rh_result got = rh_ep_destroy(s.buffers[i]);
  // Another thread may finalize the comm before the window is freed.
  check(got, before, lifeOf(i), {}, "ep_destroy");
  if (got == RH_OK) s.bufferLife[i] = kHasEnded;
}

void dispatch(int buffer, bool inPhases) {
  Dispatch* d = new (&s.memory[s.tried]) Dispatch();
  if (++s.tried == kMostDispatches) fail("more than %d dispatches", kMostDispatches);
  const int routing = s.routingCount > 0 && oneIn(3) ? recentOf(s.routingCount) : -1;
  d->tokens.fill(routing >= 0 ? s.routings[routing].tokens : static_cast<uint32_t>(1 + below(kMostTokens)), 1, s.tried);
  d->buffer = buffer;
  d->routing = routing;
  const rh_ep_dispatch_in in = d->tokens.in(routing >= 0 ? s.routings[routing].handle : nullptr);
  rh_ep_dispatch_out out = d->tokens.to();
  const Life before = lifeOf(buffer);
  freezeSoon();
  const rh_result got = inPhases ? rh_ep_dispatch_send(s.buffers[buffer], &in, &d->handle, nullptr)
                                 : rh_ep_dispatch(s.buffers[buffer], &in, &out, &d->handle, nullptr);
  const bool noRouting = routing >= 0 && (s.routings[routing].buffer != buffer || lifeOf(s.routings[routing]) != kLives);
  if (got != RH_ERR_INVALID_HANDLE || !noRouting) check(got, before, lifeOf(buffer), {RH_ERR_LIMIT, RH_ERR_INVALID_ARGUMENT}, "ep_dispatch");
  if (got != RH_OK) return;
  for (int i = 0; i < s.count; i++) {
    if (s.dispatches[i]->handle == d->handle) fail("a dispatch has the handle of an earlier one");
  }
  s.dispatches[s.count++] = d;
  if (!inPhases) d->tokens.checkRows();
}

enum class End { kCombine, kRelease, kCombineReceive };

// A call that ends the dispatch.
void end(Dispatch* d, End how) {
  const Life before = lifeOf(*d);
  d->life = later(d->life, kMayHaveEnded);
  const rh_ep_combine_args args = d->tokens.back();
  hold(d, nullptr);
  rh_result got = RH_OK;
  switch (how) {
    case End::kCombine: got = rh_ep_combine(d->handle, &args, nullptr, nullptr); break;
    case End::kRelease: got = rh_ep_release(d->handle, nullptr); break;
    case End::kCombineReceive: got = rh_ep_combine_recv(d->handle, nullptr, nullptr); break;
  }
  holdNoMore();
  if (got == RH_OK && d->life == kHasEnded) fail("a dispatch ends twice");
  check(got, before, lifeOf(*d), {RH_ERR_INVALID_ARGUMENT}, "a call that ends a dispatch");
  if (got != RH_OK) return;
  d->life = kHasEnded;
  d->dispatchesAtEnd = s.count;
  if (how != End::kRelease) d->tokens.checkOut();
}

void use(Dispatch* d) {
  const Life before = lifeOf(*d);
  switch (below(4)) {
    case 0: {
      rh_ep_dispatch_out out = d->tokens.to();
      const rh_result got = rh_ep_dispatch_recv(d->handle, &out, nullptr);
      check(got, before, lifeOf(*d), {RH_ERR_INVALID_ARGUMENT}, "ep_dispatch_recv");
      if (got == RH_OK) d->tokens.checkRows();
      return;
    }
    case 1: {
      uint64_t tokens = ~uint64_t{0};
      const rh_result got = rh_ep_dispatch_counts(d->handle, nullptr, &tokens, nullptr);
      check(got, before, lifeOf(*d), {RH_ERR_INVALID_ARGUMENT}, "ep_dispatch_counts");
      if (got == RH_OK && tokens != d->tokens.n) fail("a dispatch of %u tokens has received %llu", d->tokens.n, static_cast<unsigned long long>(tokens));
      return;
    }
    case 2: {
      const rh_ep_combine_args args = d->tokens.back();
      const rh_result got = rh_ep_combine_send(d->handle, &args, nullptr);
      return check(got, before, lifeOf(*d), {RH_ERR_INVALID_ARGUMENT}, "ep_combine_send");
    }
    default: {
      rh_ep_report report = RH_EP_REPORT_INIT;
      const rh_result got = rh_ep_get_report(s.buffers[d->buffer], d->handle, &report, nullptr);
      check(got, before, lifeOf(*d), {}, "ep_get_report");
      if (got == RH_OK && report.tokens != 0 && report.tokens != d->tokens.n) fail("the report of another dispatch");
    }
  }
}

void useHeld(Dispatch* d) {
  hold(d, nullptr);
  use(d);
  holdNoMore();
}

void makeRouting(int buffer) {
  if (s.routingCount == kMostRoutings) return;
  Tokens tokens;
  tokens.fill(static_cast<uint32_t>(1 + below(kMostTokens)), 1, 0);
  const rh_ep_dispatch_in in = tokens.in();
  const Life before = lifeOf(buffer);
  rh_ep_routing* routing = nullptr;
  const rh_result got = rh_ep_routing_create(s.buffers[buffer], &in, &routing, nullptr);
  check(got, before, lifeOf(buffer), {}, "ep_routing_create");
  if (got == RH_OK && s.routingCount < kMostRoutings) s.routings[s.routingCount++] = {routing, buffer, tokens.n, kLives};
}

void destroyRouting() {
  if (s.routingCount == 0) return;
  const bool isHeld = s.holder != 0 && s.heldRouting != nullptr;
  Routing* r = isHeld && oneIn(2) ? s.heldRouting : &s.routings[recentOf(s.routingCount)];
  const Life before = lifeOf(*r);
  r->life = later(r->life, kMayHaveEnded);
  hold(nullptr, r);
  const rh_result got = rh_ep_routing_destroy(r->handle);
  holdNoMore();
  check(got, before, lifeOf(*r), {}, "ep_routing_destroy");
  if (got != RH_OK) return;
  if (r->life == kHasEnded) fail("a routing is destroyed twice");
  for (int i = 0; i < s.count; i++) {
    const Dispatch& d = *s.dispatches[i];
    if (d.routing == r - s.routings && lifeOf(d) == kLives) fail("a routing is destroyed while a dispatch uses it");
  }
  r->life = kHasEnded;
}

void finalize() {
  const Life before = s.commLife;
  s.commLife = later(s.commLife, kMayHaveEnded);
  freezeSoon();
  const rh_result got = rh_comm_finalize(s.comm);
  check(got, before, s.commLife, {}, "finalize");
  if (got == RH_OK) s.commLife = kHasEnded;
}

void work() {
  for (int n = static_cast<int>(6 + below(14)); n > 0; n--) {
    const int buffer = recentOf(s.bufferCount);
    Dispatch* d = s.count == 0 ? nullptr : s.dispatches[recentOf(s.count)];
    if (s.holder != 0 && s.heldDispatch != nullptr && oneIn(2)) d = s.heldDispatch;
    uint64_t what = below(34);
    if (s.holder != 0 && s.heldRouting != nullptr && oneIn(4)) what = 28;
    if (d == nullptr || what < 8) dispatch(buffer, what % 2 == 0);
    else if (what < 14) end(d, End::kCombine);
    else if (what < 16) end(d, End::kRelease);
    else if (what < 18) end(d, End::kCombineReceive);
    else if (what < 25) useHeld(d);
    else if (what < 27) makeRouting(buffer);
    else if (what < 30) destroyRouting();
    else if (what < 31) destroyBuffer(buffer);
    else if (what < 33) makeBuffer();
    else if (oneIn(8)) finalize();
  }
  s.working--;
}

// One thread ends a buffer, while another makes calls on the comm all the time. BUSY changes nothing, and the handle stays valid.
void destroyUnderCalls() {
  start([](void*) {
    for (int i = 0; i < 40 && s.bufferLife[0] != kHasEnded; i++) {
      rh_ep_info info = RH_EP_INFO_INIT;
      const rh_result got = rh_ep_get_info(s.buffers[1], &info);
      if (got != RH_ERR_BUSY) want(got, RH_OK, "ep_get_info");
    }
  }, nullptr);
  rh_result got = RH_ERR_BUSY;
  for (int tries = 0; got == RH_ERR_BUSY; tries++) {
    sleepUntil(now() + static_cast<int64_t>(below(tries < 100 ? 10 * kUs : 10 * kMs)));  // the other thread may be frozen
    got = rh_ep_destroy(s.buffers[0]);
  }
  want(got, RH_OK, "ep_destroy");
  s.bufferLife[0] = kHasEnded;
}

}  // namespace

void buffers() {
  DaemonPlan plan;
  startDaemon(plan);
  s.session = connectOrFail();
  const rh_comm_config config = configOf("g", 1, 0);
  want(rh_comm_init(s.session, &config, &s.comm), RH_OK, "comm_init");
  makeBuffer();
  if (oneIn(8)) {
    makeBuffer();
    destroyUnderCalls();
  }
  s.working = static_cast<int>(2 + below(2));
  for (int i = s.working; i > 0; i--) start([](void*) { work(); }, nullptr);
  if (oneIn(8)) {
    sleepUntil(now() + static_cast<int64_t>(below(2 * kMs)));
    s.aborted = true;
    const rh_result got = rh_comm_abort(s.comm);
    if (got != RH_ERR_INVALID_HANDLE || s.commLife == kLives) want(got, RH_OK, "abort");
  }
  joinAll();
  if (s.commLife != kHasEnded) want(rh_comm_finalize(s.comm), RH_OK, "finalize");
  for (int i = 0; i < s.count; i++) want(rh_ep_release(s.dispatches[i]->handle, nullptr), RH_ERR_INVALID_HANDLE, "release after finalize");
  for (int i = 0; i < s.routingCount; i++) want(rh_ep_routing_destroy(s.routings[i].handle), RH_ERR_INVALID_HANDLE, "ep_routing_destroy after finalize");
  for (int i = 0; i < s.bufferCount; i++) want(rh_ep_destroy(s.buffers[i]), RH_ERR_INVALID_HANDLE, "ep_destroy after finalize");
  want(rh_close(s.session), RH_OK, "close");
}

}  // namespace world
