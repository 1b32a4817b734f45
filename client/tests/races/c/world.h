// The world in which the client library runs in these tests. It replaces what the library asks of the kernel and of the C library's
// threads: the linker sends each of those calls to a function here (races_test.go lists them). The library itself is unchanged.
//
// One thread runs at a time. At each such call, and in the build with hooks (hooks.cc) at each atomic operation, the running thread may
// have to let another one run. A generator with a seed chooses. Time is a number that grows when all threads sleep. So a seed plays the
// same schedule each time.
#ifndef RAILHEAD_RACES_WORLD_H_
#define RAILHEAD_RACES_WORLD_H_

#include <stddef.h>
#include <stdint.h>

namespace world {

constexpr int64_t kNever = INT64_MAX;
constexpr int64_t kUs = 1000, kMs = 1000 * kUs, kSecond = 1000 * kMs;

// Makes the calling thread the only one of a new world.
void begin(uint64_t seed);
// Checks that nothing is left: threads, mutexes, descriptors, mappings, and with hooks memory.
void end();

// Ends the process with the message and the last steps of the schedule.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

uint64_t below(uint64_t n);  // a random number less than n
inline bool oneIn(uint64_t n) { return below(n) == 0; }
int64_t frozen(int64_t since = 0);  // ns for which threads were frozen after a time, see world.cc
void freezeSoon();           // freezes the running thread at one of its next steps, or not
void freezeAt(const char* what);  // freezes it at its next step of that name
void failThread(int n);      // makes the n-th pthread_create from now on of the running thread fail
bool anyFrozen();            // whether a thread is frozen now
// Holds the running thread at its n-th next step of that name until the condition, which has no effects, is true.
void holdAt(const char* what, int n, bool (*until)());
int held();                  // threads that are held now
int64_t now();               // ns; the library's CLOCK_MONOTONIC
uint64_t fingerprint();      // of the schedule so far
int self();                  // number of the running thread

// A point at which another thread may run. what is a constant, for the trace.
void step(const char* what);
// Lets other threads run until ready(argument), or until the deadline. Returns ready(argument). ready has no effects.
bool block(const char* what, int64_t deadline, bool (*ready)(void*), void* argument);
template <class F>
bool block(const char* what, int64_t deadline, F ready) {
  return block(what, deadline, [](void* f) { return (*static_cast<F*>(f))(); }, &ready);
}
// While on, step lets no other thread run. Returns whether it was on.
bool keepRunning(bool on);
inline void sleepUntil(int64_t t) {
  block("sleep", t, [] { return false; });
}

// What else acts in this world, e.g. a daemon: due() is when it acts next, act() does so. Set before the first step.
struct Actor {
  int64_t (*due)();
  void (*act)();
};
void setActor(Actor actor);
// Checked at each step. It takes no step itself.
void setInvariant(void (*check)());
void checkInvariant();

// Starts a thread of the test. They end before world::end.
void start(void (*run)(void*), void* argument);
void joinAll();

// ---- Descriptors (descriptors.cc). A number is never used twice, so a descriptor that was closed is never taken for another one. ----

struct Packet {
  int size = 0;
  int fd = -1;  // -1 = none; owned by the queue
  int64_t at = 0;
  char bytes[1024];
};

struct Queue {
  static constexpr int kMost = 24;
  Packet packets[kMost];
  int first = 0, count = 0;
  bool full() const { return count == kMost; }
  Packet& front() { return packets[first]; }
  void push(const void* bytes, int size, int fd);
  Packet pop();
};

// A connection of the client. The daemon uses the other end.
struct Socket {
  int fd = -1;  // -1 = the entry is free
  bool connected = false, shut = false;
  bool hungUp = false;  // by the daemon
  bool reset = false;   // recvmsg reports ECONNRESET once
  bool ended = false;   // recvmsg has reported the end
  bool closed = false;  // by the client
  bool accepted = false;
  Queue in, out;  // to the client, to the daemon
};
constexpr int kMaxSockets = 64;
extern Socket sockets[kMaxSockets];
extern bool listening;     // whether connect(2) finds a daemon
// What the client has sent a daemon in all.
struct Sent {
  int connects = 0;  // calls of connect(2)
  int leases = 0;    // messages of type SessionLease
};
extern Sent sent;
// The first shutdown(2) of a connection: it ends a session for good.
struct Shutdown {
  int64_t at = 0;       // 0 = there was none yet
  bool wasUp = false;   // the client had not read the end of the connection
  Sent before;
};
extern Shutdown firstShutdown;
int placeholder();         // a new descriptor with a number of its own
int moved(int fd);         // the same open file under such a number; closes fd
int copied(int fd);        // the same, but keeps fd
void freeSocket(Socket* s);

// Makes the n-th mmap from now on of the running thread fail; 0 = none.
void failMap(int n);

// The memory of an address: the file and the offset for shared memory, so that all its mappings have the same key.
struct Key {
  uint64_t file, offset;
  bool operator==(const Key& other) const { return file == other.file && offset == other.offset; }
};
bool keyOf(const void* address, Key* out);  // false: not in a mapping that the library made
uint64_t fileOf(int fd);

// Wakes the sleepers of a futex word (threads.cc).
void wake(Key key);

// The robust list that the kernel would walk if the process died now.
struct RobustList {
  const void* head = nullptr;  // as in set_robust_list(2)
  int tid = 0;
};
extern RobustList robust;

// Tells ThreadSanitizer, where it is linked, that what this world does on behalf of a thread is none of the thread's own accesses.
class Hidden {
 public:
  Hidden();
  ~Hidden();
};

}  // namespace world

#endif  // RAILHEAD_RACES_WORLD_H_
