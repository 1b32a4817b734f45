// A child has the parent's memory but not its control thread: a call that asks that thread would wait forever, and a rank
// would be in two processes. So its handles end, and it may connect anew. (A child that calls exec sees none of this.)
#include "base/fork.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "collectives/operation.h"
#include "comm/comm.h"
#include "ep/ep.h"
#include "session/control_thread.h"

namespace railhead::client {

namespace {

// Runs in the child before fork returns. It takes no lock and frees no memory: the parent's other threads may have been
// anywhere. Descriptors and mappings go, because they would keep a dead parent's rank and pages alive.
void inChild() {
  forgetGroup();
  epHandles().forget([](EpDispatched*) {});
  eps().forget([](Ep*) {});
  windows().forget([](Window*) {});
  comms().forget([](Comm* comm) {
    for (char* heap : comm->team.heap) {
      if (heap != nullptr) munmap(heap, comm->heapBytes);
    }
    for (Region* region : comm->regions) {
      if (region != nullptr) unmapPeers(region);
    }
    munmap(comm->control, comm->controlBytes);
    close(comm->heapFd);
    close(comm->controlFd);
  });
  sessions().forget([](Session* session) { session->closeDescriptors(); });
  forgetControlThread();
}

int registered = 0;  // an errno

}  // namespace

rh_result watchForks() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { registered = pthread_atfork(nullptr, nullptr, inChild); });
  if (registered == 0) return RH_OK;
  return fail(RH_ERR_SYSTEM, "connect: pthread_atfork: %s", strerror(registered));
}

}  // namespace railhead::client
