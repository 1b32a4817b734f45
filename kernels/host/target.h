// The CPU target: ranks are processes (or threads) that map each other's heaps.
//
// A push goes to the rank's own buffer, which every other rank reads: on coherent memory one store serves all readers,
// where a GPU would store once for each peer.
#ifndef RAILHEAD_KERNELS_HOST_TARGET_H_
#define RAILHEAD_KERNELS_HOST_TARGET_H_

#include <atomic>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "host/futex.h"
#include "host/tile.h"
#include "railhead/scratch.h"

namespace railhead::host {

// Everything a kernel needs to know of its group. Filled once by the client from what the daemon decided.
struct Team {
  int rank;
  int worldSize;
  int reduceGroup;
  uint32_t blockBytes;
  int64_t spinNs;     // a wait spins that long before it sleeps
  int64_t timeoutNs;  // of every single wait
  char* heap[kMaxWorldSize];
  const uint32_t* abortWord;  // low half of the group's abort word: 0 = the group works. Writers: daemon and ranks.
  uint64_t* waitingFor;       // this rank's report of whom it waits for; relaxed, read for error texts only
};

// Why a wait gave up.
enum class Stop { kNone, kAborted, kTimeout };

// GCC's atomics on plain integers: the words lie in memory that other processes, and for the abort word the daemon, see
// as plain integers too.
inline uint32_t loadAcquire(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

class Target {
 public:
  template <class T>
  using Tile = host::Tile<T>;

  explicit Target(const Team& team)
      : team_(team), own_(reinterpret_cast<ScratchHeader*>(team.heap[team.rank])), epoch_(own_->epoch) {}
  ~Target() { own_->epoch = epoch_; }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  int rank() const { return team_.rank; }
  int worldSize() const { return team_.worldSize; }
  int reduceGroup() const { return team_.reduceGroup; }
  size_t blockBytes() const { return team_.blockBytes; }

  uint32_t beginEpoch() { return ++epoch_; }

  template <class T>
  void push(uint32_t epoch, size_t tile, const char* src, size_t n) {
    char* slot = buffer(team_.rank, epoch) + tile * sizeof(T) * Tile<T>::kElements;
    if (n == Tile<T>::kElements) {
      memcpy(slot, src, sizeof(T) * Tile<T>::kElements);
    } else {
      memcpy(slot, src, n * sizeof(T));
    }
  }

  // Release: the buffer's bytes become visible with the flag. The full fence keeps the look at `sleepers` behind the
  // store (store-load order, which no release gives): without it a rank could fall asleep unseen.
  void publish(uint32_t epoch) {
    PublishedLine& line = own_->published;
    __atomic_store_n(&line.epoch, epoch, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&line.sleepers, __ATOMIC_RELAXED) != 0) futexWakeAll(&line.epoch);
  }

  bool await(int peer, uint32_t epoch) {
    const PublishedLine& line = header(peer)->published;
    return reached(loadAcquire(&line.epoch), epoch) || awaitSlowly(peer, epoch);
  }

  template <class T>
  Tile<T> load(const char* src, size_t n) const {
    return loadTile<T>(src, n);
  }

  template <class T>
  Tile<T> poll(int peer, uint32_t epoch, size_t tile, size_t n) const {
    return loadTile<T>(buffer(peer, epoch) + tile * sizeof(T) * Tile<T>::kElements, n);
  }

  template <class T>
  void store(char* dst, const Tile<T>& tile, size_t n) const {
    storeTile<T>(dst, tile, n);
  }

  Stop stop() const { return stop_; }
  // After kTimeout: bit r = rank r had not published the epoch this rank waited for.
  uint64_t missing() const { return missing_; }

 private:
  ScratchHeader* header(int r) const { return reinterpret_cast<ScratchHeader*>(team_.heap[r]); }
  char* buffer(int r, uint32_t epoch) const {
    return team_.heap[r] + kScratchHeaderBytes + (epoch & 1) * static_cast<size_t>(team_.blockBytes);
  }
  bool awaitSlowly(int peer, uint32_t epoch);
  bool sleepOn(PublishedLine& line, uint32_t epoch, int64_t deadlineNs);
  uint64_t behind(uint32_t epoch) const;
  bool aborted() const { return loadAcquire(team_.abortWord) != 0; }

  const Team& team_;
  ScratchHeader* own_;
  uint32_t epoch_;
  Stop stop_ = Stop::kNone;
  uint64_t missing_ = 0;
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_TARGET_H_
