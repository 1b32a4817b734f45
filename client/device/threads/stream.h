// Streams and what is queued on them.
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
constexpr uint32_t kHost = 0xffffffff;  // in place of a stream's number: a set-up call

struct Stream;
struct Sequence;

// Something to do, with a copy of its arguments behind it.
struct Work {
  Work* next;
  rh_result (*run)(Stream* stream, Work* work);
  void (*drop)(Work* work);  // gives back what the arguments refer to; nullptr = nothing
  Comm* comm;                // whose it is; nullptr = nobody's
  alignas(16) unsigned char args[];

  template <class Args>
  Args* as() {
    return reinterpret_cast<Args*>(args);
  }
};

// nullptr: no memory.
Work* newWork(rh_result (*run)(Stream*, Work*), size_t argsBytes);
void freeWork(Work* work);

// Work that was captured, and what it keeps. It goes with the last reference: of the graph, of what was instantiated, of launches.
struct Sequence : Malloced {
  uint32_t references;  // atomic
  uint32_t number;      // of the capture
  uint32_t launches;    // that have begun to run; atomic
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
  pthread_mutex_t mutex;  // of all below
  pthread_cond_t changed;
  Work* first;
  Work** end;
  uint64_t queued, done;  // how much work
  bool ending;
  rh_result failed;
  char message[512];
  uint64_t capture;    // the number of what is being captured, 0 = nothing
  Sequence* sequence;  // of it
};

// What the calling thread, a stream's, is running; zeros: no graph.
struct Launch {
  uint32_t graph, replay;
};
extern thread_local Launch launch;

using StreamTable = HandleTable<Stream, kMaxStreams>;
StreamTable& streams();

// What the device keeps of a comm: how much work of it is queued, or runs.
struct CommWork : Malloced {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t pending;
};
// Work was queued; it has run. Of no comm: nothing.
void addPending(const Work* work);
void removePending(const Work* work);

// Puts the work into the stream's queue, or into what is being captured, and takes it over.
void submit(Stream* stream, Work* work);

// A condition that waits by the monotonic clock.
void initialize(pthread_mutex_t* mutex, pthread_cond_t* changed);
// Waits for a change until then. False: the time has passed.
bool waitUntil(pthread_cond_t* changed, pthread_mutex_t* mutex, int64_t deadlineNs);

}  // namespace railhead::client::threads

#endif  // RAILHEAD_CLIENT_DEVICE_THREADS_STREAM_H_
