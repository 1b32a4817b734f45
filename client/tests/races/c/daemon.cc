#include "daemon.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon_state.h"
#include "real.h"
#include "session/message.h"

namespace world {

DaemonState d;

namespace {

using railhead::client::setHeader;

// ---- What it sends: one packet an action, so that a death may come between any two ----

Group* groupOf(uint64_t number) {
  for (Group& g : d.groups) {
    if (g.used && g.number == number) return &g;
  }
  return nullptr;
}

void send(Socket* to, const void* bytes, size_t size, int fd) {
  if (d.outCount == DaemonState::kMostOut) fail("the daemon has more than %d packets to send", DaemonState::kMostOut);
  Out& o = d.out[d.outCount++];
  o.to = to;
  o.size = static_cast<int>(size);
  o.fd = fd < 0 ? -1 : copied(fd);
  memcpy(o.bytes, bytes, size);
}

template <class M>
void answer(const Rank& r, M m, uint16_t type, int fd = -1) {
  if (r.socket == nullptr) return;
  setHeader(&m, type, RHW_VERSION_MAX, r.request);
  send(r.socket, &m, sizeof m, fd);
}

template <class M>
void answerAll(Group& g, M m, uint16_t type) {
  const int first = static_cast<int>(below(static_cast<uint64_t>(g.world)));
  for (int i = 0; i < g.world; i++) answer(g.ranks[(first + i) % g.world], m, type);
}

rhw_error errorOf(rh_result code, const char* text) {
  rhw_error e = {};
  e.code = static_cast<uint32_t>(code);
  e.culprit = -1;
  snprintf(e.text, sizeof e.text, "%s", text);
  return e;
}

// Why a group is broken, as the daemon says it.
rhw_error brokenError(const Group& g) {
  const uint64_t word = g.header()->abort;
  const auto culprit = static_cast<int>(word >> 8 & RHW_NO_RANK);
  char text[64];
  snprintf(text, sizeof text, "rank %d (pid %d) broke the group", culprit, 1000 + culprit);
  return errorOf(static_cast<rh_result>(word & 0xff), text);
}

// ---- Calls of a group ----

bool everyRank(const Group& g, bool (*has)(const Rank&)) {
  for (int r = 0; r < g.world; r++) {
    if (!has(g.ranks[r])) return false;
  }
  return true;
}

void clearCall(Group& g) {
  for (int r = 0; r < g.world; r++) g.ranks[r].op = RHW_OP_NONE;
  for (int r = 0; r < g.world; r++) g.ranks[r].committed = false;
  g.offset = 0;
}

// Ends a call: outcome, number, answers, in this order (segment.h, the ledger). The end is an action of its own.
void endCall(Group& g) {
  rhw_ledger* ledger = g.ledger();
  const uint64_t n = ledger->ended + 1;
  if (n >= kMaxCalls) fail("more than %d set-up calls", kMaxCalls);
  const uint32_t op = g.ending;
  const bool failing = d.plan.errorOneIn != 0 && op != RHW_OP_COMM_INIT && op != RHW_OP_FINALIZE && oneIn(d.plan.errorOneIn);
  rhw_outcome& o = ledger->outcomes[n % 2];
  o = {};
  o.op = op;
  o.code = static_cast<uint32_t>(failing ? RH_ERR_LIMIT : RH_OK);
  o.culprit = o.staged_local = -1;
  if (op == RHW_OP_WINDOW_ALLOC) o.offset = g.offset;
  if (op == RHW_OP_WINDOW_ALLOC) o.bytes = kGranule;
  snprintf(o.text, sizeof o.text, "outcome %llu", static_cast<unsigned long long>(n));
  g.ended[n] = {op, static_cast<rh_result>(o.code), o.offset};
  __atomic_store_n(&ledger->ended, n, __ATOMIC_RELEASE);
  g.ending = RHW_OP_NONE;
  if (failing) {
    answerAll(g, errorOf(RH_ERR_LIMIT, o.text), RHW_ERROR);
  } else if (op == RHW_OP_COMM_INIT) {
    rhw_group_ready m = {};
    m.group = g.number;
    answerAll(g, m, RHW_GROUP_READY);
  } else if (op == RHW_OP_WINDOW_ALLOC) {
    rhw_window_ready m = {};
    m.group = g.number;
    m.offset = o.offset;
    answerAll(g, m, RHW_WINDOW_READY);
  } else if (op == RHW_OP_WINDOW_FREE) {
    rhw_window_freed m = {};
    m.group = g.number;
    answerAll(g, m, RHW_WINDOW_FREED);
  } else {
    rhw_left m = {};
    m.group = g.number;
    answerAll(g, m, RHW_LEFT);
    g.left = true;
  }
  clearCall(g);
  // Between the outcome and the last answer.
  if (d.dieAfter > g.world && oneIn(3)) d.dieAfter = static_cast<int>(below(static_cast<uint64_t>(g.world) + 2));
}

void progress(Group& g) {
  if (g.ending != RHW_OP_NONE || !g.ready) return;
  const uint32_t op = g.ranks[g.firstReal()].op;
  if (op == RHW_OP_NONE) return;
  for (int r = 0; r < g.world; r++) {
    Rank& rank = g.ranks[r];
    if (rank.played && !rank.silent) rank.op = op;
    if (rank.played && g.offset != 0) rank.committed = true;
    if (rank.op == RHW_OP_NONE) return;
    if (rank.op != op) fail("rank %d is in operation %u, another rank in %u", r, rank.op, op);
  }
  if (op != RHW_OP_WINDOW_ALLOC) {
    g.ending = op;
  } else if (g.offset == 0) {
    rhw_window_commit m = {};
    m.group = g.number;
    m.offset = g.offset = g.nextOffset;
    g.nextOffset += kGranule;
    if (g.nextOffset > kHeapBytes) fail("too many windows");
    m.bytes = m.granularity = kGranule;
    m.memory = RHW_MEMORY_CPU;
    answerAll(g, m, RHW_WINDOW_COMMIT);
  } else if (everyRank(g, [](const Rank& r) { return r.committed; })) {
    g.ending = op;
  }
}

// ---- Messages ----

Rank& rankOf(Group* g, const Socket* from, uint64_t request) {
  if (g == nullptr) fail("a request with a number of no group");
  for (int r = 0; r < g->world; r++) {
    Rank& rank = g->ranks[r];
    if (rank.socket != from || rank.client == 0) continue;
    // Ranks of one session have one socket: the request says whose it is, and a new request is of a rank that makes no call.
    if (rank.request == request) return rank;
  }
  fail("a request for a group of which this connection has no rank");
}

// A new call of a rank. Several ranks of a group may share a session; which of them calls does not matter to the daemon.
void call(const Socket* from, uint64_t group, uint64_t request, uint32_t op, int64_t sentAt) {
  Group* g = groupOf(group);
  if (g == nullptr) fail("operation %u for group %llu, which this daemon does not know", op, static_cast<unsigned long long>(group));
  if (g->ending != RHW_OP_NONE) endCall(*g);  // a rank has given it up, and calls again
  for (int r = 0; r < g->world; r++) {
    Rank& rank = g->ranks[r];
    if (rank.socket != from || !rank.known || rank.op != RHW_OP_NONE) continue;
    rank.request = request;
    rank.op = op;
    if (rank.calledAt == 0) rank.calledAt = sentAt;
    if (g->abortWord() != 0 || g->left) {
      if (op == RHW_OP_FINALIZE) {
        rhw_left m = {};
        answer(rank, m, RHW_LEFT);
      } else {
        answer(rank, brokenError(*g), RHW_ERROR);
      }
      rank.op = RHW_OP_NONE;
      return;
    }
    progress(*g);
    return;
  }
  fail("operation %u on a connection whose ranks this daemon does not know, or which are in a call", op);
}

void handle(Socket* s, const Packet& p) {
  rhw_header h;
  memcpy(&h, p.bytes, sizeof h);
  const auto as = [&p](auto m) {
    if (p.size != static_cast<int>(sizeof m)) fail("a message of %d bytes, want %zu", p.size, sizeof m);
    memcpy(&m, p.bytes, sizeof m);
    return m;
  };
  Connection& c = d.connections[s - sockets];
  if (!c.greeted && h.type != RHW_HELLO) fail("message %d before Welcome", h.type);
  if (!c.leased && h.type != RHW_HELLO && h.type != RHW_SESSION_LEASE) fail("message %d before SessionLease", h.type);
  switch (h.type) {
    case RHW_HELLO: {
      Rank sender = {};
      sender.socket = s;
      if (d.starts > 1 && d.hellosRefused < d.plan.mostRefusals && d.plan.refuseHelloOneIn != 0 && oneIn(d.plan.refuseHelloOneIn)) {
        d.refusedHellos[d.hellosRefused++] = {now(), sent.connects};
        answer(sender, errorOf(RH_ERR_VERSION_MISMATCH, "update"), RHW_ERROR);
        break;
      }
      if (d.starts > 1 && d.plan.ignoresHello && !d.helloIgnored) {
        d.helloIgnored = true;
        break;
      }
      c.greeted = true;
      rhw_welcome m = {};
      m.version = RHW_VERSION_MAX;
      answer(sender, m, RHW_WELCOME);
      break;
    }
    case RHW_SESSION_LEASE:
      if (c.leased) fail("SessionLease twice on a connection");
      c.leased = true;
      takeSession(p.fd, as(rhw_session_lease()).client);
      break;
    case RHW_JOIN: {
      if (Group* g = join(s, as(rhw_join()), h.request)) {
        const int first = static_cast<int>(below(static_cast<uint64_t>(g->world)));
        for (int i = 0; i < g->world; i++) {
          const Rank& rank = g->ranks[(first + i) % g->world];
          if (rank.played) continue;
          answer(rank, joinedOf(*g), RHW_JOINED, g->controlFd);
          for (int r = 0; r < g->world; r++) {
            rhw_heap m = {};
            m.group = g->number;
            m.local = r;
            m.pid = static_cast<uint32_t>(1000 + r);
            answer(rank, m, RHW_HEAP, g->heapFds[r]);
          }
        }
      }
      break;
    }
    case RHW_ATTACHED: {
      const auto m = as(rhw_attached());
      Group* g = groupOf(m.group);
      if (m.error != 0) {  // the test lets mmap fail, of a group of one
        g->left = true;
        break;
      }
      rankOf(g, s, h.request).attached = true;
      if (everyRank(*g, [](const Rank& r) { return r.attached; })) {
        g->ready = true;
        for (int r = 0; r < g->world; r++) g->ranks[r].known = true;
        g->ending = RHW_OP_COMM_INIT;
      }
      break;
    }
    case RHW_WINDOW_ALLOC: call(s, as(rhw_window_alloc()).group, h.request, RHW_OP_WINDOW_ALLOC, p.at); break;
    case RHW_WINDOW_FREE: call(s, as(rhw_window_free()).group, h.request, RHW_OP_WINDOW_FREE, p.at); break;
    case RHW_LEAVE: call(s, as(rhw_leave()).group, h.request, RHW_OP_FINALIZE, p.at); break;
    case RHW_WINDOW_COMMITTED: {
      const auto m = as(rhw_window_committed());
      Group* g = groupOf(m.group);
      if (g != nullptr && g->abortWord() != 0) break;
      Rank& rank = rankOf(g, s, h.request);
      if (m.error != 0 || m.offset != g->offset) fail("WindowCommitted for offset %llu, error %d", static_cast<unsigned long long>(m.offset), m.error);
      rank.committed = true;
      progress(*g);
      break;
    }
    case RHW_REANNOUNCE: {
      Rank sender = {};
      sender.socket = s;
      sender.request = h.request;
      if (d.plan.refusesRanks) {
        answer(sender, errorOf(RH_ERR_LIMIT, "no room here"), RHW_ERROR);
        break;
      }
      const uint64_t number = reannounced(s, as(rhw_reannounce()), h.request, p.fd);
      rhw_reannounced m = {};
      m.group = number;
      answer(sender, m, RHW_REANNOUNCED);
      break;
    }
    case RHW_REANNOUNCE_HEAP: heapReannounced(s, groupOf(as(rhw_reannounce_heap()).group), h.request, p); break;
    default: fail("the client sent a message of type %d", h.type);
  }
  if (p.fd >= 0) __real_close(p.fd);
}

// ---- Its life ----

int64_t latency() { return oneIn(8) ? static_cast<int64_t>(below(static_cast<uint64_t>(d.plan.mostLatency))) : static_cast<int64_t>(below(50 * kUs)); }

void dropConnections() {
  for (Socket& s : sockets) {
    if (s.fd < 0 || !s.connected) continue;
    s.reset = s.out.count > 0 && oneIn(2);
    s.hungUp = true;
    if (s.closed) freeSocket(&s);
    else s.accepted = false;
    d.connections[&s - sockets] = {};
  }
  for (int i = 0; i < d.outCount; i++) {
    if (d.out[i].fd >= 0) __real_close(d.out[i].fd);
  }
  d.outCount = 0;
}

// The client has shut the connection down, or closed it.
void endConnection(Socket* s) {
  for (Group& g : d.groups) {
    for (int r = 0; g.used && r < g.world; r++) {
      if (g.ranks[r].socket != s) continue;
      g.ranks[r] = {};
    }
  }
  int kept = 0;
  for (int i = 0; i < d.outCount; i++) {
    if (d.out[i].to != s) {
      if (kept != i) d.out[kept] = d.out[i];
      kept++;
    } else if (d.out[i].fd >= 0) {
      __real_close(d.out[i].fd);
    }
  }
  d.outCount = kept;
  d.connections[s - sockets] = {};
  s->accepted = false;
  s->hungUp = true;
  if (s->closed) freeSocket(s);
}

// A connection with something to read or to end; nullptr = none. Begins at a random one.
Socket* readableSocket() {
  const int first = static_cast<int>(below(kMaxSockets));
  for (int i = 0; i < kMaxSockets; i++) {
    Socket& s = sockets[(first + i) % kMaxSockets];
    if (s.fd >= 0 && s.connected && !s.hungUp && (s.out.count > 0 || s.closed || s.shut)) return &s;
  }
  return nullptr;
}

bool hasWork() {
  if (!listening || d.hangs) return false;
  if (d.outCount > 0 || (d.dieAfter >= 0 && anyFrozen())) return true;
  for (const Socket& s : sockets) {
    if (s.fd >= 0 && s.connected && !s.hungUp && (s.out.count > 0 || s.closed || (s.shut && s.accepted))) return true;
  }
  for (const Group& g : d.groups) {
    if (g.used && (g.ending != RHW_OP_NONE || g.hasCallToBreak() || (d.plan.watchesLeases && g.hasDeathToReport()))) return true;
  }
  return false;
}

int64_t due() {
  if (!listening) return d.startAt;
  return hasWork() ? d.busyUntil : kNever;
}

bool sendOne() {
  for (int i = 0; i < d.outCount; i++) {
    Out& o = d.out[i];
    if (o.to->in.full() && !o.to->hungUp && !o.to->closed) continue;
    if (!o.to->hungUp && !o.to->closed) {
      o.to->in.push(o.bytes, o.size, o.fd);
      rhw_header header;
      memcpy(&header, o.bytes, sizeof header);
      if (header.type == RHW_ERROR) d.errorSentAt = now();
    } else if (o.fd >= 0) {
      __real_close(o.fd);
    }
    for (int j = i + 1; j < d.outCount; j++) d.out[j - 1] = d.out[j];
    d.outCount--;
    return true;
  }
  return false;
}

void breakCalls(Group& g) {
  for (int r = 0; r < g.world; r++) {
    Rank& rank = g.ranks[r];
    if (rank.op == RHW_OP_NONE) continue;
    answer(rank, brokenError(g), RHW_ERROR);
  }
  clearCall(g);
}

bool workOnGroups() {
  for (Group& g : d.groups) {
    if (!g.used) continue;
    if (d.plan.watchesLeases && g.hasDeathToReport()) {
      reportDeath(g);
      return true;
    }
    if (g.hasCallToBreak()) {
      g.ending = RHW_OP_NONE;
      breakCalls(g);
      return true;
    }
    if (g.ending != RHW_OP_NONE) {
      endCall(g);
      return true;
    }
  }
  return false;
}

void act() {
  if (!listening) {
    listening = true;
    d.starts++;
    d.helloIgnored = false;
    d.hellosRefused = 0;
    for (Group& g : d.groups) g.brokenAtStart = g.abortWord() != 0;
    d.dieAfter = d.starts <= d.plan.restarts ? static_cast<int>(1 + below(60)) : -1;
    return;
  }
  d.busyUntil = now() + latency();
  // The races of a death are those with threads in the middle of a call.
  if (d.dieAfter > 2 && anyFrozen()) d.dieAfter = static_cast<int>(below(3));
  if (d.dieAfter >= 0 && d.dieAfter-- == 0) {
    dieNow();
    return;
  }
  // Any of its work may be next.
  if (oneIn(3) && workOnGroups()) return;
  if (oneIn(2) && d.outCount > 0 && sendOne()) return;
  Socket* s = readableSocket();
  if (s == nullptr) {
    if (d.outCount > 0 && sendOne()) return;
    workOnGroups();
    return;
  }
  s->accepted = true;
  if (s->out.count > 0) handle(s, s->out.pop());
  else endConnection(s);
}

}  // namespace

void startDaemon(const DaemonPlan& plan) {
  d.plan = plan;
  d.starts = 1;
  d.dieAfter = plan.restarts > 0 ? static_cast<int>(1 + below(plan.deathWithin)) : -1;
  listening = true;
  setActor({due, act});
}

void dieNow() {
  listening = false;
  d.hangs = false;
  const auto range = static_cast<uint64_t>(d.plan.mostAway - d.plan.leastAway) + 1;
  const auto away = static_cast<int64_t>(below(range));
  d.startAt = now() + d.plan.leastAway + (oneIn(2) ? away : away / 16);
  dropConnections();
  for (Group& g : d.groups) {
    if (!g.used) continue;
    g.forgetRanks();
    // A daemon numbers its groups anew, unless the number is free.
    if (oneIn(2)) g.number = d.nextGroup++;
  }
}

void dieAfter(int actions) { d.dieAfter = actions; }

void stopDaemon() {
  dropConnections();
  for (Socket& s : sockets) {
    if (s.fd >= 0 && s.closed) freeSocket(&s);
  }
}

void hang(bool hangs) { d.hangs = hangs; }
void breakProtocol() {
  for (Socket& s : sockets) {
    if (s.fd >= 0 && d.connections[&s - sockets].greeted) send(&s, "no message", 10, -1);
  }
}
RefusedHello refusedHello(int n) { return n < d.hellosRefused ? d.refusedHellos[n] : RefusedHello{}; }
int restartsSoFar() { return d.starts - 1; }

}  // namespace world
