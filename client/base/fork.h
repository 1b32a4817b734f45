// What the library does in a forked child. The child has the parent's memory but not its control thread. A call that asked that
// thread would wait forever, and one rank would exist in two processes. So all handles end in the child, which may connect again.
// A child that calls exec is not affected.
#ifndef RAILHEAD_CLIENT_BASE_FORK_H_
#define RAILHEAD_CLIENT_BASE_FORK_H_

#include "railhead.h"

namespace railhead::client {

// What one folder of the library does in the child before fork returns there. It takes no lock and frees no memory, because another
// thread of the parent may have held any lock at the fork. It closes descriptors and removes mappings: they would keep a dead
// parent's rank and pages alive.
struct ForkHandler {
  void (*inChild)();
  ForkHandler* next = nullptr;  // set by addForkHandler
};

// Call it once for each handler, before the handler has any state to drop.
void addForkHandler(ForkHandler* handler);

// Makes every later fork call the handlers. Idempotent.
rh_result watchForks();

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_FORK_H_
