// A fiber as the scheduler sees it, and barriers of fibers.
#ifndef RAILHEAD_KERNELS_MODEL_THREADS_H_
#define RAILHEAD_KERNELS_MODEL_THREADS_H_

#include <stdint.h>

#include <functional>
#include <vector>

#include "model/fiber.h"
#include "model/memory.h"

namespace railhead::model {

struct Fiber {
  enum class State { kReady, kWaiting, kAsleep, kAtBarrier, kEnded };
  struct Read {
    int location;
    Time time;
    uint64_t hashBefore;  // the fiber's hash before the load
  };

  int number, rank, thread;
  std::function<void()> body;
  Stack* stack;
  void* sp;
  State state = State::kReady;
  Thread memory;
  uint64_t hash;
  std::vector<Read> reads;     // since the last keepWaiting()
  std::vector<Read> lastReads;  // of the previous turn: the next loads must be newer if they can
  std::vector<Read> firstTurn;  // up to the end of the wait's first turn
  std::vector<int> parkedOn;
  bool readsAgain = false;  // in the second turn of a wait
  bool justLoaded = true;  // it has only loaded since it was scheduled
  int spinsOn = -1;  // location that has just been polled without success
  Read lastRead = {-1, 0, 0};
  int stepsLeft = 0;  // until it dies; 0 = it does not die
  bool mayDie = false;  // before any step, as Choices says
  std::function<void()> atDeath;
};

// A barrier. It does not wait for threads that have ended.
struct Barrier {
  int expected = 0;
  std::vector<Fiber*> here;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_THREADS_H_
