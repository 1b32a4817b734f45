// How the host adds the kernels' counters to those of the rank (device/cuda/ep_counters.cc).
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "comm/comm.h"
#include "device/cuda/cuda_ep.h"

using namespace railhead::client;
using namespace railhead::client::cuda;
using railhead::EpCounters;

namespace {

int hurries = 0;  // each reading of the clock is a second later
int ahead = 0;    // seconds; atomic

}  // namespace

// Of the library too. Its deadlines come soon when time hurries.
extern "C" int clock_gettime(clockid_t clock, timespec* t) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, t);
  t->tv_sec += __atomic_add_fetch(&ahead, hurries, __ATOMIC_RELAXED);
  return static_cast<int>(result);
}

namespace {

Fake* fake;
const Driver* driver;

// For a minute at most. It counts pauses, since the clock may hurry.
void awaitWord(void* word) {
  for (int pauses = 0; __atomic_load_n(static_cast<int*>(word), __ATOMIC_ACQUIRE) == 0; pauses++) {
    CHECK(pauses < 600000);
    const timespec t = {0, 100000};
    nanosleep(&t, nullptr);
  }
}

// What was added since the last time is added, once.
void adds(Comm* comm, EpCounters* ofKernels, const EpCounters* ofRank) {
  ofKernels->tokens = 5;
  CHECK(count(comm, "test") == RH_OK && ofRank->tokens == 5);
  CHECK(count(comm, "test") == RH_OK && ofRank->tokens == 5);
  ofKernels->tokens = 7;
  CHECK(count(comm, "test") == RH_OK && ofRank->tokens == 7);
}

// The stream is busy beyond the deadline, so the copy runs later. The memory to which it copies must not have another owner by then.
void copiesLate(Comm* comm, EpCounters* ofKernels, const EpCounters* ofRank) {
  const CUstream stream = onCuda(comm)->context.stream;
  int end = 0;
  CHECK(driver->cuLaunchHostFunc.call(stream, awaitWord, &end) == CUDA_SUCCESS);
  ofKernels->tokens = 9;
  hurries = 1;
  CHECK(count(comm, "test") == RH_ERR_TIMEOUT && ofRank->tokens == 7);
  hurries = 0;
  auto* next = static_cast<unsigned char*>(malloc(sizeof(EpCounters)));
  memset(next, 0x5a, sizeof(EpCounters));
  __atomic_store_n(&end, 1, __ATOMIC_RELEASE);
  CHECK(driver->cuStreamSynchronize.call(stream) == CUDA_SUCCESS);
  for (size_t i = 0; i < sizeof(EpCounters); i++) CHECK(next[i] == 0x5a);
  free(next);
  CHECK(count(comm, "test") == RH_OK && ofRank->tokens == 9);
}

}  // namespace

int main() {
  static Fake hooks;
  fake = &hooks;
  driver = driverForTests();
  static Comm comm;
  static CudaComm of;
  static CudaEp ep;
  static EpCounters ofKernels, counted;
  alignas(64) static char control[sizeof(EpCounters)];
  SUCCEEDS(openContext(driver, 0, &of.context, &why));
  comm.onDevice = &of;
  comm.worldSize = 1;
  comm.localRank = LocalRank{0};
  comm.control = control;
  comm.parts.counters = {0, 1, sizeof control};
  of.eps = &ep;
  ep.common.team.counters = &ofKernels;
  ep.counted = &counted;
  {
    Failure why;
    const Current current(of.context, &why);
    const EpCounters* ofRank = countersOf(&comm, comm.localRank);
    adds(&comm, &ofKernels, ofRank);
    copiesLate(&comm, &ofKernels, ofRank);
  }
  SUCCEEDS(closeContext(&of.context, &why));
  const fake_cuda_account none = {};
  CHECK(same(none, fake->account()));
  return 0;
}
