// What the scheduler knows of a fiber, and where fibers meet.
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
  struct Look {
    int location;
    Time time;
    uint64_t hashBefore;  // of the fiber
  };

  int number, rank, thread;
  std::function<void()> body;
  Stack* stack;
  void* sp;
  State state = State::kReady;
  Thread memory;
  uint64_t hash;
  std::vector<Look> looks;     // since the last keepWaiting
  std::vector<Look> lastLooks;  // in the turn before: the next ones must be newer where they can
  std::vector<Look> firstTurn;  // ends with those of the first turn of the wait
  std::vector<int> parkedOn;
  bool looksAgain = false;  // in the second turn of a wait
  bool justLoaded = true;  // nothing but loads since it was scheduled
  int spinsOn = -1;  // a location that has just been looked at in vain
  Look lastLook = {-1, 0, 0};
  int stepsLeft = 0;  // until it dies; 0 = it does not
  std::function<void()> atDeath;
};

// Threads that meet. Those that have ended are not waited for.
struct Barrier {
  int expected = 0;
  std::vector<Fiber*> here;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_THREADS_H_
