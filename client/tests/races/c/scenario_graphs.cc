// Buffers, routings and dispatches that captured calls use: threads capture calls, launch and end graphs, end each other's captures, and
// destroy what graphs use, at the same time. What a graph uses lives until the graph has ended. The group has one rank, and calls run later.
#include <pthread.h>

#include "buffers.h"
#include "device/threads/threads.h"
#include "ep/ep.h"
#include "heap.h"

namespace world {

namespace {

using railhead::client::Ep;
using railhead::client::EpDispatched;

constexpr int kMostDispatches = 64, kMostGraphs = 32, kMostBuffers = 4, kMostRoutings = 8, kMostThreads = 3, kMostUses = 4;

// A dispatch. A captured one lives as long as a graph has a call on it, an eager one until a call ends it.
struct Dispatch {
  rh_ep_handle* handle;
  int buffer;
  bool captured;
  int graphs;         // that use it, and have not begun to end; eager: 1 until it has ended
  bool mayHaveEnded;  // and may have not
  int capturing;      // threads that capture another call on it now
  int ending;         // graphs that use it, and have begun to end
  Tokens tokens;
};

struct Graph {
  rht_graph* graph;
  rht_exec* exec;
  bool launched;
  int uses[kMostUses], useCount;  // dispatches
  int buffer, routing;            // -1 = none
};

struct {
  rh_session* session;
  rh_comm* comm;
  rht_stream* run;                     // runs all calls
  rht_stream* captures[kMostThreads];  // a thread's own; runs nothing
  bool steals;                         // threads end the captures of others
  bool wasStolen[kMostThreads];        // another thread may have ended this thread's capture
  int stealing[kMostThreads];          // threads that try to
  rh_ep* buffers[kMostBuffers];
  Ep* objects[kMostBuffers];
  bool bufferMayHaveEnded[kMostBuffers], bufferHasEnded[kMostBuffers];
  int destroying[kMostBuffers];  // threads that try to end it
  int bufferCount;
  rh_ep_routing* routings[kMostRoutings];
  uint32_t routingTokens[kMostRoutings];
  int routingBuffer[kMostRoutings], routingGraphs[kMostRoutings];  // graphs that use it, and have not begun to end
  int routingCount;
  bool commMayHaveEnded, broken;
  bool finalizing;  // no launch may begin: finalize waits for those that have begun
  int launching;    // threads in a launch
  Dispatch dispatches[kMostDispatches];
  int tried;
  Graph graphs[kMostGraphs];  // that no thread has in hand
  int graphCount;
  int threads, working, inCalls;  // threads in all, that have not ended, and in dispatches
  int elsewhere;  // handles of captured dispatches that other buffers of the process have, as it is told
} s;

bool isStolen(int thread) { return s.wasStolen[thread] || s.stealing[thread] > 0; }
int anyOf(int n) { return static_cast<int>(below(static_cast<uint64_t>(n))); }
int recentOf(int n) { return n - 1 - anyOf(n < 4 ? n : 4); }
bool bufferLives(int i) { return !s.bufferMayHaveEnded[i] && s.destroying[i] == 0 && !s.commMayHaveEnded; }
bool lives(const Dispatch& d) { return d.graphs > 0 && !d.mayHaveEnded && bufferLives(d.buffer); }
bool hasEnded(const Dispatch& d) { return d.graphs + d.capturing + d.ending == 0 && !d.mayHaveEnded; }

// A call with a handle. ended: its object had ended when the call began. live: it lived still when it returned.
void check(rh_result got, bool ended, bool live, const char* call) {
  if (got == RH_ERR_BUSY) return;
  if (got == RH_ERR_INVALID_HANDLE) {
    if (live) fail("%s with a live handle: %s", call, rh_last_error_message());
    return;
  }
  if (ended) fail("%s with a handle that has ended: %s: %s", call, rh_result_string(got), rh_last_error_message());
  if (got == RH_OK || (s.broken && got == RH_ERR_ABORTED) || got == RH_ERR_INVALID_ARGUMENT || (s.steals && got == RH_ERR_OUT_OF_MEMORY)) return;
  if (got == RH_ERR_UNSUPPORTED && s.threads > 0) return;  // set-up calls while a stream is being captured
  fail("%s: %s: %s", call, rh_result_string(got), rh_last_error_message());
}

// ---- Checked at each store ----

struct Seen {
  const EpDispatched* of;
  bool open;
};
Seen seen[128];
int seenCount = 0;

bool handleReaches(const EpDispatched* d) {
  const bool before = keepRunning(true);
  railhead::client::EpHandles::Shared ref(railhead::client::epHandles(), d->handle);
  const bool reaches = ref.get() == d;
  keepRunning(before);
  return reaches;
}

// live: the buffer has not ended, for certain.
void checkDispatched(const EpDispatched* d, bool live) {
  if (d->captures > 0 && !d->open) fail("graphs use the handle of a dispatch that is closed");
  for (int i = 0; i < seenCount; i++) {
    if (seen[i].of != d) continue;
    if (seen[i].open == d->open) return;
    seen[i].open = d->open;
    if (d->open && live && !handleReaches(d)) fail("the handle of an open dispatch does not reach it");
    if (!d->open && d->ofGraph && handleReaches(d)) fail("the handle of a dispatch that the next one may use is live");
    if (!d->open && !d->ofGraph && live && !handleReaches(d)) fail("the next dispatch has a handle that does not reach it");
    return;
  }
  if (seenCount == 128) fail("more than 128 handles");
  seen[seenCount++] = {d, d->open};
}

void checkObjects() {
  static bool inside = false;
  checkLeases();
  if (inside || isFreed == nullptr) return;
  inside = true;
  for (int i = 0; i < s.bufferCount; i++) {
    const Ep* ep = s.objects[i];
    if (ep == nullptr || isFreed(ep)) continue;
    const bool live = bufferLives(i);
    if (ep->references < ep->captures + live) fail("a buffer has %u references, and %u calls of graphs use it", ep->references, ep->captures);
    for (const EpDispatched& d : ep->dispatched) checkDispatched(&d, live);
    for (const EpDispatched* d = ep->graphs; d != nullptr; d = d->next) checkDispatched(d, live);
  }
  inside = false;
}

// ---- Calls ----

void makeBuffer() {
  if (s.bufferCount == kMostBuffers) return;
  const rh_ep_config config = bufferConfig(1);
  rh_ep* ep = nullptr;
  const rh_result got = rh_ep_create(s.comm, &config, &ep);
  check(got, false, !s.commMayHaveEnded, "ep_create");
  if (got != RH_OK || s.bufferCount == kMostBuffers) return;
  {
    railhead::client::Eps::Shared ref(railhead::client::eps(), ep);
    s.objects[s.bufferCount] = ref.get();
  }
  s.buffers[s.bufferCount++] = ep;
}

bool graphUses(int buffer) {
  for (int i = 0; i < s.tried; i++) {
    if (s.dispatches[i].captured && s.dispatches[i].buffer == buffer && s.dispatches[i].graphs > 0 && !s.dispatches[i].mayHaveEnded) return true;
  }
  return false;
}

void destroyBuffer(int i) {
  const bool ended = s.bufferHasEnded[i], used = graphUses(i);
  s.destroying[i]++;
  // At any point of the call, until another thread is in a call.
  holdAt("atomic compare and exchange", static_cast<int>(1 + below(16)), [] { return s.inCalls > 0 || s.working <= held(); });
  const rh_result got = rh_ep_destroy(s.buffers[i]);
  holdAt("", 0, nullptr);
  s.destroying[i]--;
  if (got == RH_OK && graphUses(i) && used) fail("a buffer is destroyed that a graph uses");
  check(got, ended, bufferLives(i), "ep_destroy");
  if (got == RH_OK || got == RH_ERR_ABORTED) s.bufferHasEnded[i] = s.bufferMayHaveEnded[i] = true;  // in a broken group its window stays
}

void makeRouting(int buffer) {
  if (s.routingCount == kMostRoutings) return;
  static Tokens tokens[kMostRoutings];  // the call runs later
  const int i = s.routingCount++;
  s.routings[i] = nullptr;
  tokens[i].fill(static_cast<uint32_t>(1 + below(kMostTokens)), 1, 0);
  s.routingTokens[i] = tokens[i].n;
  s.routingBuffer[i] = buffer;
  const rh_ep_dispatch_in in = tokens[i].in();
  const bool ended = s.bufferHasEnded[buffer];
  const rh_result got = rh_ep_routing_create(s.buffers[buffer], &in, &s.routings[i], s.run);
  check(got, ended, bufferLives(buffer), "ep_routing_create");
}

void destroyRouting(int i) {
  if (s.routings[i] == nullptr) return;
  const bool used = s.routingGraphs[i] > 0;
  freezeSoon();
  const rh_result got = rh_ep_routing_destroy(s.routings[i]);
  if (got == RH_OK && used && s.routingGraphs[i] > 0 && !s.commMayHaveEnded) fail("a routing is destroyed that a graph uses");
  check(got, false, false, "ep_routing_destroy");
}

// routing: -1 = none. Returns the dispatch; -1 = refused.
int dispatch(int buffer, int routing, rht_stream* stream, bool captured) {
  if (s.tried == kMostDispatches) return -1;
  Dispatch& d = s.dispatches[s.tried];
  const int number = s.tried++;
  d.tokens.fill(routing >= 0 ? s.routingTokens[routing] : static_cast<uint32_t>(1 + below(kMostTokens)), 1, number);
  d.buffer = buffer;
  d.captured = captured;
  const rh_ep_dispatch_in in = d.tokens.in(routing >= 0 ? s.routings[routing] : nullptr);
  rh_ep_dispatch_out out = d.tokens.to();
  const bool ended = s.bufferHasEnded[buffer];
  rh_ep_handle* handle = nullptr;
  freezeSoon();
  s.inCalls++;
  const rh_result got = rh_ep_dispatch(s.buffers[buffer], &in, &out, &handle, stream);
  s.inCalls--;
  if (got == RH_ERR_LIMIT && (!captured || s.elsewhere != 0)) return -1;
  check(got, ended, bufferLives(buffer) && routing < 0, "ep_dispatch");
  if (got != RH_OK) return -1;
  for (int i = 0; i < s.tried; i++) {
    if (s.dispatches[i].handle == handle) fail("a dispatch has the handle of an earlier one");
  }
  d.handle = handle;
  d.graphs = 1;
  return number;
}

rh_result callOn(Dispatch* d, rht_stream* stream) {
  const rh_ep_combine_args args = d->tokens.back();
  return oneIn(4) ? rh_ep_release(d->handle, stream) : rh_ep_combine(d->handle, &args, &d->tokens.combined, stream);
}

void endEager(Dispatch* d) {
  const bool ended = hasEnded(*d);
  d->mayHaveEnded = true;
  freezeSoon();
  const rh_result got = callOn(d, s.run);
  if (got == RH_OK && d->graphs == 0) fail("a dispatch ends twice");
  check(got, ended, false, "a call that ends a dispatch");
  if (got != RH_OK) return;
  d->graphs = 0;
  d->mayHaveEnded = false;
}

void getReport(Dispatch* d) {
  const bool ended = hasEnded(*d);
  rh_ep_report report = RH_EP_REPORT_INIT;
  freezeSoon();
  const rh_result got = rh_ep_get_report(s.buffers[d->buffer], d->handle, &report, nullptr);
  check(got, ended, lives(*d), "ep_get_report");
}

// ---- Graphs ----

void noteUse(Graph* g, int dispatch, int thread) {
  g->uses[g->useCount++] = dispatch;
  Dispatch& d = s.dispatches[dispatch];
  if (isStolen(thread)) d.mayHaveEnded = true;
}

void captureCalls(Graph* g, int thread) {
  const int buffer = recentOf(s.bufferCount);
  const int routing = s.routingCount > 0 && oneIn(2) ? recentOf(s.routingCount) : -1;
  const bool fits = routing >= 0 && s.routingBuffer[routing] == buffer && s.routings[routing] != nullptr;
  g->buffer = buffer;
  g->routing = fits ? routing : -1;
  const int own = dispatch(buffer, g->routing, s.captures[thread], true);
  if (own >= 0) {
    noteUse(g, own, thread);
    if (g->routing >= 0) s.routingGraphs[routing] += !isStolen(thread);
    const rh_result got = callOn(&s.dispatches[own], s.captures[thread]);
    check(got, false, lives(s.dispatches[own]), "a captured call");
  }
  if (own < 0) g->routing = -1;
  // A call on another graph's dispatch.
  const int other = anyOf(s.tried);
  Dispatch& d = s.dispatches[other];
  if (!oneIn(2) || other == own || !d.captured || d.handle == nullptr) return;
  const bool ended = hasEnded(d);
  const bool lived = lives(d);
  d.capturing++;
  freezeSoon();
  const rh_result got = callOn(&d, s.captures[thread]);
  d.capturing--;
  check(got, ended, lived && lives(d), "a captured call on the dispatch of another graph");
  if (got != RH_OK || isStolen(thread)) return;
  d.graphs++;
  noteUse(g, other, thread);
}

void endGraph(Graph g) {
  if (g.launched && oneIn(2)) {
    rht_stream_synchronize(s.run, 20 * kTimeoutMs);
    g.launched = false;
  }
  for (int i = 0; i < g.useCount; i++) {
    s.dispatches[g.uses[i]].graphs--;
    s.dispatches[g.uses[i]].ending++;
  }
  if (g.routing >= 0) s.routingGraphs[g.routing]--;
  freezeSoon();
  rht_graph_destroy(g.graph);
  if (g.exec != nullptr) rht_exec_destroy(g.exec);
  for (int i = 0; i < g.useCount && !g.launched; i++) s.dispatches[g.uses[i]].ending--;  // otherwise a launch may use it still
}

// A graph is used by one thread at a time. The lock tells ThreadSanitizer so.
pthread_mutex_t ofGraphs = PTHREAD_MUTEX_INITIALIZER;

bool takeGraph(Graph* g) {
  pthread_mutex_lock(&ofGraphs);
  const bool has = s.graphCount > 0;
  if (has) {
    const int i = recentOf(s.graphCount);
    *g = s.graphs[i];
    s.graphs[i] = s.graphs[--s.graphCount];
  }
  pthread_mutex_unlock(&ofGraphs);
  return has;
}

void giveGraph(const Graph& g) {
  pthread_mutex_lock(&ofGraphs);
  const bool fits = s.graphCount < kMostGraphs;
  if (fits) s.graphs[s.graphCount++] = g;
  pthread_mutex_unlock(&ofGraphs);
  if (!fits) endGraph(g);
}

void capture(int thread) {
  rht_stream* stream = s.captures[thread];
  s.wasStolen[thread] = false;
  if (rht_begin_capture(stream) != RH_OK) return;
  Graph g = {};
  g.routing = -1;
  captureCalls(&g, thread);
  if (rht_end_capture(stream, &g.graph) != RH_OK) {  // another thread has it
    if (!isStolen(thread)) fail("end_capture: %s", rh_last_error_message());
    for (int i = 0; i < g.useCount; i++) s.dispatches[g.uses[i]].mayHaveEnded = true;
    if (g.routing >= 0) s.routingGraphs[g.routing] = 0;
    return;
  }
  if (oneIn(2)) want(rht_graph_instantiate(g.graph, &g.exec), RH_OK, "graph_instantiate");
  giveGraph(g);
}


void launch() {
  Graph g;
  if (!takeGraph(&g)) return;
  if (g.exec != nullptr && !s.finalizing) {
    s.launching++;
    want(rht_exec_launch(g.exec, s.run), RH_OK, "exec_launch");
    s.launching--;
    g.launched = true;
  }
  giveGraph(g);
}

void steal(int thread) {
  const int other = (thread + 1) % s.threads;
  s.stealing[other]++;
  rht_graph* graph = nullptr;
  if (rht_end_capture(s.captures[other], &graph) == RH_OK) rht_graph_destroy(graph);
  s.wasStolen[other] = true;
  s.stealing[other]--;
}

void work(int thread) {
  for (int n = static_cast<int>(6 + below(10)); n > 0; n--) {
    const int buffer = recentOf(s.bufferCount);
    Dispatch* d = s.tried == 0 ? nullptr : &s.dispatches[recentOf(s.tried)];
    const uint64_t what = below(32);
    Graph g;
    if (what < 10) capture(thread);
    else if (what < 14) launch();
    else if (what < 20) { if (takeGraph(&g)) endGraph(g); }
    else if (what < 22) dispatch(buffer, -1, s.run, false);
    else if (what < 24) { if (d != nullptr && d->handle != nullptr && !d->captured) endEager(d); }
    else if (what < 26) { if (d != nullptr && d->handle != nullptr) getReport(d); }
    else if (what < 28) makeRouting(buffer);
    else if (what < 29) { if (s.routingCount > 0) destroyRouting(recentOf(s.routingCount)); }
    else if (what < 30) destroyBuffer(buffer);
    else if (what == 30) { if (s.steals) steal(thread); }
    else makeBuffer();
  }
  s.working--;
}

// A seed in which the comm ends or its group breaks, while graphs are used.
void endTheComm() {
  sleepUntil(now() + static_cast<int64_t>(below(3 * kMs)));
  if (oneIn(2)) {
    s.broken = true;
    want(rh_comm_abort(s.comm), RH_OK, "abort");
    return;
  }
  s.commMayHaveEnded = s.finalizing = true;
  while (s.launching > 0) sleepUntil(now() + kMs);
  for (;;) {
    freezeSoon();
    const rh_result got = rh_comm_finalize(s.comm);
    if (got == RH_OK) {
      s.finalizing = false;
      return;
    }
    if (got != RH_ERR_BUSY && got != RH_ERR_UNSUPPORTED) want(got, RH_OK, "finalize");
    sleepUntil(now() + kMs);
  }
}

}  // namespace

void graphs() {
  DaemonPlan plan;
  startDaemon(plan);
  setInvariant(checkObjects);
  s.session = connectOrFail();
  rh_comm_config config = configOf("g", 1, 0);
  config.device_kind = rht_device_kind();
  want(rh_comm_init(s.session, &config, &s.comm), RH_OK, "comm_init");
  makeBuffer();
  s.threads = s.working = static_cast<int>(2 + below(kMostThreads - 1));
  s.steals = oneIn(6);
  if (oneIn(4)) s.elsewhere = railhead::client::kMaxEpGraphHandles - anyOf(3);  // so that captured dispatches are refused
  railhead::client::epGraphHandles = s.elsewhere;
  want(rht_stream_create(&s.run), RH_OK, "stream_create");
  for (int i = 0; i < s.threads; i++) want(rht_stream_create(&s.captures[i]), RH_OK, "stream_create");
  for (intptr_t i = 0; i < s.threads; i++) {
    start([](void* thread) { work(static_cast<int>(reinterpret_cast<intptr_t>(thread))); }, reinterpret_cast<void*>(i));
  }
  if (oneIn(3)) endTheComm();
  joinAll();
  Graph g;
  while (takeGraph(&g)) endGraph(g);
  for (int i = 0; i < s.threads; i++) want(rht_stream_destroy(s.captures[i]), RH_OK, "stream_destroy");
  s.threads = 0;
  want(rht_stream_destroy(s.run), RH_OK, "stream_destroy");
  if (!s.commMayHaveEnded) {
    // No graph uses anything any more.
    if (railhead::client::epGraphHandles != s.elsewhere) fail("%d handles of captured dispatches live, and no graph", railhead::client::epGraphHandles - s.elsewhere);
    for (int i = 0; i < s.routingCount; i++) {
      const bool busy = s.routings[i] != nullptr && rh_ep_routing_destroy(s.routings[i]) == RH_ERR_BUSY;  // also of a dispatch in flight
      if (busy && strstr(rh_last_error_message(), "captured graphs") != nullptr) fail("a routing is used, and there is no graph");
    }
    for (int i = 0; i < s.tried; i++) {
      Dispatch& d = s.dispatches[i];
      if (d.captured && d.handle != nullptr) want(rh_ep_get_report(s.buffers[d.buffer], d.handle, nullptr, nullptr), RH_ERR_INVALID_HANDLE, "the report of an ended graph's dispatch");
    }
    for (int& destroying : s.destroying) destroying = 1;
    for (int i = 0; i < s.bufferCount && !s.broken; i++) want(rh_ep_destroy(s.buffers[i]), s.bufferHasEnded[i] ? RH_ERR_INVALID_HANDLE : RH_OK, "ep_destroy");
    want(rh_comm_finalize(s.comm), RH_OK, "finalize");
  }
  for (int i = 0; i < s.tried; i++) {
    const Dispatch& d = s.dispatches[i];
    if (d.handle != nullptr && d.tokens.combined.result == RH_OK && d.tokens.combined.dispatch != 0 && !d.captured) d.tokens.checkOut();
  }
  if (railhead::client::epGraphHandles != s.elsewhere) fail("%d handles of captured dispatches are counted, and there is none", railhead::client::epGraphHandles - s.elsewhere);
  want(rh_close(s.session), RH_OK, "close");
}

}  // namespace world
