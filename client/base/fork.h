// What becomes of the library in the child of a fork. A child has the parent's memory but not its control thread: a call that asks
// that thread would wait forever, and a rank would be in two processes. So its handles end, and it may connect anew. (A child that
// calls exec sees none of this.)
#ifndef RAILHEAD_CLIENT_BASE_FORK_H_
#define RAILHEAD_CLIENT_BASE_FORK_H_

#include "railhead.h"

namespace railhead::client {

// What a folder of the library does in the child, before fork returns there. It takes no lock and frees no memory: the parent's other
// threads may have been anywhere. Descriptors and mappings go, because they would keep a dead parent's rank and pages alive.
struct ForkHandler {
  void (*inChild)();
  ForkHandler* next = nullptr;  // set by addForkHandler
};

// Once for each handler, before there is anything to forget.
void addForkHandler(ForkHandler* handler);

// Makes every later fork call the handlers. Once a process, however often it is called.
rh_result watchForks();

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_FORK_H_
