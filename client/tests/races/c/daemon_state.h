// What the daemon of the world keeps. No dynamic memory: any thread may act for the daemon.
#ifndef RAILHEAD_RACES_DAEMON_STATE_H_
#define RAILHEAD_RACES_DAEMON_STATE_H_

#include <linux/futex.h>

#include "daemon.h"

namespace world {

// A lease word as it was seen last.
struct SeenLease {
  uint32_t word = 0;
  bool changed = false;  // and not woken since
};

struct Rank {
  Socket* socket = nullptr;  // of the session that holds it; nullptr = this daemon has not seen the rank
  uint64_t client = 0;       // 1 = a rank is here
  uint64_t request = 0;      // of its last request
  uint32_t op = 0;           // the set-up call under way
  bool attached = false, committed = false;
  bool known = false;        // it may make set-up calls
  bool announced = false;    // Reannounce came, its heap has not
  bool played = false;       // by the daemon
  bool silent = false;       // a played rank that makes no set-up call
  int64_t announcedAt = 0, calledAt = 0;  // as Resumed says
};

struct Group {
  bool used = false;
  char name[RHW_NAME] = {0};
  int world = 0;
  uint64_t number = 0;
  int controlFd = -1;  // -1 = not formed
  uint64_t controlFile = 0;
  int heapFds[kMaxWorld] = {-1, -1, -1, -1};
  char* control = nullptr;
  Rank ranks[kMaxWorld];
  bool ready = false;         // all ranks are attached
  bool left = false;
  uint32_t ending = 0;        // the call that ends next
  uint64_t offset = 0;        // of the window being allocated
  uint64_t nextOffset = 0;
  Ended ended[kMaxCalls] = {};
  SeenLease seen[kMaxWorld];
  bool brokenAtStart = false; // of the present daemon

  rhw_control_header* header() const { return reinterpret_cast<rhw_control_header*>(control); }
  rhw_rank_line* line(int r) const;
  rhw_ledger* ledger() const;
  uint32_t abortWord() const { return control == nullptr ? 0 : static_cast<uint32_t>(__atomic_load_n(&header()->abort, __ATOMIC_ACQUIRE)); }
  int firstReal() const;
  bool hasCallToBreak() const;
  bool hasDeathToReport() const;
  void forgetRanks();
};

struct Out {
  Socket* to;
  int size, fd;
  char bytes[1024];
};

struct Connection {
  bool greeted = false;
  bool leased = false;  // SessionLease has come
};

struct SessionSegment {
  rhw_session* at = nullptr;
  uint64_t file = 0;
  SeenLease seen;
};

struct DaemonState {
  static constexpr int kMaxGroups = 8, kMostOut = 64, kMaxSegments = 32;
  DaemonPlan plan;
  int starts = 0;
  int dieAfter = -1;  // actions; -1 = lives on
  int64_t startAt = 0, busyUntil = 0;
  bool hangs = false;
  bool helloIgnored = false;
  int hellosRefused = 0;  // since the start
  RefusedHello refusedHellos[kMostRefusals] = {};
  int64_t errorSentAt = 0;
  uint64_t nextGroup = 77;
  Group groups[kMaxGroups];
  Out out[kMostOut];
  int outCount = 0;
  Connection connections[kMaxSockets];
  SessionSegment sessions[kMaxSegments];
};
extern DaemonState d;

// daemon_groups.cc
void takeSession(int fd, uint64_t client);
// Returns the group once all its ranks have joined.
Group* join(Socket* from, const rhw_join& m, uint64_t request);
rhw_joined joinedOf(const Group& g);
uint64_t reannounced(Socket* from, const rhw_reannounce& m, uint64_t request, int controlFd);
void heapReannounced(Socket* from, Group* g, uint64_t request, const Packet& p);
void reportDeath(Group& g);

}  // namespace world

#endif  // RAILHEAD_RACES_DAEMON_STATE_H_
