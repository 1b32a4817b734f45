// A daemon of the world: it speaks the protocol, keeps ledgers as server/group does, and dies and starts again at any point. It also
// plays ranks of other processes.
#ifndef RAILHEAD_RACES_DAEMON_H_
#define RAILHEAD_RACES_DAEMON_H_

#include "railhead.h"
#include "wire.h"
#include "world.h"

namespace world {

constexpr int kMaxWorld = 4;
constexpr int kMaxCalls = 64;  // set-up calls of a group
constexpr uint64_t kHeapBytes = 16 << 20;
constexpr uint64_t kGranule = 65536;

// What may happen in a seed.
struct DaemonPlan {
  int restarts = 0;                     // deaths at random points
  int64_t mostAway = 2 * kSecond;       // between a death and the next start
  int64_t leastAway = 0;
  uint64_t errorOneIn = 0;              // set-up calls that end with an error; 0 = none
  uint64_t refuseHelloOneIn = 0;        // after a restart; 0 = none
  int mostRefusals = 2;                 // of Hello after a restart: the client's pauses grow
  bool ignoresHello = false;            // the first after each restart has no answer
  bool refusesRanks = false;            // that come back: Reannounce is answered with an error
  uint64_t deathWithin = 80;            // actions from the first start to the first death
  int64_t mostLatency = 20 * kMs;       // of an action
  bool watchesLeases = true;            // breaks the group of a rank whose lease is marked, as a daemon that does not hang
};

void startDaemon(const DaemonPlan& plan);
void stopDaemon();       // ends it, and what it has in hand
void dieNow();           // the daemon dies, and starts again as the plan says
void dieAfter(int actions);  // the same, later
void hang(bool hangs);   // a daemon that hangs reads and sends nothing
void breakProtocol();    // it sends each client something that is no message

// A set-up call of a group that has ended, by its number (1 is comm_init).
struct Ended {
  uint32_t op;
  rh_result code;
  uint64_t offset;
};
int endedCallsOf(const char* group);
Ended endedCall(const char* group, int number);

// After a rank has come back: when it sent its last message of coming back, when it sent its next call, and when the daemon sent an error
// last; 0 = it has not.
struct Resumed {
  int64_t announced, called, refused;
};
Resumed resumed(const char* group, int rank);

// Makes a rank of a group one of another process: it joins, and makes the set-up calls that the others make, but no collectives. silent: it
// makes no set-up call either.
void playRank(const char* group, int world, int rank, bool silent = false);
// The operation in the line of a played rank.
void setOperation(const char* group, int rank, uint32_t op);
// Kills it: the kernel marks its lease. Also a rank of the library, which makes no call then but to end its comm in the broken group.
void killRank(const char* group, int rank);
// It breaks the group, as its library would.
void abortAs(const char* group, int rank, rh_result code, uint32_t op);

// The n-th time since its start, from 0 on, that it refused Hello. at 0 = it has not.
struct RefusedHello {
  int64_t at;
  int connects;  // calls of connect(2) until then
};
constexpr int kMostRefusals = 8;
RefusedHello refusedHello(int n);

bool groupIsReady(const char* group);
uint64_t abortWordOf(const char* group);
int restartsSoFar();

// Compares the lease words of all segments that the daemon has seen with the robust list: a death now must mark exactly the words that
// hold the control thread's id.
void checkLeases();
// A futex word was woken. A lease whose word changes is woken before the control thread sleeps again: a daemon sleeps on it.
void noteWake(Key key);
void checkLeasesWoken();
// Fails if a lease is held still.
void checkLeasesReleased();

}  // namespace world

#endif  // RAILHEAD_RACES_DAEMON_H_
