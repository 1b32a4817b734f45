// What becomes of the library in the child of a fork.
#ifndef RAILHEAD_CLIENT_BASE_FORK_H_
#define RAILHEAD_CLIENT_BASE_FORK_H_

#include "railhead.h"

namespace railhead::client {

// Makes every later fork give the child a library without sessions. Once a process, however often it is called.
rh_result watchForks();

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_FORK_H_
