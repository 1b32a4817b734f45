// Streams and the work queued on them.
#ifndef RAILHEAD_CLIENT_DEVICE_THREADS_STREAM_H_
#define RAILHEAD_CLIENT_DEVICE_THREADS_STREAM_H_

#include <pthread.h>
#include <stdint.h>

#include "base/handle_table.h"
#include "base/malloced.h"
#include "comm/comm.h"
#include "device/threads/threads.h"

namespace railhead::client::threads {

constexpr int kMaxStreams = 256;
constexpr uint32_t kHost = 0xffffffff;  // a set-up call, in place of the number of a stream

struct Stream;
struct Sequence;

// A piece of work. A copy of its arguments follows it in memory.
struct Work {
  Work* next;
  rh_result (*run)(Stream* stream, Work* work);
  void (*drop)(Work* work);  // releases what the arguments refer to; nullptr = nothing to release
  Comm* comm;                // the comm of the work; nullptr = none
  alignas(16) unsigned char args[];

  template <class Args>
  Args* as() {
    return reinterpret_cast<Args*>(args);
  }
};

// nullptr: out of memory.
Work* newWork(rh_result (*run)(Stream*, Work*), size_t argsBytes);
void freeWork(Work* work);

// Captured work and what it keeps alive. Graphs, execs and launches hold references; the last one frees it.
struct Sequence : Malloced {
  uint32_t references;  // atomic
  uint32_t number;      // of the capture
  uint32_t launches;    // launches that have begun to run; atomic
  uint32_t size;
  Work* first;
  Work** end;
  struct Kept : Malloced {
    Kept* next;
    void (*release)(void*);
    void* object;
  }* kept;
};
void dropSequence(Sequence* sequence);

struct Stream : Malloced {
  uint32_t number;
  pthread_t thread;
  pthread_mutex_t mutex;  // guards everything below
  pthread_cond_t changed;
  Work* first;
  Work** end;
  uint64_t queued, done;  // pieces of work
  bool ending;
  rh_result failed;
  char message[512];
  uint64_t capture;    // number of the capture in progress; 0 = none
  Sequence* sequence;  // of the capture
};

// What the calling stream thread is running; zeros: not a graph.
struct Launch {
  uint32_t graph, replay;
};
extern thread_local Launch launch;

using StreamTable = HandleTable<Stream, kMaxStreams>;
StreamTable& streams();

// The device's state of a comm: how much work of the comm is queued or running.
struct CommWork : Malloced {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t pending;
};
// Counts work that was queued, and work that has run. Work without a comm is not counted.
void addPending(const Work* work);
void removePending(const Work* work);

// Fails the call, because its handle is not a live stream.
rh_result noStream(const char* operation);

// The number of the capture in progress on the stream; 0 = none.
uint64_t captureOf(Stream* stream);

// Adds the work to the stream's queue or to the capture in progress, and takes ownership of it.
void submit(Stream* stream, Work* work);

// A condition variable on the monotonic clock.
void initialize(pthread_mutex_t* mutex, pthread_cond_t* changed);
// Waits for a change, at most until that time. False: the time has passed.
bool waitUntil(pthread_cond_t* changed, pthread_mutex_t* mutex, int64_t deadlineNs);

}  // namespace railhead::client::threads

#endif  // RAILHEAD_CLIENT_DEVICE_THREADS_STREAM_H_
